"""When the trainer writes what: checkpoints to resume from, and policies to act with."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf
from absl import logging

from tfagents_system.agents.iteration_counts import updates_of_iteration
from tfagents_system.run_files.heartbeat import TimeShares
from tfagents_system.settings.variables import RunVariables
from tfagents_system.train_params_base import TrainParamsBase
from tfagents_system.trainer.iteration_plan import IterationPlan
from tfagents_system.trainer.periods import Period
from tfagents_system.trainer.policy_export import PolicyExport
from tfagents_system.trainer.trainer_checkpoints import SaveError, TrainerCheckpoints, TrainerState, reason_of

_REPLAY_SAVE_SECS = 20.0  # that the replay server may take for its part of a checkpoint
_SAVE_AGAIN_SECS = 30.0
_LAST_SAVE_AGAIN_SECS = 2.0
_LOOK_SECS = 3.0
# Where experience decides how many updates an iteration has: of the newest 1024 the replay server knows the steps of
# each (ring_header.COUNTED_ITERATIONS), and the older of two kept checkpoints is to be among these.
_MOST_ITERATIONS = 400


class TrainerSaves:
    """Saves when it is due. A full disk is reported and tried again; it ends no training.

    Args:
      params: Of the run.
      state, plan: How far training is.
      train_step: Updates done since it began.
      checkpoints: What it resumes from.
      export: The policies on disk.
      shares: Get the time that is spent.

    Attributes:
      error: What could not be written the last time; None where all is well.
    """

    def __init__(
        self,
        params: TrainParamsBase,
        variables: RunVariables,
        state: TrainerState,
        plan: IterationPlan,
        train_step: Callable[[], int],
        checkpoints: TrainerCheckpoints,
        export: PolicyExport,
        shares: TimeShares,
    ) -> None:
        self._params, self._state, self._plan, self._train_step = params, state, plan, train_step
        self._checkpoints, self._export, self._shares = checkpoints, export, shares
        self._checkpoint_secs = 60.0 * variables.checkpoint_minutes
        self._deadline_secs = variables.save_deadline_secs
        self._period = Period.of(params, "checkpoint")
        self._save_at = self._look_at = 0.0
        self._saved_step = -1  # Train step of the last checkpoint.
        self._replaced = frozenset(state.replaced)  # As the newest complete checkpoint has them.
        self._saved_iteration = 0
        self._follows_experience = updates_of_iteration(params) is None
        self._exported_step = -1  # Train step of the policies on disk.
        self.error: str | None = None

    def begin(self, restored: bool) -> None:
        """Training begins, from the start or from a restored checkpoint."""
        if restored:
            self._saved_step, self._exported_step = self._train_step(), -1
            self._saved_iteration = self._state.iteration
        self._save_at = time.monotonic() + self._checkpoint_secs

    def save_if_due(self, further: Mapping[str, Any], is_wanted: Callable[[], bool], tell: Callable[[], None]) -> bool:
        """All of it once in a checkpoint's period; a checkpoint also before the first update, after
        SAC_CHECKPOINT_MINUTES or hundreds of iterations without one, and where the replay server could not keep the
        older ones any longer.

        Args:
          further: For people who read the checkpoint's manifest.
          is_wanted: Whether the replay server wants one; asked now and then.
          tell: Called before all of it is written.

        Returns:
          Whether it has written a checkpoint.
        """
        iteration, train_step = self._state.iteration, self._train_step()
        is_period = self._plan.done == 0 and self._period.is_due(self._state)
        is_due = (
            time.monotonic() >= self._save_at
            or (is_period and train_step != self._saved_step)
            or (self._follows_experience and iteration - self._saved_iteration >= _MOST_ITERATIONS)
            or (self._is_time_to_look() and is_wanted())
        )
        if not is_due or iteration >= self._params.num_iter:
            return False
        self._saved_step, self._saved_iteration = train_step, iteration
        try:
            if is_period and iteration > 0:
                self._save_all(further, tell, wait=False)
            else:
                with self._shares.spend("saving"):
                    self._save_checkpoint(further, wait=False)
            return True
        except SaveError as error:
            self.error = str(error)
            self._save_at = time.monotonic() + _SAVE_AGAIN_SECS
            logging.error("%s. Training goes on, it is tried again in %.0f s", error, _SAVE_AGAIN_SECS)
            return False

    def save_finally(self, further: Mapping[str, Any], tell: Callable[[], None]) -> None:
        """Writes all that is kept of this moment, and tries until SAC_SAVE_DEADLINE_SECS have passed.

        Args:
          further, tell: As of `save_if_due`.

        Raises:
          SaveError: It can't be written; the last checkpoint is as it was.
        """
        deadline = time.monotonic() + self._deadline_secs - _REPLAY_SAVE_SECS
        while True:
            try:
                self._save_all(further, tell, wait=True)
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

    def _save_all(self, further: Mapping[str, Any], tell: Callable[[], None], wait: bool) -> None:
        """Writes a checkpoint to resume from, one of the policy, and the policy as a SavedModel."""
        with self._shares.spend("saving"):
            tell()
            self._save_checkpoint(further, wait)
            self._save_policies()
        logging.info("saved at train step %d, iteration %d", self._train_step(), self._state.iteration)

    def _save_checkpoint(self, further: Mapping[str, Any], wait: bool) -> None:
        self._save_at = time.monotonic() + self._checkpoint_secs
        state, replay_secs = self._state, min(_REPLAY_SAVE_SECS, self._deadline_secs / 2)
        state.replaced = [name for name in state.replaced if self._export.has_checkpoint(name)]
        replaced = frozenset(state.replaced)

        def delete_replaced() -> None:
            """Those that neither this checkpoint nor the one before it, which is kept, names as the best."""
            for name in replaced & self._replaced:
                self._export.delete_checkpoint(name)
            self._replaced = replaced

        self._checkpoints.save(replay_secs, further, delete_replaced, wait=wait)
        self.error = None

    def _save_policies(self) -> None:
        """Once at a train step: after the last evaluation they are still the same."""
        train_step = self._train_step()
        if train_step == self._exported_step:
            return
        try:
            name = self._export.save_checkpoint(self._state.iteration)
            self._export.save_model(self._state.iteration)
            if not (self._params.keep_policies or self._params.num_eval_episodes):
                self._export.delete_earlier(name)
        except (OSError, tf.errors.OpError) as error:
            raise SaveError(f"the policy can't be written: {reason_of(error)}") from error
        self._exported_step = train_step

    def _is_time_to_look(self) -> bool:
        if time.monotonic() < self._look_at:
            return False
        self._look_at = time.monotonic() + _LOOK_SECS
        return True
