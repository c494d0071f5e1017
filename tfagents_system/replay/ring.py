"""The ring: all experience, one row an observation, in memory-mapped files.

A crash of the process loses nothing (the kernel keeps the pages), and a restart is instant. A segment of T transitions
takes T + 1 rows; the last one holds only the observation that the last transition led to. `steps_left` of a row is the
number of transitions from that row to the end of its segment: a transition may start where it is at least 1, a
sequence of L transitions where it is at least L, so nothing crosses an episode's end. Where an episode is cut into
several segments, a transition may be in two of them; samples start at it in one (transport/segments.py). Where frames
are stacked, a segment from within an episode begins with rows of its history: observations before its first
transition, which have a `steps_left` of -1 and are never drawn themselves.

The files have more rows than the ring holds (`slack_rows`). Old rows stay in their place until that many newer
rows have come. So a header that was kept (`Ring.snapshot`) still says which rows were held then, and writing it back
(`Ring.rollback`) returns to that moment. A checksum in each segment's last row shows whether the segment is what was
stored (`Ring.verify`).
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tfagents_system.replay import ring_header
from tfagents_system.replay.episode_index import EpisodeIndex
from tfagents_system.replay.ring_files import RingFiles, row_ranges
from tfagents_system.replay.ring_header import INIT_ITERATION, MAX_WORKERS
from tfagents_system.replay.ring_rows import HISTORY, RingRows
from tfagents_system.transport.layout import Layout
from tfagents_system.transport.segments import NEVER, Segment, WorkerRecord, bundled

__all__ = ["INIT_ITERATION", "MAX_WORKERS", "NEVER", "OverwrittenError", "Ring", "WorkerRecord"]


class OverwrittenError(Exception):
    """Rows that a snapshot covers are gone: more than `slack_rows` newer ones have come since."""


class _Counter:
    """A number in the ring's header, as an attribute of Ring."""

    def __init__(self, field: str) -> None:
        self._field = field

    def __get__(self, ring: Ring, kind: type) -> int:
        return int(ring._header[self._field])


class Ring:
    """Experience of a run, the newest `capacity_rows` rows of it.

    Safe to use from several threads. Open with `Ring.open`.

    Attributes:
      files: Where it is, and what for.
      max_segment_rows: Rows of a segment, at most.
      lock: Held while rows are written or read.
      rows: Its columns; those that are drawn from are attributes of the ring, too.
      ring_steps: Transitions that it holds now and that samples start at, held out ones included.
      held_out_steps: Those of them that are never trained on.
      repeated_steps: Transitions that it holds now and that samples start at in another segment alone.
      counts_init_steps: The first random experience is counted in steps, not in episodes; the same in all of a run.
    """

    counts_init_steps = False
    env_steps = _Counter("env_steps")  # Transitions stored since the run began, those overwritten since included.
    init_steps = _Counter("init_steps")  # Those of them that do not count for the ratio of updates to steps.
    random_steps = _Counter("random_steps")  # Those of them that belong to the first random episodes.
    total_rows = _Counter("total_rows")  # Rows stored since the run began: the number that the next one gets.
    filled_rows = _Counter("filled_rows")  # Rows that hold an observation.
    segments = _Counter("segments")  # Segments stored since the run began.
    run = _Counter("run")  # For which run it counts: 1, or the mark of `begin_run`.

    def __init__(self, files: RingFiles) -> None:
        self.files = files
        self.folder, self.layout = files.folder, files.layout
        self.capacity_rows, self.num_rows = files.capacity_rows, files.num_rows
        self.max_segment_rows = min(files.capacity_rows, files.slack_rows)
        self.lock = threading.RLock()
        self.rows = rows = RingRows(files)
        self.observation, self.action = rows.observation, rows.action
        self.returns, self.explored, self.potential = rows.returns, rows.explored, rows.potential
        self.reward, self.discount = rows.reward, rows.discount
        self.steps_left, self.step_type = rows.steps_left, rows.step_type
        self.is_held_out, self.is_repeated, self.step_types = rows.is_held_out, rows.is_repeated, rows.step_types
        self._slots, self._header = files.open_header()
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
        """Opens the ring in `folder` as it was left, or makes an empty one. See `RingFiles.prepare`."""
        return cls(RingFiles.prepare(folder, layout, capacity_rows, slack_rows, max_workers))

    @property
    def training_steps(self) -> int:
        """Transitions that the ring holds now and that are trained on."""
        return self.ring_steps - self.held_out_steps

    def steps_up_to(self, iteration: int) -> int:
        """Steps stored of the iterations up to and including this one, without the first random episodes.

        Of iterations long ago it may be more, see `ring_header.steps_up_to`.
        """
        with self.lock:
            return ring_header.steps_up_to(self._header, iteration)

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

    def worker(self, worker_id: int) -> WorkerRecord:
        """What is stored of one worker."""
        with self.lock:
            return WorkerRecord(*self._header["workers"][worker_id].item())

    def worker_rows(self) -> np.ndarray:
        """See `ring_header.worker_rows`."""
        with self.lock:
            return ring_header.worker_rows(self._header)

    @property
    def iterations_done(self) -> np.ndarray:
        """`[max_workers]` int64: the last iteration that each worker completed, `NEVER` of one that has none."""
        with self.lock:
            return self._header["workers"]["iteration_done"].copy()

    @property
    def init_episodes(self) -> int:
        """Episodes of the first random ones that are complete, of all workers; or steps (`counts_init_steps`)."""
        return int(self._header["workers"]["init_episodes"].sum())

    def append(self, segment: Segment) -> bool:
        """Stores one segment; returns whether it was stored. See `extend`."""
        return self.extend([segment]) == 1

    def extend(self, segments: Sequence[Segment]) -> int:
        """Stores segments, each unless it, or a later one of its worker, is stored already. Returns how many.

        One that is not the next of its worker (the one before it is still to come) is refused as well: the worker
        sends again, in order, all that it does not know to be stored. Those that fit the slack together are stored
        together, all or none of them, with one header.

        Raises:
          ValueError: A segment has more than `max_segment_rows`.
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
            before = next((each for each in reversed(written) if each.worker_id == segment.worker_id), None)
            if not are_own or ring_header.is_next(before or self.worker(segment.worker_id), segment):
                written.append(segment)
                self.rows.write(segment, self.total_rows + rows)  # Into the slack: who dies here leaves what is held.
                rows += segment.num_rows
        if written:
            self._commit(written, rows, are_own)
        return len(written)

    def snapshot(self) -> bytes:
        """The header of this moment, for `rollback`; its rows are on disk after a later `make_durable`."""
        with self.lock:
            header = self._header.copy()
            if self.filled_rows:
                header["cut_crc"] = oldest_checksum(self.rows, *self.held)
                ring_header.seal(header)
            return header.tobytes()

    def rollback(self, snapshot: bytes) -> None:
        """Goes back to the moment of a snapshot of this ring, or forward: its rows need only be in the files.

        Raises:
          DamagedHeaderError: It is damaged, or of a ring of another layout or size.
          OverwrittenError: Rows that it covers were overwritten since. The ring is as it was.
        """
        with self.lock:
            self._replace_header(self.check_covered(snapshot))

    def begin_run(self, mark: int, env_steps: int = 0, *, counts_rows: bool = False) -> None:
        """See `ring_header.begin_run`: one write of the header. `counts_rows`: what it holds counts for the ratio."""
        with self.lock:
            ring_header.begin_run(self._header, mark, env_steps, self.ring_steps if counts_rows else 0)
            self._write_header()

    def clear(self) -> None:
        """Forgets all experience, and what is stored of each worker."""
        with self.lock:
            self._replace_header(ring_header.empty(self.files.fingerprint, len(self._header["workers"])))

    def check_covered(self, snapshot: bytes) -> np.ndarray:
        """The header that a snapshot is, if a rollback to it is still possible; errors as of `rollback`."""
        header = self.files.parse_header(snapshot)
        with self.lock:
            total_rows, filled_rows = int(header["total_rows"]), int(header["filled_rows"])
            written_rows = int(self._header["written_rows"])
        overwritten = min(filled_rows, written_rows - self.num_rows - (total_rows - filled_rows))
        if overwritten > 0:
            raise OverwrittenError(
                f"{overwritten:,} of its {filled_rows:,} rows have been overwritten: "
                f"{written_rows - total_rows:,} rows came after it, {self.files.slack_rows:,} may"
            )
        return header

    def verify(self) -> int:
        """Compares every segment with its checksum; in damaged ones no transition starts any more.

        Returns:
          Transitions of damaged segments, as far as they can be counted.
        """
        with self.lock:
            dropped = drop_damaged(self.rows, *self.held, int(self._header["cut_crc"]))
            self._recount()
            return dropped

    def make_durable(self) -> None:
        """Writes everything to disk: after this, a power cut loses nothing that a snapshot from before covers."""
        self.files.make_durable()

    def _commit(self, segments: Sequence[Segment], rows: int, are_own: bool) -> None:
        """The ring holds segments that were written behind its newest row, `rows` together."""
        header, oldest = self._header, self.total_rows - self.filled_rows
        surplus = max(0, self.filled_rows + rows - self.capacity_rows)
        self.ring_steps -= self.rows.count_starts(oldest, oldest + surplus)
        if self.held_out_steps:
            self.held_out_steps -= self.rows.count_held_out(oldest, oldest + surplus)
        if self.repeated_steps:
            self.repeated_steps -= self.rows.count_repeated(oldest, oldest + surplus)
        header["filled_rows"] += rows - surplus
        header["total_rows"] += rows
        header["written_rows"] = max(int(header["written_rows"]), self.total_rows)
        header["cut_crc"] = -1
        self.ring_steps += sum(segment.num_starts for segment in segments)
        self.held_out_steps += sum(segment.num_starts for segment in segments if segment.held_out)
        self.repeated_steps += sum(segment.context + segment.deferred for segment in segments)
        if are_own:
            for segment in segments:
                ring_header.count_segment(header, segment, counts_init_steps=self.counts_init_steps)
        self._write_header()

    def _replace_header(self, header: np.ndarray) -> None:
        header["generation"] = self._header["generation"]
        header["written_rows"] = max(int(header["written_rows"]), int(self._header["written_rows"]))
        self._fit_slots(ring_header.resized(header, len(self._header["workers"])))
        self._write_header()
        self._recount()

    def _fit_slots(self, header: np.ndarray) -> None:
        """Takes a header; if it has another number of workers, the file of the slots is made again."""
        self._header = header
        if header.dtype != self._slots.dtype:
            self._slots = self.files.write_header(header)

    def _write_header(self) -> None:
        """Writes the older of the two slots, checksum last: one of them is whole at any moment."""
        self._header["generation"] += 1
        ring_header.seal(self._header)
        self._slots[int(self._header["generation"]) % 2] = self._header

    def _recount(self) -> None:
        self.ring_steps, self.held_out_steps, self.repeated_steps = self.rows.counts(*self.held)
        self.episodes = EpisodeIndex(self.rows)  # Of the rows as they are now.


def drop_damaged(rows: RingRows, first_row: int, last_row: int, cut_crc: int) -> int:
    """Compares every segment with its checksum; in damaged ones no transition starts any more.

    The ring has given up the beginning of its oldest segment. For what is left of it a snapshot's header has a checksum
    (`oldest_checksum`). Without one it is accepted unverified, if it counts down its steps as it should and the segment
    after it is whole.

    Args:
      rows: Of the ring.
      first_row, last_row: Numbers of the oldest row that is held, and of the one after the newest.
      cut_crc: Checksum of the oldest segment's rest, -1 where there is none.

    Returns:
      Transitions of damaged segments, as far as they can be counted.
    """
    left = rows.steps_left[np.arange(first_row, last_row) % rows.num_rows]
    lasts = np.flatnonzero(left == 0)
    if len(left) and left[-1] != 0:
        lasts = np.append(lasts, len(left) - 1)  # A tail without an end: damaged.
    firsts = np.concatenate([[0], lasts[:-1] + 1]) if len(lasts) else lasts
    whole = [
        (first == last and left[last] == 0) or _is_whole(rows, first_row + int(first), int(last - first))
        for first, last in zip(firsts, lasts, strict=True)
    ]
    if whole and not whole[0]:
        if cut_crc >= 0:
            whole[0] = cut_crc == rows.checksum(first_row, int(lasts[0]))
        elif first_row > 0:  # Else nothing was given up: it is a whole segment, and its own checksum is wrong.
            whole[0] = (len(whole) == 1 or whole[1]) and _counts_down(left[: lasts[0] + 1])
    dropped = 0
    for first, last, good in zip(firsts, lasts, whole, strict=True):
        if not good:
            damaged = first_row + int(first), first_row + int(last) + 1
            dropped += rows.count_starts(*damaged)
            for part in row_ranges(*damaged, rows.num_rows):
                rows.steps_left[part] = 0
    return dropped


def oldest_checksum(rows: RingRows, first_row: int, last_row: int) -> int:
    """Of the rows from the oldest one to the end of its segment, see `drop_damaged`."""
    held, history = last_row - first_row, 0
    while history < held - 1 and rows.steps_left[(first_row + history) % rows.num_rows] < 0:
        history += 1
    steps = int(rows.steps_left[(first_row + history) % rows.num_rows])
    return rows.checksum(first_row, min(history + max(0, steps), held - 1))


def _is_whole(rows: RingRows, first_row: int, steps: int) -> bool:
    place = (first_row + steps) % rows.num_rows
    return int(rows.steps_left[place]) == 0 and int(rows.crc[place]) == rows.checksum(first_row, steps)


def _counts_down(left: np.ndarray) -> bool:
    """Whether the rows of a segment say so: history, or none, then the steps that are left, down to 0."""
    history = int(np.count_nonzero(left == HISTORY))
    steps = len(left) - 1 - history
    return np.array_equal(left[history:], np.arange(steps, -1, -1)) and (steps >= 1 or not history)
