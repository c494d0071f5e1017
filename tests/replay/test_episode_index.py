"""An episode's rows are found wherever its segments are, after whatever has happened to the ring."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from tests.support.goals import Episode, Writer, goal_layout, goal_ring, leaf
from tfagents_system.replay.episode_index import Found
from tfagents_system.replay.filling import add_segments
from tfagents_system.replay.ring import Ring
from tfagents_system.replay.stored_ring import StoredRing
from tfagents_system.transport.segments import Segment


def held(ring: Ring) -> dict[tuple[int, int], list[int]]:
    """The steps of each episode that the ring holds, of segments of which more than a row is there; row by row."""
    found: dict[tuple[int, int], set[int]] = {}
    rows = ring.held_rows
    for k, place in enumerate(rows):
        in_transition = ring.steps_left[place] != 0 or (k > 0 and ring.steps_left[rows[k - 1]] > 0)
        if in_transition:
            worker, episode, step = leaf(ring, "observation")[place].astype(int).tolist()
            found.setdefault((worker, episode), set()).add(step)
    return {key: sorted(steps) for key, steps in found.items()}


def check(ring: Ring) -> int:
    """Compares the index with `held`; returns how many starts there are."""
    steps_of, observation = held(ring), leaf(ring, "observation")
    rows = ring.held_rows
    starts = np.flatnonzero(ring.steps_left[rows] >= 1)
    if not len(starts):
        return 0
    found = ring.episodes.find(rows[starts], ring.held)
    held_rows = set(rows.tolist())
    for k, start in enumerate(starts):
        worker, episode, step = observation[rows[start]].astype(int).tolist()
        steps = steps_of[worker, episode]
        _, _, place, first, last = (int(each[k]) for each in found)
        one = Found(*(np.repeat(each[k], last + 1 - first) for each in found))
        all_of_it = ring.episodes.rows(one, np.arange(first, last + 1))
        assert held_rows.issuperset(all_of_it.tolist())
        np.testing.assert_array_equal(observation[all_of_it], [(worker, episode, each) for each in steps])
        assert place - first == steps.index(step)
    return len(starts)


def scramble(
    writer: Writer, rng: np.random.Generator, count: int, episodes: dict[int, Episode], begun: list[int]
) -> None:
    """Steps of several workers in turn: some cut their segment, some end their episode."""
    for _ in range(count):
        worker = int(rng.integers(3))
        if worker not in episodes:
            episodes[worker] = writer.begin(worker, begun[0])
            begun[0] += 1
        under_way = episodes[worker]
        for _ in range(int(rng.integers(1, 5))):
            under_way.step()
        kind = rng.random()
        if kind < 0.4:
            under_way.cut()
        elif kind < 0.6:
            episodes.pop(worker).end()


@pytest.mark.parametrize(("look_ahead", "history"), [(0, 0), (2, 0), (2, 3)])
def test_interleaved_segments_of_several_workers_while_the_oldest_are_given_up(
    tmp_path: Path, look_ahead: int, history: int
) -> None:
    ring, rng = goal_ring(tmp_path, 120, 60), np.random.default_rng(history + look_ahead)
    writer, episodes, begun, starts = Writer(ring, 3, look_ahead, history), dict[int, Episode](), [0], 0
    for _ in range(20):
        scramble(writer, rng, 12, episodes, begun)
        starts += check(ring)
    assert ring.total_rows > 3 * ring.num_rows and starts > 1000


def test_an_episode_without_its_middle_is_two(tmp_path: Path) -> None:
    """Of a source in which that was damaged, for example."""

    class Lossy(Writer):
        def send(self, worker: int, segment: Segment) -> None:
            if segment.episode is None or segment.episode[0, 1] != 6:
                super().send(worker, segment)

    ring = goal_ring(tmp_path)
    writer = Lossy(ring, 3)
    for episode in range(40):
        writer.whole(1, episode, 4)
    check(ring)
    writer.whole(2, 0, 9)
    starts = np.flatnonzero(ring.steps_left[ring.held_rows] >= 1)[-6:]
    found = ring.episodes.find(starts, ring.held)
    assert (found.place - found.first).tolist() == [0, 1, 2, 3, 4, 5]
    writer.whole(3, 0, 12)
    starts = np.flatnonzero(ring.steps_left[ring.held_rows] >= 1)[-9:]
    found = ring.episodes.find(starts, ring.held)
    assert (found.place - found.first).tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 2]
    assert (found.last - found.first).tolist() == [6] * 6 + [3] * 3


def test_after_a_restart_a_rollback_and_damage_it_is_that_of_the_rows(tmp_path: Path) -> None:
    ring, rng = goal_ring(tmp_path, 200, 120), np.random.default_rng(1)
    writer, episodes, begun = Writer(ring), dict[int, Episode](), [0]
    scramble(writer, rng, 40, episodes, begun)
    check(ring)
    snapshot, before = ring.snapshot(), held(ring)
    scramble(writer, rng, 10, episodes, begun)
    check(ring)
    assert held(ring) != before
    assert check(Ring.open(tmp_path, ring.layout, 200)) == check(ring)
    ring.rollback(snapshot)
    assert held(ring) == before
    check(ring)
    # A segment in the middle of an episode is damaged: what is before it and what is behind it are two.
    episode = writer.begin(7, begun[0])
    for _ in range(12):  # Three segments of four steps.
        episode.step()
    episode.end()
    leaf(ring, "observation")[(ring.total_rows - 8) % ring.num_rows] += 0.5
    assert ring.verify() == 4
    first = ring.total_rows - 15
    found = ring.episodes.find(np.array([first, first + 10]) % ring.num_rows, ring.held)
    assert (found.last - found.place).tolist() == [4, 4] and (found.place - found.first).tolist() == [0, 0]
    assert found.episode[0] != found.episode[1]


def test_an_episode_of_one_worker_is_none_of_another_s(tmp_path: Path) -> None:
    ring = goal_ring(tmp_path)
    writer = Writer(ring)
    for worker in (0, 1, 2):  # Each calls it the same.
        writer.whole(worker, 5, 10)
    check(ring)


def test_what_was_taken_over_has_numbers_of_its_own(tmp_path: Path) -> None:
    """Of two runs, whose workers number their episodes alike, and of one that has not said what belongs together."""
    sources = []
    for name in ("one", "other"):
        ring = goal_ring(tmp_path / name)
        writer = Writer(ring)
        episodes = [writer.begin(worker, 3) for worker in (0, 1)]
        for _ in range(3):
            for episode in episodes:
                episode.step()
                episode.cut()
        sources.append(StoredRing(tmp_path / name))
    unknown = goal_ring(tmp_path / "unknown", layout=dataclasses.replace(goal_layout(), episode=None))
    Writer(unknown).whole(0, 3, 6)
    sources.append(StoredRing(tmp_path / "unknown"))
    ring = goal_ring(tmp_path / "ring")
    for source in sources:
        add_segments(ring, source.segments(), source.folder, 1)
    Writer(ring).whole(0, 3, 5)
    starts = np.flatnonzero(ring.steps_left[ring.held_rows] >= 1)
    found = ring.episodes.find(starts, ring.held)
    lengths = [3] * 12 + [4] * 4 + [2] * 2 + [5] * 5  # The last but one: of segments.
    assert (found.last - found.first).tolist() == lengths
    assert len(set(found.episode.tolist())) == 2 + 2 + 2 + 1
    assert ring.episode is not None and (ring.episode[np.arange(12)][:, 0] < 0).all()
