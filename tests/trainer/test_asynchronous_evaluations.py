"""Where workers never wait, evaluations are whole all the same: one after the other, the rest left out and counted."""

from __future__ import annotations

import collections
import itertools
import random
import statistics
import time
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tfagents_system.report.episodes import Episode, Report, eval_share
from tfagents_system.run_files.heartbeat import BeatReader, write_json
from tfagents_system.run_files.metrics import read_metrics
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.run_files.time_shares import TimeShares
from tfagents_system.trainer import trainer as trainer_module
from tfagents_system.trainer.trainer import Trainer
from tfagents_system.transport.tables import Progress

PERIOD = 10
STRAGGLER_SECS = 30.0


class Run:
    """A trainer without agent and server, whose reports are put in by hand; its clock is `now`.

    Args:
      folder: The run directory.
      num_workers, num_episodes: Planned workers, and episodes of an evaluation.
    """

    def __init__(
        self,
        folder: Path,
        num_workers: int = 2,
        num_episodes: int = 4,
        num_iter: int = 100,
        session: int = 1,
        checkpoint_period_itrs: int = 1,
        curriculum: Any = None,
        stop_when: Any = None,
        callbacks: Any = (),
    ) -> None:
        self.paths = RunPaths(folder)
        self.published: list[int] = []  # versions to be evaluated
        self.best: list[tuple[str, float]] = []
        self.deleted: list[str] = []
        self._reports: list[Report] = []
        self.num_workers, self.num_episodes = num_workers, num_episodes
        trainer: Any = Trainer.__new__(Trainer)
        self.trainer = trainer
        role: Any = types.SimpleNamespace(paths=self.paths, num_workers=num_workers, has_left=lambda worker: False)
        role.beats = self.beats = BeatReader(self.paths, every_secs=0.01)
        role.stop = types.SimpleNamespace(is_set=lambda: False)
        trainer._role = role
        params: Any = types.SimpleNamespace(
            asynchronous=True,
            eval_period_itrs=PERIOD,
            n_eval_episodes=num_episodes,
            num_iter=num_iter,
            checkpoint_period_itrs=checkpoint_period_itrs,
            best_metric="return",
            stop_when=stop_when,
            max_hours=None,
            callbacks_ctor=lambda: callbacks,
            env_config={"horizon": 10, **({"curriculum": curriculum} if curriculum else {})},
        )
        trainer._params = params
        trainer._straggler_secs = STRAGGLER_SECS
        trainer._state = trainer_module.TrainerState()
        trainer._best = trainer_module.BestPolicies(params, trainer._state)
        trainer._shares = TimeShares()
        trainer._variables = {}
        trainer._session, trainer._evaluated_at, trainer._row = session, {}, {}
        trainer._train_step = types.SimpleNamespace(numpy=lambda: 100 * trainer._state.iteration)
        trainer._saves = types.SimpleNamespace(try_to_write=lambda write: write())
        trainer._export = types.SimpleNamespace(
            save_checkpoint=lambda version: None,
            has_checkpoint=lambda name: name not in self.deleted,
            is_first=lambda name: False,
            delete_checkpoint=self.deleted.append,
            mark_best=lambda best: self.best.append((best["checkpoint"], best["eval_return"])),
        )
        trainer._publisher = types.SimpleNamespace(publish=self._publish, check=lambda: None, wait=lambda: None)
        trainer._reports = types.SimpleNamespace(
            get=lambda _: self._reports.pop(0).to_wire() if self._reports else None
        )
        trainer._train_reports, trainer._has_warned = [], False
        trainer._publish_if_restarted = lambda: None
        trainer._beat = lambda *args, **kwargs: None
        trainer._metrics = trainer_module.MetricsLog(self.paths, [])
        trainer._early_end = trainer_module.EarlyEnd(params)
        trainer._callbacks = trainer_module.Callbacks(params, trainer._metrics.rows)
        trainer._begin_evaluations()

    def iterate(self, iteration: int) -> None:
        """As far as evaluations go; what is to be evaluated is noted in `published`."""
        self.trainer._state.iteration = iteration
        self.trainer._publish()
        self.trainer._take_reports()

    def _publish(
        self, policy: Sequence[np.ndarray], evaluated: Sequence[np.ndarray] | None, progress: Progress
    ) -> None:
        assert policy[0][1] == progress.iteration
        if evaluated is not None:
            assert evaluated[0][1] == progress.eval_iteration
            self.published.append(progress.eval_iteration)

    def tell(
        self,
        worker: int,
        version: int,
        returns: list[float],
        session: int | None = None,
        success: float | None = None,
    ) -> None:
        """`success`: the rate of the episodes."""
        episodes, session = [Episode(value, 10) for value in returns], session or self.trainer._session
        if success is not None:
            for k, episode in enumerate(episodes):
                episode.success = k < round(success * len(returns))
        self._reports.append(Report("eval", session, worker, version, 100 * version, version, episodes))

    def rows(self) -> list[dict[str, Any]]:
        return [row for row in read_metrics(self.paths.metrics_csv) if row["eval_return"] is not None]


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    clock = [1000.0]
    monkeypatch.setattr(trainer_module.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(trainer_module.MetricsLog, "_summarize", lambda *_: None)
    return clock


class Share:
    """What one worker does for one evaluation: episodes whose return is their length in iterations."""

    def __init__(self, version: int, lengths: list[int]) -> None:
        self.version = version
        self.lengths = lengths
        self.done_after = list(itertools.accumulate(lengths))
        self.age = 0

    def step(self) -> list[float] | None:
        """An iteration passes; returns of all episodes so far, where one is over."""
        self.age += 1
        over = [float(length) for length, end in zip(self.lengths, self.done_after, strict=True) if end <= self.age]
        return over if self.age in self.done_after else None

    @property
    def is_over(self) -> bool:
        return self.age >= self.done_after[-1]


def test_every_row_is_of_all_episodes_however_long_they_take(tmp_path: Path, now: list[float]) -> None:
    """Long episodes have high returns here: the mean of what is over first would be far too low."""
    run, rng = Run(tmp_path, num_workers=3, num_episodes=7, num_iter=2000), random.Random(0)
    shares: dict[int, Share] = {}
    truth: dict[int, list[int]] = collections.defaultdict(list)
    for iteration in range(1999):
        run.iterate(iteration)
        now[0] += 0.1
        newest = run.published[-1]
        for worker in range(3):
            if worker not in shares or (shares[worker].is_over and shares[worker].version < newest):
                lengths = [rng.choice([1, 15]) for _ in range(eval_share(7, 3, worker))]
                shares[worker] = Share(newest, lengths)
                truth[newest] += lengths
            if not shares[worker].is_over and (returns := shares[worker].step()) is not None:
                run.tell(worker, shares[worker].version, returns)
    rows = run.rows()
    assert len(rows) > 40
    for row in rows:
        assert row["eval_episodes"] == 7
        assert row["eval_return"] == pytest.approx(statistics.fmean(truth[int(row["iteration"])]), rel=1e-6)
    left_out = sum(row["eval_left_out"] for row in rows)
    assert len(rows) + left_out == 1 + rows[-1]["iteration"] // PERIOD
    assert left_out > 40


def test_the_best_checkpoint_is_not_that_of_the_first_episodes(tmp_path: Path, now: list[float]) -> None:
    run = Run(tmp_path)
    for version, returns in ((0, [0.0, 0.0]), (10, [5.0, 5.0])):
        run.iterate(version)
        for worker in (0, 1):
            run.tell(worker, version, returns)
        run.iterate(version + 1)
    run.iterate(20)
    run.tell(0, 20, [100.0])  # Its other episode and those of worker 1 take long, and are bad.
    for iteration in range(21, 60):
        run.iterate(iteration)
    assert run.best == [("policy_checkpoint_0000001000", 5.0)] and run.published == [0, 10, 20]
    run.tell(0, 20, [100.0, -200.0])
    run.tell(1, 20, [-200.0, -200.0])
    run.iterate(61)
    assert run.rows()[-1]["eval_return"] == -125.0 and run.rows()[-1]["eval_left_out"] == 0
    assert run.published[-1] == 61, "at the next iteration, not at the next period"
    for worker in (0, 1):
        run.tell(worker, 61, [6.0, 6.0])
    run.iterate(62)
    assert run.best[-1] == ("policy_checkpoint_0000006100", 6.0)
    assert run.rows()[-1]["eval_left_out"] == 3, "those of 30, 40 and 50"


def test_the_best_checkpoint_is_one_of_the_present_stage(tmp_path: Path, now: list[float]) -> None:
    wind = {"iters": [0, 15], "range": [0.0, 0.3], "apply_to_eval": True}
    run = Run(tmp_path, num_workers=1, curriculum={"wind": wind})
    for version, value in ((0, 9.0), (10, 1.0), (20, -4.0), (30, -5.0), (40, -3.0)):
        run.iterate(version)
        run.tell(0, version, [value] * 4)
        run.iterate(version + 1)
    assert run.best == [(f"policy_checkpoint_{100 * k:010d}", v) for k, v in ((10, 1.0), (20, -4.0), (40, -3.0))]


@pytest.mark.parametrize(("silent_secs", "goes_on"), [(1.0, False), (STRAGGLER_SECS + 1, True)])
def test_a_worker_that_dies_is_left_out_with_what_it_has_told(
    tmp_path: Path, now: list[float], silent_secs: float, goes_on: bool
) -> None:
    run = Run(tmp_path)
    run.iterate(0)
    run.tell(0, 0, [1.0, 3.0])
    run.tell(1, 0, [100.0])
    write_json(run.paths.heartbeat("worker_1"), {"state": "evaluating", "time": time.time() - silent_secs, "since": 0})
    now[0] += STRAGGLER_SECS + 1
    run.iterate(10)
    assert run.published == ([0, 10] if goes_on else [0])
    assert [(row["eval_return"], row["eval_episodes"]) for row in run.rows()] == ([(2.0, 2)] if goes_on else [])
    run.tell(1, 0, [100.0, 200.0])  # It is back, or was never gone.
    run.iterate(11)
    assert run.published[-1] == (10 if goes_on else 11) and len(run.rows()) == 1
    run.tell(0, run.published[-1], [1.0, 3.0])
    run.iterate(12)
    assert len(run.rows()) == 1, "it is waited for again"


@pytest.mark.parametrize(("silent_secs", "goes_on"), [(1.0, False), (STRAGGLER_SECS + 1, True)])
def test_iterations_longer_than_a_round_of_heartbeats_leave_out_who_is_gone(
    tmp_path: Path, now: list[float], silent_secs: float, goes_on: bool
) -> None:
    run = Run(tmp_path)
    run.iterate(0)
    run.tell(0, 0, [1.0, 3.0])
    write_json(run.paths.heartbeat("worker_1"), {"state": "evaluating", "time": time.time() - silent_secs, "since": 0})
    for iteration in range(1, 13):
        now[0] += STRAGGLER_SECS / 5
        run.iterate(iteration)
        _wait_until(lambda: not run.beats._beats)  # The reader keeps no answer for the next iteration.
    assert run.published == ([0, 10] if goes_on else [0])
    assert [row["eval_return"] for row in run.rows()] == ([2.0] if goes_on else [])


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.perf_counter() + 10.0
    while not condition():
        assert time.perf_counter() < deadline
        time.sleep(0.002)


def test_an_evaluation_whose_workers_are_all_gone_does_not_end_evaluating(tmp_path: Path, now: list[float]) -> None:
    run = Run(tmp_path, num_workers=1)
    run.iterate(0)
    run.tell(0, 0, [9.0])
    now[0] += STRAGGLER_SECS + 1  # It never had a heartbeat.
    run.iterate(10)
    assert run.published == [0, 10] and run.rows() == []
    now[0] += 1.0
    run.iterate(20)
    assert run.published == [0, 10], "it may be back at any moment"
    run.tell(0, 10, [1.0, 1.0, 1.0, 1.0])
    run.iterate(21)
    run.iterate(22)
    assert run.published == [0, 10, 21]
    assert [(row["iteration"], row["eval_left_out"]) for row in run.rows()] == [(10, 1)]


def test_the_checkpoint_of_an_evaluation_that_was_given_up_goes_and_a_late_share_is_told(
    tmp_path: Path, now: list[float]
) -> None:
    run = Run(tmp_path, num_workers=1, checkpoint_period_itrs=20)
    for version in (0, 10, 20, 30):
        run.iterate(version)  # Without a heartbeat from anyone.
        now[0] += STRAGGLER_SECS + 1
    run.iterate(40)
    assert run.published == [0, 10, 20, 30, 40]
    assert run.deleted == ["policy_checkpoint_0000001000", "policy_checkpoint_0000003000"], "20 is a periodic one"
    run.tell(0, 30, [2.0] * 4)
    run.iterate(41)
    assert [(row["iteration"], row["train_step"]) for row in run.rows()] == [(30, 3000)] and run.best == []


def test_a_run_that_is_resumed_counts_what_was_due_meanwhile(tmp_path: Path, now: list[float]) -> None:
    run = Run(tmp_path)
    for version in (0, 10):
        run.iterate(version)
        for worker in (0, 1):
            run.tell(worker, version, [1.0, 1.0])
        run.iterate(version + 1)
    run.iterate(20)
    run.tell(0, 20, [1.0, 1.0])  # Killed here, with the share of worker 1 not told and a checkpoint of iteration 45.
    run = Run(tmp_path, session=2)
    run.iterate(45)
    for worker in (0, 1):
        run.tell(worker, 20, [1.0, 1.0], session=1)  # Not heard: the policy may be another one's.
    for worker in (0, 1):
        run.tell(worker, 45, [2.0, 2.0])
    run.iterate(46)
    assert run.published == [45]
    found = [(row["iteration"], row["eval_episodes"], row["eval_left_out"]) for row in run.rows()]
    assert found == [(0, 4, 0), (10, 4, 0), (45, 4, 2)]


def test_a_joined_worker_that_evaluates_adds_its_episodes_and_is_not_waited_for_when_it_leaves(
    tmp_path: Path, now: list[float]
) -> None:
    run = Run(tmp_path)
    run.iterate(0)
    run.tell(7, -1, [])
    for worker in (0, 1):
        run.tell(worker, 0, [1.0, 1.0])
    run.iterate(1)
    assert run.rows() == []
    run.tell(7, 0, [4.0, 4.0])
    run.iterate(2)
    assert [(row["eval_return"], row["eval_episodes"]) for row in run.rows()] == [(2.0, 6)]
    run.iterate(10)
    for worker in (0, 1):
        run.tell(worker, 10, [1.0, 1.0])
    run.tell(7, 10, [50.0])
    run.iterate(11)
    run.trainer._role.has_left = lambda worker: worker == 7
    now[0] += 1.0
    run.iterate(20)
    assert run.published == [0, 10, 20]
    assert [(row["eval_return"], row["eval_episodes"]) for row in run.rows()] == [(2.0, 6), (1.0, 4)]


def test_the_last_policy_is_evaluated_after_the_one_before(tmp_path: Path, now: list[float]) -> None:
    run = Run(tmp_path, num_workers=1, num_iter=25)
    run.iterate(20)
    run.iterate(25)
    assert run.published == [20]
    trainer, state = run.trainer, run.trainer._state
    trainer._connect = trainer._begin = trainer.save_finally = lambda: None
    trainer._export.has_models = lambda: True
    trainer._losses = {}
    take = trainer._take_reports

    def evaluate_and_take() -> None:
        run.tell(0, trainer._eval_iteration, [1.0] * 4)
        take()

    trainer._take_reports = evaluate_and_take
    trainer.run()
    assert state.iteration == 25 and [row["iteration"] for row in run.rows()] == [20, 25]
