"""What workers tell the trainer: episodes that they have collected, and their shares of evaluations."""

from __future__ import annotations

import msgspec
from absl import logging

from tfagents_system.report.episodes import EVAL, KEPT, TRAIN, Report
from tfagents_system.role import Role
from tfagents_system.run_files.heartbeat import TimeShares
from tfagents_system.trainer.best_episodes import BestEpisodes
from tfagents_system.trainer.best_policy import EvaluatedCheckpoints
from tfagents_system.trainer.evaluations import PolicyEvaluations
from tfagents_system.trainer.training_log import TrainingLog
from tfagents_system.transport import tables
from tfagents_system.transport.connection import Connection


class WorkerReports:
    """Takes the reports that have arrived; writes a row for each evaluation that is complete.

    Args:
      role: The trainer's process.
      connection: To the replay server, which is up.
      log: Gets episodes and rows.
      evaluations: Get the shares.
      checkpoints: Of the policies that are evaluated.
      shares: Get the time that is spent.

    Attributes:
      session: Of the trainer: shares in evaluations of an earlier one do not count.
    """

    def __init__(
        self,
        role: Role,
        connection: Connection,
        log: TrainingLog,
        evaluations: PolicyEvaluations,
        checkpoints: EvaluatedCheckpoints,
        shares: TimeShares,
    ) -> None:
        # Of session 0, so that a reader that is alive passes over it.
        connection.feed_dead_reader(tables.REPORTS, Report(EVAL, 0, 0, 0, 0, 0, [], {}).to_wire())
        self._reader = connection.reader(tables.REPORTS, prefetch=100)
        self._log, self._evaluations, self._checkpoints, self._shares = log, evaluations, checkpoints, shares
        self._best_episodes = BestEpisodes(role.paths.episodes, role.params.keep_best_episodes)
        self.session = 0

    def take(self) -> None:
        """Takes the workers' reports since the last call."""
        with self._shares.spend("logging"):
            while (arrays := self._reader.get(0)) is not None:
                try:
                    report = Report.from_wire(arrays)
                except msgspec.DecodeError as error:
                    logging.error("refused a report: %s", error)
                    continue
                if report.kind == TRAIN:
                    self._log.add_report(report)
                elif report.kind == KEPT:
                    self._best_episodes.add(report)
                elif report.session == self.session:
                    self._evaluations.add(report)
            self._end_complete_evaluations()

    def leave_out_gone(self, since: float | None = None, wait_secs: float = 0.0) -> None:
        """Waits no longer for workers that are gone; arguments as of `PolicyEvaluations.leave_out_gone`."""
        self.take()
        if self._evaluations.is_over:
            return
        is_nobody_left = self._evaluations.leave_out_gone(since, wait_secs)
        self._end_complete_evaluations()
        if is_nobody_left and not self._evaluations.is_over:
            self._checkpoints.give_up(self._evaluations.version, self._evaluations.give_up())

    def _end_complete_evaluations(self) -> None:
        for evaluated in self._evaluations.pop_ready():
            row = self._log.write_evaluation(evaluated)
            self._checkpoints.take(row)
            self._log.tell_callbacks("evaluation", row)
