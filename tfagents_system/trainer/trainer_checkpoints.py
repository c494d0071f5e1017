"""Checkpoints to resume from, agent, optimizers and counters, and how they are completed; and when what is saved."""

from __future__ import annotations

import collections
import dataclasses
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tensorflow as tf
from absl import logging

from tfagents_system.agents.iteration_counts import updates_of_iteration
from tfagents_system.errors import UserError
from tfagents_system.machine.files import held
from tfagents_system.role import Role
from tfagents_system.run_files import kept_checkpoints
from tfagents_system.run_files.heartbeat import TimeShares
from tfagents_system.trainer.iteration_plan import IterationPlan, Period, TrainerState
from tfagents_system.trainer.policy_export import PolicyExport
from tfagents_system.transport import tables
from tfagents_system.transport.connection import Connection

if TYPE_CHECKING:
    from tfagents_system.trainer.learner import Learner

_ASK_SECS, _LOOK_SECS = 0.2, 1.0
_ASK_AGAIN_SECS = 3.0
_POLL_SECS = 0.02
_REPLAY_SAVE_SECS = 20.0  # that the replay server may take for its part of a checkpoint
_SAVE_AGAIN_SECS = 30.0
_LAST_SAVE_AGAIN_SECS = 2.0
_WANTED_LOOK_SECS = 3.0


# Where experience decides how many updates an iteration has: of the newest 1024 the replay server knows the steps of
# each (ring.COUNTED_ITERATIONS), and the older of two kept checkpoints is to be among these.
_MOST_ITERATIONS = 400


class SaveError(Exception):
    """A checkpoint could not be written; those before it are as they were."""


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
    experience; it is waited for in a thread while training continues, and only then the checkpoint counts.

    Args:
      folder: Where they are.
      agent, state, train_step: What is saved, with the agent's optimizers, and filled in by `restore`.
      connection: To the replay server, which writes its part of them.
      record: A file elsewhere that says that there are some, see `kept_checkpoints.why_lost`.
      is_far: The server does not see this folder: it keeps its part in a checkpoint of its own.

    Attributes:
      status: Reads what the server tells of itself.
      is_server_gone: Whether nobody is to wait for its part.
    """

    def __init__(
        self,
        folder: Path,
        agent: Any,
        state: TrainerState,
        train_step: tf.Variable,
        connection: Connection,
        record: Path | None = None,
        *,
        is_far: bool = False,
    ) -> None:
        self._folder, self._record, self._state, self._train_step = folder, record, state, train_step
        self._signature = signature_of(agent)
        self._checkpoint = tf.train.Checkpoint(agent=agent, train_step=train_step, state=_SavedState(state))
        self._connection, self._is_far = connection, is_far
        self.is_server_gone: Callable[[], bool] = lambda: False
        self.status = connection.newest(tables.STATUS)
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

    def save(self, replay_secs: float, *, wait: bool) -> None:
        """Writes a checkpoint of this moment.

        Args:
          replay_secs: How long the replay server may take; after that the checkpoint is completed without its part.
          wait: Return when it is complete. Else an error of completing it is raised by the next call.

        Raises:
          SaveError: It, or the one before it, could not be written.
        """
        self.wait()
        train_step, iteration = int(self._train_step.numpy()), self._state.iteration
        further = {"env_steps": self._state.env_steps}  # For the manifest.
        try:
            partial = kept_checkpoints.begin(self._folder, train_step)
            with held(partial) as folder:
                self._checkpoint.write(str(folder / kept_checkpoints.AGENT))
        except (OSError, tf.errors.OpError) as error:
            raise SaveError(f"a checkpoint can't be written to {self._folder}: {reason_of(error)}") from error

        def finish() -> None:
            try:
                self._wait_for_replay(partial, replay_secs)
                checkpoint = kept_checkpoints.finish(partial, train_step, iteration, further, self._signature)
                if self._record is not None:
                    kept_checkpoints.remember(self._record, train_step)
                kept_checkpoints.prune(self._folder, written=checkpoint.folder)
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

    def is_wanted(self) -> bool:
        """Whether the ring is about to overwrite what older checkpoints need."""
        arrays = self.status.get(timeout_secs=_LOOK_SECS)
        return arrays is not None and tables.Stored.from_wire(arrays).checkpoint_wanted

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
                if self.is_server_gone():
                    logging.warning("%s has no part of the replay server, which has ended", partial.name)
                    return
                ask_at = now + _ASK_AGAIN_SECS
                request = tables.Snapshot(kept_checkpoints.finished_name(partial), self._is_far)
                is_asked = self._connection.try_put(tables.SNAPSHOTS, request.to_wire(), _ASK_SECS)
                if is_asked and self._is_far:
                    return  # It completes one of its own.
            time.sleep(_POLL_SECS)


class TrainerSaves:
    """Saves when it is due. A full disk is reported and tried again; it ends no training.

    A checkpoint is due in its period (with the policy of the moment), before the first update, after
    SAC_CHECKPOINT_MINUTES or hundreds of iterations without one, and where the replay server could not keep the older
    ones any longer.

    Attributes:
      error: What could not be written the last time; None where all is well.
    """

    def __init__(
        self, role: Role, learner: Learner, plan: IterationPlan, export: PolicyExport, shares: TimeShares
    ) -> None:
        self._params, self._learner, self._state, self._plan = role.params, learner, learner.state, plan
        self._export, self._shares = export, shares
        self._checkpoint_secs = 60.0 * role.variables.checkpoint_minutes
        self._deadline_secs = role.variables.save_deadline_secs
        self._period = Period.of(role.params, "checkpoint")
        self._save_at = self._look_at = 0.0
        self._saved_step = self._exported_step = -1  # Train steps of the last checkpoint and of the policies on disk.
        self._saved_iteration = 0
        self._follows_experience = updates_of_iteration(role.params) is None
        self.error: str | None = None

    def begin(self, restored: bool) -> None:
        """Training begins, from the start or from a restored checkpoint."""
        if restored:
            self._saved_step, self._exported_step = self._learner.train_step, -1
            self._saved_iteration = self._state.iteration
        self._save_at = time.monotonic() + self._checkpoint_secs

    def is_due(self) -> bool:
        """Whether something is to be saved now; the last iteration's end is saved by `save_finally`."""
        if self._state.iteration >= self._params.num_iter:
            return False
        now, iterations = time.monotonic(), self._state.iteration - self._saved_iteration
        if (
            now >= self._save_at
            or (self._follows_experience and iterations >= _MOST_ITERATIONS)
            or (self._is_period and self._learner.train_step != self._saved_step)
        ):
            return True
        if now < self._look_at:
            return False
        self._look_at = now + _WANTED_LOOK_SECS
        return self._learner.checkpoints.is_wanted()

    def save(self) -> bool:
        """Writes what is due; returns whether it could. Else it is tried again later."""
        self._saved_step, self._saved_iteration = self._learner.train_step, self._state.iteration
        try:
            with self._shares.spend("saving"):
                self._save_checkpoint(wait=False)
                if self._is_period and self._state.iteration > 0:
                    self._save_policies()
            return True
        except SaveError as error:
            self.error = str(error)
            self._save_at = time.monotonic() + _SAVE_AGAIN_SECS
            logging.error("%s. Training continues, it is tried again in %.0f s", error, _SAVE_AGAIN_SECS)
            return False

    def save_finally(self) -> None:
        """Writes all that is kept of this moment, and tries until SAC_SAVE_DEADLINE_SECS have passed.

        Raises:
          SaveError: It can't be written; the last checkpoint is as it was.
        """
        deadline = time.monotonic() + self._deadline_secs - _REPLAY_SAVE_SECS
        while True:
            try:
                with self._shares.spend("saving"):
                    self._save_checkpoint(wait=True)
                    self._save_policies()
                return
            except SaveError as error:
                if time.monotonic() >= deadline:
                    raise
                logging.error("%s: trying again", error)
                time.sleep(_LAST_SAVE_AGAIN_SECS)

    def try_to_write(self, write: Callable[[], Any]) -> None:
        """Writes what a run can do without."""
        try:
            write()
        except (OSError, tf.errors.OpError) as error:
            self.error = f"can't be written: {error}"
            logging.error("%s", self.error)

    @property
    def _is_period(self) -> bool:
        return self._plan.done == 0 and self._period.is_due(self._state)

    def _save_checkpoint(self, *, wait: bool) -> None:
        """A checkpoint to resume from."""
        self._save_at = time.monotonic() + self._checkpoint_secs
        try:
            self._learner.checkpoints.wait()
        except SaveError:  # The one before, of which nothing is on disk.
            self._state.saved_policies = self._state.saved_policies[:-1]
            raise
        state, before = self._state, self._state.saved_policies
        state.saved_policies = [*before, state.policies_in_use][-3:]  # While it is written the two before it are kept.
        try:
            self._learner.checkpoints.save(min(_REPLAY_SAVE_SECS, self._deadline_secs / 2), wait=wait)
        except SaveError:
            state.saved_policies = before
            raise
        self.error = None

    def _save_policies(self) -> None:
        """A checkpoint of the policy, and the policy as a SavedModel; once at a train step."""
        train_step, iteration = self._learner.train_step, self._state.iteration
        if train_step == self._exported_step:
            return
        try:
            name = self._export.save_checkpoint(iteration, is_periodic=True)
            self._export.save_model(iteration)
            if not (self._params.keep_policies or self._params.num_eval_episodes):
                self._export.delete_earlier(name)
        except (OSError, tf.errors.OpError) as error:
            raise SaveError(f"the policy can't be written: {reason_of(error)}") from error
        self._exported_step = train_step
        logging.info("saved at train step %d, iteration %d", train_step, iteration)


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
