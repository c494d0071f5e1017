"""Episodes out of a ring and into one: each is a `Segment` of any length, without history, lead and number.

A part of an episode is one that does not start it, or does not end it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfagents_system.replay.ring import Ring
from tfagents_system.replay.stored_ring import StoredRing
from tfagents_system.transport.segments import Layout, Segment


def whole_episode(**columns: Any) -> Segment:
    """An episode from `reset` to its end with these columns of Segment."""
    return Segment(
        worker_id=0,
        incarnation=1,
        number=0,
        iteration=0,
        end_of_iteration=False,
        starts_episode=True,
        ends_episode=True,
        **columns,
    )


def is_terminated(episode: Segment) -> bool:
    return bool(episode.discount[-1] == 0)


def episodes_of(stored: StoredRing) -> Iterator[Segment]:
    """The episodes of a ring, each put together from its segments; parts of which the rest is not there come last.

    Where the ring says of which episode a row is, that decides. Otherwise a segment continues the part that ends with
    the steps which the segment repeats, and with the observation behind them. Two episodes that are alike there may be
    mixed; each step is in one of them.
    """
    open_parts, lone = list[_OpenPart](), stored.lone_episodes()
    for segment in stored.segments():
        number, end = None, 0
        if segment.episode is not None and int(segment.episode[0, 0]) not in lone:
            episode_number, first = segment.episode[0].tolist()
            number, end = (segment.worker_id, episode_number), first + segment.num_rows - 1
        episode = _steps(segment, 0, len(segment.reward))
        for part in sorted(open_parts, key=lambda part: -part.deferred):
            if (repeated := part.repeated_by(segment, number)) is not None:
                open_parts.remove(part)
                episode = _joined(part.episode, _steps(segment, repeated, len(segment.reward)))
                break
        if segment.ends_episode:
            yield episode
        else:  # Where no sample starts in a segment, all its steps are deferred.
            deferred = segment.deferred if segment.num_starts else len(segment.reward)
            open_parts.append(_OpenPart(episode, deferred, number, end))
    yield from (part.episode for part in open_parts)


@dataclasses.dataclass(eq=False)
class _OpenPart:
    """A part of an episode that goes on.

    Attributes:
      deferred: Steps at its end that the next segment repeats.
      number: Worker and episode, where the ring says it.
      end: The place of its last observation in the episode, if it has a number.
    """

    episode: Segment
    deferred: int
    number: tuple[int, int] | None
    end: int

    def repeated_by(self, segment: Segment, number: tuple[int, int] | None) -> int | None:
        """With how many steps of the part a segment begins that continues it; None if it does not."""
        if number != self.number:
            return None
        if segment.episode is not None and number is not None:
            counts = [self.end - int(segment.episode[0, 1]) - segment.history]
        else:
            # It repeats its context, and what the part has deferred. Segments of other runs may have a context that
            # they do not repeat (replay/stored_ring.py).
            context = 0 if segment.starts_episode else segment.context
            counts = [context + self.deferred, self.deferred]
        return next((count for count in counts if self._is_continued(segment, count)), None)

    def _is_continued(self, segment: Segment, repeated: int) -> bool:
        """Whether a segment begins with the last `repeated` steps, and with the last observation behind them."""
        part, steps = self.episode, len(self.episode.reward)
        if not 0 <= repeated < len(segment.reward) or repeated > steps:
            return False
        if segment.starts_episode and not (part.starts_episode and repeated == steps):
            return False
        before = min(segment.history, steps - repeated)
        begin, end, last = segment.history - before, segment.history + repeated + 1, slice(steps - repeated, steps)
        ours = [leaf[begin:end] for leaf in segment.observation]
        ours += [column[:repeated] for column in (*segment.action, segment.reward, segment.discount)]
        theirs = [leaf[steps - repeated - before :] for leaf in part.observation]
        theirs += [column[last] for column in (*part.action, part.reward, part.discount)]
        return all(np.array_equal(*pair) for pair in zip(ours, theirs, strict=True))


def _steps(segment: Segment, begin: int, end: int) -> Segment:
    """Its transitions from `begin` to before `end`."""
    of_steps, of_rows = slice(begin, end), slice(segment.history + begin, segment.history + end + 1)
    return dataclasses.replace(
        segment,
        observation=[leaf[of_rows] for leaf in segment.observation],
        action=[leaf[of_steps] for leaf in segment.action],
        reward=segment.reward[of_steps],
        discount=segment.discount[of_steps],
        returns=None if segment.returns is None else segment.returns[of_steps],
        explored=None if segment.explored is None else segment.explored[of_steps],
        potential=None if segment.potential is None else segment.potential[of_rows],
        history=0,
        lead=0,
        context=0,
        deferred=0,
        episode=None,
    )


def _joined(first: Segment, second: Segment) -> Segment:
    """Two parts that follow each other: the first's last observation is the second's first."""
    leaves = zip(first.observation, second.observation, strict=True)
    columns: dict[str, Any] = {
        "observation": [np.concatenate([ours[:-1], theirs]) for ours, theirs in leaves],
        "action": [np.concatenate(pair) for pair in zip(first.action, second.action, strict=True)],
    }
    for name in ("reward", "discount", "returns", "explored", "potential"):
        ours, theirs = getattr(first, name), getattr(second, name)
        columns[name] = None if ours is None else np.concatenate([ours[: len(first.reward)], theirs])
    return dataclasses.replace(first, ends_episode=second.ends_episode, **columns)


def write_ring(folder: Path, layout: Layout, episodes: Sequence[Segment]) -> Ring:
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


def segments_of(episode: Segment, most: int, number: int | None = None) -> Iterator[Segment]:
    """Its steps in segments of at most so many; `number`, where it has one, is the episode's, as of Segment."""
    steps = len(episode.reward)
    for begin in range(0, steps, most):
        end = min(steps, begin + most)
        yield dataclasses.replace(
            _steps(episode, begin, end),
            starts_episode=episode.starts_episode and begin == 0,
            ends_episode=episode.ends_episode and end == steps,
            episode=None if number is None else np.array([[number, begin]], np.int64),
        )
