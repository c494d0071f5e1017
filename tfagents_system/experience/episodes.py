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
      held_out: The run measures on it, and does not learn from it.
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
    held_out: bool = False

    @property
    def is_terminated(self) -> bool:
        return bool(self.discount[-1] == 0)


def episodes_of(stored: StoredRing) -> Iterator[StoredEpisode]:
    """The episodes of a ring, each put together from its segments; parts of which the rest is not there come last.

    Where the ring says of which episode a row is, that decides. Otherwise a segment continues the part that ends with
    the steps which the segment repeats, and with the observation behind them. Two episodes that are alike there may be
    mixed; each step is in one of them.
    """
    numbered, alike, lone = _Numbered(), _Alike(), stored.lone_episodes()
    for segment in stored.segments():
        number = None if segment.episode is None else int(segment.episode[0, 0])
        parts: _Numbered | _Alike = alike if number is None or number in lone else numbered
        part = parts.continued(segment)
        if segment.ends_episode:
            yield part
        else:
            parts.keep(part, segment)
    yield from numbered.rest()
    yield from alike.rest()


class _Numbered:
    """Parts of episodes whose numbers say what belongs together."""

    def __init__(self) -> None:
        self._open: dict[tuple[int, int], tuple[StoredEpisode, int]] = {}  # With the place of its last observation.
        self._cut: list[StoredEpisode] = []

    def continued(self, segment: Segment) -> StoredEpisode:
        """The whole part up to the segment's end."""
        key, first = self._place(segment)
        part, last = self._open.pop(key, (None, 0))
        row = last - first
        if part is not None and segment.history <= row < segment.num_rows:
            return _joined(part, _as_part(segment, row))
        self._cut += [part] if part is not None else []  # A segment between them is not there any more.
        return _as_part(segment, segment.history)

    def keep(self, part: StoredEpisode, segment: Segment) -> None:
        """Its episode goes on behind this segment."""
        key, first = self._place(segment)
        self._open[key] = part, first + segment.num_rows - 1

    def rest(self) -> Iterator[StoredEpisode]:
        yield from self._cut
        yield from (part for part, _ in self._open.values())

    @staticmethod
    def _place(segment: Segment) -> tuple[tuple[int, int], int]:
        assert segment.episode is not None
        number, first = segment.episode[0].tolist()
        return (segment.worker_id, number), first


class _Alike:
    """Parts of episodes of which nothing says which segment comes next, by their last observation."""

    def __init__(self) -> None:
        self._open: dict[bytes, list[tuple[StoredEpisode, range]]] = {}  # With numbers of steps that may be deferred.
        self._most_deferred = 0

    def continued(self, segment: Segment) -> StoredEpisode:
        """The whole part up to the segment's end."""
        contexts = _numbers(segment, segment.context)
        most = min(contexts[-1] + self._most_deferred, len(segment.reward) - 1)
        # Segments of other runs may have a context that they do not repeat (replay/filling.py).
        for is_exact in (True, False):
            for repeated in range(most, -1, -1):
                row = segment.history + repeated
                parts = self._open.get(_key(segment.observation, row), [])
                for place, (part, deferred) in enumerate(parts):
                    is_expected = any(repeated - context in deferred for context in contexts)
                    if (is_expected or not is_exact) and _repeats(segment, part, repeated):
                        del parts[place]
                        return _joined(part, _as_part(segment, row))
        return _as_part(segment, segment.history)

    def keep(self, part: StoredEpisode, segment: Segment) -> None:
        """Its episode goes on behind this segment."""
        deferred = _numbers(segment, segment.deferred)
        self._most_deferred = max(self._most_deferred, deferred[-1])
        self._open.setdefault(_key(part.observation, -1), []).append((part, deferred))

    def rest(self) -> Iterator[StoredEpisode]:
        return (part for parts in self._open.values() for part, _ in parts)


def _numbers(segment: Segment, told: int) -> range:
    """Numbers of steps that a segment may have as context, or deferred, where a ring tells this many.

    Where no sample starts anywhere in it, nothing tells its context from what is deferred.
    """
    return range(told, told + 1) if segment.num_starts else range(len(segment.reward) + 1)


def _repeats(segment: Segment, part: StoredEpisode, repeated: int) -> bool:
    """Whether a segment begins with the last `repeated` steps of a part."""
    steps = len(part.reward)
    if repeated > steps or (segment.starts_episode and not (part.starts and repeated == steps)):
        return False
    last = slice(steps - repeated, steps)
    own = [*segment.action, segment.reward, segment.discount]
    theirs = [*part.action, part.reward, part.discount]
    before = min(segment.history, steps - repeated)
    rows = slice(segment.history - before, segment.history + repeated)
    return all(np.array_equal(ours[:repeated], each[last]) for ours, each in zip(own, theirs, strict=True)) and all(
        np.array_equal(ours[rows], each[steps - repeated - before : steps])
        for ours, each in zip(segment.observation, part.observation, strict=True)
    )


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
        held_out=segment.held_out,
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
        held_out=first.held_out,
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
