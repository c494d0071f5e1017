"""Which policy checkpoint is the best one, in each stage of the task that policies are evaluated on.

A stage begins with values of the curriculum, and with edited files that the run takes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tfagents_system.envs.curriculum import EvaluatedTask
from tfagents_system.settings.early_end import rank
from tfagents_system.train_params_base import TrainParamsBase
from tfagents_system.trainer.trainer_checkpoints import TrainerState


class BestPolicies:
    """Keeps the best evaluation of the present stage in the trainer's state, and what was best in the stages before.

    Returns on another task say nothing of the present one, so a new stage begins without a best policy.

    Args:
      params: Of the run.
      state: Of the trainer.
      edits: How often the run has taken edited files, which may have changed the task.
    """

    def __init__(self, params: TrainParamsBase, state: TrainerState, edits: int = 0) -> None:
        self._task = EvaluatedTask(params.env_config, params.num_iter)
        self._metric = params.best_metric
        self._state = state
        self._edits = edits

    def is_best(self, row: Mapping[str, Any], iteration: int) -> bool:
        """Whether the policy of an evaluation is the best one now."""
        return self._begins_stage(iteration) or rank(row, self._metric) > rank(self._best_row(), self._metric)

    def take(self, row: Mapping[str, Any], iteration: int, checkpoint: str) -> tuple[str | None, int]:
        """Makes it the best one; returns checkpoint and iteration of the one that is no longer needed.

        That of an earlier stage stays.
        """
        state = self._state
        replaced: tuple[str | None, int] = state.best_checkpoint, state.best_iteration
        if state.best_checkpoint is not None and self._begins_stage(iteration):
            state.earlier_stages = [*state.earlier_stages, self._told()]
            replaced = None, 0
        state.best_eval_return, state.best_eval_success = row["eval_return"], row.get("eval_success")
        state.best_checkpoint, state.best_iteration = checkpoint, iteration
        state.best_stage, state.best_edits = self._task.stage(iteration), self._edits
        return replaced

    def replace_lost(self, evaluations: Sequence[tuple[Mapping[str, Any], int, str]]) -> None:
        """The best one is gone: that of these of its stage takes its place; without any there is no best one.

        Args:
          evaluations: Rows with iterations and checkpoints, of the present files.
        """
        state = self._state
        of_stage = [each for each in evaluations if not self._begins_stage(each[1])]
        state.best_checkpoint = state.best_eval_return = state.best_eval_success = None
        for row, iteration, checkpoint in of_stage:
            if self.is_best(row, iteration):
                self.take(row, iteration, checkpoint)

    def is_kept(self, checkpoint: str | None) -> bool:
        """Whether it is the best one, of the present stage or of an earlier one."""
        earlier = (each["checkpoint"] for each in self._state.earlier_stages)
        return checkpoint == self._state.best_checkpoint or checkpoint in earlier

    def to_json(self) -> dict[str, Any]:
        """What best.json says; its checkpoint is None where the best one is lost."""
        return {**self._told(), "metric": self._metric, "earlier_stages": self._state.earlier_stages}

    def _begins_stage(self, iteration: int) -> bool:
        state = self._state
        if state.best_checkpoint is None or state.best_edits != self._edits:
            return True
        return self._state.best_stage != self._task.stage(iteration)

    def _best_row(self) -> dict[str, Any]:
        return {"eval_return": self._state.best_eval_return, "eval_success": self._state.best_eval_success}

    def _told(self) -> dict[str, Any]:
        state = self._state
        return {
            "checkpoint": state.best_checkpoint,
            **self._best_row(),
            "iteration": state.best_iteration,
            "curriculum": self._state.best_stage,
            "edits": state.best_edits,
        }
