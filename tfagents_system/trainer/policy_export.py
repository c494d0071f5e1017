"""Writes policies for those who use them: SavedModels, and small checkpoints of their weights."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf
from absl import logging
from tf_agents.policies import greedy_policy, policy_saver

from tfagents_system.checks.frame_stacks import FrameStack
from tfagents_system.machine.files import held, write_json
from tfagents_system.policies.environment_policies import EnvironmentUnitsPolicy, of_single_frames
from tfagents_system.policies.names import MOMENT, PREFIX, checkpoint_name, fit_names, train_step_of
from tfagents_system.run_files.kept_checkpoints import AGENT
from tfagents_system.run_files.run_lock import may_write
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.trainer.saved_models import SavedModelWriter

_MODELS = ("collect_policy", "greedy_policy", "policy")


class PolicyExport:
    """Writes the policies of an agent under `policies/` of a run directory.

    Args:
      paths: The run directory.
      agent: The agent that is trained.
      actions: Nest of LeafActions.
      train_step: The agent's counter of updates; saved with every policy.
      frame_stack: The hyperparameter; the policies on disk take single frames.
    """

    def __init__(
        self,
        paths: RunPaths,
        agent: Any,
        actions: Any,
        train_step: tf.Variable,
        frame_stack: FrameStack = 1,
    ) -> None:
        self._paths = paths
        self._agent = agent
        self._actions = actions
        self._train_step = train_step
        self._frame_stack = frame_stack
        self._policies: dict[str, _Policy] = {}

    def has_models(self) -> bool:
        """Whether all SavedModels are on disk: an earlier start may have been killed while it wrote the first ones."""
        return all((self._paths.policies / name).exists() for name in _MODELS)

    def save_models(self, iteration: int | None = None) -> None:
        """Writes `collect_policy`, `greedy_policy` and `policy`, replacing those of before.

        The first call takes a few seconds: it traces each policy and builds its graph.

        Args:
          iteration: Iterations completed, for `iteration_of`.
        """
        with _without_tracing_notes():
            for name, policy in self._all_policies().items():
                final = self._paths.policies / name
                _write_folder(final, policy.model.save, iteration)
                policy.model.moved_to(final)

    def save_checkpoint(
        self, iteration: int | None = None, env_steps: int | None = None, *, with_agent: bool = False
    ) -> str:
        """Writes the weights as `policy_checkpoint_<train step>`; returns that name.

        Args:
          iteration: Iterations completed, for `iteration_of`.
          env_steps: Environment steps then.
          with_agent: The whole agent comes with them, which another run may begin with. One that is there stays.
        """
        name = checkpoint_name(int(self._train_step.numpy()))
        saver = self._all_policies()["policy"].saver
        final = self._paths.policy_checkpoints / name
        if not with_agent and (final / f"{AGENT}.index").exists():
            return name  # The same weights.

        def write(folder: Path) -> None:
            saver.save_checkpoint(str(folder))
            if with_agent:
                tf.train.Checkpoint(agent=self._agent).write(str(folder / AGENT))

        with _without_tracing_notes():
            _write_folder(final, write, iteration, env_steps)
        return name

    def delete_agent(self, name: str) -> None:
        """Leaves the policy of a checkpoint alone."""
        for path in (self._paths.policy_checkpoints / name).glob(f"{AGENT}.*"):
            path.unlink(missing_ok=True)

    def has_checkpoint(self, name: str) -> bool:
        """Whether that checkpoint is on disk."""
        return (self._paths.policy_checkpoints / name).exists()

    def is_first(self, name: str) -> bool:
        """Whether it is the oldest checkpoint on disk."""
        return name == min(path.name for path in self._paths.policy_checkpoints.glob(f"{PREFIX}*"))

    def mark_best(self, best: Mapping[str, Any] | None) -> None:
        """Writes best.json: `checkpoint` names the best one, the rest says what it is like; None removes it."""
        if best is None:
            self._paths.best_json.unlink(missing_ok=True)
            return
        write_json(self._paths.best_json, best, indent=1)

    def delete_checkpoint(self, name: str) -> None:
        """Removes a checkpoint that was only kept until its evaluation was known."""
        shutil.rmtree(self._paths.policy_checkpoints / name, ignore_errors=True)

    def delete_later(self, train_step: int) -> None:
        """Removes the checkpoints of later train steps: the run goes on from this one, and its rows of these are gone.

        Where another start has taken the run directory over, they are of that one.
        """
        names = [path.name for path in self._paths.policy_checkpoints.glob(f"{PREFIX}*")]
        later = [name for name in names if (step := train_step_of(name)) is not None and step > train_step]
        for name in later if may_write(self._paths) else []:
            self.delete_checkpoint(name)

    def delete_earlier(self, name: str) -> None:
        """Removes the checkpoints before this one."""
        earlier = [path for path in self._paths.policy_checkpoints.glob(f"{PREFIX}*") if path.name < name]
        for path in earlier:
            shutil.rmtree(path, ignore_errors=True)

    def _all_policies(self) -> dict[str, _Policy]:
        if not self._policies:
            for folder in (self._paths.policies, self._paths.policy_checkpoints):
                folder.mkdir(exist_ok=True)  # No parents: a run directory that was moved away may be put back.
            agent = self._agent
            policies = (agent.collect_policy, greedy_policy.GreedyPolicy(agent.policy), agent.policy)
            made: dict[int, _Policy] = {}  # SAC collects with its policy: that one is traced once.
            for name, policy in zip(_MODELS, policies, strict=True):
                if id(policy) not in made:
                    in_units = EnvironmentUnitsPolicy(of_single_frames(policy, self._frame_stack), self._actions)
                    with _fit_names_in_signatures():
                        saver = policy_saver.PolicySaver(in_units, batch_size=None, train_step=self._train_step)
                    made[id(policy)] = _Policy(saver, SavedModelWriter(saver))
                self._policies[name] = made[id(policy)]
        return self._policies


@dataclasses.dataclass(frozen=True)
class _Policy:
    """A traced policy, and what writes it as a SavedModel."""

    saver: policy_saver.PolicySaver
    model: SavedModelWriter


@contextlib.contextmanager
def _fit_names_in_signatures() -> Iterator[None]:
    """PolicySaver names the arrays of a signature by their paths; TensorFlow does not take all characters of these."""
    by_paths = policy_saver.rename_spec_with_nest_paths

    def fit(nest: Any) -> Any:
        leaves = tf.nest.flatten(by_paths(nest))
        names = fit_names([leaf.name for leaf in leaves], also_allowed="/.-")
        named = [tf.TensorSpec(leaf.shape, leaf.dtype, name) for leaf, name in zip(leaves, names, strict=True)]
        return tf.nest.pack_sequence_as(nest, named)

    policy_saver.rename_spec_with_nest_paths = fit
    try:
        yield
    finally:
        policy_saver.rename_spec_with_nest_paths = by_paths


@contextlib.contextmanager
def _without_tracing_notes() -> Iterator[None]:
    """TensorFlow and TF-Agents tell about every function that they do not save."""
    before = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)
    try:
        yield
    finally:
        logging.set_verbosity(before)


def _write_folder(
    final: Path, write: Callable[[Path], None], iteration: int | None, env_steps: int | None = None
) -> None:
    """Lets `write` fill a folder beside `final`, adds the moment, then puts it in its place."""
    temporary, before = (final.with_name(f".{final.name}.{suffix}") for suffix in ("tmp", "before"))
    for leftover in (temporary, before):
        shutil.rmtree(leftover, ignore_errors=True)
    temporary.mkdir()
    with held(temporary) as folder:
        write(folder)
        if iteration is not None:
            moment = {"iteration": iteration, **({} if env_steps is None else {"env_steps": env_steps})}
            write_json(folder / MOMENT, moment)
    if final.exists():
        os.replace(final, before)
    os.replace(temporary, final)
    shutil.rmtree(before, ignore_errors=True)
