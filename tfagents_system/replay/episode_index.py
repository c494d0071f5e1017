"""Which rows of a ring are of one episode: its segments are anywhere in the ring, between those of other workers."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tfagents_system.replay.ring_files import row_ranges


class Found(NamedTuple):
    """Where rows are, `[N]` each.

    Attributes:
      segment: Its number in the index.
      episode: Its number in the index.
      place: The row's own, within its episode.
      first, last: The first and the last place of its episode that the ring holds.
    """

    segment: np.ndarray
    episode: np.ndarray
    place: np.ndarray
    first: np.ndarray
    last: np.ndarray


class _Segments(NamedTuple):
    """Segments, `[M]` each.

    Attributes:
      number: Of its episode, among those of its worker.
      start, end: Places of its first row and of its last one.
      last: Number of its last row.
    """

    number: np.ndarray
    start: np.ndarray
    end: np.ndarray
    last: np.ndarray


class EpisodeIndex:
    """The rows of each episode that a ring holds, in the order of the episode, whatever was stored between them.

    It is read from the ring's own rows, each of them once: what a killed process or a checkpoint left in the files is
    all that it needs. Every row has a *place* in its episode, one number a step. Segments of an episode overlap where
    the later one repeats steps, so some places have several rows with the same observation. An episode of which rows
    in the middle are damaged counts as two.

    Segments are sorted by episode whenever some have come or gone: milliseconds for tens of thousands of them.

    Args:
      steps_left, episode: Columns of the ring; None: it has none of episodes, and nobody asks.
    """

    def __init__(self, steps_left: np.ndarray, episode: np.ndarray | None) -> None:
        self._steps_left, self._column, self._num_rows = steps_left, episode, len(steps_left)
        self._held = (0, 0)
        self._ending = np.empty(0, np.int32)  # By rows of the files: the segment that ends there.
        self._segments = _Segments(*(np.empty(0, np.int64) for _ in _Segments._fields))  # As they were stored.

    def find(self, rows: np.ndarray, held: tuple[int, int]) -> Found:
        """Where rows are in their episodes, in the ring as it is now.

        Args:
          rows: Places `[N]` of the files, each at the start of a transition.
          held: `Ring.held`; from one call to the next, it only rises.
        """
        if held != self._held:
            self._update(*held)
        left = self._steps_left[rows]
        segment = self._ending[(rows + left) % self._num_rows]
        episode = self._episode[segment]
        return Found(segment, episode, self._end[segment] - left, self._first_place[episode], self._last_place[episode])

    def rows(self, found: Found, places: np.ndarray) -> np.ndarray:
        """Rows `[N]` that have these places, each one of the episode that was found; as places of the files."""
        segment = found.segment
        is_elsewhere = (places > self._end[segment]) | (places < self._start[segment])
        if is_elsewhere.any():
            segment = segment.copy()
            segment[is_elsewhere] = self._segment_at(found.episode[is_elsewhere], places[is_elsewhere])
        rows: np.ndarray = (self._shift[segment] + places) % self._num_rows
        return rows

    def _segment_at(self, episode: np.ndarray, places: np.ndarray) -> np.ndarray:
        """The first segments `[N]` of these episodes that do not end before these places: each of them has its place.

        The first one of an episode may have lost it: the next one then repeats it.
        """
        low, high = self._head[episode], self._tail[episode] - 1
        while (low < high).any():
            middle = (low + high) // 2
            is_before = self._end[middle] < places
            low, high = np.where(is_before, middle + 1, low), np.where(is_before, high, middle)
        return low + (self._start[low] > places)

    def _update(self, oldest: int, end: int) -> None:
        """Takes in the segments that have come, forgets those that are given up, and sorts them."""
        came = self._read(max(oldest, self._held[1]), end)
        is_held = self._segments.last > oldest
        self._held = oldest, end
        self._segments = _Segments(
            *(np.concatenate([old[is_held], new]) for old, new in zip(self._segments, came, strict=True))
        )
        # By their ends: one of which the ring has given up the beginning may begin within the one behind it.
        order = np.lexsort((self._segments.end, self._segments.number))
        number, start, place, last = (column[order] for column in self._segments)
        self._end, self._shift = place, last - place
        self._start = np.maximum(start, oldest - self._shift)
        count = len(last)
        goes_on = (number[1:] == number[:-1]) & (self._start[1:] <= place[:-1])
        self._head = np.flatnonzero(np.append(True, ~goes_on)[:count])
        self._tail = np.append(self._head[1:], count)[: len(self._head)]
        self._episode = np.repeat(np.arange(len(self._head)), self._tail - self._head)
        self._first_place = np.minimum.reduceat(self._start, self._head) if count else self._start
        self._last_place = place[self._tail - 1]
        if not len(self._ending):
            self._ending = np.zeros(self._num_rows, np.int32)
        self._ending[last % self._num_rows] = np.arange(count)

    def _read(self, begin: int, end: int) -> _Segments:
        """The segments in these rows; `begin` may be within the first one."""
        parts = row_ranges(begin, end, self._num_rows)
        left = np.concatenate([self._steps_left[part] for part in parts]) if parts else np.empty(0, np.int32)
        last = begin + np.flatnonzero(left == 0)
        first = np.append(begin, last[:-1] + 1)[: len(last)]
        is_held = last > first  # One row alone is no part of a transition, or damaged.
        first, last = first[is_held], last[is_held]
        assert self._column is not None, "the layout says of which episode a row is"
        number, start = self._column[first % self._num_rows].T
        return _Segments(number, start, start + last - first, last)
