"""The copy of a ring on node-local scratch in the run directory, brought up to date with each checkpoint.

It has the same files as the ring itself, with the same rows in the same places, and the newest snapshot as its header:
opened without scratch, it is the ring of the run.
"""

from __future__ import annotations

import os
from pathlib import Path

from tfagents_system.replay import ring_header
from tfagents_system.replay.ring import Ring
from tfagents_system.replay.ring_files import RingFiles, row_ranges


class RingCopy:
    """Takes what is new in a ring.

    Args:
      ring: The ring on scratch.
      folder: Of the copy; made where it does not exist.

    Raises:
      UserError: The folder is too small, can't be written, or holds a ring of another kind.
    """

    def __init__(self, ring: Ring, folder: Path) -> None:
        self._ring = ring
        self._files = RingFiles.prepare(folder, ring.layout, ring.capacity_rows, ring.files.slack_rows)
        self._files.mend_header()
        self._copied_rows = 0  # Rows with smaller numbers are in the copy, if the ring still holds them.

    def restore(self, snapshot: bytes | None) -> bytes:
        """Writes the rows that a snapshot covers into the ring, at their places; it is to be rolled back to it then.

        Args:
          snapshot: None is that of the last copy.

        Returns:
          The snapshot.

        Raises:
          DamagedHeaderError: It is damaged, or of another ring.
        """
        if snapshot is None:
            newest = self._files.newest_header()
            snapshot = b"" if newest is None else newest.tobytes()
        first, last = _covered(snapshot, self._files)
        with self._ring.lock:
            for column, own in zip(self._files.columns, self._ring.rows.columns, strict=True):
                copied = self._files.map(column)
                for part in row_ranges(first, last, self._files.num_rows):
                    own[part] = copied[part]
        self._copied_rows = last
        return snapshot

    def begin_after(self, snapshot: bytes) -> None:
        """Says that the copy has what this snapshot covers: it was written to a checkpoint, after the rows."""
        _, self._copied_rows = _covered(snapshot, self._files)

    def update(self, snapshot: bytes) -> int:
        """Makes durable what a snapshot covers: writes the rows that are new since the last time, and flushes them.

        It may run beside appends. Rows that were overwritten meanwhile are found by `Ring.check_covered`.

        Returns:
          Bytes of rows written.

        Raises:
          OSError: They can't be written.
        """
        oldest, last = _covered(snapshot, self._files)
        first = max(oldest, min(self._copied_rows, last))
        written = 0
        for column, own in zip(self._files.columns, self._ring.rows.columns, strict=True):
            with self._files.column(column).open("r+b") as file:
                for part in row_ranges(first, last, self._files.num_rows):
                    file.seek(part.start * column.step_bytes)
                    written += file.write(own[part].data)
                file.flush()
                os.fdatasync(file.fileno())
        ring_header.write_slots(self._files.header, self._files.parse_header(snapshot))
        self._copied_rows = last
        return written


def _covered(snapshot: bytes, files: RingFiles) -> tuple[int, int]:
    """Numbers of the first row of a snapshot, and of the one after its last."""
    header = files.parse_header(snapshot)
    return int(header["total_rows"] - header["filled_rows"]), int(header["total_rows"])
