"""The header of a ring: which rows it holds and what is stored of each worker, under a checksum.

Rows are counted from the beginning of the run: row number n is at place n % num_rows of every column. Numbers only
grow, so it is known from two of them whether a row has been overwritten since.
"""

from __future__ import annotations

import functools
import zlib
from pathlib import Path
from typing import Literal

import numpy as np

from tfagents_system.machine.files import write_atomically
from tfagents_system.transport.segments import NEVER, Segment, WorkerRecord

MAX_WORKERS = 4096
INIT_ITERATION = -1  # The first random episodes are collected in it.
COUNTED_ITERATIONS = 1024  # The newest ones, whose steps are counted for each of them.

_WORKER_DTYPE = np.dtype(
    [("incarnation", "<i8"), ("number", "<i8"), ("iteration_done", "<i8"), ("init_episodes", "<i8")]
)
_FIELDS = (
    ("crc", "<u4"),  # of all that follows
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
    ("random_steps", "<i8"),  # of the first random episodes; init_steps has those too that do not count for an agent
)


@functools.cache
def dtype(num_workers: int) -> np.dtype:
    """A header with records for workers 0 to num_workers - 1. They come last: its size tells how many there are."""
    return np.dtype([*_FIELDS, ("workers", _WORKER_DTYPE, (num_workers,))])


class DamagedHeaderError(ValueError):
    """Bytes that are no header of this ring."""


def empty(layout: int, num_workers: int = MAX_WORKERS) -> np.ndarray:
    """The header of a ring without experience, sealed. `layout` is the checksum of the ring's description."""
    header = np.zeros((), dtype(num_workers))
    header["run"] = 1
    header["layout"] = layout
    header["cut_crc"] = -1
    header["newest_iteration"] = INIT_ITERATION
    header["workers"]["number"] = -1
    header["workers"]["iteration_done"] = NEVER
    seal(header)
    return header


def seal(header: np.ndarray) -> None:
    """Sets the checksum."""
    header["crc"] = _checksum(header)


def count_steps(header: np.ndarray, iteration: int, steps: int) -> None:
    """Counts steps that were stored; those of the first random episodes apart from all others."""
    header["env_steps"] += steps
    if iteration == INIT_ITERATION:
        header["init_steps"] += steps
        header["random_steps"] += steps
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
    header["random_steps"] = header["segments"] = header["iteration_steps"] = 0
    header["newest_iteration"] = INIT_ITERATION
    header["workers"] = empty(int(header["layout"]), len(header["workers"]))["workers"]


def steps_up_to(header: np.ndarray, iteration: int) -> int:
    """Steps stored of the iterations up to and including this one, without the first random episodes.

    Older than the newest `COUNTED_ITERATIONS` they are not counted separately: the steps of all of those are returned.
    """
    newest, counts = int(header["newest_iteration"]), header["iteration_steps"]
    later = np.arange(max(iteration, newest - COUNTED_ITERATIONS) + 1, newest + 1) % COUNTED_ITERATIONS
    return int(header["env_steps"]) - int(header["init_steps"]) - int(counts[later].sum())


def worker_rows(header: np.ndarray) -> np.ndarray:
    """`[n, 5]` int64: number and record of each worker that has stored anything, in the order of their numbers."""
    records = header["workers"]
    used = np.flatnonzero(records["incarnation"])
    return np.column_stack([used, *(records[name][used] for name in records.dtype.names or ())])


def is_whole(header: np.ndarray, layout: int) -> bool:
    """Whether it is what was sealed, for a ring of this layout."""
    return bool(header["run"] >= 1 and header["layout"] == layout and header["crc"] == _checksum(header))


def parse(data: bytes, layout: int) -> np.ndarray:
    """Reads the bytes of a header with any number of workers.

    Raises:
      DamagedHeaderError: They are damaged, or the header of a ring of another layout.
    """
    found = _dtype_of(len(data))
    header = np.array(np.frombuffer(data, found)[0], found)
    if header["crc"] != _checksum(header) or header["run"] < 1:
        raise DamagedHeaderError("the checksum is wrong")
    if header["layout"] != layout:
        raise DamagedHeaderError("it belongs to a ring of another layout or size")
    return header


def resized(header: np.ndarray, num_workers: int) -> np.ndarray:
    """A copy, sealed, with records for so many workers, or for more where more are in use."""
    used = np.flatnonzero(header["workers"]["incarnation"])
    wanted = empty(int(header["layout"]), max(num_workers, int(used.max(initial=-1)) + 1))
    for name in (str(field[0]) for field in _FIELDS):
        wanted[name] = header[name]
    wanted["workers"][used] = header["workers"][used]
    seal(wanted)
    return wanted


def write_slots(path: Path, header: np.ndarray) -> None:
    """Makes the file of the two slots, with one header in it; whole or not at all."""
    slots = np.zeros((2,), header.dtype)
    slots[int(header["generation"]) % 2] = header
    write_atomically(path, slots.tobytes())


def map_slots(path: Path, mode: Literal["r", "r+"] = "r+") -> np.ndarray:
    """The two slots, which are the file.

    Raises:
      DamagedHeaderError: It has a size that no two headers have.
      OSError: It can't be opened.
    """
    return np.asarray(np.memmap(path, _dtype_of(path.stat().st_size / 2), mode, shape=(2,)))


def newest_slot(slots: np.ndarray, layout: int) -> np.ndarray | None:
    """A copy of the newest whole header of the two, None if both are damaged."""
    whole = [slot for slot in slots if is_whole(slot, layout)]
    if not whole:
        return None
    return np.array(max(whole, key=lambda slot: int(slot["generation"])), slots.dtype)


def _dtype_of(num_bytes: float) -> np.dtype:
    """Of a header of this size."""
    before_workers = dtype(1).itemsize - _WORKER_DTYPE.itemsize
    num_workers, rest = divmod(num_bytes - before_workers, _WORKER_DTYPE.itemsize)
    if not rest and 1 <= num_workers <= MAX_WORKERS:
        return dtype(int(num_workers))
    raise DamagedHeaderError(f"{num_bytes:g} bytes are no header's")


def _checksum(header: np.ndarray) -> int:
    return zlib.crc32(np.asarray(header).reshape(1).view(np.uint8)[4:].data)
