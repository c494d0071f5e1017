"""Episodes out of a ring and into one."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfagents_system.replay.ring import Ring
from tfagents_system.replay.stored_ring import StoredRing
from tfagents_system.transport.segments import Layout, Segment


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
    parts, lone = _OpenParts(), stored.lone_episodes()
    for segment in stored.segments():
        is_numbered = segment.episode is not None and int(segment.episode[0, 0]) not in lone
        part = parts.continued(segment, is_numbered)
        if segment.ends_episode:
            yield part
        else:
            parts.keep(part, segment, is_numbered)
    yield from parts.rest()


class _OpenParts:
    """Parts of episodes that go on, by their last observation: its place in the episode, or how it looks."""

    def __init__(self) -> None:
        self._parts: dict[tuple[Any, ...], list[StoredEpisode]] = {}
        self._deferred: set[int] = set()  # By so many steps samples of unnumbered parts may be deferred.

    def continued(self, segment: Segment, is_numbered: bool) -> StoredEpisode:
        """The whole part up to the segment's end."""
        for key, repeated in self._continued_by(segment, is_numbered):
            parts = self._parts.get(key, [])
            for place, part in enumerate(parts):
                if _repeats(segment, part, repeated):
                    del parts[place]
                    return _joined(part, segment, repeated)
        return _part(segment, 0)

    def keep(self, part: StoredEpisode, segment: Segment, is_numbered: bool) -> None:
        """Its episode goes on behind this segment."""
        if is_numbered:
            key = _numbered_key(segment, segment.num_rows - 1)
        else:  # Where no sample starts in a segment, all its steps are deferred.
            deferred = segment.deferred if segment.num_starts else len(segment.reward)
            self._deferred.add(deferred)
            key = deferred, _bytes(part.observation, -1)
        self._parts.setdefault(key, []).append(part)

    def rest(self) -> Iterator[StoredEpisode]:
        return (part for parts in self._parts.values() for part in parts)

    def _continued_by(self, segment: Segment, is_numbered: bool) -> Iterator[tuple[tuple[Any, ...], int]]:
        """Keys of the parts that a segment may continue, and how many of their steps it repeats."""
        if is_numbered:
            for repeated in range(len(segment.reward)):
                yield _numbered_key(segment, segment.history + repeated), repeated
            return
        # It repeats its context, and what the part has deferred. Segments of other runs may have a context that they do
        # not repeat (replay/filling.py).
        context = 0 if segment.starts_episode else segment.context
        for before in dict.fromkeys((context, 0)):
            for deferred in sorted(self._deferred, reverse=True):
                if (repeated := before + deferred) < len(segment.reward):
                    yield (deferred, _bytes(segment.observation, segment.history + repeated)), repeated


def _numbered_key(segment: Segment, row: int) -> tuple[Any, ...]:
    """Worker, episode, and the row's place in it."""
    assert segment.episode is not None
    number, first = segment.episode[0].tolist()
    return segment.worker_id, number, first + row


def _repeats(segment: Segment, part: StoredEpisode, repeated: int) -> bool:
    """Whether a segment begins with the last `repeated` steps of a part."""
    steps = len(part.reward)
    if repeated > steps or (segment.starts_episode and not (part.starts and repeated == steps)):
        return False
    before = min(segment.history, steps - repeated)
    end, last = segment.history + repeated, slice(steps - repeated, steps)
    ours = [leaf[segment.history - before : end] for leaf in segment.observation]
    ours += [column[:repeated] for column in (*segment.action, segment.reward, segment.discount)]
    theirs = [leaf[steps - repeated - before : steps] for leaf in part.observation]
    theirs += [column[last] for column in (*part.action, part.reward, part.discount)]
    return all(np.array_equal(*pair) for pair in zip(ours, theirs, strict=True))


def _columns(source: Segment | StoredEpisode, begin: int, end: int) -> dict[str, Any]:
    """The columns of the steps from `begin` to `end`, without a segment's history."""
    history = source.history if isinstance(source, Segment) else 0

    def part(column: np.ndarray | None, first: int, last: int) -> np.ndarray | None:
        return None if column is None else column[first:last]

    return {
        "observation": [leaf[history + begin : history + end + 1] for leaf in source.observation],
        "action": [leaf[begin:end] for leaf in source.action],
        "reward": source.reward[begin:end],
        "discount": source.discount[begin:end],
        "returns": part(source.returns, begin, end),
        "explored": part(source.explored, begin, end),
        "potential": part(source.potential, history + begin, history + end + 1),
    }


def _part(segment: Segment, step: int) -> StoredEpisode:
    """A segment from one of its steps on."""
    return StoredEpisode(
        **_columns(segment, step, len(segment.reward)),
        starts=segment.starts_episode,
        ends=segment.ends_episode,
        held_out=segment.held_out,
    )


def _joined(part: StoredEpisode, segment: Segment, step: int) -> StoredEpisode:
    """A part, and a segment from the step on that comes next."""
    second = _part(segment, step)
    without_last = [leaf[:-1] for leaf in part.observation]
    potential = None if part.potential is None else part.potential[:-1]
    first = dataclasses.replace(part, observation=without_last, potential=potential)

    def both(name: str) -> Any:
        ours, theirs = getattr(first, name), getattr(second, name)
        if isinstance(ours, list):
            return [np.concatenate(pair) for pair in zip(ours, theirs, strict=True)]
        return None if ours is None or theirs is None else np.concatenate([ours, theirs])

    return dataclasses.replace(first, ends=second.ends, **{name: both(name) for name in _COLUMNS})


_COLUMNS = ("observation", "action", "reward", "discount", "returns", "explored", "potential")


def _bytes(observation: Sequence[np.ndarray], row: int) -> bytes:
    return b"".join(leaf[row].tobytes() for leaf in observation)


def write_ring(folder: Path, layout: Layout, episodes: Sequence[StoredEpisode]) -> Ring:
    """Makes a ring that holds exactly these episodes, cut into segments as workers cut them."""
    most = layout.max_segment_steps(None)
    segments = [
        segment
        for number, episode in enumerate(episodes)
        for segment in segments_of(episode, most, None if layout.episode is None else number)
    ]
    rows = [segment.num_rows for segment in segments]
    ring = Ring.open(folder, layout, sum(rows), max(rows))
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
            episode=None if number is None else np.array([[number, begin]], np.int64),
            **_columns(episode, begin, end),
        )
