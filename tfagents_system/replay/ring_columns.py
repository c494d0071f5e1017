"""What changes in the rows of a ring whose samples have other columns, or longer stacks of frames, than before.

Columns that nobody asks for any more are left out, and those that can be made up are made: no action has explored, and
each segment is an episode of its own, where nobody has said so. Frames that a segment's first steps would need for
longer stacks are not in it: no sample starts there.
"""

from __future__ import annotations

import numpy as np

from tfagents_system.replay.ring_files import RingFiles, is_of_agent_before
from tfagents_system.replay.ring_rows import STEP_FIRST, RingRows
from tfagents_system.report.long_work import LongWork
from tfagents_system.transport.layout import Column


def extents(rows: RingRows, first: int, end: int) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of the first and of the last row of each segment that ends in these rows; the first may lack rows.

    Args:
      rows: Of the ring.
      first, end: Numbers of the first row that is looked at, and of the one behind the last.
    """
    lasts = first + np.flatnonzero(rows.steps_left[np.arange(first, end) % rows.num_rows] == 0)
    return np.concatenate([[first], lasts[:-1] + 1])[: len(lasts)], lasts


def without_frames(rows: RingRows, first: int, end: int, history_rows: int) -> np.ndarray:
    """Numbers of rows at which samples start, and before which there are fewer than `history_rows` frames.

    Those at the beginning of an episode are none of them, nor are those that are left out because rows before them were
    given up (`frame_stacks.first_drawable`). Other arguments are those of `extents`.
    """
    begins, lasts = extents(rows, first, end)
    is_cut = (rows.step_types(begins % rows.num_rows) != STEP_FIRST) & ((begins > first) | (first == 0))
    found = [np.empty(0, np.int64)]
    for back in range(history_rows):
        numbers = begins[is_cut & (begins + back < lasts)] + back
        found.append(numbers[rows.is_start(numbers % rows.num_rows)])
    return np.concatenate(found)


def lacks_frames(files: RingFiles, agent: int, history_rows: int) -> bool:
    """Whether a ring of an agent before has samples that start where frames before them are missing.

    Args:
      files: Of the ring.
      agent: Which of the run's agents learns from now on, from 1.
      history_rows: Frames that its samples need.
    """
    header = files.newest_header()
    if not history_rows or header is None or not is_of_agent_before(files, agent):
        return False
    end = int(header["written_rows"])
    return len(without_frames(RingRows(files, "r"), max(0, end - files.num_rows), end, history_rows)) > 0


def seal_all(new: RingRows, old: RingRows, first: int, end: int, work: LongWork) -> None:
    """Gives each segment that was whole its checksum, with its other columns or places."""
    begins, lasts = (numbers.tolist() for numbers in extents(old, first, end))
    work.doing, work.done, work.total, work.unit = "checksums", 0, len(lasts), "segments"
    for work.done, (begin, last) in enumerate(zip(begins, lasts, strict=True), 1):
        if int(old.crc[last % old.num_rows]) == old.checksum(begin, last - begin):
            new.crc[last % new.num_rows] = new.checksum(begin, last - begin)


def make_up(column: Column, new: RingRows, old: RingRows, first: int, end: int) -> None:
    """Fills a column that the ring has not had; its file is zero so far."""
    if column.name != "episode" or new.episode is None:
        return
    begins, _ = extents(old, first, end)
    numbers = np.arange(first, end)
    begin = begins[np.searchsorted(begins, numbers, "right") - 1] if len(begins) else np.full(len(numbers), first)
    places = numbers % new.num_rows
    new.episode[places, 0] = -1 - begin  # Below 0: nobody's.
    new.episode[places, 1] = numbers - begin  # Of worker 0, as if it had brought them.
