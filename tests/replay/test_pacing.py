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


def request(iteration, count=10, updates=0):
    return Request(session=1, iteration=iteration, first=0, count=count, updates=updates)


@pytest.fixture
def ring(tmp_path):
    return Ring.open(tmp_path / "ring", LAYOUT, 1000)


@pytest.fixture
def clock(monkeypatch):
    """Its `now` is the time."""
    clock = types.SimpleNamespace(now=0.0)
    monkeypatch.setattr(pacing_module, "time", types.SimpleNamespace(monotonic=lambda: clock.now))
    return clock


def test_lockstep_waits_for_every_worker_and_then_allows_the_whole_iteration(ring):
    pacing = Lockstep(ring, num_workers=2, straggler_secs=60.0)
    assert pacing.allowed(request(0), 0) == 0
    ring.append(numbered_segment(0, 0, iteration=0, end_of_iteration=True))
    ring.append(numbered_segment(1, 0, iteration=0, end_of_iteration=False))
    assert pacing.allowed(request(0), 0) == 0
    assert pacing.waiting_for(request(0)) == "iteration 0 of workers [1]"
    ring.append(numbered_segment(1, 1, iteration=0, end_of_iteration=True))
    assert pacing.allowed(request(0), 3) == 7
    assert pacing.allowed(request(1), 0) == 0


def test_a_late_worker_is_left_out_after_the_deadline_and_waited_for_again_when_it_is_back(ring, clock):
    pacing = Lockstep(ring, num_workers=2, straggler_secs=60.0)
    ring.append(numbered_segment(0, 0, iteration=0, end_of_iteration=True))
    assert pacing.allowed(request(0), 0) == 0
    clock.now = 59.9
    assert pacing.allowed(request(0), 0) == 0
    clock.now = 60.0
    assert pacing.allowed(request(0), 0) == 10
    ring.append(numbered_segment(0, 1, iteration=1, end_of_iteration=True))
    assert pacing.allowed(request(1), 0) == 10, "it is not waited for again"
    ring.append(numbered_segment(1, 0, iteration=1))
    pacing.heard(1)
    assert pacing.allowed(request(1), 0) == 0
    ring.append(numbered_segment(1, 1, iteration=1, end_of_iteration=True))
    assert pacing.allowed(request(1), 0) == 10


def test_the_deadline_holds_although_two_iterations_are_asked_for_in_turn(ring, clock):
    pacing = Lockstep(ring, num_workers=2, straggler_secs=10.0)
    ring.append(numbered_segment(0, 0, iteration=0, end_of_iteration=True))
    ring.append(numbered_segment(0, 1, iteration=1, end_of_iteration=True))
    for clock.now in (0.0, 3.0, 6.0, 9.0):
        assert pacing.allowed(request(0), 0) == 0
        assert pacing.allowed(request(1), 0) == 0
    clock.now = 10.0
    assert pacing.allowed(request(0), 0) == 10
    assert pacing.allowed(request(1), 0) == 10


def test_without_new_experience_nothing_is_drawn_even_if_all_others_are_lost(ring, clock):
    pacing = Lockstep(ring, num_workers=2, straggler_secs=60.0)
    ring.append(numbered_segment(0, 0, iteration=0, end_of_iteration=True))
    for clock.now in (0.0, 60.0):
        pacing.allowed(request(0), 0)
    for clock.now in (100.0, 1000.0, 10_000.0):
        assert pacing.allowed(request(1), 0) == 0, "worker 1 is lost, worker 0 is slow"


def test_a_worker_that_never_collects_its_random_episodes_does_not_hold_up_the_others(ring):
    pacing = Asynchronous(ring, max_updates_per_env_step=1.0, init_count=2, init_steps=80)
    ring.append(numbered_segment(0, 0, steps=40, iteration=-1))
    ring.append(numbered_segment(0, 1, steps=79))
    assert pacing.allowed(request(0), 0) == 0
    ring.append(numbered_segment(0, 2, steps=1))
    assert pacing.allowed(request(0), 0) == 10


def test_asynchronous_allows_so_many_updates_for_each_step_after_the_random_ones(ring):
    pacing = Asynchronous(ring, max_updates_per_env_step=0.5, init_count=2, init_steps=200)
    ring.append(numbered_segment(0, 0, steps=70, iteration=-1))
    ring.append(numbered_segment(0, 1, steps=30))
    assert pacing.allowed(request(0), 0) == 0, "one of the two random episodes is missing"
    ring.append(numbered_segment(1, 0, steps=70, iteration=-1))
    assert pacing.allowed(request(0, count=100), 0) == 15
    assert pacing.allowed(request(0, count=100), 15) == 0
    assert pacing.allowed(request(2, count=100, updates=12), 0) == 3
    assert pacing.allowed(request(0, count=4), 0) == 4


def test_asynchronous_goes_on_with_a_ring_that_was_lost(ring):
    pacing = Asynchronous(ring, max_updates_per_env_step=0.5, init_count=1, init_steps=100)
    assert pacing.allowed(request(7, updates=700), 0) == 0
    ring.append(numbered_segment(0, 0, steps=70, iteration=-1))
    ring.append(numbered_segment(0, 1, steps=30))
    assert pacing.allowed(request(7, count=100, updates=700), 0) == 15
    assert pacing.allowed(request(7, count=100, updates=700), 15) == 0
    assert pacing.allowed(request(8, count=100, updates=712), 0) == 3
    ring.append(numbered_segment(0, 2, steps=2))
    assert pacing.allowed(request(7, count=100, updates=700), 15) == 1


def test_asynchronous_forgives_nothing_that_its_steps_allow(ring):
    ring.append(numbered_segment(0, 0, steps=70, iteration=-1))
    ring.append(numbered_segment(0, 1, steps=30))
    pacing = Asynchronous(ring, max_updates_per_env_step=0.5, init_count=1, init_steps=100)
    assert pacing.allowed(request(1, count=100, updates=12), 0) == 3
    assert pacing.allowed(request(2, count=100, updates=112), 0) == 0, "asked for beforehand"


def test_workers_that_join_count_from_their_first_segment_on(ring):
    pacing = Lockstep(ring, num_workers=1, straggler_secs=60.0)
    ring.append(numbered_segment(0, 0, iteration=0, end_of_iteration=True))
    assert pacing.allowed(request(0), 0) == 10, "nobody else is planned"
    ring.append(numbered_segment(70, 0, iteration=1, end_of_iteration=False))
    pacing.heard(70)
    ring.append(numbered_segment(0, 1, iteration=1, end_of_iteration=True))
    assert pacing.allowed(request(1), 0) == 0
    assert pacing.waiting_for(request(1)) == "iteration 1 of workers [70]"
    ring.append(numbered_segment(70, 1, iteration=1, end_of_iteration=True))
    assert pacing.allowed(request(1), 0) == 10


def test_a_worker_that_has_left_is_not_waited_for_until_it_is_heard_again(ring, clock):
    left = set()
    pacing = Lockstep(ring, num_workers=1, straggler_secs=60.0, has_left=left.__contains__)
    ring.append(numbered_segment(3, 0, iteration=0, end_of_iteration=True))
    pacing.heard(3)
    ring.append(numbered_segment(0, 0, iteration=0, end_of_iteration=True))
    ring.append(numbered_segment(0, 1, iteration=1, end_of_iteration=True))
    assert pacing.allowed(request(1), 0) == 0
    left.add(3)
    assert pacing.allowed(request(1), 0) == 0, "it was asked for less than a second ago"
    clock.now = 1.0
    assert pacing.allowed(request(1), 0) == 10
    left.clear()
    ring.append(numbered_segment(0, 2, iteration=2, end_of_iteration=True))
    assert pacing.allowed(request(2), 0) == 10
    ring.append(numbered_segment(3, 1, iteration=3))
    pacing.heard(3)
    ring.append(numbered_segment(0, 3, iteration=3, end_of_iteration=True))
    clock.now = 3.0
    assert pacing.allowed(request(3), 0) == 0


# Updates as experience asks for them.


def due(pacing, iteration, updates, first=0):
    """Minibatches of an iteration that begins, or goes on, after so many updates; None while that can't be told."""
    settled = pacing.settle(Request(1, iteration, first, AS_DUE, updates))
    return None if settled is None else settled.count


def test_each_iteration_gets_what_its_experience_asks_for_and_rounding_loses_nothing(ring):
    pacing = Lockstep(ring, num_workers=1, straggler_secs=60.0, updates_per_env_step=0.3)
    ring.append(numbered_segment(0, 0, steps=40, iteration=-1, end_of_iteration=True))
    updates = []
    for number, steps in enumerate([7, 1, 1, 13, 8]):
        assert due(pacing, number, sum(updates)) is None
        ring.append(numbered_segment(0, 1 + number, steps=steps, iteration=number, end_of_iteration=True))
        updates.append(due(pacing, number, sum(updates)))
    assert updates == [2, 0, 0, 4, 3]  # 2.1, 2.4, 2.7, 6.6 and 9.0 in all; the 40 random steps do not count.


def test_what_belongs_to_the_next_iteration_waits_for_it_and_what_is_late_counts_in_the_next(ring):
    pacing = Lockstep(ring, num_workers=2, straggler_secs=60.0, updates_per_env_step=2.0)
    ring.append(numbered_segment(0, 0, steps=5, iteration=0, end_of_iteration=True))
    ring.append(numbered_segment(0, 1, steps=3, iteration=1, end_of_iteration=True))
    ring.append(numbered_segment(1, 0, steps=4, iteration=0, end_of_iteration=True))
    assert due(pacing, 0, 0) == 2 * (5 + 4)
    ring.append(numbered_segment(1, 1, steps=6, iteration=0))
    ring.append(numbered_segment(1, 2, steps=1, iteration=1, end_of_iteration=True))
    assert due(pacing, 1, 18) == 2 * (3 + 6 + 1)
    assert due(pacing, 1, 18 + 11, first=11) == 9, "after a stop in mid-iteration"


def test_a_ring_that_has_lost_experience_asks_for_the_iterations_own(ring):
    pacing = Lockstep(ring, num_workers=1, straggler_secs=60.0, updates_per_env_step=1.0)
    ring.append(numbered_segment(0, 0, steps=9, iteration=70, end_of_iteration=True))
    ring.append(numbered_segment(0, 1, steps=5, iteration=71, end_of_iteration=True))
    assert due(pacing, 71, 1000) == 5
    assert due(pacing, 71, 1002, first=2) == 3


# The order of what is stored, with SAC_DETERMINISTIC=1.


WORKERS, ITERATIONS, SEGMENTS = 3, 3, 2


def order_of(ring):
    """Only workers 0 and 1 collect the first random episodes."""
    return WorkerOrder(ring, lambda iteration: range(2 if iteration == INIT_ITERATION else WORKERS))


def segments_of(worker, incarnation=1, first_iteration=INIT_ITERATION):
    """All segments of a worker, in its order: two in each of its iterations."""
    first = max(first_iteration, 0 if worker == 2 else INIT_ITERATION)
    parts = [(iteration, part) for iteration in range(first, ITERATIONS) for part in range(SEGMENTS)]
    return [
        numbered_segment(
            worker, number, iteration=iteration, incarnation=incarnation, end_of_iteration=part == SEGMENTS - 1
        )
        for number, (iteration, part) in enumerate(parts)
    ]


def store(ring, order, segment):
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
    for segment in segments_of(0)[:2] + segments_of(1)[:1]:
        store(ring, order, segment)
    for segment in segments_of(1, incarnation=2)[:2]:
        store(ring, order, segment)
    assert stored(ring) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert ring.worker(1).incarnation == 2
    store(ring, order, segments_of(1)[1])
    assert ring.segments == 4, "what its first start had sent comes too late"


def test_an_iteration_that_was_half_stored_goes_on_where_it_was(ring):
    """The process was killed between two appends of one iteration."""
    for segment in segments_of(0)[:2] + segments_of(1)[:1]:
        ring.append(segment)
    order = order_of(ring)
    for segment in segments_of(0)[:2] + segments_of(1)[:2]:
        store(ring, order, segment)
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
    for worker in range(2):
        for segment in segments_of(worker):
            store(ring, order, segment)
    for segment in segments_of(2):
        store(ring, order, segment)
    before = stored(ring)
    for again in segments_of(1, incarnation=2, first_iteration=ITERATIONS - 1):
        store(ring, order, again)
    assert stored(ring) == before
    for worker in range(WORKERS):  # The next iteration: the new process of worker 1 begins to count anew.
        incarnation, first = (2, 0) if worker == 1 else (1, len(segments_of(worker)))
        for part in range(SEGMENTS):
            store(
                ring,
                order,
                numbered_segment(
                    worker,
                    first + part,
                    iteration=ITERATIONS,
                    incarnation=incarnation,
                    end_of_iteration=part == SEGMENTS - 1,
                ),
            )
    assert len(stored(ring)) == len(before) + WORKERS * SEGMENTS
    assert ring.worker(1).incarnation == 2 and ring.worker(1).number == SEGMENTS - 1
