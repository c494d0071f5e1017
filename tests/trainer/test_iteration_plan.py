"""The number of updates is exact, whatever stops the trainer and however often it asks; periods, by hand."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import numpy as np
import pytest

from tests.support.segments_for_tests import LAYOUT, numbered_segment
from tfagents_system.agents.iteration_counts import updates_due
from tfagents_system.replay.pacing import Lockstep
from tfagents_system.replay.ring import Ring
from tfagents_system.trainer import iteration_plan as module
from tfagents_system.trainer.iteration_plan import IterationPlan, Minibatches, Period, TrainerState, parts_of
from tfagents_system.transport import tables
from tfagents_system.transport.connection import StoppedError
from tfagents_system.transport.tables import AS_DUE, OFFLINE, Block, Request

SESSION = 5


def make_plan(num_iter=10, updates_of_iteration=None, state=None):
    state, steps = state or TrainerState(), [0]
    return IterationPlan(state, lambda: steps[0], num_iter, updates_of_iteration), state, steps


def block(total, first=0, count=None):
    return Block(SESSION, 0, first, total - first if count is None else count, 0, total, 0, [])


def test_iterations_of_equal_length_are_asked_for_ahead():
    plan, state, steps = make_plan(num_iter=2, updates_of_iteration=20)
    assert plan.request(SESSION, 0) == Request(SESSION, 0, 0, 20, 0)
    assert plan.request(SESSION, 1) == Request(SESSION, 1, 0, 20, 20)
    steps[0] = 8
    assert plan.request(SESSION, 0) == Request(SESSION, 0, 8, 12, 8)
    steps[0] = 20
    assert plan.is_complete and plan.request(SESSION, 0) is None
    plan.end()
    assert (state.iteration, state.iteration_start, plan.done) == (1, 20, 0)
    assert plan.request(SESSION, 2) is None, "the run has two"


def test_the_next_iteration_is_asked_for_when_this_one_has_told_its_updates():
    plan, state, steps = make_plan()
    assert plan.request(SESSION, 0) == Request(SESSION, 0, 0, AS_DUE, 0)
    assert plan.request(SESSION, 1) is None
    assert plan.take(block(total=30, count=12)) == 12
    assert plan.request(SESSION, 1) == Request(SESSION, 1, 0, AS_DUE, 30)
    steps[0] = 12
    assert plan.request(SESSION, 0) == Request(SESSION, 0, 12, 18, 12)
    assert plan.take(block(total=40, first=12)) == 18, "what has come meanwhile is for the next iteration"
    assert not plan.is_complete
    steps[0] = 30
    assert plan.is_complete
    plan.end()
    assert plan.take(block(total=0)) == 0 and plan.is_complete, "an iteration without updates"
    plan.end()
    assert (state.iteration, plan.mean_updates) == (2, 15.0)


@pytest.mark.parametrize("ratio", [0.07, 1.0, 2.5])
@pytest.mark.parametrize("seed", range(5))
def test_updates_are_exact_whatever_is_lost_killed_or_ahead(tmp_path, ratio, seed):
    """A trainer of two workers, one of which may be ahead; it is killed and its blocks are lost at random."""
    rng, num_iter = random.Random(seed), 12
    ring = Ring.open(tmp_path / "ring", LAYOUT, 4000)
    pacing = Lockstep(ring, 2, straggler_secs=60.0, updates_per_env_step=ratio)
    numbers, policy_steps = [0, 0], 0

    def collect(worker, iteration, ends):
        nonlocal policy_steps
        steps = rng.randint(1, 40)
        ring.append(numbered_segment(worker, numbers[worker], steps, iteration=iteration, end_of_iteration=ends))
        numbers[worker] += 1
        policy_steps += steps if iteration >= 0 else 0

    for worker in range(2):
        collect(worker, -1, True)
    plan, state, steps = make_plan(num_iter)
    saved = dataclasses.replace(state), 0
    collected = [-1, -1]
    while state.iteration < num_iter:
        for worker in range(2):  # At most one iteration ahead, in any order.
            while collected[worker] < min(state.iteration + 1, num_iter - 1) and rng.random() < 0.5:
                if rng.random() < 0.3:
                    collect(worker, collected[worker] + 1, False)
                collected[worker] += 1
                collect(worker, collected[worker], True)
        settled = pacing.settle(plan.request(SESSION, state.iteration))
        if settled is None or rng.random() < 0.2:  # Not complete yet, or the block is lost.
            continue
        count = min(settled.count, 25)
        steps[0] += plan.take(block(settled.first + settled.count, settled.first, count))
        if plan.is_complete:
            assert steps[0] == updates_due(ring.steps_up_to(state.iteration), ratio)
            plan.end()
        event = rng.random()
        if event < 0.3:
            saved = dataclasses.replace(state), steps[0]
        elif event < 0.5:  # The trainer is killed: it continues from what was saved.
            plan, state, steps = make_plan(num_iter, state=dataclasses.replace(saved[0]))
            steps[0] = saved[1]
    assert steps[0] == updates_due(policy_steps, ratio)


def test_offline_updates_come_first_and_count_for_no_ratio():
    state, steps = TrainerState(iteration=OFFLINE, uncounted_updates=50), [0]
    plan = IterationPlan(state, lambda: steps[0], 10, None, 50)
    plan.begin()
    assert plan.is_offline and plan.total == 50 and plan.mean_updates is None
    assert plan.request(SESSION, OFFLINE) == Request(SESSION, OFFLINE, 0, 50, 0, 0, 50)
    ahead = plan.request(SESSION, 0)
    assert ahead == Request(SESSION, 0, 0, AS_DUE, 50, 0, 50) and ahead.counted_updates == 0, "none of them counts"
    assert Request.from_wire(plan.request(SESSION, OFFLINE).to_wire()).iteration == OFFLINE
    assert plan.take(block(total=50, count=8)) == 8
    steps[0] = 8
    again = IterationPlan(dataclasses.replace(state), lambda: 8, 10, None, 50)
    again.begin()
    assert again.request(SESSION, OFFLINE) == Request(SESSION, OFFLINE, 8, 42, 8, 0, 50), "a stop within them"
    steps[0] = 50
    assert plan.is_complete
    plan.end()
    assert (state.iteration, state.iteration_start, plan.done, plan.total) == (0, 50, 0, None)
    assert (state.end_env_steps, state.earlier_end_env_steps) == (0, -1), "nothing has been collected"
    assert not plan.is_offline and plan.request(SESSION, 0) == ahead
    plan.take(block(total=20))
    steps[0] = 70
    plan.end()
    assert plan.mean_updates == 20 and plan.request(SESSION, 1) == Request(SESSION, 1, 0, AS_DUE, 70, 0, 50)


# The blocks that are waited for.


class Connection:
    """Gives what is in `blocks`, None for nothing in time; notes what is asked for."""

    def __init__(self, *blocks: Block | None) -> None:
        self.blocks = list(blocks)
        self.asked: list[tuple[int, int]] = []

    def feed_dead_reader(self, table: str, arrays: Any) -> None:
        assert table == tables.BLOCKS and Block.from_wire(arrays).session == 0

    def reader(self, table: str) -> Connection:
        assert table == tables.BLOCKS
        return self

    def get(self, timeout_secs: float) -> list[np.ndarray] | None:
        block = self.blocks.pop(0)
        return None if block is None else block.to_wire()

    def put(self, table: str, arrays: Any) -> None:
        assert table == tables.REQUESTS
        request = Request.from_wire(arrays)
        self.asked.append((request.session, request.iteration))


def sent(session: int = SESSION, iteration: int = 0, first: int = 0) -> Block:
    return Block(session, iteration, first, 10, 100, 20, 0, [])


def make(connection: Connection, stopped: bool = False) -> Minibatches:
    plan = IterationPlan(TrainerState(), lambda: 0, 10, 20)
    minibatches = Minibatches(connection, plan, lambda: stopped)  # type: ignore[arg-type]
    minibatches.begin(SESSION)
    return minibatches


def nothing() -> None:
    pass


def test_blocks_of_another_session_iteration_or_place_are_dropped() -> None:
    others = [sent(session=4), sent(iteration=1), sent(first=10)]
    connection = Connection(*others, sent(), sent(first=10))
    minibatches = make(connection)
    assert minibatches.next(0, 0, nothing) == sent()
    assert minibatches.next(0, 10, nothing) == sent(first=10)
    assert connection.blocks == [] and connection.asked == []


def test_it_asks_again_for_this_iteration_and_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    now, told = [0.0], []
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    connection = Connection(None, None, None, None, sent())

    def while_waiting() -> None:
        told.append(len(connection.asked))
        now[0] += 2.0

    minibatches = make(connection)
    assert minibatches.next(0, 0, while_waiting) == sent()
    assert connection.asked == [(SESSION, 0), (SESSION, 1)] * 2, "after 3 s without a block, and after 3 s more"
    assert told == [0, 0, 2, 2]


def test_a_stop_ends_the_wait() -> None:
    with pytest.raises(StoppedError):
        make(Connection(sent()), stopped=True).next(0, 0, nothing)


# Periods in iterations and in environment steps.


def due(period: Period, ends: list[int]) -> list[int]:
    """Iterations after which it is due, if the run has these numbers of steps at their ends; 0: before the first."""
    state = TrainerState()
    plan = IterationPlan(state, lambda: 0, 100, 1)
    found = [0] if period.is_due(state) else []
    for state.env_steps in ends:
        plan.end()
        found += [state.iteration] if period.is_due(state) else []
    return found


@pytest.mark.parametrize(
    ("period", "found"),
    [
        (Period(3, None), [0, 3, 6]),
        (Period(1, None), [0, 1, 2, 3, 4, 5, 6]),
        (Period(3, 100), [0, 2, 4, 5]),
        (Period(1, 1000), [0]),
    ],
)
def test_it_is_due_whenever_a_multiple_is_reached(period: Period, found: list[int]) -> None:
    assert due(period, [99, 100, 199, 350, 420, 420]) == found


@pytest.mark.parametrize("period", [Period(10, None), Period(10, 10_000)])
def test_it_is_due_before_the_first_iteration_of_an_agent_that_follows_another_one(period: Period) -> None:
    assert period.is_due(TrainerState(env_steps=100_500, end_env_steps=100_500))


@pytest.mark.parametrize(
    ("train_step", "count", "period", "ends"),
    [
        (0, 100, None, [100]),
        (0, 0, 10, []),
        (0, 100, 40, [40, 80, 100]),
        (130, 100, 40, [30, 70, 100]),
        (100, 3, 1, [1, 2, 3]),
        (50, 50, 100, [50]),
        (10, 50, 1000, [50]),
    ],
)
def test_updates_are_parted_at_the_multiples_of_a_period(
    train_step: int, count: int, period: int | None, ends: list[int]
) -> None:
    parts = list(parts_of(train_step, count, period))
    assert [part.stop for part in parts] == ends
    assert [part.start for part in parts] == [0, *ends][: len(ends)]
