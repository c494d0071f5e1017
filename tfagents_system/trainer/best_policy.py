"""Which policy is the best one, and which checkpoints of evaluated policies are kept for it: others are deleted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from absl import logging

from tfagents_system.envs.curriculum import EvaluatedTask
from tfagents_system.policies.names import checkpoint_name
from tfagents_system.train_params_base import TrainParamsBase
from tfagents_system.trainer.early_end import rank
from tfagents_system.trainer.policy_export import PolicyExport
from tfagents_system.trainer.state import Period, TrainerState
from tfagents_system.trainer.trainer_checkpoints import TrainerSaves


class EvaluatedCheckpoints:
    """Each policy that is to be evaluated has a checkpoint until more is known; `begin` comes first.

    The best policy is that of the best evaluation of the newest stage, which begins with values of the curriculum.
    Returns on another task say nothing of the present one, so the first policy of a new stage is the best one.

    After a kill the trainer's checkpoint, metrics.csv, best.json and the policies on disk are of different moments.
    `begin` brings them together: the trainer's state of the checkpoint counts, and then the evaluations that only
    metrics.csv has; policies of later train steps are deleted, as their rows are. A best policy that was replaced stays
    on disk until both checkpoints that are kept know its successor, so what the state of either names is there.

    Args:
      params: The user's TrainParams.
      state: Of the trainer; holds which is the best.
      export: Writes and deletes them.
      saves: Tries to write.
      is_last: Whether a policy of that iteration is the result of the run.
      begins_trained: Whether the agent of iteration 0 was given or has learned offline. Without it that one, random
        weights, has no checkpoint.
    """

    def __init__(
        self,
        params: TrainParamsBase,
        state: TrainerState,
        export: PolicyExport,
        saves: TrainerSaves,
        is_last: Callable[[int], bool],
        begins_trained: bool = False,
    ) -> None:
        self._params = params
        self._task = EvaluatedTask(params.env_config, params.num_iter)
        self._period = Period.of(params, "checkpoint")
        self._state = state
        self._export = export
        self._saves = saves
        self._is_last = is_last
        self._first_iteration = 0 if begins_trained else 1
        self._has_warned = False

    def begin(self, rows: Sequence[Mapping[str, Any]], train_step: int) -> None:
        """A start of the trainer, or going back.

        Args:
          rows: Those of metrics.csv that count, oldest first, up to the checkpoint's train step.
          train_step: That one; -1 where there is no checkpoint.
        """
        state = self._state
        self._saves.try_to_write(lambda: self._export.delete_later(train_step))
        evaluations = [row for row in rows if row.get("eval_return") is not None]
        if state.best is not None and not self._export.has_checkpoint(state.best["checkpoint"]):
            logging.warning(
                "the best policy %s is gone: the next one that is evaluated counts", state.best["checkpoint"]
            )
            state.best = None
        for row in evaluations[state.evaluations :]:
            self._sort_out(row)
        state.evaluations = len(evaluations)
        state.replaced = [name for name in state.replaced if not self._is_best(name)]
        self._mark_best()

    def write(self, iteration: int) -> None:
        """Writes the one of the present policy, before its evaluation."""
        if iteration >= self._first_iteration:
            is_periodic = self._period.is_due(self._state)
            self._saves.try_to_write(
                lambda: self._export.save_checkpoint(
                    iteration, self._state.end_env_steps, with_agent=True, is_periodic=is_periodic
                )
            )

    def take(self, row: Mapping[str, Any]) -> None:
        """The evaluation is over, with this row of metrics, as it is written."""
        if row.get("eval_return") is None:  # It is no finite number.
            self._delete_unless_needed(*_policy_of(row))
            return
        self._warn_without_success(row)
        self._state.evaluations += 1
        if self._sort_out(row):
            self._mark_best()

    def give_up(self, iteration: int, train_step: int) -> None:
        """There will be no evaluation."""
        self._delete_unless_needed(iteration, checkpoint_name(train_step))

    def _sort_out(self, row: Mapping[str, Any]) -> bool:
        """What becomes of an evaluated policy, and of the one that it replaces; whether it is the best one now."""
        iteration, name = _policy_of(row)
        if iteration < self._first_iteration or not self._export.has_checkpoint(name):
            return False
        replaced, stage = self._state.best, self._task.stage(iteration)
        metric = self._params.best_metric
        if replaced is not None and stage == replaced["curriculum"] and rank(row, metric) <= rank(replaced, metric):
            self._delete_unless_needed(iteration, name)
            return False
        if faults := row.get("eval_faults"):
            logging.warning(
                "the policy of iteration %d is the best one, but a fault ended %d of its %d episodes",
                *(iteration, faults, row["eval_episodes"]),
            )
        self._state.best = {
            "checkpoint": name,
            "eval_return": row["eval_return"],
            "eval_success": row.get("eval_success"),
            "iteration": iteration,
            "curriculum": stage,
            "metric": metric,
        }
        if replaced is not None and not self._is_needed(replaced["iteration"], replaced["checkpoint"]):
            self._state.replaced.append(replaced["checkpoint"])
        return True

    def _delete_unless_needed(self, iteration: int, name: str) -> None:
        """Random weights, and what could not be written, are not there. What stays is acted with, not trained on."""
        if not self._export.has_checkpoint(name):
            return
        if not self._is_needed(iteration, name):
            self._export.delete_checkpoint(name)
        elif not self._is_best(name):
            self._export.delete_agent(name)

    def _is_needed(self, iteration: int, name: str) -> bool:
        """Those made only to be evaluated go when they are not the best; the first stays, to be compared with."""
        # Where there were no updates between two evaluations both policies have one name.
        is_kept = self._is_best(name) or self._export.is_periodic(name)
        return is_kept or self._is_last(iteration) or self._export.is_first(name)

    def _is_best(self, name: str) -> bool:
        return self._state.best is not None and self._state.best["checkpoint"] == name

    def _mark_best(self) -> None:
        self._saves.try_to_write(lambda: self._export.mark_best(self._state.best))

    def _warn_without_success(self, row: Mapping[str, Any]) -> None:
        """Once in a start: an environment may tell of a success only where there is one."""
        wants = self._params.best_metric == "success" or "eval_success" in (self._params.stop_when or {})
        if wants and "eval_success" not in row and not self._has_warned:
            self._has_warned = True
            logging.warning(
                "best_metric='success' or stop_when's eval_success needs an environment that tells of success, and no "
                "episode of this evaluation did: report is_success or success in the info of each episode's last step. "
                "Until then the return decides which policy is best, and eval_success ends no run"
            )


def _policy_of(row: Mapping[str, Any]) -> tuple[int, str]:
    """Iteration and checkpoint of the policy that a row tells the evaluation of."""
    return int(row.get("iteration") or 0), checkpoint_name(int(row["train_step"]))
