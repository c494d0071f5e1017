"""The ring holds every step once, survives restarts, and never shows a torn row."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from segments_for_tests import LAYOUT, numbered_segment

from tfagents_system.errors import UserError
from tfagents_system.replay.ring import NEVER, Ring
from tfagents_system.replay.segments import Column, Layout


def held_transitions(ring):
    """(worker, episode, step) of every transition in the ring, oldest first."""
    rows = ring.held_rows[ring.steps_left[ring.held_rows] > 0]
    return [tuple(int(value) for value in ring.observation[0][row]) for row in rows]


def test_steps_are_counted_once_and_come_out_as_they_went_in(tmp_path):
    ring = Ring.open(tmp_path / "ring", LAYOUT, 100)
    for number in range(3):
        assert ring.append(numbered_segment(number=number, steps=5))
    assert (ring.env_steps, ring.ring_steps, ring.filled_rows, ring.segments) == (15, 15, 18, 3)
    assert held_transitions(ring) == [(0, episode, step) for episode in range(3) for step in range(5)]


def test_a_segment_sent_again_is_dropped_and_one_that_comes_too_early_is_refused(tmp_path):
    ring = Ring.open(tmp_path / "ring", LAYOUT, 100)
    assert ring.append(numbered_segment(number=0))
    assert not ring.append(numbered_segment(number=0))
    assert not ring.append(numbered_segment(number=2)), "number 1 is still to come"
    assert ring.append(numbered_segment(number=1))
    assert ring.append(numbered_segment(number=0, incarnation=2)), "a restarted worker counts from 0"
    assert not ring.append(numbered_segment(number=2, incarnation=1)), "its earlier process is gone"
    assert ring.env_steps == 15


def test_the_oldest_steps_give_way(tmp_path):
    ring = Ring.open(tmp_path / "ring", LAYOUT, 20)
    for number in range(7):
        ring.append(numbered_segment(number=number, steps=5))
    assert ring.env_steps == 35
    assert ring.filled_rows == 20
    # 20 rows: 3 whole segments of 6, and the last 2 rows of the one before, with one transition.
    assert held_transitions(ring) == [(0, 3, 4)] + [(0, e, s) for e in (4, 5, 6) for s in range(5)]
    assert ring.ring_steps == 16


def test_a_capacity_of_n_episodes_holds_n_episodes_of_full_length(tmp_path):
    episodes, horizon = 4, 5
    ring = Ring.open(tmp_path / "ring", LAYOUT, episodes * (horizon + 1))
    for number in range(9):
        ring.append(numbered_segment(number=number, steps=horizon))
    assert ring.ring_steps == episodes * horizon


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


def test_a_crash_in_the_middle_of_an_append_leaves_no_torn_row(tmp_path, monkeypatch):
    ring = Ring.open(tmp_path / "ring", LAYOUT, 20)
    for number in range(3):
        ring.append(numbered_segment(number=number))
    monkeypatch.setattr(ring, "_commit", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        ring.append(numbered_segment(number=3, episode=77))
    again = Ring.open(tmp_path / "ring", LAYOUT, 20)
    assert held_transitions(again) == [(0, e, s) for e in (0, 1, 2) for s in range(5)]
    assert again.verify() == 0
    assert again.env_steps == 15
    assert again.append(numbered_segment(number=3, episode=77)), "it was not stored, so it is taken when sent again"


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
    with pytest.raises(UserError, match="restore the parameters"):
        Ring.open(tmp_path / "ring", LAYOUT, 101)
    with pytest.raises(UserError, match="restore the parameters"):
        Ring.open(tmp_path / "ring", Layout((Column("observation", (4,), "float32"),), LAYOUT.action), 100)
    assert Ring.open(tmp_path / "ring", LAYOUT, 100).env_steps == 5


def test_an_interrupted_start_is_made_again(tmp_path):
    Ring.open(tmp_path / "ring", LAYOUT, 100)
    (tmp_path / "ring" / "layout.json").unlink()
    assert Ring.open(tmp_path / "ring", LAYOUT, 50).capacity_rows == 50


def test_a_segment_larger_than_the_ring_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="6 rows does not fit a ring of 5"):
        Ring.open(tmp_path / "ring", LAYOUT, 5).append(numbered_segment(steps=5))


@settings(max_examples=30)
@given(
    capacity=st.integers(8, 40),
    lengths=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 7)), min_size=1, max_size=30),
)
def test_the_ring_is_the_tail_of_all_rows(tmp_path_factory, capacity, lengths):
    ring = Ring.open(tmp_path_factory.mktemp("ring"), LAYOUT, capacity)
    numbers = [0, 0, 0]
    rows = []
    for worker_id, steps in lengths:
        assert ring.append(numbered_segment(worker_id, numbers[worker_id], steps))
        rows += [(worker_id, numbers[worker_id], step, step < steps) for step in range(steps + 1)]
        numbers[worker_id] += 1
    expected = [row[:3] for row in rows[-capacity:] if row[3]]
    assert held_transitions(ring) == expected
    assert ring.ring_steps == len(expected)
    assert ring.env_steps == sum(steps for _, steps in lengths)
