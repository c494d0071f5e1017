"""The files of a ring: one a column, with its space reserved; two header slots; and what they were made for."""

from __future__ import annotations

import dataclasses
import json
import os
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from tfagents_system.errors import UserError
from tfagents_system.machine.scratch import DESCRIPTION
from tfagents_system.replay import ring_header
from tfagents_system.transport.segments import Column, Layout, file_stem

_VERSION = 3
_SLACK_SEGMENTS = 4
_OWN_COLUMNS = (
    Column("reward", (), "float32"),
    Column("discount", (), "float32"),
    Column("steps_left", (), "int32"),
    Column("step_type", (), "uint8"),
    Column("crc", (), "uint32"),
)


def default_slack_rows(capacity_rows: int, segment_rows: int) -> int:
    """A quarter of the capacity, and at least four of the longest segments.

    That much experience may come after a checkpoint until the first row of it is overwritten.
    """
    return max(-(-capacity_rows // 4), _SLACK_SEGMENTS * min(capacity_rows, segment_rows))


@dataclasses.dataclass(frozen=True)
class RingFiles:
    """The files of one ring; nothing is opened.

    Attributes:
      folder: Where they are.
      layout: The experience's columns.
      capacity_rows: Rows that the ring holds.
      slack_rows: Rows beyond that, in which what was given up stays for a while.
      max_workers: Workers that the header is to have records for; None: as many as it has, a new one for all that
        there may ever be.
    """

    folder: Path
    layout: Layout
    capacity_rows: int
    slack_rows: int
    max_workers: int | None = None

    @classmethod
    def prepare(
        cls,
        folder: Path,
        layout: Layout,
        capacity_rows: int,
        slack_rows: int | None = None,
        max_workers: int | None = None,
    ) -> RingFiles:
        """Finds the files in `folder`, or makes them there, with their disk space reserved.

        Args:
          folder: For this ring alone.
          layout: The experience's columns.
          capacity_rows: Rows that the ring is to hold.
          slack_rows: For a new ring; None is `default_slack_rows`. One that is there keeps its own.
          max_workers: See above.

        Raises:
          UserError: The disk is too small, the folder can't be written, or it holds a ring of another kind.
        """
        if slack_rows is None:
            slack_rows = default_slack_rows(capacity_rows, layout.max_segment_steps(None) + 1)
        files = cls(folder, layout, capacity_rows, slack_rows, max_workers)
        if files.exist():
            files = dataclasses.replace(files, slack_rows=files._check_layout())
            files._reserve()
        else:
            files._make()
        return files

    @property
    def num_rows(self) -> int:
        """Rows of each file."""
        return self.capacity_rows + self.slack_rows

    @property
    def num_bytes(self) -> int:
        """On disk, all columns together."""
        return sum(column.step_bytes for column in self.columns) * self.num_rows

    @property
    def columns(self) -> tuple[Column, ...]:
        """Observation, action, and the ring's own: reward, discount, steps_left, step_type, crc."""
        return (*self.layout.columns, *_OWN_COLUMNS)

    @property
    def header(self) -> Path:
        return self.folder / "header.bin"

    @property
    def description(self) -> Path:
        """What the ring was made for; written last: a folder without it is an interrupted start."""
        return self.folder / DESCRIPTION

    @property
    def fingerprint(self) -> int:
        """Headers carry it: they fit rings with the same one only."""
        return zlib.crc32(json.dumps(self._describe(), sort_keys=True).encode())

    def exist(self) -> bool:
        """Whether a ring was made in the folder."""
        return self.description.exists()

    def column(self, column: Column) -> Path:
        return self.folder / f"{file_stem(column.name)}.bin"

    def map(self, column: Column) -> np.ndarray:
        """The column as an array `[num_rows, ...]` that is the file.

        Raises:
          UserError: It can't be opened for writing.
        """
        try:
            mapped = np.memmap(self.column(column), np.dtype(column.dtype), "r+", shape=(self.num_rows, *column.shape))
        except OSError as error:
            raise self._unusable(error) from None
        # Not the memmap itself: every slice of it would be one, which costs more than the slice.
        return np.asarray(mapped)

    def map_header(self) -> np.ndarray:
        """The two header slots.

        Raises:
          UserError: The file can't be opened for writing, or is damaged.
        """
        try:
            return ring_header.map_slots(self.header)
        except OSError as error:
            raise self._unusable(error) from None
        except ring_header.DamagedHeaderError as error:
            raise self.damaged_header(str(error)) from None

    def damaged_header(self, why: str) -> UserError:
        """What a user can do about a ring without a whole header."""
        return UserError(f"{self.header} is damaged ({why}): restore it, or start a new run (SAC_EXP_NAME)")

    def write_header(self, header: np.ndarray) -> None:
        """Makes the file of the slots anew, with this header alone.

        Raises:
          UserError: It can't be written.
        """
        try:
            ring_header.write_slots(self.header, header)
        except OSError as error:
            raise self._unusable(error) from None

    def newest_header(self) -> np.ndarray | None:
        """A copy of the newest whole header, None if there is none.

        Raises:
          UserError: The file can't be opened.
        """
        if not self.header.exists():
            return None
        try:
            return ring_header.newest_slot(ring_header.map_slots(self.header), self.fingerprint)
        except OSError as error:
            raise self._unusable(error) from None
        except ring_header.DamagedHeaderError:
            return None

    def mend_header(self) -> bool:
        """Makes an empty header if there is no whole one; returns whether it did."""
        if self.newest_header() is not None:
            return False
        self.reset_header()
        return True

    def reset_header(self) -> None:
        """Makes an empty header: what is in the files is forgotten."""
        self.write_header(ring_header.empty(self.fingerprint, self.max_workers or ring_header.MAX_WORKERS))

    def make_durable(self) -> None:
        """Writes to disk what has changed; what is stored meanwhile is not held up.

        fdatasync finds the pages that are dirty, through the mapping too, and gives the interpreter free.

        Raises:
          OSError: It can't be written.
        """
        for path in (*(self.column(column) for column in self.columns), self.header):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fdatasync(descriptor)
            finally:
                os.close(descriptor)

    def _describe(self) -> dict[str, Any]:
        description = {
            "version": _VERSION,
            "capacity_rows": self.capacity_rows,
            "slack_rows": self.slack_rows,
            "columns": [dataclasses.asdict(column) for column in self.layout.columns],
        }
        return json.loads(json.dumps(description))  # Tuples become lists as they do in the file.

    def _check_layout(self) -> int:
        """The slack of the ring in the folder, if it is one of this kind."""
        try:
            found = json.loads(self.description.read_text(encoding="utf-8"))
            version, slack_rows = found.get("version", 1), found.get("slack_rows")
        except OSError as error:
            raise self._unusable(error) from None
        except (ValueError, AttributeError):
            raise UserError(f"{self.description} is damaged: restore it, or start a new run (SAC_EXP_NAME)") from None
        if version != _VERSION:
            raise UserError(
                f"the replay ring in {self.folder} was made by another version of this program (ring format "
                f"{version}, this one has {_VERSION}): finish the run with that version, or start a new one "
                "(SAC_EXP_NAME)"
            )
        expected = {**self._describe(), "slack_rows": slack_rows}
        if found != expected or not isinstance(slack_rows, int) or slack_rows < 1:
            raise UserError(
                f"the replay ring in {self.folder} was made for {found}, this run needs {expected}: "
                "restore the parameters it was made with, or start a new run (SAC_EXP_NAME)"
            )
        return slack_rows

    def _make(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._unusable(error) from None
        for column in self.columns:  # Left by an interrupted start.
            self.column(column).unlink(missing_ok=True)
        self._reserve()
        self.reset_header()
        try:
            temporary = self.description.with_suffix(".tmp")
            temporary.write_text(json.dumps(self._describe(), indent=1), encoding="utf-8")
            os.replace(temporary, self.description)
        except OSError as error:
            raise self._unusable(error) from None

    def _reserve(self) -> None:
        """Gives every file its space: a full disk is told now, not as SIGBUS in a day.

        A file that is there keeps its content; what a copy of it has left out is made good.
        """
        try:
            for column in self.columns:
                size = max(1, column.step_bytes * self.num_rows)
                descriptor = os.open(self.column(column), os.O_RDWR | os.O_CREAT, 0o666)
                try:
                    status = os.fstat(descriptor)
                    # Without a look at what it takes already this would read all of it on some file systems.
                    if status.st_size < size or status.st_blocks * 512 < size:
                        os.posix_fallocate(descriptor, 0, size)
                finally:
                    os.close(descriptor)
        except OSError as error:
            raise self._unusable(error) from None

    def _unusable(self, error: OSError) -> UserError:
        return UserError(
            f"the replay ring needs {self.num_bytes:,} bytes that can be written in {self.folder} ({error.strerror}): "
            "lower n_episodes_in_buffer, free space, or set SAC_REPLAY_DIR to another disk"
        )


def row_ranges(first: int, last: int, num_rows: int) -> list[slice]:
    """Places of the rows numbered `first` up to `last` (not included) in files of `num_rows`: one range or two."""
    if first >= last:
        return []
    start, length = first % num_rows, last - first
    head = min(length, num_rows - start)
    return [slice(start, start + head)] + ([slice(0, length - head)] if length > head else [])
