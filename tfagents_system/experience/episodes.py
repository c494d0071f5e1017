"""Episodes out of a ring and into one."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

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
            return _joined(part, segment, row - segment.history)
        self._cut += [part] if part is not None else []  # A segment between them is not there any more.
        return _part(segment, 0)

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
        self._open: dict[tuple[int, bytes], list[StoredEpisode]] = {}  # Their deferred steps come first in the key.
        self._deferred: set[int] = set()

    def continued(self, segment: Segment) -> StoredEpisode:
        """The whole part up to the segment's end. The segment repeats its context and the part's deferred steps."""
        context = 0 if segment.starts_episode else segment.context
        most_first = sorted(self._deferred, reverse=True)
        # Segments of other runs may have a context that they do not repeat (replay/filling.py).
        for before in dict.fromkeys((context, 0)):
            for deferred in most_first:
                repeated = before + deferred
                if repeated >= len(segment.reward):
                    continue
                parts = self._open.get((deferred, _key(segment.observation, segment.history + repeated)), [])
                for place, part in enumerate(parts):
                    if _repeats(segment, part, repeated):
                        del parts[place]
                        return _joined(part, segment, repeated)
        return _part(segment, 0)

    def keep(self, part: StoredEpisode, segment: Segment) -> None:
        """Its episode goes on behind this segment. Where no sample starts in it, all its steps are deferred."""
        deferred = segment.deferred if segment.num_starts else len(segment.reward)
        self._deferred.add(deferred)
        self._open.setdefault((deferred, _key(part.observation, -1)), []).append(part)

    def rest(self) -> Iterator[StoredEpisode]:
        return (part for parts in self._open.values() for part in parts)


def _repeats(segment: Segment, part: StoredEpisode, repeated: int) -> bool:
    """Whether a segment begins with the last `repeated` steps of a part."""
    steps = len(part.reward)
    if repeated > steps or (segment.starts_episode and not (part.starts and repeated == steps)):
        return False
    before = min(segment.history, steps - repeated)
    ours = _columns(segment, 0, repeated) | {
        "observation": [leaf[segment.history - before : segment.history + repeated] for leaf in segment.observation]
    }
    theirs = _columns(part, steps - repeated, steps) | {
        "observation": [leaf[steps - repeated - before : steps] for leaf in part.observation]
    }
    return all(
        np.array_equal(*pair)
        for name in ("observation", "action", "reward", "discount")
        for pair in zip(ours[name], theirs[name], strict=True)
    )


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


def _key(observation: Sequence[np.ndarray], row: int) -> bytes:
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
