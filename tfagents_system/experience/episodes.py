"""Episodes out of a ring and into one."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from tfagents_system.replay.ring import Ring
from tfagents_system.replay.stored_ring import StoredRing
from tfagents_system.transport.layout import Layout
from tfagents_system.transport.segments import Segment


@dataclasses.dataclass
class StoredEpisode:
    """An episode as rings have it, or a part of one.

    Attributes:
      observation: Leaves `[T + 1, ...]`.
      action: Leaves `[T, ...]`, in the agent's units.
      reward: `[T]` float32.
      discount: `[T]` float32: 0 where it terminated.
      starts: Its first observation is the one of `reset`.
      ends: Its last observation is the episode's last.
      returns: `[T]` float32, where the layout has them.
      explored: `[T]` uint8, likewise.
      potential: `[T + 1]` float32, likewise.
    """

    observation: list[np.ndarray]
    action: list[np.ndarray]
    reward: np.ndarray
    discount: np.ndarray
    starts: bool = True
    ends: bool = True
    returns: np.ndarray | None = None
    explored: np.ndarray | None = None
    potential: np.ndarray | None = None

    @property
    def is_terminated(self) -> bool:
        return bool(self.discount[-1] == 0)


def episodes_of(stored: StoredRing) -> Iterator[StoredEpisode]:
    """The episodes of a ring, each put together from its segments; parts of which the rest is not there come last.

    A segment continues the part whose last observation it contains. So where two episodes have the same observation
    there, the rest of one may follow the beginning of the other.
    """
    open_parts: dict[bytes, StoredEpisode] = {}
    for segment in stored.segments():
        part = _continued(open_parts, segment)
        if segment.ends_episode:
            yield part
        else:
            open_parts[_key(part.observation, -1)] = part
    yield from open_parts.values()


def _continued(open_parts: dict[bytes, StoredEpisode], segment: Segment) -> StoredEpisode:
    new = _as_part(segment, segment.history)
    if segment.starts_episode or not open_parts:
        return new
    for row in range(segment.history, segment.num_rows - 1):
        part = open_parts.pop(_key(segment.observation, row), None)
        if part is not None:
            return _joined(part, _as_part(segment, row))
    return new


def _as_part(segment: Segment, row: int) -> StoredEpisode:
    """A segment from one of its rows on."""
    step = row - segment.history
    return StoredEpisode(
        observation=[leaf[row:] for leaf in segment.observation],
        action=[leaf[step:] for leaf in segment.action],
        reward=segment.reward[step:],
        discount=segment.discount[step:],
        starts=segment.starts_episode,
        ends=segment.ends_episode,
        returns=_part(segment.returns, step),
        explored=_part(segment.explored, step),
        potential=_part(segment.potential, row),
    )


def _joined(first: StoredEpisode, second: StoredEpisode) -> StoredEpisode:
    def both(ours: list[np.ndarray], theirs: list[np.ndarray]) -> list[np.ndarray]:
        return [np.concatenate(pair) for pair in zip(ours, theirs, strict=True)]

    return StoredEpisode(
        observation=both([leaf[:-1] for leaf in first.observation], second.observation),
        action=both(first.action, second.action),
        reward=np.concatenate([first.reward, second.reward]),
        discount=np.concatenate([first.discount, second.discount]),
        starts=first.starts,
        ends=second.ends,
        returns=_both(first.returns, second.returns),
        explored=_both(first.explored, second.explored),
        potential=_both(_part(first.potential, 0, -1), second.potential),
    )


def _part(column: np.ndarray | None, begin: int, end: int | None = None) -> np.ndarray | None:
    return None if column is None else column[begin:end]


def _both(first: np.ndarray | None, second: np.ndarray | None) -> np.ndarray | None:
    return None if first is None or second is None else np.concatenate([first, second])


def _key(observation: Sequence[np.ndarray], row: int) -> bytes:
    return b"".join(leaf[row].tobytes() for leaf in observation)


def write_ring(folder: Path, layout: Layout, episodes: Sequence[StoredEpisode]) -> Ring:
    """Makes a ring that holds exactly these episodes, cut into segments as workers cut them."""
    most = layout.max_segment_steps(None)
    numbers = [None if layout.episode is None else number for number in range(len(episodes))]
    pairs = zip(episodes, numbers, strict=True)
    segments = [segment for episode, number in pairs for segment in segments_of(episode, most, number)]
    rows = sum(segment.num_rows for segment in segments)
    ring = Ring.open(folder, layout, rows, max(segment.num_rows for segment in segments))
    ring.take_over(segments)
    ring.make_durable()
    return ring


def segments_of(episode: StoredEpisode, most: int, number: int | None = None) -> Iterator[Segment]:
    """Its steps in segments of at most so many; `number`, where it has one, is the episode's, as of Segment."""
    steps = len(episode.reward)
    for begin in range(0, steps, most):
        end = min(steps, begin + most)
        yield Segment(
            worker_id=0,
            incarnation=1,
            number=0,
            iteration=0,
            end_of_iteration=False,
            starts_episode=episode.starts and begin == 0,
            ends_episode=episode.ends and end == steps,
            observation=[leaf[begin : end + 1] for leaf in episode.observation],
            action=[leaf[begin:end] for leaf in episode.action],
            reward=episode.reward[begin:end],
            discount=episode.discount[begin:end],
            returns=_part(episode.returns, begin, end),
            explored=_part(episode.explored, begin, end),
            potential=_part(episode.potential, begin, end + 1),
            episode=None if number is None else np.array([[number, begin]], np.int64),
        )
