"""Evaluations of policies by the workers: which policy is evaluated, who is waited for, and what has come of it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from absl import logging

from tfagents_system.report.episodes import Evaluations, Report, summarize
from tfagents_system.role import Role
from tfagents_system.run_files.metrics import read_rows
from tfagents_system.run_files.run_paths import RunPaths, worker_role
from tfagents_system.train_params_base import TrainParamsBase
from tfagents_system.trainer.periods import Period


class Evaluated(NamedTuple):
    """A policy whose evaluation is complete.

    Attributes:
      version: Iterations that it was trained for.
      train_step, env_steps: When it was published, as the last iteration's end has counted them; `env_steps` is None
        where an earlier process did that.
      summary: Columns of metrics. Where the trainer does not wait, `eval_left_out` counts evaluations that were due
        since the one before and did not take place.
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

    def __init__(self, params: TrainParamsBase, role: Role, straggler_secs: float) -> None:
        self._params = params
        self._period = Period.of(params, "eval")
        self._role = role
        self._straggler_secs = straggler_secs
        # version -> (train step, env steps, evaluations that were due by then)
        self._published_at: dict[int, tuple[int, int, int]] = {}
        self.is_awaited = not params.asynchronous and (role.deterministic or not role.slots.evaluators)

    def begin(self) -> None:
        """A start of the trainer, or going back: what the metrics have of evaluations counts."""
        self._gathered = Evaluations(self._params.num_eval_episodes, self._role.slots.sharing_evaluations)
        self.version, env_steps = last_evaluated(self._role.paths)
        self._over = self.version  # The newest policy whose evaluation is over.
        passed = self._period.passed(self.version, env_steps)
        self._published = passed  # Periods that had passed when a policy was published to be evaluated.
        self._reached = self.version, passed
        self._due = self._logged = 0  # Evaluations since then: that were due; and by the newest one in the metrics.
        self.arrays: list[np.ndarray] = []
        self._began = 0.0

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

    def reach(self, version: int, env_steps: int) -> None:
        """The end of an iteration: evaluations that are due are counted, one for each iteration at most."""
        before, passed_before = self._reached
        passed = max(passed_before, self._period.passed(version, env_steps))
        self._due += min(version - before, passed - passed_before)
        self._reached = version, passed

    def start(self, version: int, arrays: list[np.ndarray], train_step: int, env_steps: int) -> None:
        """A policy is published to be evaluated."""
        self.version, self.arrays, self._began = version, arrays, time.monotonic()
        self._published = self._period.passed(version, env_steps)
        self._published_at[version] = (train_step, env_steps, self._due)

    def add(self, report: Report) -> None:
        """Takes a worker's report."""
        self._gathered.add(report)

    def missing(self) -> list[int]:
        """Workers that the evaluation waits for."""
        return self._gathered.missing(self.version)

    def pop_ready(self) -> Iterator[Evaluated]:
        """Those that are complete, each once; it counts as over when it is taken."""
        for version, reports in self._gathered.pop_ready():
            summary = summarize("eval", reports)
            # The steps of a policy that an earlier process has published are not known.
            train_step, env_steps, due = self._published_at.pop(version, (reports[0].train_step, None, self._logged))
            if not self.is_awaited:
                summary["eval_left_out"] = max(0, due - self._logged - 1)
            self._logged, self._over = max(self._logged, due), max(self._over, version)
            yield Evaluated(version, train_step, env_steps, summary)

    def leave_out_gone(self, since: float | None = None, wait_secs: float = 0.0) -> bool:
        """Continues the evaluation under way without the shares of workers that are gone.

        Those are the ones that joined and have stopped, those without a heartbeat for SAC_STRAGGLER_SECS, and those
        that have waited for so long instead of evaluating: the network or a killed server has lost the policy or the
        report. How long an episode takes does not matter.

        Args:
          since: When it was begun to wait for them; None: when the policy was published.
          wait_secs: For heartbeats of those that are late, at most.

        Returns:
          Whether nobody is left to complete it: if it is still incomplete, give it up.
        """
        missing = self.missing()
        is_late = time.monotonic() - (self._began if since is None else since) > self._straggler_secs
        if is_late and wait_secs:
            self._role.beats.wait(map(worker_role, missing), wait_secs)
        gone = [worker for worker in missing if self._role.has_left(worker) or (is_late and self._is_gone(worker))]
        if gone:
            logging.warning("the evaluation of iteration %d goes on without workers %s", self.version, gone)
            self._gathered.leave_out(gone)
        return len(gone) == len(missing) and (bool(gone) or is_late)

    def give_up(self) -> int:
        """Ends an evaluation without any whole share; returns the train step of its policy."""
        self._over = self.version
        return self._published_at[self.version][0]  # It stays: a worker that is back may tell its share yet.

    def _is_gone(self, worker_id: int) -> bool:
        if self._role.is_far:
            return True  # Heartbeats are in the replay server's run directory.
        beat = self._role.beats.last(worker_role(worker_id))
        if beat is None:
            return False  # It is being read.
        last = beat.get("since", 0.0) if beat.get("state") == "waiting" else beat.get("time", 0.0)
        return time.time() - last > self._straggler_secs + self._role.beats.lag_secs


def last_evaluated(paths: RunPaths) -> tuple[int, int]:
    """Version and environment steps of the newest policy whose evaluation is in the metrics; -1 if there is none.

    Policies of an agent that was replaced do not count.
    """
    rows = read_rows(paths.metrics_csv)
    rows = [row for row in rows if row.get("eval_return") is not None]
    return max(((int(row["iteration"] or 0), int(row["env_steps"] or 0)) for row in rows), default=(-1, -1))
