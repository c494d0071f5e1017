"""The ring: all experience, one row an observation, in memory-mapped files.

A crash of the process loses nothing (the kernel keeps the pages), a restart is instant, a checkpoint is an msync.
A segment of T transitions takes T + 1 rows; the last one holds only the observation that the last transition led to.
`steps_left` of a row is the number of transitions from that row to the end of its segment: a transition may start
where it is at least 1, a sequence of L transitions where it is at least L, so nothing crosses an episode's end.
"""

from __future__ import annotations

import dataclasses
import json
import os
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tfagents_system.errors import UserError
from tfagents_system.replay.segments import Column, Layout, Segment

MAX_WORKERS = 4096
INIT_ITERATION = -1  # The first random episodes are collected in it.
NEVER = -2  # iteration_done of a worker that has completed none.

_STEP_FIRST, _STEP_MID, _STEP_LAST = 0, 1, 2  # as in tf_agents.trajectories.StepType

_REWARD = Column("reward", (), "float32")
_DISCOUNT = Column("discount", (), "float32")
_STEPS_LEFT = Column("steps_left", (), "int32")
_STEP_TYPE = Column("step_type", (), "uint8")

_WORKER_DTYPE = np.dtype(
    [("incarnation", "<i8"), ("number", "<i8"), ("iteration_done", "<i8"), ("init_episodes", "<i8")]
)
_HEADER_DTYPE = np.dtype(
    [
        ("crc", "<u4"),
        ("valid", "<u4"),
        ("generation", "<i8"),
        ("next_row", "<i8"),
        ("filled_rows", "<i8"),
        ("env_steps", "<i8"),
        ("init_steps", "<i8"),
        ("segments", "<i8"),
        ("workers", _WORKER_DTYPE, (MAX_WORKERS,)),
    ]
)


@dataclasses.dataclass(frozen=True)
class WorkerRecord:
    """What the ring holds of one worker.

    Attributes:
      incarnation: Of the last stored segment; 0 if there is none.
      number: Of the last stored segment; -1 if there is none.
      iteration_done: The last iteration that the worker completed, `NEVER` if there is none.
      init_episodes: Episodes of the first random ones that it completed.
    """

    incarnation: int
    number: int
    iteration_done: int
    init_episodes: int


class Ring:
    """Experience of a run, the newest `capacity_rows` rows of it.

    Safe to use from several threads. Open with `Ring.open`.
    """

    def __init__(self, folder: Path, layout: Layout, capacity_rows: int) -> None:
        self.folder = folder
        self.layout = layout
        self.capacity_rows = capacity_rows
        self.lock = threading.RLock()
        self.observation = [_map(folder, column, capacity_rows) for column in layout.observation]
        self.action = [_map(folder, column, capacity_rows) for column in layout.action]
        self.reward = _map(folder, _REWARD, capacity_rows)
        self.discount = _map(folder, _DISCOUNT, capacity_rows)
        self.steps_left = _map(folder, _STEPS_LEFT, capacity_rows)
        self.step_type = _map(folder, _STEP_TYPE, capacity_rows)
        self._slots = np.memmap(folder / "header.bin", _HEADER_DTYPE, "r+", shape=(2,))
        self._header = self._newest_header()
        self._ring_steps = int(np.count_nonzero(self.steps_left[self._filled()] > 0))

    @classmethod
    def open(cls, folder: Path, layout: Layout, capacity_rows: int) -> Ring:
        """Opens the ring in `folder`, or makes an empty one there, with its disk space reserved.

        Raises:
          UserError: The disk is too small, or the folder holds a ring of another layout or capacity.
        """
        description = {
            "capacity_rows": capacity_rows,
            "columns": [dataclasses.asdict(column) for column in layout.observation + layout.action],
        }
        # Tuples become lists as they do in the file.
        description = json.loads(json.dumps(description))
        layout_path = folder / "layout.json"
        if layout_path.exists():
            found = json.loads(layout_path.read_text())
            if found != description:
                raise UserError(
                    f"the replay ring in {folder} was made for {found}, this run needs {description}: "
                    "restore the parameters it was made with, or start a new run (SAC_EXP_NAME)"
                )
        else:
            _reserve(folder, layout, capacity_rows)
            # Written last: a folder without it is an interrupted start and is made again.
            temporary = layout_path.with_suffix(".tmp")
            temporary.write_text(json.dumps(description, indent=1))
            os.replace(temporary, layout_path)
        return cls(folder, layout, capacity_rows)

    @property
    def env_steps(self) -> int:
        """Transitions stored since the run began, those overwritten since included."""
        return int(self._header["env_steps"])

    @property
    def init_steps(self) -> int:
        """Those of `env_steps` that belong to the first random episodes."""
        return int(self._header["init_steps"])

    @property
    def ring_steps(self) -> int:
        """Transitions that the ring holds now."""
        return self._ring_steps

    @property
    def filled_rows(self) -> int:
        """Rows that hold an observation now."""
        return int(self._header["filled_rows"])

    @property
    def oldest_row(self) -> int:
        """Index of the oldest row that is held."""
        return int(self._header["next_row"] - self._header["filled_rows"]) % self.capacity_rows

    @property
    def segments(self) -> int:
        """Segments stored since the run began."""
        return int(self._header["segments"])

    def worker(self, worker_id: int) -> WorkerRecord:
        """What is stored of one worker."""
        with self.lock:
            record = self._header["workers"][worker_id]
            return WorkerRecord(*(int(record[field.name]) for field in dataclasses.fields(WorkerRecord)))

    def append(self, segment: Segment) -> bool:
        """Stores a segment unless it, or a later one of its worker, is stored already.

        A segment that is not the next one of its worker (the one before it is still to come) is refused as well:
        the worker sends again, in order, all that it has not been told is stored.

        Returns:
          Whether it was stored.

        Raises:
          ValueError: The segment has more rows than the whole ring.
        """
        rows = segment.num_steps + 1
        if rows > self.capacity_rows:
            raise ValueError(f"a segment of {rows} rows does not fit a ring of {self.capacity_rows}")
        with self.lock:
            if not self._is_next(segment):
                return False
            self._evict(rows)
            self._write_rows(segment)
            self._commit(segment, rows)
        return True

    def sync(self) -> None:
        """Writes everything to disk (msync): after this, a power cut loses nothing that was stored before."""
        # Without the lock: msync of a large ring takes long, and workers must not wait for it.
        for array in self._arrays():
            array.flush()
        self._slots.flush()

    def _is_next(self, segment: Segment) -> bool:
        record = self.worker(segment.worker_id)
        if segment.incarnation == record.incarnation:
            return segment.number == record.number + 1
        return segment.incarnation > record.incarnation and segment.number == 0

    def _evict(self, rows: int) -> None:
        """Gives up the rows about to be overwritten, before they are: a crash in between leaves no torn row."""
        surplus = self.filled_rows + rows - self.capacity_rows
        if surplus <= 0:
            return
        evicted = (self.oldest_row + np.arange(surplus)) % self.capacity_rows
        self._ring_steps -= int(np.count_nonzero(self.steps_left[evicted] > 0))
        self._header["filled_rows"] -= surplus
        self._write_header()

    def _write_rows(self, segment: Segment) -> None:
        steps = segment.num_steps
        step_type = np.full(steps + 1, _STEP_MID, np.uint8)
        if segment.starts_episode:
            step_type[0] = _STEP_FIRST
        if segment.ends_episode:
            step_type[-1] = _STEP_LAST
        self._put(self.step_type, step_type)
        self._put(self.steps_left, np.arange(steps, -1, -1, dtype=np.int32))
        self._put(self.reward, segment.reward)
        self._put(self.discount, segment.discount)
        for column, values in zip(self.observation + self.action, segment.observation + segment.action, strict=True):
            self._put(column, values)

    def _put(self, column: np.ndarray, values: np.ndarray) -> None:
        """Writes `values` from `next_row` on, around the end of the ring."""
        start = int(self._header["next_row"])
        head = min(len(values), self.capacity_rows - start)
        column[start : start + head] = values[:head]
        column[: len(values) - head] = values[head:]

    def _commit(self, segment: Segment, rows: int) -> None:
        header = self._header
        header["next_row"] = (header["next_row"] + rows) % self.capacity_rows
        header["filled_rows"] += rows
        header["env_steps"] += segment.num_steps
        header["segments"] += 1
        record = header["workers"][segment.worker_id]
        if segment.iteration == INIT_ITERATION:
            header["init_steps"] += segment.num_steps
            record["init_episodes"] += segment.ends_episode
        record["incarnation"] = segment.incarnation
        record["number"] = segment.number
        if segment.end_of_iteration:
            record["iteration_done"] = max(int(record["iteration_done"]), segment.iteration)
        self._ring_steps += segment.num_steps
        self._write_header()

    def _write_header(self) -> None:
        """Writes the older of the two slots, checksum last: one of them is whole at any moment."""
        self._header["generation"] += 1
        self._header["crc"] = _checksum(self._header)
        self._slots[int(self._header["generation"]) % 2] = self._header

    def _newest_header(self) -> np.ndarray:
        whole = [slot for slot in self._slots if slot["valid"] and slot["crc"] == _checksum(slot)]
        if not whole:
            raise UserError(
                f"{self.folder / 'header.bin'} is damaged (no valid checksum): restore it, or start a new run "
                "(SAC_EXP_NAME)"
            )
        newest = max(whole, key=lambda slot: int(slot["generation"]))
        return np.array(newest, _HEADER_DTYPE)

    def _filled(self) -> np.ndarray:
        return (self.oldest_row + np.arange(self.filled_rows)) % self.capacity_rows

    def _arrays(self) -> Iterator[np.memmap]:
        yield from self.observation
        yield from self.action
        yield from (self.reward, self.discount, self.steps_left, self.step_type)


def _checksum(header: np.ndarray) -> int:
    return zlib.crc32(header.tobytes()[4:])


def _column_path(folder: Path, column: Column) -> Path:
    return folder / (column.name.replace("/", ".") + ".bin")


def _map(folder: Path, column: Column, rows: int) -> np.memmap:
    return np.memmap(_column_path(folder, column), np.dtype(column.dtype), "r+", shape=(rows, *column.shape))


def _reserve(folder: Path, layout: Layout, capacity_rows: int) -> None:
    """Makes the files, with their space: a full disk is told now, not as SIGBUS in a day."""
    columns = (*layout.observation, *layout.action, _REWARD, _DISCOUNT, _STEPS_LEFT, _STEP_TYPE)
    needed = {_column_path(folder, column): column.step_bytes * capacity_rows for column in columns}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, num_bytes in needed.items():
            with path.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, max(num_bytes, 1))
    except OSError as error:
        raise UserError(
            f"the replay ring needs {sum(needed.values()):,} bytes in {folder} ({error.strerror}): lower "
            "n_episodes_in_buffer, free space, or set SAC_REPLAY_DIR to a larger disk"
        ) from None
    header = np.zeros((), _HEADER_DTYPE)
    header["valid"] = 1
    header["workers"]["number"] = -1
    header["workers"]["iteration_done"] = NEVER
    header["crc"] = _checksum(header)
    slots = np.zeros((2,), _HEADER_DTYPE)
    slots[0] = header
    slots.tofile(folder / "header.bin")
