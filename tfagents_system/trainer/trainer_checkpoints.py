"""The trainer's part of a checkpoint, agent, optimizers and counters, and how it is completed."""

from __future__ import annotations

import collections
import dataclasses
import json
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf
from absl import logging

from tfagents_system.errors import UserError
from tfagents_system.machine.files import held
from tfagents_system.run_files import kept_checkpoints

_ASK_AGAIN_SECS = 3.0
_POLL_SECS = 0.02


class SaveError(Exception):
    """A checkpoint could not be written; those before it are as they were."""


@dataclasses.dataclass
class TrainerState:
    """What the trainer knows in addition to the agent's variables.

    Attributes:
      iteration: Iterations completed.
      iteration_start: Train step at which the current iteration began.
      env_steps: Environment steps of the run, as the newest block has counted them.
      best_eval_return: Mean return of the best evaluation of the present stage; None before the first.
      best_eval_success: Its success rate; None where the environment reports none.
      best_checkpoint: Name of the policy checkpoint that reached it.
      best_iteration: Iterations completed then.
      best_stage: Values of the curriculum that it was evaluated with.
      end_env_steps, earlier_end_env_steps: `env_steps` when the last iteration ended, and when the one before it did.
      periodic: Iterations whose evaluated policies were also due by `checkpoint_period_env_steps`.
      evaluations: Rows of evaluations in metrics.csv that all of this follows from.
      replaced: Policy checkpoints that were the best and are not needed: deleted once two checkpoints in a row, as many
        as are kept, have them here.
      ended_early: Why the run ends before its last iteration, where it does.
      ended_for: The settings for which it does, as `settings_of_end` has them.
      recoveries: How often training diverged and went back to a checkpoint; random numbers depend on it.
      network_resets: How often networks were drawn anew.
      policy_steps, end_policy_steps: Environment steps after the first random ones, as the newest block has counted
        them; and when the last iteration ended.
      ratio, ratio_offset: Updates per step that the run has now; and updates that count as done beside those that are,
        since the ratio was another one before.
      least_ratio: `min_updates_per_env_step` that the run has now.
      paced_from_update, paced_from_step: Updates and policy steps at which it got these two ratios.
      matmul_precision: What `auto` has chosen at the first start; None before that.
    """

    iteration: int = 0
    env_steps: int = 0
    best_eval_return: float | None = None
    best_checkpoint: str | None = None
    recoveries: int = 0
    iteration_start: int = 0
    best_iteration: int = 0
    best_eval_success: float | None = None
    best_stage: dict[str, int | float] | None = None
    ended_early: str | None = None
    ended_for: str | None = None
    matmul_precision: str | None = None
    evaluations: int = 0
    replaced: list[str] = dataclasses.field(default_factory=list)
    end_env_steps: int = 0
    earlier_end_env_steps: int = -1
    network_resets: int = 0
    policy_steps: int = 0
    end_policy_steps: int = 0
    ratio: float | None = None
    ratio_offset: int = 0
    least_ratio: float | None = None
    paced_from_update: int = 0
    paced_from_step: int = 0
    periodic: list[int] = dataclasses.field(default_factory=list)


class _SavedState(tf.train.experimental.PythonState):
    def __init__(self, state: TrainerState) -> None:
        super().__init__()
        self.state = state

    def serialize(self) -> str:
        return json.dumps(dataclasses.asdict(self.state))

    def deserialize(self, string_value: bytes) -> None:
        for name, value in json.loads(string_value).items():
            setattr(self.state, name, value)


class TrainerCheckpoints:
    """Saves and restores; keeps the last two good ones.

    What belongs to the agent is written at once. The replay server's part takes longer where there is much new
    experience; it is waited for in a thread while training goes on, and only then the checkpoint counts.

    Args:
      folder: Where they are.
      agent: A TFAgent; its optimizers are saved with it.
      state: Saved with it, and filled in by `restore`.
      train_step: The agent's counter of updates.
      ask_for_replay: Asks the replay server for its part of the checkpoint with this name; it may be asked again.
      fetch_replay: That part, once it has come from a replay server that does not see the folder and can't write it
        there; None before, and where it does.
      record: A file elsewhere that says that there are some, see `kept_checkpoints.why_lost`.
    """

    def __init__(
        self,
        folder: Path,
        agent: Any,
        state: TrainerState,
        train_step: tf.Variable,
        ask_for_replay: Callable[[str], None],
        *,
        fetch_replay: Callable[[str], bytes | None] = lambda name: None,
        record: Path | None = None,
    ) -> None:
        self._folder, self._record = folder, record
        self._signature = signature_of(agent)
        self._checkpoint = tf.train.Checkpoint(agent=agent, train_step=train_step, state=_SavedState(state))
        self._state = state
        self._train_step = train_step
        self._ask_for_replay, self._fetch_replay = ask_for_replay, fetch_replay
        self._finishing: threading.Thread | None = None
        self._error: OSError | None = None

    def restore(self) -> kept_checkpoints.Checkpoint | None:
        """Loads the newest complete checkpoint; None where there is none.

        Raises:
          UserError: What is there is of another agent, or none of it is whole.
          OSError: One can't be read now.
        """
        newest = kept_checkpoints.newest_complete(self._folder, with_agent=True)
        if newest is None:
            if reason := kept_checkpoints.why_lost(self._folder, self._record):
                raise UserError(reason)
            return None
        if reason := kept_checkpoints.why_not_of(newest, self._signature):
            raise UserError(reason)
        # Slot variables of the optimizers come into being with the first update and are restored then.
        try:
            self._checkpoint.read(str(newest.agent)).assert_existing_objects_matched()
        except (AssertionError, ValueError):  # What the signature does not tell.
            raise UserError(
                f"{newest.folder} and TrainParams have different agents: {kept_checkpoints.REMEDY_FOR_ANOTHER_AGENT}"
            ) from None
        return newest

    def save(
        self,
        replay_secs: float,
        further: Mapping[str, Any],
        when_complete: Callable[[], None] = lambda: None,
        *,
        wait: bool,
    ) -> None:
        """Writes a checkpoint of this moment.

        Args:
          replay_secs: How long the replay server may take; after that the checkpoint is completed without its part.
          further: For people who read the manifest.
          when_complete: Called then, in that thread.
          wait: Return when it is complete. Else an error of completing it is raised by the next call.

        Raises:
          SaveError: It, or the one before it, could not be written.
        """
        self.wait()
        train_step, iteration = int(self._train_step.numpy()), self._state.iteration
        try:
            partial = kept_checkpoints.begin(self._folder, train_step)
            with held(partial) as folder:
                self._checkpoint.write(str(folder / kept_checkpoints.AGENT))
        except (OSError, tf.errors.OpError) as error:
            raise SaveError(f"a checkpoint can't be written to {self._folder}: {reason_of(error)}") from error

        def finish() -> None:
            try:
                self._wait_for_replay(partial, replay_secs)
                found = kept_checkpoints.finish(partial, train_step, iteration, further, self._signature)
                if self._record is not None:
                    kept_checkpoints.remember(self._record, train_step)
                kept_checkpoints.prune(self._folder, written=found.folder)
                when_complete()
            except OSError as error:
                self._error = error

        self._finishing = threading.Thread(target=finish, name="finish checkpoint", daemon=True)
        self._finishing.start()
        if wait:
            self.wait()

    def wait(self) -> None:
        """Waits until the last checkpoint is complete.

        Raises:
          SaveError: It could not be written.
        """
        if self._finishing is not None:
            self._finishing.join()
            self._finishing = None
        if self._error is not None:
            error, self._error = self._error, None
            raise SaveError(f"a checkpoint can't be written to {self._folder}: {reason_of(error)}") from error

    def _wait_for_replay(self, partial: Path, secs: float) -> None:
        """Asks now and then: a replay server that was restarted has forgotten it."""
        deadline, ask_at = time.monotonic() + secs, 0.0
        while not (partial / kept_checkpoints.REPLAY).exists():
            now = time.monotonic()
            if now >= deadline:
                logging.warning(
                    "%s has no part of the replay server, which did not answer within %.0f s", partial.name, secs
                )
                return
            if now >= ask_at:
                ask_at = now + _ASK_AGAIN_SECS
                self._ask_for_replay(kept_checkpoints.finished_name(partial))
            if (part := self._fetch_replay(kept_checkpoints.finished_name(partial))) is not None:
                (partial / kept_checkpoints.REPLAY).write_bytes(part)  # `finish` syncs it.
            time.sleep(_POLL_SECS)


def signature_of(agent: Any) -> kept_checkpoints.AgentSignature:
    """Of an agent that has not been trained yet: optimizers get their variables with the first update."""
    shapes = ["x".join(map(str, variable.shape)) or "scalar" for variable in agent.variables]
    signature: dict[str, str | int] = {
        "class": type(agent).__name__,
        **dict(sorted(collections.Counter(shapes).items())),
    }
    if hasattr(agent, "reward_scale"):
        signature[kept_checkpoints.REWARD_SCALE] = "the standard deviation of returns"
    return signature


def reason_of(error: Exception) -> str:
    """`No space left on device`, for errors of the system and of TensorFlow."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    # `{{function_node ...}} PATH; No space left on device [Op:SaveV2]`
    return str(getattr(error, "message", error)).splitlines()[0].rpartition("; ")[2].partition(" [Op:")[0]
