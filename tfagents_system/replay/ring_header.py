"""The header of a ring: which rows it holds and what is stored of each worker, under a checksum.

Rows are counted from the beginning of the run: row number n is at place n % num_rows of every column. Numbers only
grow, so it is known from two of them whether a row has been overwritten since.
"""

from __future__ import annotations

import zlib

import numpy as np

from tfagents_system.transport.segments import NEVER, Segment, WorkerRecord

MAX_WORKERS = 4096
INIT_ITERATION = -1  # The first random episodes are collected in it.
COUNTED_ITERATIONS = 1024  # The newest ones, whose steps are counted for each of them.

_WORKER = np.dtype([("incarnation", "<i8"), ("number", "<i8"), ("iteration_done", "<i8"), ("init_episodes", "<i8")])
# The records come last: of those that no worker uses yet, the files have nothing.
HEADER = np.dtype(
    [
        ("crc", "<u4"),  # of all that follows, up to the last record in use
        ("run", "<u4"),  # 1, or `Taken.mark` once rows of another run count for this one; 0 is no header
        ("layout", "<u8"),  # checksum of what layout.json says: of which ring it is
        ("generation", "<i8"),  # counts the headers of a ring
        ("total_rows", "<i8"),  # the number that the next row gets
        ("written_rows", "<i8"),  # the largest total_rows that the files have seen, what was rolled back included
        ("filled_rows", "<i8"),
        ("cut_crc", "<i8"),  # of the oldest rows up to their segment's end, in snapshots; -1 elsewhere
        ("env_steps", "<i8"),
        ("init_steps", "<i8"),
        ("newest_iteration", "<i8"),  # that any step belongs to
        ("iteration_steps", "<i8", (COUNTED_ITERATIONS,)),  # of iteration i at i % their number, see `count_steps`
        ("segments", "<i8"),
        ("num_workers", "<i8"),  # records in use: those of workers 0 to num_workers - 1
        ("workers", _WORKER, (MAX_WORKERS,)),
    ]
)
_RECORDS_BEGIN = HEADER.itemsize - MAX_WORKERS * _WORKER.itemsize


class DamagedHeaderError(ValueError):
    """Bytes that are no header of this ring."""


def empty(layout: int) -> np.ndarray:
    """The header of a ring without experience, sealed. `layout` is the checksum of the ring's description."""
    header = np.zeros((), HEADER)
    header["run"] = 1
    header["layout"] = layout
    header["cut_crc"] = -1
    header["newest_iteration"] = INIT_ITERATION
    header["workers"]["number"] = -1
    header["workers"]["iteration_done"] = NEVER
    seal(header)
    return header


def as_bytes(header: np.ndarray) -> np.ndarray:
    """Its bytes up to the last record in use, in place."""
    return header.reshape(1).view(np.uint8)[: _RECORDS_BEGIN + int(header["num_workers"]) * _WORKER.itemsize]


def seal(header: np.ndarray) -> None:
    """Sets the checksum."""
    header["crc"] = zlib.crc32(as_bytes(header)[4:].data)


def parse(data: bytes, layout: int) -> np.ndarray:
    """Reads a header from bytes, of which there may be more.

    Raises:
      DamagedHeaderError: They are damaged, or the header of a ring of another layout.
    """
    header = empty(layout)
    if len(data) < _RECORDS_BEGIN:
        raise DamagedHeaderError(f"{len(data)} bytes are no header")
    header.reshape(1).view(np.uint8)[:_RECORDS_BEGIN] = np.frombuffer(data, np.uint8, _RECORDS_BEGIN)
    length = _RECORDS_BEGIN + int(header["num_workers"]) * _WORKER.itemsize
    if not _RECORDS_BEGIN <= length <= min(len(data), HEADER.itemsize):
        raise DamagedHeaderError(f"{len(data)} bytes are no header with {header['num_workers']} workers")
    as_bytes(header)[:] = np.frombuffer(data, np.uint8, length)
    if header["crc"] != zlib.crc32(data[4:length]) or header["run"] < 1:
        raise DamagedHeaderError("the checksum is wrong")
    if header["layout"] != layout:
        raise DamagedHeaderError("it belongs to a ring of another layout or size")
    return header


def count_steps(header: np.ndarray, iteration: int, steps: int) -> None:
    """Counts steps that were stored; those of the first random episodes apart from all others."""
    header["env_steps"] += steps
    if iteration == INIT_ITERATION:
        header["init_steps"] += steps
        return
    newest, counts = int(header["newest_iteration"]), header["iteration_steps"]
    if iteration > newest:
        counts[np.arange(max(newest + 1, iteration - COUNTED_ITERATIONS + 1), iteration + 1) % COUNTED_ITERATIONS] = 0
        header["newest_iteration"] = newest = iteration
    if iteration > newest - COUNTED_ITERATIONS:  # What comes later than that belongs to all that are still counted.
        counts[iteration % COUNTED_ITERATIONS] += steps


def is_next(newest: WorkerRecord | Segment, segment: Segment) -> bool:
    """Whether a segment comes next after what is stored of its worker."""
    if segment.incarnation == newest.incarnation:
        return segment.number == newest.number + 1
    return segment.incarnation > newest.incarnation and segment.number == 0


def count_segment(header: np.ndarray, segment: Segment, *, counts_init_steps: bool) -> None:
    """Counts a segment that was stored, and brings its worker's record up to date.

    Args:
      header: Of the ring.
      segment: The segment.
      counts_init_steps: The first random experience is counted in steps, not in episodes.
    """
    header["segments"] += 1
    count_steps(header, segment.iteration, segment.num_steps)
    header["num_workers"] = max(int(header["num_workers"]), segment.worker_id + 1)
    record = header["workers"][segment.worker_id]
    if segment.iteration == INIT_ITERATION:
        record["init_episodes"] += segment.num_steps if counts_init_steps else segment.ends_episode
    record["incarnation"] = segment.incarnation
    record["number"] = segment.number
    if segment.end_of_iteration:
        record["iteration_done"] = max(int(record["iteration_done"]), segment.iteration)


def begin_run(header: np.ndarray, mark: int, env_steps: int, counted_steps: int) -> None:
    """Rows of another run count for this one: iterations, segments and workers are counted anew.

    Args:
      header: Of the ring.
      mark: See `Taken`.
      env_steps: Of the other run, if this one counts on from there.
      counted_steps: Of the rows, those that count for the ratio of updates to steps.
    """
    header["run"] = mark
    header["env_steps"], header["init_steps"] = env_steps, env_steps - counted_steps
    header["segments"] = header["iteration_steps"] = header["num_workers"] = 0
    header["newest_iteration"] = INIT_ITERATION
    header["workers"] = empty(int(header["layout"]))["workers"]


def steps_up_to(header: np.ndarray, iteration: int) -> int:
    """Steps stored of the iterations up to and including this one, without the first random episodes.

    Older than the newest `COUNTED_ITERATIONS` they are not counted separately: the steps of all of those are returned.
    """
    newest, counts = int(header["newest_iteration"]), header["iteration_steps"]
    later = np.arange(max(iteration, newest - COUNTED_ITERATIONS) + 1, newest + 1) % COUNTED_ITERATIONS
    return int(header["env_steps"]) - int(header["init_steps"]) - int(counts[later].sum())


def worker_rows(header: np.ndarray) -> np.ndarray:
    """`[n, 5]` int64: number and record of each worker that has stored anything, in the order of their numbers."""
    records = header["workers"][: int(header["num_workers"])]
    used = np.flatnonzero(records["incarnation"])
    return np.column_stack([used, *(records[name][used] for name in _WORKER.names or ())])
