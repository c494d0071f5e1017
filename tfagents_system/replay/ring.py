"""The ring: all experience, one row an observation, in memory-mapped files.

A crash of the process loses nothing (the kernel keeps the pages), and a restart is instant. A segment of T transitions
takes T + 1 rows; the last one holds only the observation that the last transition led to. `steps_left` of a row is the
number of transitions from that row to the end of its segment: a transition may start where it is at least 1, a
sequence of L transitions where it is at least L, so nothing crosses an episode's end. Where an episode is cut into
several segments, a transition may be in two of them; samples start at it in one (transport/segments.py). Where frames
are stacked, a segment from within an episode begins with rows of its history: observations before its first
transition, which have a `steps_left` of -1 and are never drawn themselves.

    rows          ... 7 8 9 | 10 11 12 13 | 14 15 16 17 18 | 19 ...
    steps_left    ... 2 1 0 |  3  2  1  0 | -1  3  2  1  0 |        (rows 14 to 18: one row of history)

The ring gives up whole segments, the oldest first. The files have more rows than it holds (`slack_rows`): what was
given up stays in its place until that many newer rows have come. So a header that was kept (`Ring.snapshot`) still says
which rows were held then, and writing it back (`Ring.rollback`) returns to that moment. A checksum in each segment's
last row shows whether the segment is what was stored (`Ring.verify`).

A ring has one layout and size for life: a file a column with its space reserved, and one with two slots for the header,
which says under a checksum which rows are held and what is stored of each worker. Rows are counted from the beginning
of the run; row number n is at place n % num_rows of every column. Numbers only grow, so two of them say whether a row
has been overwritten since.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import threading
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tfagents_system.errors import UserError
from tfagents_system.machine.files import read_json, write_atomically, write_json
from tfagents_system.train_params_base import TrainParamsBase
from tfagents_system.transport.segments import NEVER, Column, Layout, Segment, WorkerRecord, bundled

if TYPE_CHECKING:
    from tfagents_system.replay.hindsight import EpisodeIndex

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
HISTORY = -1  # steps_left
EPISODE_BITS = 32  # Of the second number of `episode`, those of the place in the episode.
STEP_FIRST, STEP_MID, STEP_LAST = 0, 1, 2  # as in tf_agents.trajectories.StepType
# Bits of step_type.
_HELD_OUT = 0x80  # The row is of an episode that is never trained on.
_NO_START = 0x40  # A transition that is in two segments: samples start at it in the other one.


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
    return sum(ring_rows(params, layout)) * layout.step_bytes


def priority_bytes(params: TrainParamsBase, layout: Layout) -> int:
    """Of priorities and their sums, in the memory of the replay server."""
    return 10 * sum(ring_rows(params, layout)) if params.sample_form_ctor().is_prioritized else 0


def _slack_rows(capacity: int, segment_rows: int) -> int:
    """A quarter of the capacity, and at least four of the longest segments.

    That much experience may come after a checkpoint until the first row of it is overwritten.
    """
    return max(-(-capacity // 4), _SLACK_SEGMENTS * min(capacity, segment_rows))


# The files.


@dataclasses.dataclass(frozen=True)
class RingFiles:
    """The files of one ring, alone in a folder; nothing is opened. OSError: one can't be read or written.

    The ring holds `capacity_rows` at most; in `slack_rows` beyond that, what was given up stays for a while.
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
        """The experience's and the ring's own."""
        return (*self.layout.columns, *OWN_COLUMNS)

    @property
    def header(self) -> Path:
        return self.folder / "header.bin"

    @property
    def description(self) -> Path:
        """What the ring was made for; written last: a folder without it is an interrupted start."""
        return self.folder / DESCRIPTION

    def column(self, column: Column) -> Path:
        return self.folder / f"{column.name.replace('/', '.')}.bin"

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
            "columns": [dataclasses.asdict(column) for column in self.layout.columns],
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
        """Gives every file its space: a full disk is an error now, not a SIGBUS in a day. Content stays."""
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


# The rows.


def is_held_out(step_type: np.ndarray) -> np.ndarray:
    """Which rows are of episodes that are never trained on, by their `step_type`."""
    return step_type >= _HELD_OUT


def is_repeated(step_type: np.ndarray) -> np.ndarray:
    """At which of these transitions samples start in another segment alone, by their `step_type`."""
    return (step_type & _NO_START).astype(bool)


def kind_of_step(step_type: np.ndarray) -> np.ndarray:
    """tf_agents' StepType, int32, of rows with this `step_type`."""
    return (step_type & ~np.uint8(_HELD_OUT | _NO_START)).astype(np.int32)


class OverwrittenError(Exception):
    """Rows that a snapshot covers are gone: more than `slack_rows` newer ones have come since."""


class RingRows:
    """The columns of a ring, each an array `[num_rows, ...]` that is its file, opened as `mode` says.

    Row number n, counted from the beginning of the run, is at place `n % num_rows`.

    Attributes:
      columns: All of them, as `RingFiles.columns` has them: `observation` and `action`, those of the leaves; `returns`,
        `explored`, `potential` and `episode`, None where the layout has them not; and the ring's own five. A row of
        `episode` is the episode's number among those of its worker, and `worker << 32` plus the row's place in it.
      per_observation, per_transition: The columns of which a segment of T transitions has T + 1 values, and T.
    """

    def __init__(self, files: RingFiles, mode: Literal["r", "r+"] = "r+") -> None:
        self.files = files
        self.folder, self.layout = files.folder, files.layout
        self.capacity_rows, self.num_rows = files.capacity_rows, files.num_rows
        layout = files.layout
        self.columns = [files.map(column, mode) for column in files.columns]
        split, end = len(layout.observation), len(layout.observation) + len(layout.action)
        self.observation, self.action = self.columns[:split], self.columns[split:end]
        self.reward, self.discount, self.steps_left, self.step_type, self.crc = self.columns[-5:]
        optional = dict(zip(layout.optional, self.columns[end:-5], strict=True))
        self.returns, self.explored = optional.get("returns"), optional.get("explored")
        self.potential, self.episode = optional.get("potential"), optional.get("episode")
        of_observations = _present(self.potential, self.episode)
        self.per_observation = [*self.observation, *of_observations, self.steps_left, self.step_type]
        self.per_transition = [*self.action, self.reward, self.discount, *_present(self.returns, self.explored)]

    def write(self, segment: Segment, first_row: int) -> None:
        """Writes a segment to the rows from number `first_row` on, its checksum last."""
        rows, history = segment.num_rows, segment.history
        step_type = np.full(rows, STEP_MID, np.uint8)
        if segment.starts_episode:
            step_type[0] = STEP_FIRST
        if segment.ends_episode:
            step_type[-1] = STEP_LAST
        if segment.held_out:
            step_type |= _HELD_OUT
        step_type[history : history + segment.context] |= _NO_START
        step_type[rows - 1 - segment.deferred : rows - 1] |= _NO_START
        steps_left = np.arange(rows - 1, -1, -1, dtype=np.int32)
        steps_left[:history] = HISTORY
        per_observation = [*segment.observation, *_present(segment.potential, _episode_rows(segment))]
        per_observation += [steps_left, step_type]
        per_transition = [*segment.action, segment.reward, segment.discount]
        per_transition += _present(segment.returns, segment.explored)
        for column, values in zip(
            self.per_observation + self.per_transition,
            [*per_observation, *(_after_history(values, history) for values in per_transition)],
            strict=True,
        ):
            self._put(column, values, first_row)
        self.crc[(first_row + rows - 1) % self.num_rows] = self.checksum(first_row, rows - 1)

    def _put(self, column: np.ndarray, values: np.ndarray, first_row: int) -> None:
        """Writes `values`, around the end of the files."""
        start = first_row % self.num_rows
        head = min(len(values), self.num_rows - start)
        column[start : start + head] = values[:head]
        column[: len(values) - head] = values[head:]

    def checksum(self, first_row: int, steps: int) -> int:
        """Of a segment's `steps + 1` rows, and of where it begins: an older or newer one there is another one."""
        crc = zlib.crc32(first_row.to_bytes(8, "little"))
        for columns, rows in ((self.per_observation, steps + 1), (self.per_transition, steps)):
            for part in row_ranges(first_row, first_row + rows, self.num_rows):
                for column in columns:
                    crc = zlib.crc32(column[part].data, crc)
        return crc

    def is_training_start(self, places: slice) -> np.ndarray:
        """Where samples start that are trained on."""
        step_type = self.step_type[places]
        return (self.steps_left[places] > 0) & ~is_repeated(step_type) & ~is_held_out(step_type)

    def counts(self, first_row: int, last_row: int) -> tuple[int, int, int]:
        """Of the transitions in the rows numbered `first_row` up to `last_row` (not included).

        Those at which samples start; those of them that are held out; and those that are repeated.
        """
        starts = held_out = repeated = 0
        for part in row_ranges(first_row, last_row, self.num_rows):
            is_transition, step_type = self.steps_left[part] > 0, self.step_type[part]
            is_start = is_transition & ~is_repeated(step_type)
            starts += np.count_nonzero(is_start)
            held_out += np.count_nonzero(is_start & is_held_out(step_type))
            repeated += np.count_nonzero(is_transition)
        return starts, held_out, repeated - starts


class _Counter:
    """A number in the ring's header, as an attribute of Ring."""

    def __init__(self, field: str) -> None:
        self._field = field

    def __get__(self, ring: Ring, kind: type) -> int:
        return int(ring._header[self._field])


class Ring(RingRows):
    """Experience of a run: the newest segments that fit `capacity_rows` rows. Safe to use from several threads.

    Args:
      files: They are prepared; `Ring.open` does that, too.
      copy: Files of the same kind, which get what is new with each `make_durable`: of a ring that is on a node's own
        disk, in the run directory.

    Attributes:
      max_segment_rows: Rows of a segment, at most.
      lock: Held while rows are written or read.
      ring_steps: Transitions that it holds now and that samples start at, held out ones included.
      held_out_steps: Those of them that are never trained on.
      repeated_steps: Transitions that it holds now and that samples start at in another segment alone.
      episodes: Which rows are of one episode; made by who asks for it first (replay/hindsight.py).
      copied_rows: Rows with smaller numbers are in the copy, if the ring still holds them.
      counts_init_steps: The first random experience is counted in steps, not in episodes; the same in all of a run.

    Raises:
      UserError: A file can't be opened for writing, or both slots of the header are damaged.
    """

    counts_init_steps = False
    env_steps = _Counter("env_steps")  # Transitions stored since the run began, those overwritten since included.
    init_steps = _Counter("init_steps")  # Those of them that do not count for the ratio of updates to steps.
    total_rows = _Counter("total_rows")  # Rows stored since the run began: the number that the next one gets.
    filled_rows = _Counter("filled_rows")  # Rows that hold an observation.
    segments = _Counter("segments")  # Segments stored since the run began.
    run = _Counter("run")  # For which run it counts: 1, or the mark of `begin_run`.

    def __init__(self, files: RingFiles, copy: RingFiles | None = None) -> None:
        with files.usable():
            super().__init__(files)
            header = files.newest_header()
            self._slots = np.asarray(np.memmap(files.header, HEADER, "r+", shape=(2,)))  # They are the file.
        if header is None:
            raise UserError(f"{files.header} is damaged: restore it, or start a new run (SAC_EXP_NAME)")
        self._header = header
        self.max_segment_rows = min(files.capacity_rows, files.slack_rows)
        self.lock = threading.RLock()
        self.copy, self.copied_rows = copy, 0
        self._recount()

    @classmethod
    def open(cls, folder: Path, layout: Layout, capacity_rows: int, slack_rows: int | None = None) -> Ring:
        """Opens the ring in `folder` as it was left, or makes an empty one. See `RingFiles.prepare`."""
        return cls(RingFiles.prepare(folder, layout, capacity_rows, slack_rows))

    @property
    def training_steps(self) -> int:
        """Transitions that the ring holds now and that are trained on."""
        return self.ring_steps - self.held_out_steps

    @property
    def held(self) -> tuple[int, int]:
        """Numbers of the oldest row that is held, and of the one after the newest."""
        return self.total_rows - self.filled_rows, self.total_rows

    @property
    def oldest_row(self) -> int:
        """Place of the oldest row that is held; the k-th after it is at `(oldest_row + k) % num_rows`."""
        return self.held[0] % self.num_rows

    @property
    def held_rows(self) -> np.ndarray:
        """Places of all rows that are held, oldest first."""
        return (self.oldest_row + np.arange(self.filled_rows)) % self.num_rows

    # Of workers and iterations.

    def worker(self, worker_id: int) -> WorkerRecord:
        """What is stored of one worker."""
        with self.lock:
            return WorkerRecord(*self._header["workers"][worker_id].item())

    def worker_rows(self) -> np.ndarray:
        """`[n, 5]` int64: number and record of each worker that has stored anything, in the order of their numbers."""
        with self.lock:
            records = self._header["workers"][: int(self._header["num_workers"])]
            used = np.flatnonzero(records["incarnation"])
            return np.column_stack([used, *(records[name][used] for name in WORKER.names or ())])

    @property
    def iterations_done(self) -> np.ndarray:
        """`[MAX_WORKERS]` int64: the last iteration that each worker completed, `NEVER` of one that has none."""
        with self.lock:
            return self._header["workers"]["iteration_done"].copy()

    @property
    def init_episodes(self) -> int:
        """Episodes of the first random ones that are complete, of all workers; or steps (`counts_init_steps`)."""
        return int(self._header["workers"]["init_episodes"].sum())

    def steps_up_to(self, iteration: int) -> int:
        """Steps stored of the iterations up to and including this one, without the first random episodes.

        Those older than the newest `COUNTED_ITERATIONS` are counted together.
        """
        with self.lock:
            newest, counts = int(self._header["newest_iteration"]), self._header["iteration_steps"]
            later = np.arange(max(iteration, newest - COUNTED_ITERATIONS) + 1, newest + 1) % COUNTED_ITERATIONS
            return self.env_steps - self.init_steps - int(counts[later].sum())

    # Storing.

    def append(self, segment: Segment) -> bool:
        """Stores one segment; returns whether it was stored. See `extend`."""
        return self.extend([segment]) == 1

    def extend(self, segments: Sequence[Segment]) -> int:
        """Stores segments, each unless it, or a later one of its worker, is stored already. Returns how many.

        One that is not the next of its worker (the one before it is still to come) is refused as well: the worker
        sends again, in order, all that it does not know to be stored. Those that fit the slack together are stored
        together, all or none of them, with one header. ValueError: a segment has more than `max_segment_rows`.
        """
        with self.lock:
            return sum(self._store(together) for together in bundled(segments, self.max_segment_rows))

    def take_over(self, segments: Sequence[Segment]) -> None:
        """Stores experience of other runs, which counts neither as this run's nor as a worker's. Errors as `extend`."""
        with self.lock:
            for together in bundled(segments, self.max_segment_rows):
                self._store(together, are_own=False)

    def _store(self, segments: Sequence[Segment], *, are_own: bool = True) -> int:
        """Stores those that come next, or that are not this run's own; they fit the slack together."""
        written, rows = list[Segment](), 0
        for segment in segments:
            if segment.num_rows > self.max_segment_rows:
                raise ValueError(f"a segment of {segment.num_rows} rows does not fit a ring of {self.max_segment_rows}")
            newest = next((other for other in reversed(written) if other.worker_id == segment.worker_id), None)
            if not are_own or _is_next(newest or self.worker(segment.worker_id), segment):
                written.append(segment)
                self.write(segment, self.total_rows + rows)  # Into the slack: who dies here leaves what is held.
                rows += segment.num_rows
        if written:
            self._commit(written, rows, are_own)
        return len(written)

    def _commit(self, segments: Sequence[Segment], rows: int, are_own: bool) -> None:
        """The ring holds segments that were written behind its newest row, `rows` together."""
        oldest, end = self.held
        kept = self._first_kept(rows)
        starts, held_out, repeated = self.counts(oldest, kept)
        self._header["filled_rows"] = end + rows - kept
        self._header["total_rows"] += rows
        self.ring_steps += sum(segment.num_starts for segment in segments) - starts
        self.held_out_steps += sum(segment.num_starts for segment in segments if segment.held_out) - held_out
        self.repeated_steps += sum(segment.context + segment.deferred for segment in segments) - repeated
        if are_own:
            for segment in segments:
                self._count(segment)
        self._write_header()

    def _first_kept(self, rows: int) -> int:
        """Number of the oldest row that stays where so many rows come: the first one of a segment."""
        oldest, _ = self.held
        surplus = self.filled_rows + rows - self.capacity_rows
        if surplus <= 0:
            return oldest
        row = oldest + surplus - 1  # It is given up, and with it all of its segment.
        while self.steps_left[row % self.num_rows] == HISTORY:
            row += 1
        return row + int(self.steps_left[row % self.num_rows]) + 1

    def _count(self, segment: Segment) -> None:
        """Counts a segment that was stored, and brings its worker's record up to date."""
        header = self._header
        header["segments"] += 1
        self._count_steps(segment.iteration, segment.num_steps)
        header["num_workers"] = max(int(header["num_workers"]), segment.worker_id + 1)
        record = header["workers"][segment.worker_id]
        if segment.iteration == INIT_ITERATION:
            record["init_episodes"] += segment.num_steps if self.counts_init_steps else segment.ends_episode
        record["incarnation"] = segment.incarnation
        record["number"] = segment.number
        if segment.end_of_iteration:
            record["iteration_done"] = max(int(record["iteration_done"]), segment.iteration)

    def _count_steps(self, iteration: int, steps: int) -> None:
        """Counts steps that were stored; those of the first random episodes apart from all others."""
        header = self._header
        header["env_steps"] += steps
        if iteration == INIT_ITERATION:
            header["init_steps"] += steps
            return
        newest, counts = int(header["newest_iteration"]), header["iteration_steps"]
        if iteration > newest:
            oldest = max(newest + 1, iteration - COUNTED_ITERATIONS + 1)
            counts[np.arange(oldest, iteration + 1) % COUNTED_ITERATIONS] = 0
            header["newest_iteration"] = newest = iteration
        if iteration > newest - COUNTED_ITERATIONS:  # What comes later than that belongs to all that are still counted.
            counts[iteration % COUNTED_ITERATIONS] += steps

    def begin_run(self, mark: int, env_steps: int = 0, *, counts_rows: bool = False) -> None:
        """Rows of another run count for this one: iterations, segments and workers are counted anew.

        Args:
          mark, env_steps: See `Taken`: steps of the other run, if this one counts on from there.
          counts_rows: What the ring holds counts for the ratio of updates to steps.
        """
        with self.lock:
            header = self._header
            header["run"] = mark
            header["env_steps"], header["init_steps"] = env_steps, env_steps - (self.ring_steps if counts_rows else 0)
            header["segments"] = header["iteration_steps"] = header["num_workers"] = 0
            header["newest_iteration"] = INIT_ITERATION
            header["workers"] = empty_header()["workers"]
            self._write_header()

    # Going back.

    def snapshot(self) -> bytes:
        """The header of this moment, for `rollback`; its rows are on disk after a later `make_durable`."""
        with self.lock:
            return header_bytes(self._header).tobytes()

    def rollback(self, snapshot: bytes) -> None:
        """Goes back to the moment of a snapshot of this ring, or forward: its rows need only be in the files.

        Raises:
          DamagedHeaderError, OverwrittenError: It is damaged, or rows that it covers were overwritten since.
        """
        with self.lock:
            self._replace_header(self.check_covered(snapshot))

    def clear(self) -> None:
        """Forgets all experience, and what is stored of each worker."""
        with self.lock:
            self._replace_header(empty_header())
            self.copied_rows = 0

    def check_covered(self, snapshot: bytes) -> np.ndarray:
        """The header that a snapshot is, if a rollback to it is still possible; errors as of `rollback`."""
        header = parse_header(snapshot)
        covered = int(header["filled_rows"])
        with self.lock:  # Rows that are being written count.
            later = self.total_rows - int(header["total_rows"])
        if (overwritten := min(covered, covered + later - self.num_rows)) > 0:
            raise OverwrittenError(
                f"{overwritten:,} of its {covered:,} rows have been overwritten: {later:,} rows came after it, "
                f"{self.num_rows - covered:,} may"
            )
        return header

    def make_durable(self, snapshot: bytes | None = None) -> int:
        """Writes to disk what a snapshot covers, by default that of now: after this, a power cut loses nothing of it.

        It may run beside appends: fdatasync finds the pages that are dirty, through the mapping too, and gives the
        interpreter free. A ring with a copy writes it there: the rows that are new since the last time, and the header.
        Rows that were overwritten meanwhile are found by `check_covered`.

        Returns:
          Bytes of rows that were copied.

        Raises:
          OSError: They can't be written.
        """
        if self.copy is None:
            for path in (*(self.files.column(column) for column in self.files.columns), self.files.header):
                with path.open("rb") as file:
                    os.fdatasync(file.fileno())
            return 0
        header = parse_header(snapshot or self.snapshot())
        oldest, last = covered_rows(header)
        first, copied_bytes = max(oldest, min(self.copied_rows, last)), 0
        for column, rows in zip(self.copy.columns, self.columns, strict=True):
            with self.copy.column(column).open("r+b") as file:
                for part in row_ranges(first, last, self.num_rows):
                    file.seek(part.start * column.step_bytes)
                    copied_bytes += file.write(rows[part].data)
                file.flush()
                os.fdatasync(file.fileno())
        self.copy.write_header(header)
        self.copied_rows = last
        return copied_bytes

    def read_copy(self, header: np.ndarray) -> None:
        """Writes the rows that a header covers from the copy to their places; the ring is to be rolled back to it."""
        assert self.copy is not None
        first, last = covered_rows(header)
        with self.lock:
            for column, rows in zip(self.copy.columns, self.columns, strict=True):
                copied = self.copy.map(column)
                for part in row_ranges(first, last, self.num_rows):
                    rows[part] = copied[part]
        self.copied_rows = last

    def verify(self) -> int:
        """Compares every segment with its checksum; in damaged ones no transition starts any more.

        Returns the transitions of damaged segments, as far as they can be counted.
        """
        with self.lock:
            first, _ = self.held
            left = self.steps_left[self.held_rows]
            lasts = np.flatnonzero(left == 0)
            if len(left) and left[-1] != 0:
                lasts = np.append(lasts, len(left) - 1)  # A tail without an end: damaged.
            dropped = 0
            for last in (first + lasts).tolist():
                if not self._is_whole(first, last):
                    dropped += self.counts(first, last + 1)[0]
                    for part in row_ranges(first, last + 1, self.num_rows):
                        self.steps_left[part] = 0
                first = last + 1
            self._recount()
            return dropped

    def _is_whole(self, first: int, last: int) -> bool:
        """Whether the rows of these numbers are a segment, or one row of a damaged one."""
        place = last % self.num_rows
        if self.steps_left[place] != 0:
            return False
        return first == last or self.checksum(first, last - first) == int(self.crc[place])

    def _replace_header(self, header: np.ndarray) -> None:
        header["generation"] = self._header["generation"]
        self._header = header
        self._write_header()
        self._recount()

    def _write_header(self) -> None:
        """Writes the older of the two slots, checksum last: one of them is whole at any moment."""
        self._header["generation"] += 1
        seal(self._header)
        content = header_bytes(self._header)
        slot = self._slots[int(self._header["generation"]) % 2 :][:1]
        slot.view(np.uint8)[4 : len(content)] = content[4:]
        slot.view(np.uint8)[:4] = content[:4]

    def _recount(self) -> None:
        self.ring_steps, self.held_out_steps, self.repeated_steps = self.counts(*self.held)
        self.episodes: EpisodeIndex | None = None


def _is_next(newest: WorkerRecord | Segment, segment: Segment) -> bool:
    """Whether a segment comes next after what is stored of its worker."""
    if segment.incarnation == newest.incarnation:
        return segment.number == newest.number + 1
    return segment.incarnation > newest.incarnation and segment.number == 0


def _episode_rows(segment: Segment) -> np.ndarray | None:
    """The column `episode` of its rows."""
    if segment.episode is None:
        return None
    ((number, first),) = segment.episode.tolist()
    rows = np.empty((segment.num_rows, 2), np.int64)
    rows[:, 0] = number
    rows[:, 1] = (segment.worker_id << EPISODE_BITS) + first + np.arange(segment.num_rows)
    return rows


def episode_of(row: np.ndarray) -> tuple[int, np.ndarray]:
    """The worker, and the Segment's `episode`, of a segment whose first row has this in the column `episode`."""
    number, place = row.tolist()
    return place >> EPISODE_BITS, np.array([[number, place & ((1 << EPISODE_BITS) - 1)]], np.int64)


def _present(*columns: np.ndarray | None) -> list[np.ndarray]:
    return [column for column in columns if column is not None]


def _after_history(values: np.ndarray, history: int) -> np.ndarray:
    """One value a transition, with zeros for the rows of history."""
    return np.concatenate([np.zeros((history, *values.shape[1:]), values.dtype), values]) if history else values
