"""What workers tell the trainer: their shares of evaluations, episodes that they have collected, and the best of these.

One evaluation of a policy is under way at a time; here it is decided which one, and who is waited for.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from absl import logging

from tfagents_system.errors import UserError
from tfagents_system.machine.files import write_atomically
from tfagents_system.role import Role
from tfagents_system.run_files.episodes import SUFFIX, load_episode
from tfagents_system.run_files.heartbeat import TimeShares, read_heartbeat
from tfagents_system.run_files.metrics import read_rows
from tfagents_system.run_files.run_paths import RunPaths, worker_role
from tfagents_system.train_params_base import TrainParamsBase
from tfagents_system.trainer.best_policy import EvaluatedCheckpoints
from tfagents_system.trainer.state import Period
from tfagents_system.trainer.training_log import TrainingLog
from tfagents_system.transport import tables
from tfagents_system.transport.connection import Connection
from tfagents_system.transport.episode_reports import EVAL, KEPT, TRAIN, Evaluations, KeptEpisode, Report, summarize

_LOOK_SECS = 1.0  # Between two looks at heartbeats: reading them takes milliseconds.


class Evaluated(NamedTuple):
    """A policy whose evaluation is complete.

    Attributes:
      version: Iterations that it was trained for.
      train_step, env_steps: When it was published, as the last iteration's end has counted them; `env_steps` is None
        where an earlier process did that.
      summary: Columns of metrics.
    """

    version: int
    train_step: int
    env_steps: int | None
    summary: dict[str, Any]


class PolicyEvaluations:
    """One evaluation at a time; `begin` comes first.

    Args:
      params: The user's TrainParams.
      role: The trainer's process: its run's heartbeats tell who is gone.
      straggler_secs: SAC_STRAGGLER_SECS.

    Attributes:
      is_awaited: Whether the trainer waits for the one under way before it publishes the next that is due. It does
        where those who collect evaluate, so that none is passed over, and where every evaluation must be the same in
        every repetition of the run. Else it goes on, and a later policy is evaluated.
      version: Of the policy that is evaluated, or was last; -1 before the first.
      arrays: That policy as it is published; empty where no evaluation has begun since `begin`.
    """

    _awaited_since: float | None
    _look_at: float
    _signs: dict[int, tuple[float | None, float]]  # Of workers, and when they were seen first.

    def __init__(self, params: TrainParamsBase, role: Role, straggler_secs: float) -> None:
        self._params = params
        self._period = Period.of(params, "eval")
        self._role = role
        self._straggler_secs = straggler_secs
        self._published_at: dict[int, tuple[int, int]] = {}  # version -> (train step, env steps)
        self.is_awaited = not params.asynchronous and (role.deterministic or not role.slots.evaluators)

    def begin(self) -> None:
        """A start of the trainer, or going back: what the metrics have of evaluations counts."""
        self._gathered = Evaluations(self._params.num_eval_episodes, self._role.slots.sharing_evaluations)
        self.version, env_steps = last_evaluated(self._role.paths)
        self._over = self.version  # The newest policy whose evaluation is over.
        self._published = self._period.passed(self.version, env_steps)  # Periods at the newest one's publication.
        self.arrays: list[np.ndarray] = []
        self._expect_signs()

    @property
    def is_over(self) -> bool:
        """Whether none is under way."""
        return self._over >= self.version

    def is_due(self, version: int, env_steps: int, is_last: bool) -> bool:
        """Whether a policy is evaluated: one in each period, and the last one; none with num_eval_episodes = 0."""
        if not self._params.num_eval_episodes:
            return False
        # Not `version % period == 0`: a stop may have lost the evaluation that was under way.
        return self._period.passed(version, env_steps) > self._published or (is_last and version > self.version)

    def start(self, version: int, arrays: list[np.ndarray], train_step: int, env_steps: int) -> None:
        """A policy is published to be evaluated."""
        self.version, self.arrays = version, arrays
        self._published = self._period.passed(version, env_steps)
        self._published_at[version] = (train_step, env_steps)
        self._expect_signs()

    def add(self, report: Report) -> None:
        """Takes a worker's report."""
        self._gathered.add(report)

    def missing(self) -> list[int]:
        """Workers that the evaluation waits for."""
        return self._gathered.missing(self.version)

    def pop_ready(self) -> Iterator[Evaluated]:
        """Those that are complete, each once; it counts as over when it is taken."""
        for version, reports in self._gathered.pop_ready():
            # The steps of a policy that an earlier process has published are not known.
            train_step, env_steps = self._published_at.pop(version, (reports[0].train_step, None))
            self._over = max(self._over, version)
            yield Evaluated(version, train_step, env_steps, summarize("eval", reports))

    def leave_out_gone(self) -> bool:
        """Continues the evaluation under way without the shares of workers that are gone; to be called while it is.

        Those are the ones that joined and have stopped, those whose heartbeat stays the same for SAC_STRAGGLER_SECS,
        and those that wait for so long instead of evaluating: the network or a killed server has lost the policy or the
        report. How long an episode takes does not matter. Only this process's clock counts.

        Returns:
          Whether nobody is left to complete it: if it is still incomplete, give it up.
        """
        now = time.monotonic()
        if now < self._look_at:
            return False
        self._look_at = now + _LOOK_SECS
        self._awaited_since = now if self._awaited_since is None else self._awaited_since
        is_late = now - self._awaited_since > self._straggler_secs
        missing = self.missing()
        gone = [
            worker
            for worker in missing
            if self._role.has_left(worker) or (self._stays_the_same(worker, now) if not self._role.is_far else is_late)
        ]
        if gone:
            logging.warning("the evaluation of iteration %d goes on without workers %s", self.version, gone)
            self._gathered.leave_out(gone)
        return len(gone) == len(missing) and (bool(gone) or is_late)

    def give_up(self) -> int:
        """Ends an evaluation without any whole share; returns the train step of its policy."""
        self._over = self.version
        return self._published_at[self.version][0]  # It stays: a worker that is back may tell its share yet.

    def _expect_signs(self) -> None:
        """Who is waited for from now on has the whole time to show that it is there."""
        self._awaited_since, self._look_at, self._signs = None, 0.0, {}

    def _stays_the_same(self, worker_id: int, now: float) -> bool:
        """Whether a worker has shown no sign for SAC_STRAGGLER_SECS: another beat, or where it waits another state."""
        beat = read_heartbeat(self._role.paths.heartbeat(worker_role(worker_id))) or {}
        sign = beat.get("since") if beat.get("state") == "waiting" else beat.get("time")
        if worker_id not in self._signs or self._signs[worker_id][0] != sign:
            self._signs[worker_id] = (sign, now)
        return now - self._signs[worker_id][1] > self._straggler_secs


def last_evaluated(paths: RunPaths) -> tuple[int, int]:
    """Version and environment steps of the newest policy whose evaluation is in the metrics; -1 if there is none."""
    rows = read_rows(paths.metrics_csv)
    rows = [row for row in rows if row.get("eval_return") is not None]
    return max(((int(row["iteration"] or 0), int(row["env_steps"] or 0)) for row in rows), default=(-1, -1))


class BestEpisodes:
    """The files of the episodes with the highest returns; of equal ones those that came first.

    Args:
      folder: `episodes/` of the run directory.
      count: How many are kept; 0: none, and nothing is done.
    """

    def __init__(self, folder: Path, count: int) -> None:
        self._folder = folder
        self._count = count
        self._kept: list[tuple[float, Path]] | None = None  # The best first; None: not looked at yet.

    def add(self, report: Report) -> None:
        """Keeps what a worker has sent, if it is good enough."""
        for episode in report.kept if self._count else ():
            try:
                self._add(report.worker_id, episode)
            except OSError as error:
                logging.error("an episode of return %g is not kept: %s", episode.episode_return, error.strerror)

    def _add(self, worker_id: int, episode: KeptEpisode) -> None:
        kept = self._found() if self._kept is None else self._kept
        path = self._folder / (
            f"return_{episode.episode_return:.6g}_train_step_{episode.train_step:010d}"
            f"_worker_{worker_id}_{episode.number}{SUFFIX}"
        )
        if any(path == other for _, other in kept):  # A deterministic run has collected it again after a restart.
            return
        ranked = sorted([*kept, (episode.episode_return, path)], key=lambda file: -file[0])
        self._kept = ranked[: self._count]
        if any(path == other for _, other in self._kept):
            self._folder.mkdir(exist_ok=True)
            write_atomically(path, episode.file)
        for _, worse in ranked[self._count :]:
            worse.unlink(missing_ok=True)

    def _found(self) -> list[tuple[float, Path]]:
        """Those of earlier starts."""
        files = []
        for path in sorted(self._folder.glob(f"return_*{SUFFIX}")):
            try:
                files.append((load_episode(path, "file").episode_return, path))
            except UserError as error:
                logging.error("%s", error)
        return sorted(files, key=lambda file: -file[0])


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

    def leave_out_gone(self) -> None:
        """Waits no longer for workers that are gone, see `PolicyEvaluations.leave_out_gone`."""
        self.take()
        if self._evaluations.is_over:
            return
        is_nobody_left = self._evaluations.leave_out_gone()
        self._end_complete_evaluations()
        if is_nobody_left and not self._evaluations.is_over:
            self._checkpoints.give_up(self._evaluations.version, self._evaluations.give_up())

    def _end_complete_evaluations(self) -> None:
        for evaluated in self._evaluations.pop_ready():
            row = self._log.write_evaluation(evaluated)
            self._checkpoints.take(row)
            self._log.tell_callbacks("evaluation", row)
