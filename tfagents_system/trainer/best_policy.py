"""Which policy is the best one, and which checkpoints of evaluated policies are kept for it: others are deleted."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from absl import logging

from tfagents_system.envs.curriculum import EvaluatedTask
from tfagents_system.policies.names import checkpoint_name
from tfagents_system.train_params_base import TrainParamsBase
from tfagents_system.trainer.iteration_plan import Period, TrainerState
from tfagents_system.trainer.policy_export import PolicyExport
from tfagents_system.trainer.trainer_checkpoints import TrainerSaves
from tfagents_system.trainer.training_log import rank


class EvaluatedCheckpoints:
    """Each policy that is to be evaluated has a checkpoint until more is known; `begin` comes first.

    The best policy is that of the best evaluation of the newest stage, which begins with values of the curriculum.
    Returns on another task say nothing of the present one, so the first policy of a new stage is the best one.

    After a kill the trainer's checkpoint, metrics.csv, best.json and the policies on disk are of different moments.
    `begin` brings them together: the trainer's state of the checkpoint counts, and then the evaluations that only
    metrics.csv has; policies of later train steps are deleted, as their rows are. A best policy that was replaced stays
    on disk while a checkpoint that is kept may need it (`TrainerState.saved_policies`).

    Args:
      params: The user's TrainParams.
      state: Of the trainer; holds which is the best.
      export: Writes and deletes them.
      saves: Tries to write.
      begins_trained: Whether the agent of iteration 0 was given or has learned offline. Without it that one, random
        weights, has no checkpoint.
    """

    def __init__(
        self,
        params: TrainParamsBase,
        state: TrainerState,
        export: PolicyExport,
        saves: TrainerSaves,
        begins_trained: bool = False,
    ) -> None:
        self._params = params
        self._task = EvaluatedTask(params.env_config, params.num_iter)
        self._period = Period.of(params, "checkpoint")
        self._state = state
        self._export = export
        self._saves = saves
        self._first_iteration = 0 if begins_trained else 1
        self._settled: set[str] = set()  # Periodic ones without their agent: nothing of them is deleted.
        self._has_warned = False

    def begin(self, rows: Sequence[Mapping[str, Any]], train_step: int) -> None:
        """A start of the trainer, or going back.

        Args:
          rows: Those of metrics.csv that count, oldest first, up to the checkpoint's train step.
          train_step: That one; -1 where there is no checkpoint.
        """
        state, self._state.evaluated = self._state, None
        self._settled.clear()
        self._saves.try_to_write(lambda: self._export.delete_later(train_step))
        evaluations = [row for row in rows if row.get("eval_return") is not None]
        if state.best is not None and not self._export.has_checkpoint(state.best["checkpoint"]):
            logging.warning(
                "the best policy %s is gone: the next one that is evaluated counts", state.best["checkpoint"]
            )
            state.best = None
        for row in evaluations[state.evaluations :]:
            self._compare(row)
        state.evaluations = len(evaluations)
        self._mark_best()
        self._delete_others()

    def write(self, iteration: int) -> None:
        """Writes the one of the present policy, before its evaluation."""
        if iteration < self._first_iteration:
            return
        is_periodic, env_steps = self._period.is_due(self._state), self._state.end_env_steps

        def write() -> None:
            self._state.evaluated = self._export.save_checkpoint(
                iteration, env_steps, with_agent=True, is_periodic=is_periodic
            )
            self._settled.discard(self._state.evaluated)  # It has an agent again.

        self._saves.try_to_write(write)

    def take(self, row: Mapping[str, Any]) -> None:
        """The evaluation is over, with this row of metrics, as it is written."""
        if row.get("eval_return") is not None:  # Else it is no finite number.
            self._warn_without_success(row)
            self._state.evaluations += 1
            if self._compare(row):
                self._mark_best()
        if self._state.evaluated == checkpoint_name(int(row["train_step"])):  # Else a later one is under way.
            self._state.evaluated = None
        self._delete_others()

    def give_up(self) -> None:
        """There will be no evaluation, or none any more."""
        self._state.evaluated = None
        self._delete_others()

    def _compare(self, row: Mapping[str, Any]) -> bool:
        """Whether the policy of this row is the best one now."""
        iteration, name = int(row.get("iteration") or 0), checkpoint_name(int(row["train_step"]))
        if iteration < self._first_iteration or not self._export.has_checkpoint(name):
            return False
        before, stage, metric = self._state.best, self._task.stage(iteration), self._params.best_metric
        if before is not None and stage == before["curriculum"] and rank(row, metric) <= rank(before, metric):
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
        return True

    def _delete_others(self) -> None:
        """Those that were written for their evaluation alone go; the first stays, to be compared with, and the last.

        What stays and is not the best is acted with, not trained on: it needs no agent.
        """
        names = self._export.checkpoints()
        needed = {*self._state.policies_in_use, *itertools.chain(*self._state.saved_policies), *self._settled}
        for name in [name for name in names if name not in needed]:
            if self._export.is_periodic(name):
                self._export.delete_agent(name)
                self._settled.add(name)
            elif name in (names[0], names[-1]):
                self._export.delete_agent(name)
            else:
                self._export.delete_checkpoint(name)

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
