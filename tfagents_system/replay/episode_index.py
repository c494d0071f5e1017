"""Which rows of a ring are of one episode: its segments are anywhere in the ring, between those of other workers."""

from __future__ import annotations

import collections
from typing import NamedTuple

import numpy as np

from tfagents_system.replay.ring_files import row_ranges
from tfagents_system.replay.ring_rows import EPISODE_BITS, STEP_LAST, RingRows

_SPARE = 1024  # Slots beyond twice what is needed: a small index is not made again and again.
_LEAST_ROOM = 4  # Slots of an episode that goes on.
_MANY = 8  # New segments are many where they are more than such a part of those that are held.


class Found(NamedTuple):
    """Where rows are, `[N]` each.

    Attributes:
      segment: Its slot in the index.
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
    """Segments as they are stored, `[M]` each.

    Attributes:
      number: Of its episode, among those of its worker.
      start, end: Places of its first row that is held, and of its last one.
      last: Number of its last row.
      is_open: The episode goes on behind it.
    """

    number: np.ndarray
    start: np.ndarray
    end: np.ndarray
    last: np.ndarray
    is_open: np.ndarray


class EpisodeIndex:
    """The rows of each episode that a ring holds, in the order of the episode, whatever was stored between them.

    It is read from the ring's own rows, each of them once: what a killed process or a checkpoint left in the files is
    all that it needs. Every row has a *place* in its episode, one number a step. Segments of an episode overlap where
    the later one repeats steps, so some places have several rows with the same observation. An episode of which rows
    in the middle are damaged counts as two.

    The segments of an episode are in slots that follow each other, with room for as many again. An episode that has
    filled its room moves behind all others, and when there is no slot left, everything is made anew with twice as many
    slots: a segment more takes constant time on average. Segments of one worker come in order, and are given up in
    order, so an episode changes only at its ends.

    Args:
      rows: Of the ring, with the column `episode`.
    """

    def __init__(self, rows: RingRows) -> None:
        self._rows = rows
        self._held = (0, 0)
        self._ending = np.empty(0, np.int32)  # By rows of the files: the slot of the segment that ends there.
        self._stored = collections.deque[
            int
        ]()  # The last rows of the segments, in the order in which they were stored.
        self._make(_Segments(*(np.empty(0, kind) for kind in (np.int64,) * 4 + (np.bool_,))))

    def find(self, rows: np.ndarray, held: tuple[int, int]) -> Found:
        """Where rows are in their episodes, in the ring as it is now.

        Args:
          rows: Places `[N]` of the files, each at the start of a transition.
          held: `Ring.held`; from one call to the next, it only rises.
        """
        if held != self._held:
            self._update(*held)
        left = self._rows.steps_left[rows]
        segment = self._ending[(rows + left) % self._rows.num_rows]
        episode = self._episode[segment]
        return Found(segment, episode, self._end[segment] - left, self._first_place[episode], self._last_place[episode])

    def rows(self, found: Found, places: np.ndarray) -> np.ndarray:
        """Rows `[N]` that have these places, each one of the episode that was found; as places of the files."""
        segment = found.segment
        is_elsewhere = (places > self._end[segment]) | (places < self._begin(segment))
        if is_elsewhere.any():
            segment = segment.copy()
            segment[is_elsewhere] = self._segment_at(found.episode[is_elsewhere], places[is_elsewhere])
        rows: np.ndarray = (self._shift[segment] + places) % self._rows.num_rows
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
        return low + (self._begin(low) > places)

    def _begin(self, segment: np.ndarray) -> np.ndarray:
        """Places of the first rows of segments that are held."""
        return np.maximum(self._start[segment], self._held[0] - self._shift[segment])

    # Changes.

    def _update(self, oldest: int, end: int) -> None:
        """Brings it up to date."""
        segments = self._read(max(oldest, self._held[1]), end)
        self._held = oldest, end
        if len(segments.last) * _MANY > len(self._stored):
            self._make(self._read(oldest, end))
            return
        self._give_up(oldest)
        for segment in zip(*(each.tolist() for each in segments), strict=True):
            if not self._add(*segment):
                self._make(self._read(oldest, end))
                return

    def _read(self, begin: int, end: int) -> _Segments:
        """The segments in these rows; `begin` may be within the first one."""
        parts = row_ranges(begin, end, self._rows.num_rows)
        left = np.concatenate([self._rows.steps_left[part] for part in parts]) if parts else np.empty(0, np.int32)
        last = begin + np.flatnonzero(left == 0)
        first = np.append(begin, last[:-1] + 1)[: len(last)]
        is_held = last > first  # One row alone is no part of a transition, or damaged.
        first, last = first[is_held], last[is_held]
        number, start = self._rows.episode_at(first).T
        is_open = self._rows.step_types(last % self._rows.num_rows) != STEP_LAST
        return _Segments(number, start, start + last - first, last, is_open)

    def _make(self, segments: _Segments) -> None:
        """Makes it anew of all segments, in the order in which they were stored."""
        self._stored = collections.deque(segments.last.tolist())
        # By their ends: one of which the ring has given up the beginning may begin within the one behind it.
        order = np.lexsort((segments.end, segments.number))
        number, start, end, last, is_open = (each[order] for each in segments)
        count = len(last)
        goes_on = (number[1:] == number[:-1]) & (start[1:] <= end[:-1])
        begins = np.flatnonzero(np.append(True, ~goes_on)[:count])
        ends = np.append(begins[1:], count)[: len(begins)]
        spare = count + _SPARE
        # One more than there are slots: `_give_up` looks behind the last one.
        self._start, self._end, self._shift = (_longer(each, spare + 1) for each in (start, end, last - end))
        self._episode = _longer(np.repeat(np.arange(len(begins)), ends - begins), spare + 1)
        lowest = np.minimum.reduceat(start, begins) if count else start
        self._first_place, self._last_place = _longer(lowest, spare), _longer(end[ends - 1], spare)
        self._head, self._tail, self._limit = (_longer(each, spare) for each in (begins, ends, ends))
        self._slots, self._episodes = count, len(begins)
        if not len(self._ending):
            self._ending = np.zeros(self._rows.num_rows, np.int32)
        self._ending[last % self._rows.num_rows] = np.arange(count)
        goes_on_at = np.flatnonzero(is_open[ends - 1])
        keys = zip(
            number[begins[goes_on_at]].tolist(), (start[begins[goes_on_at]] >> EPISODE_BITS).tolist(), strict=True
        )
        self._open = dict(zip(keys, goes_on_at.tolist(), strict=True))

    def _give_up(self, oldest: int) -> None:
        """Forgets the rows before this one."""
        while self._stored and self._stored[0] <= oldest:
            episode = self._episode_of_last(self._stored.popleft())
            self._head[episode] += 1
            self._first_place[episode] = self._start[self._head[episode]]  # Of an empty one, nobody asks.
        if self._stored:
            episode = self._episode_of_last(self._stored[0])
            head, tail = self._head[episode], self._tail[episode]
            if oldest - self._shift[head] > self._start[head]:
                self._first_place[episode] = self._begin(np.arange(head, min(head + 2, tail))).min()

    def _episode_of_last(self, row: int) -> int:
        """Of the segment with this last row, by its number."""
        return int(self._episode[self._ending[row % self._rows.num_rows]])

    def _add(self, number: int, start: int, end: int, last: int, is_open: bool) -> bool:
        """Adds a segment; False: there is no room left, or it does not come behind those of its episode."""
        key = number, start >> EPISODE_BITS
        episode = self._open.get(key)
        if episode is None or self._head[episode] == self._tail[episode] or start > self._last_place[episode]:
            episode = self._begun(start)
        elif end <= self._last_place[episode]:
            return False
        if episode is None or (self._tail[episode] == self._limit[episode] and not self._move(episode)):
            return False
        slot = int(self._tail[episode])
        self._tail[episode] = slot + 1
        self._start[slot], self._end[slot], self._shift[slot], self._episode[slot] = start, end, last - end, episode
        self._first_place[episode] = min(start, self._first_place[episode])
        self._last_place[episode] = end
        self._ending[last % self._rows.num_rows] = slot
        self._stored.append(last)
        if is_open:
            self._open[key] = episode
        else:
            self._open.pop(key, None)
        return True

    def _begun(self, start: int) -> int | None:
        """An episode without segments; None: there is no room for it."""
        episode = self._episodes
        if episode == len(self._head):
            return None
        self._episodes += 1
        self._head[episode] = self._tail[episode] = self._limit[episode] = self._slots
        self._first_place[episode] = start
        return episode

    def _move(self, episode: int) -> bool:
        """Gives an episode twice the room behind all others; False: there is none.

        What was in its slots stays there as well: rows are found by it as before.
        """
        head, tail = int(self._head[episode]), int(self._tail[episode])
        new, count = self._slots, tail - head
        room = max(2 * count, _LEAST_ROOM)
        if new + room >= len(self._end):
            return False
        self._slots = new + room
        for column in (self._start, self._end, self._shift, self._episode):
            column[new : new + count] = column[head:tail]
        self._head[episode], self._tail[episode], self._limit[episode] = new, new + count, new + room
        return True


def _longer(values: np.ndarray, by: int) -> np.ndarray:
    """int64, with further zeros."""
    return np.concatenate([values.astype(np.int64), np.zeros(by, np.int64)])
