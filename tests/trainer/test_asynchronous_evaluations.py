"""Where workers never wait, evaluations are whole all the same: one after the other, the rest left out."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import random
import statistics
from pathlib import Path

import pytest

from tests.support.trainer_without_agent import STRAGGLER_SECS, Run, now
from tfagents_system.machine.files import write_json
from tfagents_system.transport.episode_reports import eval_share

__all__ = ["now"]  # A fixture.


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
                lengths = [rng.choice([1, 15]) for _ in range(eval_share(7, range(3), worker))]
                shares[worker] = Share(newest, lengths)
                truth[newest] += lengths
            if not shares[worker].is_over and (returns := shares[worker].step()) is not None:
                run.tell(worker, shares[worker].version, returns)
    rows = run.rows()
    assert len(rows) > 40
    for row in rows:
        assert row["eval_episodes"] == 7
        assert row["eval_return"] == pytest.approx(statistics.fmean(truth[int(row["iteration"])]), rel=1e-6)


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
    assert run.rows()[-1]["eval_return"] == -125.0
    assert run.published[-1] == 61, "at the next iteration, not at the next period"
    for worker in (0, 1):
        run.tell(worker, 61, [6.0, 6.0])
    run.iterate(62)
    assert run.best[-1] == ("policy_checkpoint_0000006100", 6.0)


@pytest.mark.parametrize("is_alive", [True, False])
def test_a_worker_that_dies_is_left_out_with_what_it_has_told(tmp_path: Path, now: list[float], is_alive: bool) -> None:
    """Iterations take longer than a heartbeat's interval; what its clock says does not matter."""
    run = Run(tmp_path)
    run.iterate(0)
    run.tell(0, 0, [1.0, 3.0])
    run.tell(1, 0, [100.0])
    run.paths.heartbeats.mkdir(exist_ok=True)
    for iteration in range(1, 11):
        beat = {"state": "evaluating", "time": 5000.0 - (iteration if is_alive else 0), "since": 0}
        write_json(run.paths.heartbeat("worker_1"), beat)
        run.iterate(iteration)
        now[0] += STRAGGLER_SECS / 8
    assert run.published == ([0] if is_alive else [0, 10])
    assert [(row["eval_return"], row["eval_episodes"]) for row in run.rows()] == ([] if is_alive else [(2.0, 2)])
    run.tell(1, 0, [100.0, 200.0])  # It is back, or was never gone.
    run.iterate(11)
    assert run.published[-1] == (11 if is_alive else 10) and len(run.rows()) == 1
    run.tell(0, run.published[-1], [1.0, 3.0])
    run.iterate(12)
    assert len(run.rows()) == 1, "it is waited for again"


def test_the_checkpoint_of_an_evaluation_that_was_given_up_goes_and_a_late_share_is_told(
    tmp_path: Path, now: list[float]
) -> None:
    run = Run(tmp_path, num_workers=1, checkpoint_period_iters=20)
    for version in (0, 10, 20, 30, 40):
        run.iterate(version)  # Without a heartbeat from anyone.
        run.iterate(version + 1)
        now[0] += STRAGGLER_SECS + 1
    run.iterate(50)
    assert run.published == [0, 10, 20, 30, 40, 50] and run.rows() == []
    assert run.deleted == ["policy_checkpoint_0000003000"], "10 is the first one, and 20 a periodic one"
    run.tell(0, 30, [2.0] * 4)
    run.iterate(51)
    assert [(row["iteration"], row["train_step"]) for row in run.rows()] == [(30, 3000)] and run.best == []
    run.iterate(60)
    assert run.published[-1] == 50, "it may be back at any moment"
    run.tell(0, 50, [1.0] * 4)
    run.iterate(61)
    assert run.published[-1] == 61 and [row["iteration"] for row in run.rows()] == [30, 50]


def test_a_run_that_is_resumed_evaluates_what_was_due_meanwhile_once(tmp_path: Path, now: list[float]) -> None:
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
    assert [(row["iteration"], row["eval_episodes"]) for row in run.rows()] == [(0, 4), (10, 4), (45, 4)]


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


@pytest.mark.parametrize("deterministic", [False, True])
def test_in_lock_step_training_goes_on_while_evaluators_evaluate_unless_deterministic(
    tmp_path: Path, now: list[float], deterministic: bool
) -> None:
    run = Run(tmp_path, asynchronous=False, deterministic=deterministic, eval_workers=1)
    run.iterate(0)
    waited, leave_out_gone = list[list[int]](), run.trainer._reports.leave_out_gone

    def is_waited_for() -> None:
        waited.append(run.trainer._reports.missing())
        if deterministic:
            run.tell(2, 0, [1.0, 2.0, 3.0, 6.0])
        leave_out_gone()

    run.trainer._reports.leave_out_gone = is_waited_for
    run.iterate(10)
    if deterministic:
        assert waited == [[2]] and run.published == [0, 10]
    else:
        assert run.published == [0]
        run.tell(2, 0, [1.0, 2.0, 3.0, 6.0])
        run.iterate(21)
        assert run.published == [0, 21], "it does not wait for the next period"
    assert [(row["eval_return"], row["eval_episodes"]) for row in run.rows()] == [(3.0, 4)]


def test_without_episodes_nothing_is_evaluated_and_nobody_waited_for(tmp_path: Path, now: list[float]) -> None:
    run = Run(tmp_path, asynchronous=False, num_episodes=0, num_iter=20)
    for iteration in (0, 10, 20):
        run.iterate(iteration)
    trainer = run.trainer
    trainer._connect = trainer._begin = trainer.save_finally = lambda: None
    trainer._export.has_model = lambda: True
    trainer.run()
    assert run.published == [] and run.rows() == [] and run.best == []


def test_going_back_brings_back_what_was_best_up_to_there(tmp_path: Path, now: list[float]) -> None:
    """Of an evaluation that ended after the checkpoint, too; what is best later is lost with the later rows."""
    run = Run(tmp_path, num_workers=1, checkpoint_period_iters=1000)
    for version, value in ((10, 1.0), (20, 4.0), (30, 9.0)):
        run.iterate(version)
        run.tell(0, version, [value] * 4)
        run.iterate(version + 1)
        if version == 10:  # The evaluation of 20 is under way.
            saved = [["policy_checkpoint_0000001000", "policy_checkpoint_0000002000"]]
            run.trainer._state.saved_policies = saved
            of_checkpoint = dataclasses.asdict(run.trainer._state)
    assert run.best[-1] == ("policy_checkpoint_0000003000", 9.0) and run.deleted == []
    vars(run.trainer._state).update(of_checkpoint)
    run.trainer._follow(2500)
    assert run.best[-1] == ("policy_checkpoint_0000002000", 4.0) and run.trainer._state.best["eval_return"] == 4.0
