"""The files of a ring: one a column with its space reserved, two header slots, what they were made for, their sizes.

A ring has one layout and size for life. Its header says which rows it holds and what is stored of each worker, under a
checksum. Rows are counted from the beginning of the run: row number n is at place n % num_rows of every column. Numbers
only grow, so it is known from two of them whether a row has been overwritten since.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tfagents_system.errors import UserError
from tfagents_system.machine.files import read_json, write_atomically, write_json
from tfagents_system.train_params_base import TrainParamsBase
from tfagents_system.transport.segments import NEVER, Column, Layout, file_stem

DESCRIPTION = "layout.json"  # What a ring was made for.
VERSION = 5
MAX_WORKERS = 4096
INIT_ITERATION = -1  # The first random episodes are collected in it.
COUNTED_ITERATIONS = 1024  # The newest ones, whose steps are counted for each of them.
_SLACK_SEGMENTS = 4
OWN_COLUMNS = (
    Column("reward", (), "float32"),
    Column("discount", (), "float32"),
    Column("steps_left", (), "int32"),
    Column("step_type", (), "uint8"),
    Column("crc", (), "uint32"),
)


# The header.

WORKER = np.dtype([("incarnation", "<i8"), ("number", "<i8"), ("iteration_done", "<i8"), ("init_episodes", "<i8")])
# The records come last: of those that no worker uses yet, the files have nothing.
HEADER = np.dtype(
    [
        ("crc", "<u4"),  # of all that follows, up to the last record in use
        ("run", "<u4"),  # 1, or `Taken.mark` once rows of another run count for this one; 0 is no header
        ("generation", "<i8"),  # counts the headers of a ring
        ("total_rows", "<i8"),  # the number that the next row gets
        ("filled_rows", "<i8"),
        ("env_steps", "<i8"),
        ("init_steps", "<i8"),
        ("newest_iteration", "<i8"),  # that any step belongs to
        ("iteration_steps", "<i8", (COUNTED_ITERATIONS,)),  # of iteration i at i % their number
        ("segments", "<i8"),
        ("num_workers", "<i8"),  # records in use: those of workers 0 to num_workers - 1
        ("workers", WORKER, (MAX_WORKERS,)),
    ]
)
_RECORDS_BEGIN = HEADER.itemsize - MAX_WORKERS * WORKER.itemsize


class DamagedHeaderError(ValueError):
    """Bytes that are no header."""


def empty_header() -> np.ndarray:
    """The header of a ring without experience, sealed."""
    header = np.zeros((), HEADER)
    header["run"] = 1
    header["newest_iteration"] = INIT_ITERATION
    header["workers"]["number"] = -1
    header["workers"]["iteration_done"] = NEVER
    seal(header)
    return header


def header_bytes(header: np.ndarray) -> np.ndarray:
    """Its bytes up to the last record in use, in place."""
    return header.reshape(1).view(np.uint8)[: _RECORDS_BEGIN + int(header["num_workers"]) * WORKER.itemsize]


def seal(header: np.ndarray) -> None:
    """Sets the checksum."""
    header["crc"] = zlib.crc32(header_bytes(header)[4:].data)


def parse_header(data: bytes) -> np.ndarray:
    """Reads a header from bytes, of which there may be more; DamagedHeaderError where they are damaged."""
    header = empty_header()
    if len(data) < _RECORDS_BEGIN:
        raise DamagedHeaderError(f"{len(data)} bytes are no header")
    header.reshape(1).view(np.uint8)[:_RECORDS_BEGIN] = np.frombuffer(data, np.uint8, _RECORDS_BEGIN)
    length = _RECORDS_BEGIN + int(header["num_workers"]) * WORKER.itemsize
    if not _RECORDS_BEGIN <= length <= min(len(data), HEADER.itemsize):
        raise DamagedHeaderError(f"{len(data)} bytes are no header with {header['num_workers']} workers")
    header_bytes(header)[:] = np.frombuffer(data, np.uint8, length)
    if header["crc"] != zlib.crc32(data[4:length]) or header["run"] < 1:
        raise DamagedHeaderError("the checksum is wrong")
    return header


def covered_rows(header: np.ndarray) -> tuple[int, int]:
    """Numbers of the oldest row that a header covers, and of the one after the newest."""
    return int(header["total_rows"] - header["filled_rows"]), int(header["total_rows"])


# Sizes.


def ring_rows(params: TrainParamsBase, layout: Layout) -> tuple[int, int]:
    """Rows that a run's ring holds, and rows beyond those, in which the last checkpoints' oldest experience stays.

    An episode of full length takes one row more for each of its segments than it has steps. Where frames are stacked,
    segments from within an episode have their history, too. A ring gives up whole segments: with room for one more it
    never holds less than the buffer size. A segment that it takes has at most as many rows as the smaller of the two.
    """
    history, length = layout.history_rows(params.frame_stack), params.sample_form_ctor().sequence_length
    segments = layout.num_segments(params.horizon, length)
    episode_rows = params.horizon + segments + (segments - 1) * history
    segment_rows = history + min(params.horizon, layout.max_segment_steps(length)) + 1
    capacity = -(-params.buffer_size * episode_rows // params.horizon) + segment_rows
    return capacity, _slack_rows(capacity, segment_rows)


def ring_bytes(params: TrainParamsBase, layout: Layout) -> int:
    """Of the ring's files; as much again in the run directory where SAC_REPLAY_DIR is another folder."""
    priority_bytes = 4 if params.sample_form_ctor().is_prioritized else 0
    return sum(ring_rows(params, layout)) * (layout.step_bytes + priority_bytes)


def _slack_rows(capacity: int, segment_rows: int) -> int:
    """A quarter of the capacity, and at least four of the longest segments.

    That much experience may come after a checkpoint until the first row of it is overwritten.
    """
    return max(-(-capacity // 4), _SLACK_SEGMENTS * min(capacity, segment_rows))


# The files.


@dataclasses.dataclass(frozen=True)
class RingFiles:
    """The files of one ring; nothing is opened. Methods raise OSError where a file can't be read or written.

    Attributes:
      folder: Where they are; for this ring alone.
      layout: The experience's columns.
      capacity_rows: Rows that the ring holds, at most.
      slack_rows: Rows beyond that, in which what was given up stays for a while.
    """

    folder: Path
    layout: Layout
    capacity_rows: int
    slack_rows: int

    @classmethod
    def prepare(cls, folder: Path, layout: Layout, capacity_rows: int, slack_rows: int | None = None) -> RingFiles:
        """Finds the files in `folder`, or makes them there, with their disk space reserved.

        `slack_rows` is for a new ring, None is enough for segments of any run; one that is there keeps its own.

        Raises:
          UserError: The disk is too small, the folder can't be written, or it holds a ring of another kind.
        """
        if slack_rows is None:
            slack_rows = _slack_rows(capacity_rows, layout.max_segment_steps(None) + 1)
        files = cls(folder, layout, capacity_rows, slack_rows)
        with files.usable():
            if not files.description.exists():
                files._make()
                return files
            ring = cls.find(folder)
            if ring is None or (ring.layout, ring.capacity_rows) != (layout, capacity_rows):
                raise UserError(
                    f"{files.description} is damaged or of a ring of another kind than this run needs "
                    f"({files._describe()}): restore it, or the parameters it was made with, or start a new run "
                    "(SAC_EXP_NAME)"
                )
            ring._reserve()
        return dataclasses.replace(ring, layout=layout)

    @classmethod
    def find(cls, folder: Path) -> RingFiles | None:
        """Those of the ring in a folder, of any layout and size; None where there is none, or none of this version."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            description = read_json(folder / DESCRIPTION) or {}
            columns = [Column(**{**column, "shape": tuple(column["shape"])}) for column in description["columns"]]
            sizes = int(description["capacity_rows"]), int(description["slack_rows"])
            files = cls(folder, Layout.from_columns(columns), *sizes)
            return files if description == files._describe() else None
        return None

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

    def column(self, column: Column) -> Path:
        return self.folder / f"{file_stem(column.name)}.bin"

    def map(self, column: Column, mode: Literal["r", "r+"] = "r+") -> np.ndarray:
        """The column as an array `[num_rows, ...]` that is the file."""
        mapped = np.memmap(self.column(column), np.dtype(column.dtype), mode, shape=(self.num_rows, *column.shape))
        # Not the memmap itself: every slice of it would be one, which costs more than the slice.
        return np.asarray(mapped)

    def newest_header(self) -> np.ndarray | None:
        """A copy of the newest whole header, None if there is none."""
        content, headers = b"", list[np.ndarray]()
        with contextlib.suppress(FileNotFoundError):
            content = self.header.read_bytes()
        if len(content) == 2 * HEADER.itemsize:
            for slot in (content[: HEADER.itemsize], content[HEADER.itemsize :]):
                with contextlib.suppress(DamagedHeaderError):
                    headers.append(parse_header(slot))
        return max(headers, key=lambda header: int(header["generation"])) if headers else None

    def write_header(self, header: np.ndarray) -> None:
        """Makes the file of the slots again with only this header; whole or not at all."""
        slots = np.zeros((2,), HEADER)
        slots[int(header["generation"]) % 2] = header
        write_atomically(self.header, slots.tobytes())

    def make_durable(self) -> None:
        """Writes to disk what has changed; what is stored meanwhile is not held up.

        fdatasync finds the pages that are dirty, through the mapping too, and gives the interpreter free.
        """
        for path in (*(self.column(column) for column in self.columns), self.header):
            with path.open("rb") as file:
                os.fdatasync(file.fileno())

    @contextlib.contextmanager
    def usable(self) -> Iterator[None]:
        """Tells the user what to do where they can't be read or written, by a UserError in the place of OSError."""
        try:
            yield
        except OSError as error:
            raise UserError(
                f"the replay ring needs {self.num_bytes:,} bytes that can be written in {self.folder} "
                f"({error.strerror}): lower buffer_size, free space, or set SAC_REPLAY_DIR to another disk"
            ) from None

    def _describe(self) -> dict[str, Any]:
        description = {
            "version": VERSION,
            "capacity_rows": self.capacity_rows,
            "slack_rows": self.slack_rows,
            "columns": [column.describe() for column in self.layout.columns],
        }
        return json.loads(json.dumps(description))  # Tuples become lists as they do in the file.

    def _make(self) -> None:
        """Makes all files of an empty ring, the description last."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for column in self.columns:  # Left by an interrupted start.
            self.column(column).unlink(missing_ok=True)
        self._reserve()
        self.write_header(empty_header())
        write_json(self.description, self._describe(), indent=1)

    def _reserve(self) -> None:
        """Gives every file its space: a full disk is an error now, not a SIGBUS in a day.

        A file that is there keeps its content; what a copy of it has left out is made good.
        """
        for column in self.columns:
            path, size = self.column(column), column.step_bytes * self.num_rows
            path.touch()
            with path.open("r+b") as file:
                status = os.fstat(file.fileno())
                # Without a look at what it takes already this would read all of it on some file systems.
                if status.st_size < size or status.st_blocks * 512 < size:
                    os.posix_fallocate(file.fileno(), 0, max(1, size))


def row_ranges(first: int, last: int, num_rows: int) -> list[slice]:
    """Places of the rows numbered `first` up to `last` (not included) in files of `num_rows`: one range or two."""
    if first >= last:
        return []
    start, length = first % num_rows, last - first
    head = min(length, num_rows - start)
    return [slice(start, start + head)] + ([slice(0, length - head)] if length > head else [])
