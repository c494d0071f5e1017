"""Which policy checkpoint is the best one, on the present stage of the task that policies are evaluated on.

A stage begins with values of the curriculum, and with edited files that the run takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tfagents_system.envs.curriculum import EvaluatedTask
from tfagents_system.settings.early_end import rank
from tfagents_system.train_params_base import TrainParamsBase
from tfagents_system.trainer.trainer_checkpoints import TrainerState


class BestPolicy:
    """Keeps the best evaluation of the newest stage in the trainer's state.

    Returns on another task say nothing of the present one, so the first policy of a new stage is the best one.

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
        state = self._state
        stage = self._task.stage(iteration), self._edits
        if state.best_checkpoint is None or stage != (state.best_stage, state.best_edits):
            return True
        return rank(row, self._metric) > rank(self._best_row(), self._metric)

    def take(self, row: Mapping[str, Any], iteration: int, checkpoint: str) -> tuple[str | None, int]:
        """Makes it the best one; returns checkpoint and iteration of the one before."""
        state = self._state
        replaced = state.best_checkpoint, state.best_iteration
        state.best_eval_return, state.best_eval_success = row["eval_return"], row.get("eval_success")
        state.best_checkpoint, state.best_iteration = checkpoint, iteration
        state.best_stage, state.best_edits = self._task.stage(iteration), self._edits
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
            "edits": state.best_edits,
            "metric": self._metric,
        }

    def _best_row(self) -> dict[str, Any]:
        return {"eval_return": self._state.best_eval_return, "eval_success": self._state.best_eval_success}
