"""Which rows of a ring are of one episode: its segments are anywhere in the ring, between those of other workers."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tfagents_system.replay.ring_files import row_ranges
from tfagents_system.replay.ring_rows import RingRows


class Found(NamedTuple):
    """Where rows are, `[N]` each.

    Attributes:
      segment: In the order of the index.
      place: The row's own.
      first, last: The first and the last place of its episode that the ring holds.
    """

    segment: np.ndarray
    place: np.ndarray
    first: np.ndarray
    last: np.ndarray


class EpisodeIndex:
    """The rows of each episode that a ring holds, in the order of the episode, whatever was stored between them.

    It is read from the ring's own rows, each of them once: what a killed process or a checkpoint left in the files is
    all that it needs. Every row has a *place*: those of one episode follow each other, one number a step. Segments of
    an episode overlap where the later one repeats steps, so some places have several rows with the same observation.
    An episode of which rows in the middle are damaged counts as two.

    Args:
      rows: Of the ring, with the column `episode`.
    """

    def __init__(self, rows: RingRows) -> None:
        self._rows = rows
        self._held = (0, 0)
        # Of each segment, in the order of episodes and of their steps: the column `episode` of its first row that is
        # held, and the numbers of this row and of its last one.
        self._key = np.empty((0, 2), np.int64)
        self._first = self._last = np.empty(0, np.int64)
        self._ending = np.empty(0, np.int32)  # By rows of the files: which segment ends there.

    def _update(self, oldest: int, end: int) -> None:
        """Brings it up to date."""
        if self._held == (oldest, end):
            return
        key, first, last = self._read(max(oldest, self._held[1]), end)
        self._held = oldest, end
        key, first, last = (
            np.concatenate(pair) for pair in ((self._key, key), (self._first, first), (self._last, last))
        )
        lost = np.maximum(0, oldest - first)
        key[:, 1] += lost
        first += lost
        is_held = last > first  # Of one row alone, that is no part of a transition, or damaged.
        # By their ends: one of which the ring has given up the beginning may begin within the one behind it.
        end_step = key[:, 1] + last - first
        order = np.flatnonzero(is_held)[np.lexsort((end_step[is_held], key[is_held, 0]))]
        self._key, self._first, self._last = key[order], first[order], last[order]
        self._place_segments()

    def _read(self, begin: int, end: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Keys, first and last rows of the segments in these rows; `begin` may be within the first one."""
        parts = row_ranges(begin, end, self._rows.num_rows)
        left = np.concatenate([self._rows.steps_left[part] for part in parts]) if parts else np.empty(0, np.int32)
        last = begin + np.flatnonzero(left == 0)
        first = np.append(begin, last[:-1] + 1)[: len(last)]
        return self._rows.episode_at(first), first, last

    def _place_segments(self) -> None:
        """Gives each segment the place of its first row, and the first and last place of its episode."""
        number, step = self._key.T
        end = step + self._last - self._first
        goes_on = (number[1:] == number[:-1]) & (step[1:] <= end[:-1])
        begins = np.flatnonzero(np.append(True, ~goes_on)[: len(step)])
        ends = np.append(begins[1:], len(step)) - 1
        lowest = np.minimum.reduceat(step, begins) if len(begins) else step
        places = end[ends] - lowest + 1
        base = np.cumsum(places) - places
        episode = np.repeat(np.arange(len(begins)), ends - begins + 1)
        self._place = base[episode] + step - lowest[episode]
        self._begin = np.minimum.accumulate(self._place[::-1])[::-1]
        self._first_place, self._last_place = base[episode], (base + places - 1)[episode]
        if not len(self._ending):
            self._ending = np.zeros(self._rows.num_rows, np.int32)
        self._ending[self._last % self._rows.num_rows] = np.arange(len(step))

    def find(self, rows: np.ndarray, held: tuple[int, int]) -> Found:
        """Where rows are in their episodes, in the ring as it is now.

        Args:
          rows: Places `[N]` of the files, each at the start of a transition.
          held: `Ring.held`; from one call to the next, it only rises.
        """
        self._update(*held)
        left = self._rows.steps_left[rows]
        segment = self._ending[(rows + left) % self._rows.num_rows]
        last = self._place[segment] + self._last[segment] - self._first[segment]
        return Found(segment, last - left, self._first_place[segment], self._last_place[segment])

    def rows(self, found: Found, places: np.ndarray) -> np.ndarray:
        """Rows `[N]` that have these places, each one of the episode that was found; as places of the files."""
        segment = found.segment.copy()
        begin, length = self._place[segment], self._last[segment] - self._first[segment]
        elsewhere = np.flatnonzero((places < begin) | (places > begin + length))
        segment[elsewhere] = np.searchsorted(self._begin, places[elsewhere], "right") - 1
        rows: np.ndarray = (self._first[segment] + places - self._place[segment]) % self._rows.num_rows
        return rows
