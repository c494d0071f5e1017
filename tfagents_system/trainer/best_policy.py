"""Which policy checkpoint is the best one, on the present stage of the task that policies are evaluated on.

A stage begins with values of the curriculum.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from absl import logging

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
