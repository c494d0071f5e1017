"""The files of a ring: one a column with its space reserved, two header slots, what they were made for, their sizes.

A ring has one layout and size for life.
"""

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
from tfagents_system.machine.files import read_json, write_atomically, write_json
from tfagents_system.replay import ring_header
from tfagents_system.replay.ring_header import HEADER, DamagedHeaderError
from tfagents_system.train_params_base import TrainParamsBase
from tfagents_system.transport.segments import Column, Layout, file_stem

DESCRIPTION = "layout.json"  # What a ring was made for.
VERSION = 4
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


def capacity_rows(params: TrainParamsBase, layout: Layout) -> int:
    """Rows of a run's ring.

    An episode of full length takes one row more for each of its segments than it has steps. Where frames are stacked,
    segments from within an episode have their history, too.
    """
    segments = layout.num_segments(params.horizon, params.sample_form_ctor().sequence_length)
    episode_rows = params.horizon + segments + (segments - 1) * layout.history_rows(params.frame_stack)
    return -(-params.buffer_size * episode_rows // params.horizon)


def slack_rows(params: TrainParamsBase, layout: Layout) -> int:
    """Rows beyond those, in which the last checkpoints' oldest experience stays."""
    steps = min(params.horizon, layout.max_segment_steps(params.sample_form_ctor().sequence_length))
    return default_slack_rows(capacity_rows(params, layout), layout.history_rows(params.frame_stack) + steps + 1)


def longest_segment_rows(params: TrainParamsBase, layout: Layout) -> int:
    """Rows of a segment that a run's ring takes, whoever made it."""
    return min(capacity_rows(params, layout), slack_rows(params, layout))


def ring_bytes(params: TrainParamsBase, layout: Layout) -> int:
    """Of the ring's files; as much again in the run directory where SAC_REPLAY_DIR is another folder."""
    priority_bytes = 4 if params.sample_form_ctor().is_prioritized else 0
    return (capacity_rows(params, layout) + slack_rows(params, layout)) * (layout.step_bytes + priority_bytes)


@dataclasses.dataclass(frozen=True)
class RingFiles:
    """The files of one ring; nothing is opened.

    Attributes:
      folder: Where they are; for this ring alone.
      layout: The experience's columns.
      capacity_rows: Rows that the ring holds.
      slack_rows: Rows beyond that, in which what was given up stays for a while.
    """

    folder: Path
    layout: Layout
    capacity_rows: int
    slack_rows: int

    @classmethod
    def prepare(cls, folder: Path, layout: Layout, capacity_rows: int, slack_rows: int | None = None) -> RingFiles:
        """Finds the files in `folder`, or makes them there, with their disk space reserved.

        Its attributes are the arguments. `slack_rows` is for a new ring, None is `default_slack_rows`; one that is
        there keeps its own.

        Raises:
          UserError: The disk is too small, the folder can't be written, or it holds a ring of another kind.
        """
        if slack_rows is None:
            slack_rows = default_slack_rows(capacity_rows, layout.max_segment_steps(None) + 1)
        files = cls(folder, layout, capacity_rows, slack_rows)
        if not files.exist():
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
            layout = _layout_of(description)
            files = cls(folder, layout, int(description["capacity_rows"]), int(description["slack_rows"]))
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
        with self._usable(mode):
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
            return np.asarray(np.memmap(self.header, HEADER, "r+", shape=(2,))), newest

    def newest_header(self, mode: Literal["r", "r+"] = "r+") -> np.ndarray | None:
        """A copy of the newest whole header, None if there is none.

        Raises:
          UserError: The file can't be opened.
        """
        content, headers = b"", list[np.ndarray]()
        with self._usable(mode), contextlib.suppress(FileNotFoundError):
            content = self.header.read_bytes()
        if len(content) == 2 * HEADER.itemsize:
            for slot in (content[: HEADER.itemsize], content[HEADER.itemsize :]):
                with contextlib.suppress(DamagedHeaderError):
                    headers.append(self.parse_header(slot))
        return max(headers, key=lambda header: int(header["generation"])) if headers else None

    def mend_header(self) -> None:
        """Makes an empty header if there is no whole one."""
        if self.newest_header() is None:
            self.reset_header()

    def reset_header(self) -> None:
        """Makes an empty header: what is in the files is forgotten."""
        with self._usable():
            self.write_header(ring_header.empty(self.fingerprint))

    def write_header(self, header: np.ndarray) -> None:
        """Makes the file of the slots again with only this header; whole or not at all.

        Raises:
          OSError: It can't be written.
        """
        slots = np.zeros((2,), HEADER)
        slots[int(header["generation"]) % 2] = header
        write_atomically(self.header, slots.tobytes())

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

    def _make(self) -> None:
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
                path, size = self.column(column), column.step_bytes * self.num_rows
                path.touch()
                with path.open("r+b") as file:
                    status = os.fstat(file.fileno())
                    # Without a look at what it takes already this would read all of it on some file systems.
                    if status.st_size < size or status.st_blocks * 512 < size:
                        os.posix_fallocate(file.fileno(), 0, max(1, size))

    @contextlib.contextmanager
    def _usable(self, mode: Literal["r", "r+"] = "r+") -> Iterator[None]:
        """Tells the user what to do where the files can't be read or written."""
        try:
            yield
        except OSError as error:
            if mode == "r":
                raise UserError(
                    f"the replay ring in {self.folder} can't be read ({error.strerror}): give another run"
                ) from None
            raise UserError(
                f"the replay ring needs {self.num_bytes:,} bytes that can be written in {self.folder} "
                f"({error.strerror}): lower buffer_size, free space, or set SAC_REPLAY_DIR to another disk"
            ) from None


def _layout_of(description: Mapping[str, Any]) -> Layout:
    """The columns in a description; errors are those of wrong keys and types."""
    columns = [
        Column(column["name"], tuple(column["shape"]), column["dtype"], column.get("count"))
        for column in description["columns"]
    ]
    return Layout.from_columns(columns)


def row_ranges(first: int, last: int, num_rows: int) -> list[slice]:
    """Places of the rows numbered `first` up to `last` (not included) in files of `num_rows`: one range or two."""
    if first >= last:
        return []
    start, length = first % num_rows, last - first
    head = min(length, num_rows - start)
    return [slice(start, start + head)] + ([slice(0, length - head)] if length > head else [])
