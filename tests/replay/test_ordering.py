"""Held back and released by worker: the order of what is stored does not depend on who was faster."""

import random

import pytest

from tests.support.segments_for_tests import LAYOUT, numbered_segment
from tfagents_system.replay.pacing import WorkerOrder
from tfagents_system.replay.ring import INIT_ITERATION, Ring

WORKERS, ITERATIONS, SEGMENTS = 3, 3, 2


@pytest.fixture
def ring(tmp_path):
    return Ring.open(tmp_path, LAYOUT, 400)


def order_of(ring):
    """Only workers 0 and 1 collect the first random episodes."""
    return WorkerOrder(ring, lambda iteration: range(2 if iteration == INIT_ITERATION else WORKERS))


def segments_of(worker, incarnation=1, first_iteration=INIT_ITERATION):
    """All segments of a worker, in its order: two in each of its iterations."""
    first = max(first_iteration, 0 if worker == 2 else INIT_ITERATION)
    parts = [(iteration, part) for iteration in range(first, ITERATIONS) for part in range(SEGMENTS)]
    return [
        numbered_segment(
            worker,
            number,
            iteration=iteration,
            incarnation=incarnation,
            end_of_iteration=part == SEGMENTS - 1,
        )
        for number, (iteration, part) in enumerate(parts)
    ]


def store(ring, order, segment):
    for ready in order.take(segment):
        assert ring.append(ready)


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
    asked, room = [], [0]

    def has_room(num_rows, rows_before):
        asked.append((num_rows, rows_before))
        return rows_before + num_rows <= room[0]

    order = WorkerOrder(ring, lambda iteration: range(2), has_room)
    segments = [s for worker in range(2) for s in segments_of(worker) if s.iteration <= 1]
    assert [each for segment in segments for each in order.take(segment)] == []
    rows = segments[0].num_rows
    room[0] = 9 * rows  # Two iterations of four segments each, not three.
    asked.clear()
    released = order.release()
    assert [s.iteration for s in released] == [INIT_ITERATION] * 4 + [0] * 4
    assert asked == [(4 * rows, 0), (4 * rows, 4 * rows), (4 * rows, 8 * rows)], (
        "what is released and not stored yet counts"
    )
    assert all(ring.append(segment) for segment in released)
    room[0] = 3 * rows
    assert order.release() == []
    room[0] = 4 * rows
    assert [(s.iteration, s.worker_id) for s in order.release()] == [(1, 0), (1, 0), (1, 1), (1, 1)]
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
