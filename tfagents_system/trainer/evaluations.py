"""Evaluations: which policy is evaluated, who is waited for, which policy is the best, and what is kept for it.

Workers report their shares of evaluations, the episodes that they have collected, and the best of these. One evaluation
of a policy is under way at a time.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from absl import logging

from tfagents_system.envs.curriculum import EvaluatedTask
from tfagents_system.errors import UserError
from tfagents_system.machine.files import write_atomically
from tfagents_system.policies.names import checkpoint_name
from tfagents_system.role import Role
from tfagents_system.run_files.episodes import SUFFIX, load_episode
from tfagents_system.run_files.heartbeat import TimeShares, read_heartbeat
from tfagents_system.run_files.metrics import read_rows
from tfagents_system.run_files.run_paths import RunPaths, worker_role
from tfagents_system.train_params_base import TrainParamsBase
from tfagents_system.trainer.iteration_plan import Period, TrainerState
from tfagents_system.trainer.policy_export import PolicyExport
from tfagents_system.trainer.trainer_checkpoints import TrainerSaves
from tfagents_system.trainer.training_log import TrainingLog, rank
from tfagents_system.transport import tables
from tfagents_system.transport.connection import Connection
from tfagents_system.transport.episode_reports import EVAL, KEPT, TRAIN, Evaluations, KeptEpisode, Report, summarize

_LOOK_SECS = 1.0  # Between two looks at heartbeats: reading them takes milliseconds.


class WorkerReports:
    """Takes the reports that have arrived; one evaluation at a time, with a row for each that is complete.

    `begin` comes first, and `connect` once the replay server is up. Heartbeats tell who is gone.

    Attributes:
      is_awaited: Whether the trainer waits for the evaluation under way before it publishes the next policy that is
        due. It does where those who collect evaluate, so that none is passed over, and where every evaluation must be
        the same in every repetition of the run. Else it continues, and a later policy is evaluated.
      version: Of the policy that is evaluated, or was last; -1 before the first.
      arrays: That policy as it is published; empty where no evaluation has begun since `begin`.
      session: Of the trainer: shares in evaluations of an earlier one do not count.
    """

    _awaited_since: float | None
    _look_at: float
    _signs: dict[int, tuple[float | None, float]]  # Of workers, and when they were seen first.

    def __init__(self, role: Role, log: TrainingLog, checkpoints: EvaluatedCheckpoints, shares: TimeShares) -> None:
        self._role, self._params = role, role.params
        self._log, self._checkpoints, self._shares = log, checkpoints, shares
        self._period = Period.of(role.params, "eval")
        self._straggler_secs = role.variables.straggler_secs
        self._published_at: dict[int, int] = {}  # version -> environment steps
        self._best_episodes = BestEpisodes(role.paths.episodes, role.params.keep_best_episodes)
        self.is_awaited = not role.params.asynchronous and (role.deterministic or not role.variables.slots.evaluators)
        self.session = 0

    def begin(self) -> None:
        """A start of the trainer, or going back: what the metrics have of evaluations counts."""
        self._gathered = Evaluations(self._params.num_eval_episodes, self._role.variables.slots.sharing_evaluations)
        self.version, env_steps = last_evaluated(self._role.paths)
        self._over = self.version  # The newest policy whose evaluation is over.
        self._published = self._period.passed(self.version, env_steps)  # Periods at the newest one's publication.
        self.arrays: list[np.ndarray] = []
        self._expect_signs()

    def connect(self, connection: Connection) -> None:
        """Reads from the replay server, which is up."""
        # Of session 0, so that a reader that is alive passes over it.
        connection.feed_dead_reader(tables.REPORTS, Report(EVAL, 0, 0, 0, 0, 0, [], {}).to_wire())
        self._reader = connection.reader(tables.REPORTS, prefetch=100)

    # Which policy is evaluated.

    @property
    def is_over(self) -> bool:
        """Whether no evaluation is under way."""
        return self._over >= self.version

    def is_due(self, version: int, env_steps: int, is_last: bool) -> bool:
        """Whether a policy is evaluated: one in each period, and the last one; none with num_eval_episodes = 0."""
        if not self._params.num_eval_episodes:
            return False
        # Not `version % period == 0`: a stop may have lost the evaluation that was under way.
        return self._period.passed(version, env_steps) > self._published or (is_last and version > self.version)

    def start(self, version: int, arrays: list[np.ndarray], env_steps: int) -> None:
        """A policy is published to be evaluated."""
        self.version, self.arrays = version, arrays
        self._published = self._period.passed(version, env_steps)
        self._published_at[version] = env_steps
        self._expect_signs()
        self._checkpoints.write(version)

    # What comes.

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
                elif report.session == self.session and report.iteration <= self.version:
                    self._gathered.add(report)
            self._end_complete_evaluations()

    def _end_complete_evaluations(self) -> None:
        for version, reports in self._gathered.pop_ready():
            self._over = max(self._over, version)
            env_steps = self._published_at.pop(version, None)  # None: an earlier process has published that policy.
            row = self._log.write_evaluation(version, reports[0].train_step, env_steps, summarize("eval", reports))
            self._checkpoints.take(row)
            self._log.tell_callbacks("evaluation", row)

    # Who is waited for.

    def missing(self) -> list[int]:
        """Workers that the evaluation waits for."""
        return self._gathered.missing(self.version)

    def leave_out_gone(self) -> None:
        """Continues the evaluation under way without the shares of workers that are gone; to be called while it is.

        Those are the ones that joined and have stopped, those whose heartbeat stays the same for SAC_STRAGGLER_SECS,
        and those that wait for so long instead of evaluating: the network or a killed server has lost the policy or the
        report. How long an episode takes does not matter. Only this process's clock counts. Without any whole share
        the evaluation is given up.
        """
        self.take()
        now = time.monotonic()
        if self.is_over or now < self._look_at:
            return
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
            logging.warning("the evaluation of iteration %d continues without workers %s", self.version, gone)
            self._gathered.leave_out(gone)
        self._end_complete_evaluations()
        if len(gone) == len(missing) and (gone or is_late) and not self.is_over:
            self._over = self.version  # Its counts stay: a worker that is back may tell its share yet.
            self._checkpoints.give_up()

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


class EvaluatedCheckpoints:
    """Each policy that is to be evaluated has a checkpoint until more is known; `begin` comes first.

    The best policy is that of the best evaluation of the newest stage, which begins with values of the curriculum.
    Returns on another task say nothing of the present one, so the first policy of a new stage is the best one.

    After a kill the trainer's checkpoint, metrics.csv, best.json and the policies on disk are of different moments.
    `begin` brings them together: the trainer's state of the checkpoint counts, and then the evaluations that only
    metrics.csv has; policies of later train steps are deleted, as their rows are. A best policy that was replaced stays
    on disk while a checkpoint that is kept may need it (`TrainerState.saved_policies`).

    Args:
      params, state: Of the run; the state holds which is the best.
      export, saves: Write and delete them.
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
        self._params, self._state, self._export, self._saves = params, state, export, saves
        self._task = EvaluatedTask(params.env_config, params.num_iter)
        self._period = Period.of(params, "checkpoint")
        self._first_iteration = 0 if begins_trained else 1
        self._settled: set[str] = set()  # Periodic ones without their agent: nothing of them is deleted.
        self._has_warned = False

    def begin(self, rows: Sequence[Mapping[str, Any]], train_step: int) -> None:
        """A start, or going back: the rows of metrics.csv up to a checkpoint's train step; -1 without a checkpoint."""
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


class BestEpisodes:
    """The files of the `count` episodes with the highest returns; of equal ones those that came first."""

    def __init__(self, folder: Path, count: int) -> None:
        self._folder, self._count = folder, count
        self._kept = self._found() if count else []  # The best first.

    def add(self, report: Report) -> None:
        """Keeps what a worker has sent, if it is good enough."""
        for episode in report.kept if self._count else ():
            try:
                self._add(report.worker_id, episode)
            except OSError as error:
                logging.error("an episode of return %g is not kept: %s", episode.episode_return, error.strerror)

    def _add(self, worker_id: int, episode: KeptEpisode) -> None:
        path = self._folder / (
            f"return_{episode.episode_return:.6g}_train_step_{episode.train_step:010d}"
            f"_worker_{worker_id}_{episode.number}{SUFFIX}"
        )
        if any(path == other for _, other in self._kept):  # A deterministic run has collected it again after a restart.
            return
        ranked = sorted([*self._kept, (episode.episode_return, path)], key=lambda file: -file[0])
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
