"""Which policy is the best one, and which checkpoints of evaluated policies are kept for it: others are deleted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from absl import logging

from tfagents_system.envs.curriculum import EvaluatedTask
from tfagents_system.policies.names import checkpoint_name
from tfagents_system.train_params_base import TrainParamsBase
from tfagents_system.trainer.early_end import rank
from tfagents_system.trainer.periods import Period
from tfagents_system.trainer.policy_export import PolicyExport
from tfagents_system.trainer.saves import TrainerSaves
from tfagents_system.trainer.trainer_checkpoints import TrainerState


class BestPolicy:
    """Keeps the best evaluation of the newest stage in the trainer's state.

    A stage begins with values of the curriculum. Returns on another task say nothing of the present one, so the first
    policy of a new stage is the best one.

    Args:
      params: Of the run.
      state: Of the trainer.
    """

    def __init__(self, params: TrainParamsBase, state: TrainerState) -> None:
        self._task = EvaluatedTask(params.env_config, params.num_iter)
        self._metric = params.best_metric
        self._state = state

    def is_best(self, row: Mapping[str, Any], iteration: int) -> bool:
        """Whether the policy of an evaluation is the best one now."""
        state = self._state
        if state.best_checkpoint is None or self._task.stage(iteration) != state.best_stage:
            return True
        return rank(row, self._metric) > rank(self._best_row(), self._metric)

    def take(self, row: Mapping[str, Any], iteration: int, checkpoint: str) -> tuple[str | None, int]:
        """Makes it the best one; returns checkpoint and iteration of the one before."""
        if faults := row.get("eval_faults"):
            logging.warning(
                "the policy of iteration %d is the best one, but a fault ended %d of its %d episodes",
                *(iteration, faults, row["eval_episodes"]),
            )
        state = self._state
        replaced = state.best_checkpoint, state.best_iteration
        state.best_eval_return, state.best_eval_success = row["eval_return"], row.get("eval_success")
        state.best_checkpoint, state.best_iteration = checkpoint, iteration
        state.best_stage = self._task.stage(iteration)
        return replaced

    def forget(self) -> None:
        """Its checkpoint is gone."""
        self._state.best_checkpoint = self._state.best_eval_return = self._state.best_eval_success = None

    def to_json(self) -> dict[str, Any] | None:
        """What best.json says; None without a best policy."""
        state = self._state
        if state.best_checkpoint is None:
            return None
        return {
            "checkpoint": state.best_checkpoint,
            **self._best_row(),
            "iteration": state.best_iteration,
            "curriculum": state.best_stage,
            "metric": self._metric,
        }

    def _best_row(self) -> dict[str, Any]:
        return {"eval_return": self._state.best_eval_return, "eval_success": self._state.best_eval_success}


class EvaluatedCheckpoints:
    """Each policy that is to be evaluated has a checkpoint until more is known; `begin` comes first.

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
        self._period = Period.of(params, "checkpoint")
        self._state = state
        self._export = export
        self._saves = saves
        self._is_last = is_last
        self._first_iteration = 0 if begins_trained else 1
        self._best = BestPolicy(params, state)
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
        if state.best_checkpoint is not None and not self._export.has_checkpoint(state.best_checkpoint):
            logging.warning("the best policy %s is gone: the next one that is evaluated counts", state.best_checkpoint)
            self._best.forget()
        for row in evaluations[state.evaluations :]:
            self._sort_out(row)
        state.evaluations = len(evaluations)
        state.replaced = [name for name in state.replaced if name != state.best_checkpoint]
        self._mark_best()

    def write(self, iteration: int) -> None:
        """Writes the one of the present policy, before its evaluation."""
        if self._period.env_steps is not None and self._period.is_due(self._state):
            self._state.periodic.append(iteration)
        if iteration >= self._first_iteration:
            where = iteration, self._state.end_env_steps
            self._saves.try_to_write(lambda: self._export.save_checkpoint(*where, with_agent=True))

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

    def _delete_unless_needed(self, iteration: int, name: str) -> None:
        """Random weights, and what could not be written, are not there. What stays is acted with, not trained on."""
        if not self._export.has_checkpoint(name):
            return
        if not self._is_needed(iteration, name):
            self._export.delete_checkpoint(name)
        elif name != self._state.best_checkpoint:
            self._export.delete_agent(name)

    def _sort_out(self, row: Mapping[str, Any]) -> bool:
        """What becomes of an evaluated policy, and of the one that it replaces; whether it is the best one now."""
        iteration, name = _policy_of(row)
        if iteration < self._first_iteration or not self._export.has_checkpoint(name):
            return False
        if not self._best.is_best(row, iteration):
            self._delete_unless_needed(iteration, name)
            return False
        replaced, its_iteration = self._best.take(row, iteration, name)
        if replaced is not None and not self._is_needed(its_iteration, replaced):
            self._state.replaced.append(replaced)
        return True

    def _is_needed(self, iteration: int, name: str) -> bool:
        """Those made only to be evaluated go when they are not the best; the first stays, to be compared with."""
        # Where there were no updates between two evaluations both policies have one name.
        is_kept = name == self._state.best_checkpoint or self._is_periodic(iteration)
        return is_kept or self._is_last(iteration) or self._export.is_first(name)

    def _mark_best(self) -> None:
        self._saves.try_to_write(lambda: self._export.mark_best(self._best.to_json()))

    def _is_periodic(self, iteration: int) -> bool:
        if self._period.env_steps is not None:
            return iteration in self._state.periodic
        return iteration % self._period.iterations == 0

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
