"""Gives a ring that exists another size, larger or smaller, or other columns; what it holds stays, as far as it fits.

Row n of a run is at place n % num_rows of every column: with another number of rows, all move. So new files are made
beside the old ones and take their places:

    resized/            in the ring's folder
        reward.bin ...  rows at their new places; with as many rows as before only the columns that change
        header.bin
        layout.json     what the new ring is made for
        whole.json      written last: without it, the files are of an interrupted start and are made again

With it the files move one after another. A process that dies meanwhile leaves the rest to the next one, which also
learns whether the old ring was as the process before it had left it. Snapshots of before remain valid: see
`RingFiles.parse_header`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from absl import logging

from tfagents_system.errors import UserError
from tfagents_system.machine.files import sync
from tfagents_system.machine.scratch import DESCRIPTION
from tfagents_system.replay import ring_columns, ring_header
from tfagents_system.replay.ring_files import RingFiles, default_slack_rows
from tfagents_system.replay.ring_rows import RingRows
from tfagents_system.report.long_work import LongWork
from tfagents_system.run_files.heartbeat import read_json, write_json
from tfagents_system.transport.layout import Layout

_FOLDER, _WHOLE = "resized", "whole.json"
_ALWAYS_NEW = ("crc", "step_type")  # Where any column changes.
_BYTES_AT_ONCE = 16 << 20


def needed_slack(files: RingFiles, capacity_rows: int, slack_rows: int, snapshots: Sequence[bytes]) -> int:
    """Slack with which a ring of another capacity holds what this one does, and can go back to what this one can.

    Args:
      files: The ring.
      capacity_rows, slack_rows: Of the other one; the least slack.
      snapshots: Those that it may have to go back to.
    """
    header = files.newest_header()
    if header is None:
        return slack_rows
    written, needed = int(header["written_rows"]), slack_rows
    for snapshot in (header.tobytes(), *snapshots):
        with contextlib.suppress(ring_header.DamagedHeaderError):
            covered = files.parse_header(snapshot)
            total, filled = int(covered["total_rows"]), int(covered["filled_rows"])
            if written - (total - filled) <= files.num_rows:  # None of its rows has been overwritten.
                needed = max(needed, written - total + min(filled, capacity_rows) - capacity_rows)
    return needed


@dataclasses.dataclass(frozen=True)
class Wanted:
    """What a ring is to be.

    Attributes:
      layout: Its columns; `stored_ring.differences` has nothing to say of them and those that it has.
      capacity_rows, slack_rows: Its size.
      history_rows: Frames before each sample: no sample starts where fewer are there. 0: wherever one may start now.
    """

    layout: Layout
    capacity_rows: int
    slack_rows: int
    history_rows: int = 0

    @classmethod
    def of(cls, layout: Layout, capacity_rows: int, slack_rows: int | None) -> Wanted:
        """With the default slack where none is said."""
        if slack_rows is None:
            slack_rows = default_slack_rows(capacity_rows, layout.max_segment_steps(None) + 1)
        return cls(layout, capacity_rows, slack_rows)

    def files_beside(self, old: RingFiles) -> RingFiles:
        """The new files: of all columns, or of those that change."""
        new = RingFiles(
            old.folder / _FOLDER,
            self.layout,
            self.capacity_rows,
            self.slack_rows,
            earlier=(*old.earlier, old.fingerprint),
        )
        if new.num_rows != old.num_rows:
            return new
        stay = [each for each in new.columns if each in old.columns and each.name not in _ALWAYS_NEW]
        return dataclasses.replace(new, kept={each.name: old.column(each) for each in stay})


def make(old: RingFiles, wanted: Wanted, told: str, work: LongWork) -> None:
    """Makes the files of another size, or with other columns, which `finish` puts in place.

    Args:
      old: The ring.
      wanted: What it is to be.
      told: What `finish` returns.
      work: Is told how far it is.

    Raises:
      UserError: The disk is too small for both, the folder can't be written, or the header is damaged. The ring is as
        it was.
    """
    header, new = old.newest_header(), wanted.files_beside(old)
    if header is None:
        raise UserError(
            f"the replay ring in {old.folder} has room for {old.capacity_rows:,} rows, and can't get "
            f"{wanted.capacity_rows:,} or other columns, its header is damaged: restore {old.header}, start once with "
            "buffer_size and the settings of samples as they were, which begins with an empty ring, or begin "
            "another run (SAC_EXP_NAME)"
        )
    folder, dropped = new.folder, [old.column(each).name for each in old.columns if each not in new.columns]
    shutil.rmtree(folder, ignore_errors=True)
    try:
        new.make(lambda: _fill(new, old, header, wanted.history_rows, work))
        write_json(folder / _WHOLE, {"told": told, "inode": folder.stat().st_ino, "dropped": dropped})
        sync(folder / _WHOLE)
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, OSError):
            raise UserError(f"{folder / _WHOLE} can't be written ({error.strerror}): free space") from None
        raise
    logging.info("%s: from %d to %d rows", old.folder, old.capacity_rows, wanted.capacity_rows)


def finish(folder: Path) -> str | None:
    """Puts the files of another size in a ring's place, if all of them were made; removes them otherwise.

    It is done again by the next start until `forget` is called.

    Returns:
      What `make` was told; empty for a copy of the folder; None if there is nothing.
    """
    made = folder / _FOLDER
    whole = read_json(made / _WHOLE)
    if whole is None:
        forget(folder)
        return None
    moved = [path for path in sorted(made.iterdir()) if path.name not in (DESCRIPTION, _WHOLE)]
    if moved:
        (folder / DESCRIPTION).unlink(missing_ok=True)  # Meanwhile there is no ring that others could read.
    for path in [*moved, made / DESCRIPTION]:
        with contextlib.suppress(FileNotFoundError):
            os.replace(path, folder / path.name)
    for name in whole.get("dropped", ()):
        (folder / name).unlink(missing_ok=True)
    sync(folder)
    return str(whole["told"]) if whole["inode"] == made.stat().st_ino else ""


def forget(folder: Path) -> None:
    """Removes what is left of another size's files."""
    shutil.rmtree(folder / _FOLDER, ignore_errors=True)


def _fill(new: RingFiles, old: RingFiles, header: np.ndarray, history_rows: int, work: LongWork) -> None:
    """Copies the rows that fit, also those of the slack, and the header, to the disk."""
    end = int(header["written_rows"])
    first = max(0, end - old.num_rows, end - new.num_rows)
    copied = [each for each in new.columns if each in old.columns and each.name not in new.kept]
    done_bytes, row_bytes = 0, sum(column.step_bytes for column in copied)
    work.doing, work.done, work.total, work.unit = "another size", 0, (end - first) * row_bytes >> 20, "MiB"
    for column in copied:
        rows, own = old.map(column, "r"), new.map(column)
        at_once = max(1, _BYTES_AT_ONCE // max(1, column.step_bytes))
        for begin in range(first, end, at_once):
            numbers = np.arange(begin, min(begin + at_once, end))
            own[numbers % new.num_rows] = rows[numbers % old.num_rows]
            done_bytes += len(numbers) * column.step_bytes
            work.done = done_bytes >> 20
    new_rows, old_rows = RingRows(new), RingRows(old, "r")
    numbers = ring_columns.without_frames(new_rows, first, end, history_rows)
    if len(numbers) or new.layout != old.layout:
        for column in new.columns:
            if column not in old.columns:
                ring_columns.make_up(column, new_rows, old_rows, first, end)
        new_rows.start_elsewhere(numbers % new.num_rows)
        ring_columns.seal_all(new_rows, old_rows, first, end, work)
    else:
        for num_rows in (old.num_rows, new.num_rows):
            for boundary in range(-(-(first + 1) // num_rows) * num_rows, end, num_rows):
                _seal(new_rows, old_rows, boundary, (first, end), old.slack_rows)
    ring_header.write_slots(new.header, ring_header.fitted(header, new.fingerprint, new.capacity_rows))
    work.doing, work.done, work.total, work.unit = "another size, to the disk", 0, None, ""
    new.make_durable()


def _seal(new: RingRows, old: RingRows, boundary: int, held: tuple[int, int], most_rows: int) -> None:
    """Gives the segment around a row its checksum, which depends on where the files' end divides it.

    Args:
      new, old: Rows of both rings.
      boundary: Number of a row that is the first one in the files of one of them.
      held: Numbers of the first row that both have, and of the one behind the last.
      most_rows: Of a segment.
    """
    first, end = max(held[0], boundary - most_rows), min(held[1], boundary + most_rows)
    lasts = first + np.flatnonzero(old.steps_left[np.arange(first, end) % old.num_rows] == 0)
    before, behind = lasts[lasts < boundary], lasts[lasts >= boundary]
    if not len(before) or not len(behind):
        return  # It has lost its beginning, or never came to its end.
    begin, last = int(before[-1]) + 1, int(behind[0])
    if int(old.crc[last % old.num_rows]) == old.checksum(begin, last - begin):
        new.crc[last % new.num_rows] = new.checksum(begin, last - begin)
