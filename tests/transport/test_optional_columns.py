"""Columns that a run has only if something asks for them; without them nothing is as much as a byte longer."""

import dataclasses

import numpy as np
import pytest

from tests.support.fakes import FakeParams
from tests.support.segments_for_tests import LAYOUT, numbered_segment
from tfagents_system.replay.ring import Ring
from tfagents_system.replay.stored_ring import StoredRing
from tfagents_system.transport.segments import (
    OPTIONAL_COLUMNS,
    Layout,
    MalformedSegmentError,
    from_wire,
    run_layout,
    to_wire,
)

SPECS = np.zeros(3, np.float32), np.zeros(2, np.float32)
RETURNS, EXPLORED, POTENTIAL, EPISODE = OPTIONAL_COLUMNS.values()
ALL = Layout(LAYOUT.observation, LAYOUT.action, RETURNS, EXPLORED, POTENTIAL, EPISODE)
BOTH = dataclasses.replace(ALL, returns=None, episode=None)


def full_segment(layout=ALL, history=2, **options):
    segment = numbered_segment(steps=5, first_step=3, **options)
    earlier = [np.concatenate([leaf[:history], leaf]) for leaf in segment.observation]
    columns = {
        "returns": np.arange(5, dtype=np.float32) + 0.5,
        "explored": np.array([0, 1, 0, 0, 1], np.uint8),
        "potential": np.arange(5 + history + 1, dtype=np.float32),
        "episode": np.array([[2**60 + 9, 3 - history]]),
    }
    told = {name: columns[name] for name in layout.optional}
    return dataclasses.replace(segment, observation=earlier, history=history, **told)


def test_explored_takes_a_byte_the_potential_four_and_the_episode_sixteen():
    assert BOTH.step_bytes - LAYOUT.step_bytes == 1 + 4
    assert ALL.step_bytes - BOTH.step_bytes == RETURNS.step_bytes + 16


@pytest.mark.parametrize("layout", [ALL, BOTH, dataclasses.replace(BOTH, potential=None)])
@pytest.mark.parametrize("history", [0, 2])
def test_they_come_through_wire_and_ring(tmp_path, layout, history):
    segments = [full_segment(layout, history, worker_id=3, number=number) for number in range(2)]
    arrived = from_wire(to_wire(segments), layout)
    ring = Ring.open(tmp_path / "ring", layout, 40)
    for segment in arrived:
        assert ring.append(segment)
    stored = StoredRing(tmp_path / "ring")
    assert (stored.layout, stored.damaged_steps) == (layout, 0)
    for given, found in zip(segments * 2, [*arrived, *stored.segments()], strict=True):
        for name in OPTIONAL_COLUMNS:
            np.testing.assert_array_equal(getattr(found, name), getattr(given, name), name)
        for ours, theirs in zip(given.observation + given.action, found.observation + found.action, strict=True):
            np.testing.assert_array_equal(ours, theirs)
    if layout.episode is not None:
        place = (3 << 32) + 3 - history
        expected = [[2**60 + 9, place + row] for row in range(6 + history)]
        assert ring.episode[np.arange(6 + history)].tolist() == expected
        assert {segment.worker_id for segment in stored.segments()} == {3}
    if layout.potential is not None:
        first = ring.held_rows[: 6 + history]
        assert ring.potential[first].tolist() == list(range(6 + history))
        ring.potential[first[0]] += 1.0
        assert len(list(stored.segments())) == 1, "the checksum covers it"


@pytest.mark.parametrize(
    ("name", "wrong", "told"),
    [
        ("explored", np.full(5, 2, np.uint8), "explored: not all values are from 0 to 1"),
        ("explored", np.zeros(6, np.uint8), "explored: expected uint8"),
        ("potential", np.full(8, np.nan, np.float32), "potential: not all values are finite"),
        ("potential", np.zeros(5, np.float32), "potential: expected float32"),
        ("episode", np.zeros((6, 2), np.int64), r"episode: expected int64 \(1, 2\)"),
    ],
)
def test_malformed_ones_are_refused(name, wrong, told):
    segment = dataclasses.replace(full_segment(), **{name: wrong})
    with pytest.raises(MalformedSegmentError, match=told):
        from_wire(segment.to_wire(), ALL)[0]


def flat(self, observation):
    return 0.0


@pytest.mark.parametrize(
    ("attributes", "columns"),
    [
        ({"n_step": 3}, ()),
        ({"algorithm": "dqn"}, ()),  # An action that is the only one of its transition cuts nothing.
        ({"algorithm": "dqn", "n_step": 3}, ("explored",)),
        ({"algorithm": "dqn", "n_step": 3, "cut_at_exploration": False}, ()),
        ({"algorithm": "sac_discrete", "n_step": 3}, ()),
        ({"mini_race": {"steps": 50}, "n_step": 3}, ()),
        ({"hindsight_share": 0.8}, ("episode",)),
        ({"normalize_rewards": True, "potential": flat}, ("returns", "potential")),
    ],
    ids=lambda value: " ".join(value),
)
def test_what_asks_for_them(attributes, columns):
    params = type("Params", (FakeParams,), attributes)({"horizon": 100})
    assert run_layout(params, *SPECS).optional == columns
