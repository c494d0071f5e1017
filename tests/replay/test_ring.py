"""The ring holds every step once, survives restarts, and never shows a torn row."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.segments_for_tests import LAYOUT, append_more, content, filled_ring, numbered_segment
from tfagents_system.errors import UserError
from tfagents_system.replay.ring import (
    COUNTED_ITERATIONS,
    HEADER,
    NEVER,
    DamagedHeaderError,
    OverwrittenError,
    Ring,
    parse_header,
)
from tfagents_system.transport.segments import Column, Layout


def held_transitions(ring):
    """(worker, episode, step) of every transition in the ring, oldest first."""
    rows = ring.held_rows[ring.steps_left[ring.held_rows] > 0]
    return [tuple(int(value) for value in ring.observation[0][row]) for row in rows]


def test_a_segment_sent_again_is_dropped_and_one_that_comes_too_early_is_refused(tmp_path):
    ring = Ring.open(tmp_path / "ring", LAYOUT, 100)
    assert ring.append(numbered_segment(number=0))
    assert not ring.append(numbered_segment(number=0))
    assert not ring.append(numbered_segment(number=2)), "number 1 is still to come"
    assert ring.append(numbered_segment(number=1))
    assert ring.append(numbered_segment(number=0, incarnation=2)), "a restarted worker counts from 0"
    assert not ring.append(numbered_segment(number=2, incarnation=1)), "its earlier process is gone"
    assert ring.env_steps == 15


def test_reopening_finds_everything_again(tmp_path):
    ring = Ring.open(tmp_path / "ring", LAYOUT, 20)
    for number in range(5):
        ring.append(numbered_segment(worker_id=2, number=number, iteration=number - 1, end_of_iteration=True))
    before = held_transitions(ring)
    again = Ring.open(tmp_path / "ring", LAYOUT, 20)
    assert held_transitions(again) == before
    assert (again.env_steps, again.init_steps, again.ring_steps) == (25, 5, ring.ring_steps)
    assert again.worker(2) == ring.worker(2)
    assert again.worker(2).number == 4
    assert again.worker(2).iteration_done == 3
    assert again.worker(2).init_episodes == 1
    assert again.worker(0).iteration_done == NEVER


@pytest.mark.parametrize("columns_written", range(7))
def test_a_crash_between_two_columns_leaves_all_that_is_held_as_it_was(tmp_path, monkeypatch, columns_written):
    ring = filled_ring(tmp_path / "ring", segments=13)
    before, put = content(ring), ring._put
    left = iter(range(columns_written))

    def put_some(column, values, first_row):
        if next(left, None) is None:
            raise KeyboardInterrupt
        put(column, values, first_row)

    monkeypatch.setattr(ring, "_put", put_some)
    with pytest.raises(KeyboardInterrupt):
        append_more(ring, 1)
    again = Ring.open(tmp_path / "ring", LAYOUT, 60)
    assert content(again) == before
    assert again.verify() == 0


def test_a_damaged_header_slot_falls_back_to_the_other_and_two_are_reported(tmp_path):
    ring = Ring.open(tmp_path / "ring", LAYOUT, 100)
    for number in range(3):
        ring.append(numbered_segment(number=number))
    newest = int(ring._header["generation"]) % 2
    ring._slots[newest]["env_steps"] = 999
    assert Ring.open(tmp_path / "ring", LAYOUT, 100).env_steps == 10
    ring._slots[1 - newest]["env_steps"] = 999
    with pytest.raises(UserError, match=r"header.bin is damaged"):
        Ring.open(tmp_path / "ring", LAYOUT, 100)


def test_a_ring_of_another_layout_or_size_is_not_touched(tmp_path):
    Ring.open(tmp_path / "ring", LAYOUT, 100).append(numbered_segment())
    with pytest.raises(UserError, match="the parameters it was made with"):
        Ring.open(tmp_path / "ring", LAYOUT, 101)
    with pytest.raises(UserError, match="the parameters it was made with"):
        Ring.open(tmp_path / "ring", Layout((Column("observation", (4,), "float32"),), LAYOUT.action), 100)
    assert Ring.open(tmp_path / "ring", LAYOUT, 100).env_steps == 5
    (tmp_path / "ring" / "layout.json").unlink()  # An interrupted start is made again.
    ring = Ring.open(tmp_path / "ring", LAYOUT, 5)
    assert ring.env_steps == 0
    with pytest.raises(ValueError, match="6 rows does not fit a ring of 5"):
        ring.append(numbered_segment(steps=5))


@settings(max_examples=30)
@given(
    capacity=st.integers(8, 40),
    lengths=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 7)), min_size=1, max_size=30),
)
def test_the_ring_holds_the_newest_segments_that_fit(tmp_path_factory, capacity, lengths):
    ring = Ring.open(tmp_path_factory.mktemp("ring"), LAYOUT, capacity)
    numbers, stored = [0, 0, 0], []
    for worker_id, steps in lengths:
        assert ring.append(numbered_segment(worker_id, numbers[worker_id], steps))
        stored.append([(worker_id, numbers[worker_id], step) for step in range(steps)])
        numbers[worker_id] += 1
    rows = np.cumsum([len(segment) + 1 for segment in stored[::-1]])
    kept = int((rows <= capacity).sum())
    expected = [step for segment in stored[len(stored) - kept :] for step in segment]
    assert held_transitions(ring) == expected
    assert ring.ring_steps == len(expected)
    assert ring.env_steps == sum(steps for _, steps in lengths)


@pytest.mark.parametrize("later", [0, 1, 3, 4])
def test_a_rollback_is_the_moment_of_the_snapshot_exactly(tmp_path, later):
    ring = filled_ring(tmp_path / "ring", segments=13)
    before, snapshot = content(ring), ring.snapshot()
    append_more(ring, later)
    ring.rollback(snapshot)
    assert content(ring) == before
    assert ring.verify() == 0
    assert content(ring) == before
    assert content(Ring.open(tmp_path / "ring", LAYOUT, 60)) == before, "and it is what the next process finds"
    append_more(ring, 1)
    assert ring.worker(0).number == 13


def test_a_rollback_past_the_slack_is_refused_and_changes_nothing(tmp_path):
    ring = filled_ring(tmp_path / "ring", segments=13)  # It holds 60 rows; 24 more, 4 segments, may come.
    snapshot = ring.snapshot()
    append_more(ring, 5)
    before = content(ring)
    for refuses in (ring.rollback, ring.check_covered):
        with pytest.raises(OverwrittenError, match="6 of its 60 rows have been overwritten: 30 rows came .*, 24 may"):
            refuses(snapshot)
    assert content(ring) == before


def test_a_snapshot_that_is_damaged_is_refused(tmp_path):
    ring = filled_ring(tmp_path / "ring")
    snapshot = bytearray(ring.snapshot())
    for index in (0, 5, 40, len(snapshot) - 1):
        damaged = snapshot.copy()
        damaged[index] ^= 16
        with pytest.raises(DamagedHeaderError, match="checksum"):
            ring.rollback(bytes(damaged))
    with pytest.raises(DamagedHeaderError, match="bytes"):
        ring.rollback(bytes(snapshot[:-1]))


DATA_COLUMNS = ["observation/id", "observation/image", "action", "reward", "discount", "steps_left", "step_type"]


@pytest.mark.parametrize("name", DATA_COLUMNS)
def test_every_flipped_bit_is_found_and_its_segment_is_left_out(tmp_path, name):
    ring = filled_ring(tmp_path / "ring", segments=13)
    column = dict(zip([column.name for column in ring.files.columns], ring.columns, strict=True))[name]
    snapshot = ring.snapshot()
    for segment in range(3, 13):
        ring.rollback(snapshot)
        before = column.copy(), ring.steps_left.copy()
        row = (segment * 6 + 2) % ring.num_rows
        column[row : row + 1].view(np.uint8).reshape(-1)[0] ^= 1
        assert ring.verify() == 5
        assert held_transitions(ring) == [(0, e, s) for e in range(3, 13) for s in range(5) if e != segment]
        assert ring.ring_steps == 45
        column[:], ring.steps_left[:] = before
        ring.rollback(snapshot)
        assert ring.verify() == 0


def test_a_segment_of_another_time_in_its_place_is_not_taken_for_it(tmp_path):
    """After a power cut rows may be newer than every header: whole segments, but not those that the header means."""
    ring = filled_ring(tmp_path / "ring", segments=14)  # 84 rows: the next is written at the files' beginning.
    snapshot = ring.snapshot()
    header = ring._header.copy()
    append_more(ring, 6)
    ring._header = header  # What came after it is not known.
    ring.rollback(snapshot)
    assert ring.verify() == 10, "two segments were overwritten by newer ones"
    assert held_transitions(ring) == [(0, e, s) for e in range(6, 14) for s in range(5)]


@settings(max_examples=30)
@given(
    st.lists(st.integers(1, 7), min_size=1, max_size=40), st.integers(8, 60), st.integers(0, 39), st.integers(0, 1000)
)
def test_any_ring_is_whole_before_and_after_a_rollback(tmp_path_factory, lengths, capacity, at, seed):
    ring = Ring.open(tmp_path_factory.mktemp("ring"), LAYOUT, capacity, 24)
    moments = []
    for number, steps in enumerate(lengths):
        assert ring.append(numbered_segment(number=number, steps=steps))
        moments.append((ring.snapshot(), content(ring)))
    snapshot, expected = moments[at % len(moments)]
    if ring.total_rows - ring.num_rows <= expected["counters"][-2] - expected["counters"][-1]:
        ring.rollback(snapshot)
        assert ring.verify() == 0
        assert content(ring) == expected
    else:
        with pytest.raises(OverwrittenError):
            ring.rollback(snapshot)
    ring.steps_left[:] = np.random.default_rng(seed).integers(-3, 8, ring.num_rows)
    ring.verify()
    left = ring.steps_left[ring.held_rows]
    assert ring.ring_steps == np.count_nonzero(left)
    assert all(0 <= steps < len(left) - index for index, steps in enumerate(left)), "nothing leads out of the ring"


def test_nothing_that_a_checkpoint_may_need_is_overwritten_by_the_slack_that_a_ring_has_by_itself(tmp_path):
    ring = Ring.open(tmp_path / "ring", LAYOUT, 8000)
    assert ring.num_rows == 8000 + 4 * 1001, "four of the longest segments"
    ring = Ring.open(tmp_path / "large", LAYOUT, 40_000)
    assert ring.num_rows == 50_000, "a quarter"
    assert ring.files.num_bytes == 50_000 * LAYOUT.step_bytes
    assert sum(path.stat().st_size for path in ring.folder.glob("*.bin")) < ring.files.num_bytes + 300_000


def test_steps_are_told_apart_by_iteration_also_after_a_restart(tmp_path):
    ring = Ring.open(tmp_path / "ring", LAYOUT, 100)
    steps = [(-1, 9), (0, 5), (2, 4), (1, 3), (2, 2), (5, 6)]
    for number, (iteration, count) in enumerate(steps):
        ring.append(numbered_segment(number=number, steps=count, iteration=iteration))
    for again in (ring, Ring.open(tmp_path / "ring", LAYOUT, 100)):
        assert [again.steps_up_to(iteration) for iteration in (-1, 0, 1, 2, 4, 5, 6)] == [0, 5, 8, 14, 14, 20, 20]


def test_only_the_newest_iterations_are_told_apart(tmp_path):
    ring, steps = Ring.open(tmp_path / "ring", LAYOUT, 100), {}
    rng = np.random.default_rng(12)
    for iteration in [*range(COUNTED_ITERATIONS + 300), 3, 5000, 4990]:
        count = int(rng.integers(1, 10))
        steps[iteration] = steps.get(iteration, 0) + count
        ring._count_steps(iteration, count)
        earlier = max(steps) - 500
        expected = sum(count for other, count in steps.items() if other <= earlier)
        assert ring.steps_up_to(earlier) == expected
    oldest = 5000 - COUNTED_ITERATIONS
    for iteration in (oldest, oldest + 1, 4989, 4990, 4999, 5000, 9999):
        expected = sum(count for other, count in steps.items() if other <= iteration)
        assert ring.steps_up_to(iteration) == expected
    assert ring.steps_up_to(0) == ring.steps_up_to(oldest)


@pytest.mark.parametrize("size", [0, 1, 2 * HEADER.itemsize - 2, 2 * HEADER.itemsize + 64, 300])
def test_a_header_of_an_impossible_size_is_damaged(tmp_path, size):
    path = filled_ring(tmp_path / "ring").folder / "header.bin"
    path.write_bytes(path.read_bytes()[:size].ljust(size, b"x"))
    with pytest.raises(UserError, match=r"header.bin is damaged"):
        Ring.open(tmp_path / "ring", LAYOUT, 60)
    with pytest.raises(DamagedHeaderError):
        parse_header(b"x" * (size // 2))
