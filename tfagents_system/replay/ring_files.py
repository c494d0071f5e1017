"""The files of a ring: one a column, with its space reserved; two header slots; and what they were made for."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tfagents_system.errors import UserError
from tfagents_system.machine.files import read_json, write_json
from tfagents_system.replay import ring_header
from tfagents_system.transport.layout import Column, Layout, file_stem

DESCRIPTION = "layout.json"  # What a ring was made for.
VERSION = 3
_SLACK_SEGMENTS = 4
OWN_COLUMNS = (
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
      folder: Where they are; for this ring alone.
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

        Its attributes are the arguments. `slack_rows` is for a new ring, None is `default_slack_rows`; one that is
        there keeps its own.

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
            files.make()
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
        return (*self.layout.columns, *OWN_COLUMNS)

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

    def map(self, column: Column, mode: Literal["r", "r+"] = "r+") -> np.ndarray:
        """The column as an array `[num_rows, ...]` that is the file.

        Raises:
          UserError: It can't be opened.
        """
        with self._usable():
            mapped = np.memmap(self.column(column), np.dtype(column.dtype), mode, shape=(self.num_rows, *column.shape))
        # Not the memmap itself: every slice of it would be one, which costs more than the slice.
        return np.asarray(mapped)

    def open_header(self) -> tuple[np.ndarray, np.ndarray]:
        """The two header slots, which are the file, and a copy of the newer whole one.

        Raises:
          UserError: The file can't be opened for writing, or both slots are damaged.
        """
        newest = self.newest_header()
        if newest is None:
            raise UserError(
                f"{self.header} is damaged (its size is wrong, or no checksum is right): restore it, or start a new "
                "run (SAC_EXP_NAME)"
            )
        with self._usable():
            slots = ring_header.map_slots(self.header)
        return (slots if slots.dtype == newest.dtype else self.write_header(newest)), newest

    def write_header(self, header: np.ndarray) -> np.ndarray:
        """Makes the file of the slots again, with only this header; returns the slots.

        Raises:
          UserError: It can't be written.
        """
        with self._usable():
            ring_header.write_slots(self.header, header)
            return ring_header.map_slots(self.header)

    def newest_header(self) -> np.ndarray | None:
        """A copy of the newest whole header, None if there is none.

        Raises:
          UserError: The file can't be opened.
        """
        with self._usable(), contextlib.suppress(FileNotFoundError, ring_header.DamagedHeaderError):
            return ring_header.newest_slot(ring_header.map_slots(self.header), self.fingerprint)
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

    def parse_header(self, data: bytes) -> np.ndarray:
        """A header of this ring.

        Raises:
          DamagedHeaderError: It is damaged, or of another ring.
        """
        return ring_header.parse(data, self.fingerprint)

    def make_durable(self) -> None:
        """Writes to disk what has changed; what is stored meanwhile is not held up.

        fdatasync finds the pages that are dirty, through the mapping too, and gives the interpreter free.

        Raises:
          OSError: It can't be written.
        """
        for path in (*(self.column(column) for column in self.columns), self.header):
            with path.open("rb") as file:
                os.fdatasync(file.fileno())

    def _describe(self) -> dict[str, Any]:
        description = {
            "version": VERSION,
            "capacity_rows": self.capacity_rows,
            "slack_rows": self.slack_rows,
            "columns": [column.describe() for column in self.layout.columns],
        }
        return json.loads(json.dumps(description))  # Tuples become lists as they do in the file.

    def _check_layout(self) -> int:
        """The slack of the ring in the folder, if it is one of this kind."""
        with self._usable():
            text = self.description.read_bytes()
        try:
            found = json.loads(text)
            slack_rows = found.get("slack_rows")
        except (ValueError, AttributeError, TypeError):
            raise UserError(f"{self.description} is damaged: restore it, or start a new run (SAC_EXP_NAME)") from None
        expected = {**self._describe(), "slack_rows": slack_rows}
        if found != expected or not isinstance(slack_rows, int) or slack_rows < 1:
            raise UserError(
                f"the replay ring in {self.folder} was made for {found}, this run needs {expected}: "
                "restore the parameters it was made with, or start a new run (SAC_EXP_NAME)"
            )
        return slack_rows

    def make(self) -> None:
        """Makes all files of an empty ring, the description last.

        Raises:
          UserError: The disk is too small, or the folder can't be written.
        """
        with self._usable():
            self.folder.mkdir(parents=True, exist_ok=True)
            for column in self.columns:  # Left by an interrupted start.
                self.column(column).unlink(missing_ok=True)
            self._reserve()
            self.reset_header()
            write_json(self.description, self._describe(), indent=1)

    def _reserve(self) -> None:
        """Gives every file its space: a full disk is an error now, not a SIGBUS in a day.

        A file that is there keeps its content; what a copy of it has left out is made good.
        """
        with self._usable():
            for column in self.columns:
                _reserve(self.column(column), column.step_bytes * self.num_rows)

    @contextlib.contextmanager
    def _usable(self) -> Iterator[None]:
        """Tells the user what to do where the files can't be read or written."""
        try:
            yield
        except OSError as error:
            raise UserError(
                f"the replay ring needs {self.num_bytes:,} bytes that can be written in {self.folder} "
                f"({error.strerror}): lower buffer_size, free space, or set SAC_REPLAY_DIR to another disk"
            ) from None


def _reserve(path: Path, size: int) -> None:
    """Makes a file of `size` bytes that have their space; one that is there keeps what it has."""
    path.touch()
    with path.open("r+b") as file:
        status = os.fstat(file.fileno())
        # Without a look at what it takes already this would read all of it on some file systems.
        if status.st_size < size or status.st_blocks * 512 < size:
            os.posix_fallocate(file.fileno(), 0, max(1, size))


def find_files(folder: Path, layout: Layout) -> RingFiles | None:
    """Those of the ring in a folder, of any size; None where there is none, or none of this layout and version."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        found = read_json(folder / DESCRIPTION) or {}
        files = RingFiles(folder, layout, found["capacity_rows"], found["slack_rows"])
        return files if found == files._describe() else None
    return None


def find_any_files(folder: Path) -> RingFiles | None:
    """Those of the ring in a folder, of any layout and size; None where there is none, or none of this version."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return find_files(folder, layout_of(read_json(folder / DESCRIPTION) or {}))
    return None


def layout_of(described: Mapping[str, Any]) -> Layout:
    """The columns in a description; errors are those of wrong keys and types."""
    columns = [
        Column(each["name"], tuple(each["shape"]), each["dtype"], each.get("count")) for each in described["columns"]
    ]
    return Layout.from_columns(columns)


def row_ranges(first: int, last: int, num_rows: int) -> list[slice]:
    """Places of the rows numbered `first` up to `last` (not included) in files of `num_rows`: one range or two."""
    if first >= last:
        return []
    start, length = first % num_rows, last - first
    head = min(length, num_rows - start)
    return [slice(start, start + head)] + ([slice(0, length - head)] if length > head else [])
