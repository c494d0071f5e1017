"""Checkpoints of policies that were evaluated: marks the best one and deletes those that are no longer needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from absl import logging

from tfagents_system.policies.checkpoint_names import checkpoint_name
from tfagents_system.train_params_base import TrainParamsBase
from tfagents_system.trainer.best_policy import BestPolicies
from tfagents_system.trainer.periods import Period
from tfagents_system.trainer.policy_export import PolicyExport
from tfagents_system.trainer.saves import TrainerSaves
from tfagents_system.trainer.trainer_checkpoints import TrainerState


class EvaluatedCheckpoints:
    """Each policy that is to be evaluated has a checkpoint until more is known.

    Args:
      params: The user's TrainParams.
      state: Of the trainer; holds which is the best.
      export: Writes and deletes them.
      saves: Tries to write.
      is_last: Whether a policy of that iteration is the result of the run.
      begins_trained: Whether the agent of iteration 0 was given or has learned offline. Without it that one, random
        weights, has no checkpoint.
      edits: How often the run has taken edited files; what is best begins anew with each.
    """

    def __init__(
        self,
        params: TrainParamsBase,
        state: TrainerState,
        export: PolicyExport,
        saves: TrainerSaves,
        is_last: Callable[[int], bool],
        begins_trained: bool = False,
        edits: int = 0,
    ) -> None:
        self._params = params
        self._period = Period.of(params, "checkpoint")
        self._state = state
        self._export = export
        self._saves = saves
        self._is_last = is_last
        self._first_iteration = 0 if begins_trained else 1
        self._best = BestPolicies(params, state, edits)
        self._has_warned = False

    def write(self, iteration: int) -> None:
        """Writes the one of the present policy, before its evaluation."""
        if self._period.env_steps is not None and self._period.is_due(self._state):
            self._state.periodic.append(iteration)
        if iteration >= self._first_iteration:
            self._saves.try_to_write(lambda: self._export.save_checkpoint(iteration))

    def take(self, iteration: int, train_step: int, summary: Mapping[str, float]) -> None:
        """The evaluation is over, with these columns of metrics."""
        self._warn_without_success(summary)
        name = checkpoint_name(train_step)
        if iteration < self._first_iteration or not self._export.has_checkpoint(name):
            return
        replaced: tuple[str | None, int] = name, iteration
        if self._best.is_best(summary, iteration):
            replaced = self._best.take(summary, iteration, name)
            self._saves.try_to_write(lambda: self._export.mark_best(self._best.to_json()))
        self._delete_unless_needed(*replaced)

    def give_up(self, iteration: int, train_step: int) -> None:
        """There will be no evaluation."""
        self._delete_unless_needed(checkpoint_name(train_step), iteration)

    def _delete_unless_needed(self, name: str | None, iteration: int) -> None:
        """Those made only to be evaluated go when they are not the best; the first stays, to be compared with."""
        if self._best.is_kept(name):
            return  # Also where there were no updates between two evaluations: both have this name.
        if name is None or self._is_periodic(iteration) or self._is_last(iteration) or self._export.is_first(name):
            return
        self._export.delete_checkpoint(name)

    def _is_periodic(self, iteration: int) -> bool:
        if self._period.env_steps is not None:
            return iteration in self._state.periodic
        return iteration % self._period.iterations == 0

    def _warn_without_success(self, summary: Mapping[str, float]) -> None:
        """Once in a start: an environment may tell of a success only where there is one."""
        wants = self._params.best_metric == "success" or "eval_success" in (self._params.stop_when or {})
        if wants and summary and "eval_success" not in summary and not self._has_warned:
            self._has_warned = True
            logging.warning(
                "best_metric='success' or stop_when's eval_success needs an environment that tells of success, and no "
                "episode of this evaluation did: report is_success or success in the info of each episode's last step. "
                "Until then the return decides which policy is best, and eval_success ends no run"
            )
