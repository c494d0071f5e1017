"""Episodes are put together from the segments of a ring, each step in one of them and once."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.support.segments_for_tests import LAYOUT, numbered_segment
from tfagents_system.experience import transfer
from tfagents_system.experience.transfer import episodes_of, is_terminated
from tfagents_system.replay.ring import Ring
from tfagents_system.replay.stored_ring import StoredRing, add_segments
from tfagents_system.transport.segments import OPTIONAL_COLUMNS, Layout, Segment


def test_episodes_are_put_together_from_their_segments(tmp_path: Path) -> None:
    """Two workers in turn, cut episodes with a lead and history; the oldest one has lost its beginning."""
    ring = Ring.open(tmp_path, LAYOUT, 200, 60)
    lost = dataclasses.replace(numbered_segment(0, 0, first_step=4, episode=9), starts_episode=False)
    first = dataclasses.replace(numbered_segment(0, 1, episode=1, ends_episode=False), deferred=2)
    other = numbered_segment(1, 0, episode=2, ends_episode=False)
    # Begins with two observations of history, a step of context and the two deferred ones.
    second = dataclasses.replace(
        numbered_segment(0, 2, 9, episode=1, first_step=0, ends_episode=True),
        starts_episode=False,
        history=2,
        lead=3,
        context=1,
    )
    second.action, second.reward, second.discount = [second.action[0][2:]], second.reward[2:], second.discount[2:]
    rest = numbered_segment(1, 1, episode=2, first_step=5, terminates=True)
    for segment in (lost, first, other, second, rest):
        assert ring.append(segment)
    found = list(episodes_of(StoredRing(tmp_path)))
    told = [(each.observation[0][:, 1:].astype(int).tolist(), each.starts_episode, each.ends_episode) for each in found]
    assert told == [
        ([[9, step] for step in range(4, 10)], False, True),
        ([[1, step] for step in range(10)], True, True),
        ([[2, step] for step in range(11)], True, True),
    ]
    assert [each.reward.astype(int).tolist() for each in found[1:]] == [
        [1000 + step for step in range(9)],
        [2000 + step for step in range(10)],
    ]
    assert [is_terminated(each) for each in found] == [False, False, True]


def cut(steps: int, at: Sequence[int], look_ahead: int, worker_id: int, layout: Layout = LAYOUT) -> Iterator[Segment]:
    """The segments of an episode that is cut before these steps, as workers cut it; observations stand still.

    Each reward is 100 times the worker plus the step.
    """
    whole = numbered_segment(0, 0, steps, episode=3, terminates=True)
    whole.observation = [np.zeros_like(leaf) for leaf in whole.observation]
    whole.reward = np.arange(steps, dtype=np.float32) + 100 * worker_id
    begin = 0
    for number, end in enumerate([*at, steps]):
        deferred = min(look_ahead, end - begin) if end < steps else 0
        lead = (at[number - 1] - begin) if number else 0
        yield dataclasses.replace(
            whole,
            worker_id=worker_id,
            number=number,
            starts_episode=begin == 0,
            ends_episode=end == steps,
            observation=[leaf[begin : end + 1] for leaf in whole.observation],
            action=[leaf[begin:end] for leaf in whole.action],
            reward=whole.reward[begin:end],
            discount=whole.discount[begin:end],
            lead=lead,
            deferred=deferred,
            episode=np.array([[3, begin]], np.int64) if layout.episode else None,
        )
        begin = end - deferred


EPISODE = dataclasses.replace(LAYOUT, episode=OPTIONAL_COLUMNS["episode"])


@pytest.mark.parametrize("layout", [LAYOUT, EPISODE], ids=["unnumbered", "numbered"])
@pytest.mark.parametrize("at", [(4,), (1, 5), (2, 4), (2, 3, 4), (7,)])
def test_each_step_is_in_an_episode_once_where_observations_stand_still(
    tmp_path: Path, layout: Layout, at: tuple[int, ...]
) -> None:
    """With n_step = 3 a segment repeats the last two steps of the one before: they are not looked for elsewhere."""
    ring = Ring.open(tmp_path, layout, 200, 60)
    for segment in cut(10, at, 2, 0, layout):
        assert ring.append(segment)
    (found,) = episodes_of(StoredRing(tmp_path))
    assert found.reward.tolist() == list(range(10)) and found.starts_episode and is_terminated(found)
    assert len(found.observation[0]) == 11


@pytest.mark.parametrize("look_ahead", [0, 2])
@pytest.mark.parametrize("layout", [LAYOUT, EPISODE], ids=["unnumbered", "numbered"])
def test_workers_whose_observations_are_alike_at_a_cut_keep_all_steps(
    tmp_path: Path, layout: Layout, look_ahead: int
) -> None:
    """What a ring says of episodes, or repeated steps, tell which segment goes on with which."""
    ring = Ring.open(tmp_path, layout, 200, 60)
    first, second = (cut(10, (5,), look_ahead, worker_id, layout) for worker_id in (0, 1))
    for segment in (next(first), next(second), next(second), next(first)):
        assert ring.append(segment)
    rewards = sorted(each.reward.tolist() for each in episodes_of(StoredRing(tmp_path)))
    own: list[list[float]] = [list(range(10)), [100.0 + step for step in range(10)]]
    mixed = [own[0][:5] + own[1][5:], own[1][:5] + own[0][5:]]
    assert rewards == (own if look_ahead or layout.episode else mixed)


def test_what_a_ring_says_of_episodes_goes_through_replay_from(tmp_path: Path) -> None:
    ring = Ring.open(tmp_path / "source", EPISODE, 200, 60)
    first, second = (cut(10, (5,), 0, worker_id, EPISODE) for worker_id in (0, 1))
    for segment in (next(first), next(second), next(second), next(first)):
        assert ring.append(segment)
    filled = Ring.open(tmp_path / "filled", EPISODE, 200, 60)
    add_segments(filled, StoredRing(tmp_path / "source").segments(), tmp_path / "source", 1)
    rewards = sorted(each.reward.tolist() for each in episodes_of(StoredRing(tmp_path / "filled")))
    assert rewards == [list(range(10)), [100.0 + step for step in range(10)]]


def test_episodes_that_were_held_out_are_told(tmp_path: Path) -> None:
    ring = Ring.open(tmp_path, EPISODE, 200, 60)
    segments = [*cut(6, (3,), 0, 0, EPISODE), *cut(4, (), 0, 1, EPISODE)]
    for segment in segments[:2]:
        assert ring.append(dataclasses.replace(segment, held_out=True))
    assert ring.append(segments[2])
    notes = list[str]()
    found = transfer._whole_episodes(StoredRing(tmp_path), "runs/a", notes.append)
    assert [(len(each.reward), each.held_out) for each in found] == [(6, True), (4, False)]
    assert notes == ["1 episodes that runs/a has held out (validation_share) are like the others from now on"]


def test_a_segment_that_is_gone_parts_an_episode(tmp_path: Path) -> None:
    ring = Ring.open(tmp_path, EPISODE, 200, 60)
    one, two, three = cut(9, (3, 6), 0, 0, EPISODE)
    for number, segment in enumerate((one, three)):
        assert ring.append(dataclasses.replace(segment, number=number))
    found = list(episodes_of(StoredRing(tmp_path)))
    assert [each.reward.tolist() for each in found] == [[6.0, 7.0, 8.0], [0.0, 1.0, 2.0]]
    assert [(each.starts_episode, each.ends_episode) for each in found] == [(False, True), (True, False)]
