"""Finds the segments of a ring that are not what was stored there: torn, damaged, or of another time."""

from __future__ import annotations

import numpy as np

from tfagents_system.replay.ring_files import row_ranges
from tfagents_system.replay.ring_rows import HISTORY, RingRows


def drop_damaged(rows: RingRows, first_row: int, last_row: int, cut_crc: int) -> int:
    """Compares every segment with its checksum; in damaged ones no transition starts any more.

    The ring has given up the beginning of its oldest segment. For what is left of it a snapshot's header has a checksum
    (`oldest_checksum`). Without one it is accepted unverified, if it counts down its steps as it should and the segment
    after it is whole.

    Args:
      rows: Of the ring.
      first_row, last_row: Numbers of the oldest row that is held, and of the one after the newest.
      cut_crc: Checksum of the oldest segment's rest, -1 where there is none.

    Returns:
      Transitions of damaged segments, as far as they can be counted.
    """
    left = rows.steps_left[np.arange(first_row, last_row) % rows.num_rows]
    lasts = np.flatnonzero(left == 0)
    if len(left) and left[-1] != 0:
        lasts = np.append(lasts, len(left) - 1)  # A tail without an end: damaged.
    firsts = np.concatenate([[0], lasts[:-1] + 1]) if len(lasts) else lasts
    whole = [
        (first == last and left[last] == 0) or _is_whole(rows, first_row + int(first), int(last - first))
        for first, last in zip(firsts, lasts, strict=True)
    ]
    if whole and not whole[0]:
        if cut_crc >= 0:
            whole[0] = cut_crc == rows.checksum(first_row, int(lasts[0]))
        elif first_row > 0:  # Else nothing was given up: it is a whole segment, and its own checksum is wrong.
            whole[0] = (len(whole) == 1 or whole[1]) and _counts_down(left[: lasts[0] + 1])
    dropped = 0
    for first, last, good in zip(firsts, lasts, whole, strict=True):
        if not good:
            damaged = first_row + int(first), first_row + int(last) + 1
            dropped += rows.count_starts(*damaged)
            for part in row_ranges(*damaged, rows.num_rows):
                rows.steps_left[part] = 0
    return dropped


def oldest_checksum(rows: RingRows, first_row: int, last_row: int) -> int:
    """Of the rows from the oldest one to the end of its segment, see `drop_damaged`."""
    held, history = last_row - first_row, 0
    while history < held - 1 and rows.steps_left[(first_row + history) % rows.num_rows] < 0:
        history += 1
    steps = int(rows.steps_left[(first_row + history) % rows.num_rows])
    return rows.checksum(first_row, min(history + max(0, steps), held - 1))


def _is_whole(rows: RingRows, first_row: int, steps: int) -> bool:
    place = (first_row + steps) % rows.num_rows
    return int(rows.steps_left[place]) == 0 and int(rows.crc[place]) == rows.checksum(first_row, steps)


def _counts_down(left: np.ndarray) -> bool:
    """Whether the rows of a segment say so: history, or none, then the steps that are left, down to 0."""
    history = int(np.count_nonzero(left == HISTORY))
    steps = len(left) - 1 - history
    return np.array_equal(left[history:], np.arange(steps, -1, -1)) and (steps >= 1 or not history)
