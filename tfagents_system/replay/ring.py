"""The ring: all experience, one row an observation, in memory-mapped files.

A crash of the process loses nothing (the kernel keeps the pages), and a restart is instant. A segment of T transitions
takes T + 1 rows; the last one holds only the observation that the last transition led to. `steps_left` of a row is the
number of transitions from that row to the end of its segment: a transition may start where it is at least 1, a
sequence of L transitions where it is at least L, so nothing crosses an episode's end. Where frames are stacked, a
segment from within an episode begins with rows of its history: observations before its first transition, which have a
`steps_left` of -1 and are never drawn themselves.

The files have more rows than the ring holds (`slack_rows`). What is given up stays in its place until that many newer
rows have come, so a header that was kept (`Ring.snapshot`) still tells which rows were held then, and writing it back
(`Ring.rollback`) is going back to that moment. A checksum in each segment's last row tells whether it is what was
stored there (`Ring.verify`).
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tfagents_system.replay import ring_header
from tfagents_system.replay.ring_files import RingFiles, row_ranges
from tfagents_system.replay.ring_header import INIT_ITERATION, MAX_WORKERS
from tfagents_system.transport.segments import NEVER, NOTHING_STORED, Layout, Segment, WorkerRecord

__all__ = ["INIT_ITERATION", "MAX_WORKERS", "NEVER", "NOTHING_STORED", "OverwrittenError", "Ring", "WorkerRecord"]

_HISTORY = -1  # steps_left
_STEP_FIRST, _STEP_MID, _STEP_LAST = 0, 1, 2  # as in tf_agents.trajectories.StepType
_HELD_OUT = 0x80  # A bit of step_type: the row is of an episode that is never trained on.


class OverwrittenError(Exception):
    """Rows that a snapshot covers are gone: more than `slack_rows` newer ones have come since."""


class Ring:
    """Experience of a run, the newest `capacity_rows` rows of it.

    Safe to use from several threads. Open with `Ring.open`.
    """

    def __init__(self, files: RingFiles) -> None:
        self.files = files
        self.layout = files.layout
        self.capacity_rows = files.capacity_rows
        self.num_rows = files.num_rows
        self.lock = threading.RLock()
        self.columns = [files.map(column) for column in files.columns]
        split = len(self.layout.observation)
        self.observation, self.action = self.columns[:split], self.columns[split : split + len(self.layout.action)]
        self.reward, self.discount, self.steps_left, self.step_type, self.crc = self.columns[-5:]
        # What a segment of T transitions has T + 1 values of, and what it has T of.
        self._per_observation = [*self.observation, self.steps_left, self.step_type]
        self.returns = self.columns[split + len(self.layout.action)] if self.layout.returns else None
        self._per_transition = [*self.action, self.reward, self.discount]
        if self.returns is not None:
            self._per_transition.append(self.returns)
        self._slots = files.map_header()
        self._header = self._newest_header()
        if files.max_workers is not None:
            self._fit_slots(ring_header.resized(self._header, files.max_workers))
        self._recount()

    @classmethod
    def open(
        cls,
        folder: Path,
        layout: Layout,
        capacity_rows: int,
        slack_rows: int | None = None,
        max_workers: int | None = None,
    ) -> Ring:
        """Opens the ring in `folder` as it was left, or makes an empty one there, with its disk space reserved.

        Args:
          folder: For this ring alone.
          layout: The experience's columns.
          capacity_rows: Rows that it holds.
          slack_rows: Of a new ring, see the module; None is a quarter of the capacity, and at least four segments.
          max_workers: Workers that it keeps records of, see RingFiles.

        Raises:
          UserError: The disk is too small, the folder can't be written, or it holds a ring of another kind.
        """
        return cls(RingFiles.prepare(folder, layout, capacity_rows, slack_rows, max_workers))

    @property
    def folder(self) -> Path:
        """Where its files are."""
        return self.files.folder

    @property
    def max_segment_rows(self) -> int:
        """Rows of a segment, at most."""
        return min(self.capacity_rows, self.files.slack_rows)

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
        """Transitions that the ring holds now, held out ones included."""
        return self._ring_steps

    @property
    def held_out_steps(self) -> int:
        """Transitions that the ring holds now and that are never trained on."""
        return self._held_out_steps

    @property
    def training_steps(self) -> int:
        """Transitions that the ring holds now and that are trained on."""
        return self._ring_steps - self._held_out_steps

    def steps_up_to(self, iteration: int) -> int:
        """Steps stored of the iterations up to and including this one, without the first random episodes.

        Of iterations long ago it may be more, see `ring_header.steps_up_to`.
        """
        with self.lock:
            return ring_header.steps_up_to(self._header, iteration)

    def is_held_out(self, rows: np.ndarray | slice) -> np.ndarray:
        """Which of these rows are of episodes that are never trained on."""
        return self.step_type[rows] >= _HELD_OUT

    def step_types(self, rows: np.ndarray) -> np.ndarray:
        """tf_agents' StepType of these rows, int32."""
        return (self.step_type[rows] & ~np.uint8(_HELD_OUT)).astype(np.int32)

    @property
    def total_rows(self) -> int:
        """Rows stored since the run began: the number that the next one gets."""
        return int(self._header["total_rows"])

    @property
    def filled_rows(self) -> int:
        """Rows that hold an observation now."""
        return int(self._header["filled_rows"])

    @property
    def oldest_row(self) -> int:
        """Place of the oldest row that is held; the k-th after it is at `(oldest_row + k) % num_rows`."""
        return (self.total_rows - self.filled_rows) % self.num_rows

    @property
    def held_rows(self) -> np.ndarray:
        """Places of all rows that are held, oldest first."""
        return (self.oldest_row + np.arange(self.filled_rows)) % self.num_rows

    @property
    def segments(self) -> int:
        """Segments stored since the run began."""
        return int(self._header["segments"])

    def worker(self, worker_id: int) -> WorkerRecord:
        """What is stored of one worker."""
        with self.lock:
            return WorkerRecord(*self._header["workers"][worker_id].item())

    def worker_rows(self) -> np.ndarray:
        """`[n, 5]` int64: number and record of each worker of which anything is stored, by their numbers."""
        with self.lock:
            records = self._header["workers"]
            used = np.flatnonzero(records["incarnation"])
            return np.column_stack([used, *(records[name][used] for name in records.dtype.names or ())])

    @property
    def iterations_done(self) -> np.ndarray:
        """`[max_workers]` int64: the last iteration that each worker completed, `NEVER` of one that has none."""
        with self.lock:
            return np.array(self._header["workers"]["iteration_done"])

    @property
    def init_episodes(self) -> int:
        """Episodes of the first random ones that are complete, of all workers."""
        return int(self._header["workers"]["init_episodes"].sum())

    def append(self, segment: Segment) -> bool:
        """Stores a segment unless it, or a later one of its worker, is stored already.

        A segment that is not the next one of its worker (the one before it is still to come) is refused as well:
        the worker sends again, in order, all that it has not been told is stored.

        Returns:
          Whether it was stored.

        Raises:
          ValueError: The segment has more than `max_segment_rows`.
        """
        rows = segment.num_rows
        if rows > self.max_segment_rows:
            raise ValueError(f"a segment of {rows} rows does not fit a ring of {self.max_segment_rows}")
        with self.lock:
            if not self._is_next(segment):
                return False
            # Into the slack: a process that dies here leaves all that is held as it was.
            self._write_rows(segment)
            self._commit(segment, rows)
        return True

    def snapshot(self) -> bytes:
        """The header of this moment, for `rollback`; its rows are on disk after a later `make_durable`."""
        with self.lock:
            header = self._header.copy()
            if self.filled_rows:
                first_row = self.total_rows - self.filled_rows
                header["cut_crc"] = self._checksum(first_row, self._rows_after_oldest())
                ring_header.seal(header)
            return header.tobytes()

    def rollback(self, snapshot: bytes) -> None:
        """Goes back to the moment of a snapshot of this ring, or forward: its rows need only be in the files.

        Raises:
          DamagedHeaderError: It is damaged, or of a ring of another layout or size.
          OverwrittenError: Rows that it covers were overwritten since. The ring is as it was.
        """
        header = ring_header.parse(snapshot, self.files.fingerprint)
        with self.lock:
            self._check_covered(header)
            self._replace_header(header)

    def clear(self) -> None:
        """Forgets all experience, and what is stored of each worker."""
        with self.lock:
            self._replace_header(ring_header.empty(self.files.fingerprint, len(self._header["workers"])))

    def check_covered(self, snapshot: bytes) -> None:
        """Whether a rollback to it is still possible.

        Raises:
          DamagedHeaderError, OverwrittenError: See `rollback`.
        """
        header = ring_header.parse(snapshot, self.files.fingerprint)
        with self.lock:
            self._check_covered(header)

    def verify(self) -> int:
        """Compares every segment with its checksum; in damaged ones no transition starts any more.

        The oldest piece, whose beginning the ring has given up, has a checksum in the snapshot that was rolled back
        to. Without one it is accepted unverified, if it counts down its steps as it should and the segment after it
        is whole.

        Returns:
          Transitions of damaged segments, as far as can be told.
        """
        with self.lock:
            first_row = self.total_rows - self.filled_rows
            left = self.steps_left[self.held_rows]
            lasts = np.flatnonzero(left == 0)
            if len(left) and left[-1] != 0:
                lasts = np.append(lasts, len(left) - 1)  # A tail without an end: damaged.
            firsts = np.concatenate([[0], lasts[:-1] + 1]) if len(lasts) else lasts
            whole = [
                (first == last and left[last] == 0) or self._is_whole(first_row + int(first), int(last - first))
                for first, last in zip(firsts, lasts, strict=True)
            ]
            if whole and not whole[0]:
                next_is_whole = len(whole) == 1 or whole[1]
                whole[0] = self._is_oldest_whole(first_row, left[: lasts[0] + 1], next_is_whole=next_is_whole)
            dropped = 0
            for first, last, good in zip(firsts, lasts, whole, strict=True):
                if not good:
                    dropped += int(np.count_nonzero(left[first : last + 1] > 0))
                    for part in row_ranges(first_row + int(first), first_row + int(last) + 1, self.num_rows):
                        self.steps_left[part] = 0
            self._recount()
            return dropped

    def make_durable(self) -> None:
        """Writes everything to disk: after this, a power cut loses nothing that a snapshot from before covers.

        Raises:
          OSError: It can't be written.
        """
        self.files.make_durable()

    def _is_next(self, segment: Segment) -> bool:
        record = self.worker(segment.worker_id)
        if segment.incarnation == record.incarnation:
            return segment.number == record.number + 1
        return segment.incarnation > record.incarnation and segment.number == 0

    def _write_rows(self, segment: Segment) -> None:
        rows, history = segment.num_rows, segment.history
        step_type = np.full(rows, _STEP_MID, np.uint8)
        if segment.starts_episode:
            step_type[0] = _STEP_FIRST
        if segment.ends_episode:
            step_type[-1] = _STEP_LAST
        if segment.held_out:
            step_type |= _HELD_OUT
        steps_left = np.arange(rows - 1, -1, -1, dtype=np.int32)
        steps_left[:history] = _HISTORY
        per_transition = [*segment.action, segment.reward, segment.discount]
        if segment.returns is not None:
            per_transition.append(segment.returns)
        for column, values in zip(
            self._per_observation + self._per_transition,
            [*segment.observation, steps_left, step_type, *(_after_history(each, history) for each in per_transition)],
            strict=True,
        ):
            self._put(column, values)
        self.crc[(self.total_rows + rows - 1) % self.num_rows] = self._checksum(self.total_rows, rows - 1)

    def _put(self, column: np.ndarray, values: np.ndarray) -> None:
        """Writes `values` where the next rows go, around the end of the files."""
        start = self.total_rows % self.num_rows
        head = min(len(values), self.num_rows - start)
        column[start : start + head] = values[:head]
        column[: len(values) - head] = values[head:]

    def _commit(self, segment: Segment, rows: int) -> None:
        header = self._header
        surplus = max(0, self.filled_rows + rows - self.capacity_rows)
        oldest = self.total_rows - self.filled_rows
        given_up = row_ranges(oldest, oldest + surplus, self.num_rows)
        self._ring_steps += segment.num_steps - self._count_steps(given_up)
        if self._held_out_steps:
            self._held_out_steps -= self._count_held_out(given_up)
        self._held_out_steps += segment.num_steps if segment.held_out else 0
        header["filled_rows"] += rows - surplus
        header["total_rows"] += rows
        header["written_rows"] = max(int(header["written_rows"]), self.total_rows)
        header["cut_crc"] = -1
        header["segments"] += 1
        ring_header.count_steps(header, segment.iteration, segment.num_steps)
        record = header["workers"][segment.worker_id]
        if segment.iteration == INIT_ITERATION:
            record["init_episodes"] += segment.ends_episode
        record["incarnation"] = segment.incarnation
        record["number"] = segment.number
        if segment.end_of_iteration:
            record["iteration_done"] = max(int(record["iteration_done"]), segment.iteration)
        self._write_header()

    def _replace_header(self, header: np.ndarray) -> None:
        header["generation"] = self._header["generation"]
        header["written_rows"] = max(int(header["written_rows"]), int(self._header["written_rows"]))
        self._fit_slots(ring_header.resized(header, len(self._header["workers"])))
        self._write_header()
        self._recount()

    def _fit_slots(self, header: np.ndarray) -> None:
        """Takes a header; where it has another number of workers, the file of the slots is made anew."""
        self._header = header
        if header.dtype != self._slots.dtype:
            self.files.write_header(header)
            self._slots = self.files.map_header()

    def _write_header(self) -> None:
        """Writes the older of the two slots, checksum last: one of them is whole at any moment."""
        self._header["generation"] += 1
        ring_header.seal(self._header)
        self._slots[int(self._header["generation"]) % 2] = self._header

    def _newest_header(self) -> np.ndarray:
        newest = ring_header.newest_slot(self._slots, self.files.fingerprint)
        if newest is None:
            raise self.files.damaged_header("no valid checksum")
        return newest

    def _check_covered(self, header: np.ndarray) -> None:
        total_rows, filled_rows = int(header["total_rows"]), int(header["filled_rows"])
        written_rows = int(self._header["written_rows"])
        overwritten = min(filled_rows, written_rows - self.num_rows - (total_rows - filled_rows))
        if overwritten > 0:
            raise OverwrittenError(
                f"{overwritten:,} of its {filled_rows:,} rows have been overwritten: "
                f"{written_rows - total_rows:,} rows came after it, {self.files.slack_rows:,} may"
            )

    def _is_whole(self, first_row: int, steps: int) -> bool:
        place = (first_row + steps) % self.num_rows
        return int(self.steps_left[place]) == 0 and int(self.crc[place]) == self._checksum(first_row, steps)

    def _is_oldest_whole(self, first_row: int, left: np.ndarray, *, next_is_whole: bool) -> bool:
        """Of the rows up to the end of the first segment; `left` is their `steps_left`."""
        if self._header["cut_crc"] >= 0:
            return int(self._header["cut_crc"]) == self._checksum(first_row, len(left) - 1)
        if first_row == 0:
            return False  # Nothing was given up: it is a whole segment, and its own checksum is wrong.
        return next_is_whole and _counts_down(left)

    def _rows_after_oldest(self) -> int:
        """Rows from the oldest one, which is not counted, to the end of its segment."""
        history = 0
        while history < self.filled_rows - 1 and self.steps_left[(self.oldest_row + history) % self.num_rows] < 0:
            history += 1
        steps = int(self.steps_left[(self.oldest_row + history) % self.num_rows])
        return min(history + max(0, steps), self.filled_rows - 1)

    def _checksum(self, first_row: int, steps: int) -> int:
        """Of a segment's `steps + 1` rows, and of where it begins: an older or newer one there is another one."""
        crc = zlib.crc32(first_row.to_bytes(8, "little"))
        for columns, rows in ((self._per_observation, steps + 1), (self._per_transition, steps)):
            for part in row_ranges(first_row, first_row + rows, self.num_rows):
                for column in columns:
                    crc = zlib.crc32(column[part].data, crc)
        return crc

    def _recount(self) -> None:
        held = row_ranges(self.total_rows - self.filled_rows, self.total_rows, self.num_rows)
        self._ring_steps = self._count_steps(held)
        self._held_out_steps = self._count_held_out(held)

    def _count_steps(self, parts: Sequence[slice]) -> int:
        return sum(int(np.count_nonzero(self.steps_left[part] > 0)) for part in parts)

    def _count_held_out(self, parts: Sequence[slice]) -> int:
        return sum(int(np.count_nonzero((self.steps_left[part] > 0) & self.is_held_out(part))) for part in parts)


def _after_history(values: np.ndarray, history: int) -> np.ndarray:
    """One value a transition, with zeros for the rows of history."""
    return np.concatenate([np.zeros((history, *values.shape[1:]), values.dtype), values]) if history else values


def _counts_down(left: np.ndarray) -> bool:
    """Whether the rows of a segment say so: history, or none, then the steps that are left, down to 0."""
    history = int(np.count_nonzero(left == _HISTORY))
    steps = len(left) - 1 - history
    return np.array_equal(left[history:], np.arange(steps, -1, -1)) and (steps >= 1 or not history)
