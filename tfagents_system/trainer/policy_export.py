"""Writes the policy for those who use it: a SavedModel, and small checkpoints of its weights.

Building the graph of a SavedModel takes half a second of CPU time, so it is built once; afterwards its weights alone
are written, which takes milliseconds.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf
from absl import logging
from tensorflow.python.saved_model import fingerprinting_utils
from tensorflow.python.saved_model import save as saved_model_save
from tf_agents.policies import greedy_policy, policy_saver

from tfagents_system.hyperparameters import FrameStack
from tfagents_system.machine.files import held, read_json, sync_all, write_json
from tfagents_system.policies.names import MOMENT, PREFIX, checkpoint_name, fit_names, train_step_of
from tfagents_system.policies.tensorflow_policy import EnvironmentUnitsPolicy, of_single_frames
from tfagents_system.run_files.kept_checkpoints import AGENT
from tfagents_system.run_files.run_lock import may_write
from tfagents_system.run_files.run_paths import RunPaths

_MODEL = "greedy_policy"
_VARIABLES = "variables"
_FINGERPRINT = "fingerprint.pb"  # Of the graph and the weights.


class PolicyExport:
    """Writes the greedy policy of an agent under `policies/` of a run directory.

    Args:
      paths: The run directory.
      agent, train_step: That is trained, and its counter of updates, which is saved with the policy.
      actions: Nest of LeafActions.
      frame_stack: The hyperparameter; the policy on disk takes single frames.
    """

    def __init__(
        self, paths: RunPaths, agent: Any, actions: Any, train_step: tf.Variable, frame_stack: FrameStack = 1
    ) -> None:
        self._paths, self._agent, self._actions = paths, agent, actions
        self._train_step, self._frame_stack = train_step, frame_stack
        self._model = paths.policies / _MODEL
        self._weights: Any = None  # TrackableSaver, with the names that the SavedModel's graph has for them.
        self._graph_files: list[Path] = []  # Of the SavedModel, without those that depend on the weights.

    def has_model(self) -> bool:
        """Whether the SavedModel is on disk: an earlier start may have been killed while it wrote the first one."""
        return self._model.exists()

    def save_model(self, iteration: int | None = None) -> None:
        """Writes `greedy_policy`, replacing the one of before.

        The first call takes a second: it traces the policy and builds its graph. `iteration` is for `iteration_of`.
        """
        with _without_tracing_notes():
            self._make_folders()
            _write_folder(self._model, self._write_model, iteration=iteration)

    def _write_model(self, folder: Path) -> None:
        if self._weights is None or not all((self._model / file).exists() for file in self._graph_files):
            with _weights_saver_kept() as kept:
                self._saver.save(str(folder))
            files = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]
            self._graph_files = [file for file in files if file.parts[0] not in (_VARIABLES, _FINGERPRINT)]
            (self._weights,) = kept
            return
        for file in self._graph_files:
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self._model / file, folder / file)
        self._weights.save(str(folder / _VARIABLES / _VARIABLES))
        fingerprinting_utils.write_fingerprint(str(folder))

    def save_checkpoint(
        self,
        iteration: int | None = None,
        env_steps: int | None = None,
        *,
        with_agent: bool = False,
        is_periodic: bool = False,
    ) -> str:
        """Writes the weights as `policy_checkpoint_<train step>`; returns that name.

        Args:
          iteration, env_steps: Completed then, for `iteration_of`.
          with_agent: The whole agent comes with them, which another run may begin with. One that is there stays.
          is_periodic: It is one of those that are saved in any case, see the method of this name.
        """
        name = checkpoint_name(int(self._train_step.numpy()))
        self._make_folders()
        final = self._paths.policy_checkpoints / name
        if not with_agent and (final / f"{AGENT}.index").exists():
            return name  # The same weights.

        def write(folder: Path) -> None:
            self._saver.save_checkpoint(str(folder))
            if with_agent:
                tf.train.Checkpoint(agent=self._agent).write(str(folder / AGENT))

        with _without_tracing_notes():
            stays = is_periodic or self.is_periodic(name)
            _write_folder(final, write, iteration=iteration, env_steps=env_steps, is_periodic=stays)
        return name

    def delete_agent(self, name: str) -> None:
        """Leaves the policy of a checkpoint alone; see `delete_checkpoint`."""
        for path in (self._paths.policy_checkpoints / name).glob(f"{AGENT}.*") if may_write(self._paths) else ():
            path.unlink(missing_ok=True)

    def checkpoints(self) -> list[str]:
        """The checkpoints on disk, by train step."""
        names = [path.name for path in self._paths.policy_checkpoints.glob(f"{PREFIX}*")]
        return sorted(name for name in names if train_step_of(name) is not None)

    def has_checkpoint(self, name: str) -> bool:
        """Whether that checkpoint is on disk."""
        return (self._paths.policy_checkpoints / name).exists()

    def is_periodic(self, name: str) -> bool:
        """Whether that checkpoint was due by a period, and not written for its evaluation alone."""
        return bool((read_json(self._paths.policy_checkpoints / name / MOMENT) or {}).get("is_periodic"))

    def mark_best(self, best: Mapping[str, Any] | None) -> None:
        """Writes best.json: `checkpoint` names the best one, the rest says what it is like; None removes it."""
        if best is None:
            self._paths.best_json.unlink(missing_ok=True)
            return
        write_json(self._paths.best_json, best, indent=1)

    def delete_checkpoint(self, name: str) -> None:
        """Removes a checkpoint. Where another start has taken the run directory over, it is of that one and stays."""
        if may_write(self._paths):
            shutil.rmtree(self._paths.policy_checkpoints / name, ignore_errors=True)

    def delete_later(self, train_step: int) -> None:
        """Removes the checkpoints of later train steps: the run continues from this one, and their rows are gone."""
        for name in self.checkpoints():
            if (train_step_of(name) or 0) > train_step:
                self.delete_checkpoint(name)

    def delete_earlier(self, name: str) -> None:
        """Removes the checkpoints before this one."""
        for earlier in self.checkpoints():
            if earlier < name:
                self.delete_checkpoint(earlier)

    def _make_folders(self) -> None:
        for folder in (self._paths.policies, self._paths.policy_checkpoints):
            folder.mkdir(exist_ok=True)  # No parents: a run directory that was moved away may be put back.

    @functools.cached_property
    def _saver(self) -> policy_saver.PolicySaver:
        policy = of_single_frames(greedy_policy.GreedyPolicy(self._agent.policy), self._frame_stack)
        in_units = EnvironmentUnitsPolicy(policy, self._actions)
        with _fit_names_in_signatures():
            return policy_saver.PolicySaver(in_units, batch_size=None, train_step=self._train_step)


@contextlib.contextmanager
def _weights_saver_kept() -> Iterator[list[Any]]:
    """Yields a list that gets the TrackableSaver of each SavedModel written in the block: TensorFlow drops them."""
    build, kept = saved_model_save._build_meta_graph, list[Any]()

    def build_and_keep(*args: Any, **kwargs: Any) -> Any:
        built = build(*args, **kwargs)
        kept.append(built[2])
        return built

    saved_model_save._build_meta_graph = build_and_keep
    try:
        yield kept
    finally:
        saved_model_save._build_meta_graph = build


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


def _write_folder(final: Path, write: Callable[[Path], None], **moment: int | None) -> None:
    """Lets `write` fill a folder beside `final`, adds the moment as far as it is known, then puts it in its place."""
    temporary, before = (final.with_name(f".{final.name}.{suffix}") for suffix in ("tmp", "before"))
    for leftover in (temporary, before):
        shutil.rmtree(leftover, ignore_errors=True)
    temporary.mkdir()
    with held(temporary) as folder:
        write(folder)
        if known := {name: value for name, value in moment.items() if value is not None}:
            write_json(folder / MOMENT, known)
        sync_all(folder)
    if final.exists():
        os.replace(final, before)
    os.replace(temporary, final)
    shutil.rmtree(before, ignore_errors=True)
