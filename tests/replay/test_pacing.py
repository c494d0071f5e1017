"""Pacing follows the arrival of experience, nobody can hold it up for ever, and order depends on nobody's speed."""

from __future__ import annotations

import random
import types

import pytest

from tests.support.segments_for_tests import LAYOUT, numbered_segment
from tfagents_system.replay import pacing as pacing_module
from tfagents_system.replay.pacing import Asynchronous, Lockstep, WorkerOrder
from tfagents_system.replay.ring import INIT_ITERATION, Ring
from tfagents_system.transport.tables import AS_DUE, Request


def request(iteration, count=10, updates=0, first=0):
    return Request(session=1, iteration=iteration, first=first, count=count, updates=updates)


@pytest.fixture
def ring(tmp_path):
    return Ring.open(tmp_path / "ring", LAYOUT, 1000)


@pytest.fixture
def clock(monkeypatch):
    """Its `now` is the time."""
    clock = types.SimpleNamespace(now=0.0)
    monkeypatch.setattr(pacing_module, "time", types.SimpleNamespace(monotonic=lambda: clock.now))
    return clock


def collect(ring, worker, iteration, steps=5, ends=True):
    """The next segment of a worker."""
    number = ring.worker(worker).number + 1
    assert ring.append(numbered_segment(worker, number, steps, iteration=iteration, end_of_iteration=ends))


def test_lockstep_waits_for_every_worker_and_then_allows_the_whole_iteration(ring):
    pacing = Lockstep(ring, num_workers=2, straggler_secs=60.0)
    assert pacing.allowed(request(0), 0) == 0
    collect(ring, 0, 0)
    collect(ring, 1, 0, ends=False)
    assert pacing.allowed(request(0), 0) == 0
    assert pacing.waiting_for(request(0)) == "iteration 0 of workers [1]"
    collect(ring, 1, 0)
    assert (pacing.allowed(request(0), 3), pacing.allowed(request(1), 0)) == (7, 0)
    collect(ring, 70, 1, ends=False)  # One that joins counts from its first segment on.
    pacing.heard(70)
    for worker in (0, 1):
        collect(ring, worker, 1)
    assert pacing.allowed(request(1), 0) == 0
    assert pacing.waiting_for(request(1)) == "iteration 1 of workers [70]"
    collect(ring, 70, 1)
    assert pacing.allowed(request(1), 0) == 10


def test_a_late_worker_is_left_out_after_the_deadline_and_waited_for_again_when_it_is_back(ring, clock):
    pacing = Lockstep(ring, num_workers=2, straggler_secs=60.0)
    collect(ring, 0, 0)
    allowed = []
    for clock.now in (0.0, 59.9, 60.0):
        allowed.append(pacing.allowed(request(0), 0))
    assert allowed == [0, 0, 10]
    for clock.now in (100.0, 1000.0, 10_000.0):
        assert pacing.allowed(request(1), 0) == 0, "worker 1 is lost, worker 0 is slow: there is nothing new"
    collect(ring, 0, 1)
    assert pacing.allowed(request(1), 0) == 10, "it is not waited for again"
    collect(ring, 1, 1, ends=False)
    pacing.heard(1)
    assert pacing.allowed(request(1), 0) == 0
    collect(ring, 1, 1)
    assert pacing.allowed(request(1), 0) == 10


def test_the_deadline_holds_although_two_iterations_are_asked_for_in_turn(ring, clock):
    pacing = Lockstep(ring, num_workers=2, straggler_secs=10.0)
    for iteration in (0, 1):
        collect(ring, 0, iteration)
    for clock.now in (0.0, 3.0, 6.0, 9.0, 10.0):
        allowed = 10 if clock.now == 10.0 else 0
        assert [pacing.allowed(request(iteration), 0) for iteration in (0, 1)] == [allowed, allowed]


def test_a_worker_that_has_left_is_not_waited_for_until_it_is_heard_again(ring, clock):
    left = set()
    pacing = Lockstep(ring, num_workers=1, straggler_secs=60.0, has_left=left.__contains__)
    collect(ring, 3, 0)
    pacing.heard(3)
    for iteration in (0, 1):
        collect(ring, 0, iteration)
    assert pacing.allowed(request(1), 0) == 0
    left.add(3)
    assert pacing.allowed(request(1), 0) == 0, "it was asked for less than a second ago"
    clock.now = 1.0
    assert pacing.allowed(request(1), 0) == 10
    left.clear()
    collect(ring, 0, 2)
    assert pacing.allowed(request(2), 0) == 10
    collect(ring, 3, 3, ends=False)
    pacing.heard(3)
    collect(ring, 0, 3)
    clock.now = 3.0
    assert pacing.allowed(request(3), 0) == 0


def test_asynchronous_allows_so_many_updates_for_each_step_after_the_random_ones(ring):
    pacing = Asynchronous(ring, max_updates_per_env_step=0.5, init_count=2, init_steps=200)
    collect(ring, 0, -1, 70)
    collect(ring, 0, 0, 30)
    assert pacing.allowed(request(0), 0) == 0, "one of the two random episodes is missing"
    collect(ring, 1, -1, 70)
    assert pacing.allowed(request(0, count=100), 0) == 15
    assert pacing.allowed(request(0, count=100), 15) == 0
    assert pacing.allowed(request(2, count=100, updates=12), 0) == 3
    assert pacing.allowed(request(0, count=4), 0) == 4


def test_a_worker_that_never_collects_its_random_episodes_does_not_hold_up_the_others(ring):
    pacing = Asynchronous(ring, max_updates_per_env_step=1.0, init_count=2, init_steps=80)
    collect(ring, 0, -1, 40)
    collect(ring, 0, 0, 79)
    assert pacing.allowed(request(0), 0) == 0
    collect(ring, 0, 0, 1)
    assert pacing.allowed(request(0), 0) == 10


def test_asynchronous_goes_on_with_a_ring_that_was_lost_and_forgives_nothing_that_its_steps_allow(ring):
    pacing = Asynchronous(ring, max_updates_per_env_step=0.5, init_count=1, init_steps=100)
    assert pacing.allowed(request(7, updates=700), 0) == 0
    collect(ring, 0, -1, 70)
    collect(ring, 0, 0, 30)
    assert pacing.allowed(request(7, count=100, updates=700), 0) == 15
    assert pacing.allowed(request(7, count=100, updates=700), 15) == 0
    assert pacing.allowed(request(8, count=100, updates=712), 0) == 3
    another = Asynchronous(ring, max_updates_per_env_step=0.5, init_count=1, init_steps=100)
    assert another.allowed(request(1, count=100, updates=12), 0) == 3
    assert another.allowed(request(2, count=100, updates=112), 0) == 0, "asked for beforehand"
    collect(ring, 0, 0, 2)
    assert pacing.allowed(request(7, count=100, updates=700), 15) == 1


# Updates as experience asks for them.


def due(pacing, iteration, updates, first=0):
    """Minibatches of an iteration that begins, or continues, after so many updates; None while that can't be told."""
    settled = pacing.settle(request(iteration, AS_DUE, updates, first))
    return None if settled is None else settled.count


def test_each_iteration_gets_what_its_experience_asks_for_and_rounding_loses_nothing(ring):
    pacing, updates = Lockstep(ring, num_workers=1, straggler_secs=60.0, updates_per_env_step=0.3), []
    collect(ring, 0, -1, 40)
    for iteration, steps in enumerate([7, 1, 1, 13, 8]):
        assert due(pacing, iteration, sum(updates)) is None
        collect(ring, 0, iteration, steps)
        updates.append(due(pacing, iteration, sum(updates)))
    assert updates == [2, 0, 0, 4, 3]  # 2.1, 2.4, 2.7, 6.6 and 9.0 in all; the 40 random steps do not count.


def test_what_belongs_to_the_next_iteration_waits_for_it_and_what_is_late_counts_in_the_next(ring):
    pacing = Lockstep(ring, num_workers=2, straggler_secs=60.0, updates_per_env_step=2.0)
    collect(ring, 0, 0, 5)
    collect(ring, 0, 1, 3)
    collect(ring, 1, 0, 4)
    assert due(pacing, 0, 0) == 2 * (5 + 4)
    collect(ring, 1, 0, 6, ends=False)
    collect(ring, 1, 1, 1)
    assert due(pacing, 1, 18) == 2 * (3 + 6 + 1)
    assert due(pacing, 1, 18 + 11, first=11) == 9, "after a stop in mid-iteration"


def test_a_ring_that_has_lost_experience_asks_for_the_iterations_own(ring):
    pacing = Lockstep(ring, num_workers=1, straggler_secs=60.0, updates_per_env_step=1.0)
    collect(ring, 0, 70, 9)
    collect(ring, 0, 71, 5)
    assert due(pacing, 71, 1000) == 5
    assert due(pacing, 71, 1002, first=2) == 3


# The order of what is stored, with SAC_DETERMINISTIC=1.


WORKERS, ITERATIONS, SEGMENTS = 3, 3, 2


def order_of(ring):
    """Only workers 0 and 1 collect the first random episodes."""
    return WorkerOrder(ring, lambda iteration: range(2 if iteration == INIT_ITERATION else WORKERS))


def segments_of(worker, incarnation=1, iterations=range(INIT_ITERATION, ITERATIONS), first_number=0):
    """All segments of a worker, in its order: two in each of its iterations."""
    parts = [(i, part) for i in iterations for part in range(SEGMENTS) if worker != 2 or i != INIT_ITERATION]
    more = {"incarnation": incarnation}
    return [
        numbered_segment(worker, number, iteration=iteration, end_of_iteration=part == SEGMENTS - 1, **more)
        for number, (iteration, part) in enumerate(parts, first_number)
    ]


def store(ring, order, *segments):
    for segment in segments:
        ready = order.take(segment)
        while ready:
            assert ring.extend(ready) == len(ready)
            ready = order.release()


def stored(ring):
    """(worker, episode) of each segment in the ring, in its order."""
    rows = [row for row in range(ring.filled_rows) if ring.step_type[row] == 0]
    return [tuple(int(value) for value in ring.observation[0][row][:2]) for row in rows]


def test_however_they_come_they_are_stored_by_iteration_and_worker(tmp_path):
    expected = None
    for seed in range(20):
        ring = Ring.open(tmp_path / str(seed), LAYOUT, 400)
        order, queues = order_of(ring), [segments_of(worker) for worker in range(WORKERS)]
        rng = random.Random(seed)
        while any(queues):
            queue = rng.choice([queue for queue in queues if queue])
            segment = queue.pop(0)
            store(ring, order, segment)
            if rng.random() < 0.3:
                store(ring, order, segment)  # It was sent again.
        expected = expected or stored(ring)
        assert stored(ring) == expected
    assert expected[:4] == [(0, 0), (0, 1), (1, 0), (1, 1)], "the first random episodes"
    assert expected[4:10] == [(0, 2), (0, 3), (1, 2), (1, 3), (2, 0), (2, 1)], "iteration 0"
    assert len(expected) == 2 * SEGMENTS + ITERATIONS * WORKERS * SEGMENTS


def test_a_restarted_worker_begins_its_iteration_anew(ring):
    order = order_of(ring)
    store(ring, order, *segments_of(0)[:2], segments_of(1)[0], *segments_of(1, incarnation=2)[:2])
    assert stored(ring) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert ring.worker(1).incarnation == 2
    store(ring, order, segments_of(1)[1])
    assert ring.segments == 4, "what its first start had sent comes too late"


def test_an_iteration_that_was_half_stored_goes_on_where_it_was(ring):
    """The process was killed between two appends of one iteration."""
    ring.extend(segments_of(0)[:2] + segments_of(1)[:1])
    store(ring, order_of(ring), *segments_of(0)[:2], *segments_of(1)[:2])
    assert stored(ring) == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_an_iteration_waits_for_room_and_is_stored_whole_when_there_is(ring):
    room = [0]
    order = WorkerOrder(ring, lambda iteration: range(2), lambda num_rows: num_rows <= room[0])
    segments = [s for worker in range(2) for s in segments_of(worker) if s.iteration <= 0]
    assert [each for segment in segments for each in order.take(segment)] == []
    room[0] = 4 * segments[0].num_rows - 1
    assert order.release() == []
    room[0] += 1
    for iteration in (INIT_ITERATION, 0):
        ready = order.release()
        assert [(s.iteration, s.worker_id) for s in ready] == [(iteration, worker) for worker in (0, 0, 1, 1)]
        assert all(ring.append(segment) for segment in ready)
    assert order.release() == []


def test_what_was_stored_while_a_worker_started_again_is_not_stored_twice(ring):
    """It collects the iteration once more, because it was told of it before it was stored."""
    order = order_of(ring)
    for worker in range(WORKERS):
        store(ring, order, *segments_of(worker))
    before = stored(ring)
    store(ring, order, *segments_of(1, incarnation=2, iterations=[ITERATIONS - 1]))
    assert stored(ring) == before
    for worker in range(WORKERS):  # The next iteration: the new process of worker 1 begins to count anew.
        incarnation, first = (2, 0) if worker == 1 else (1, len(segments_of(worker)))
        store(ring, order, *segments_of(worker, incarnation, [ITERATIONS], first))
    assert len(stored(ring)) == len(before) + WORKERS * SEGMENTS
    assert ring.worker(1).incarnation == 2 and ring.worker(1).number == SEGMENTS - 1
