"""The work of the replay server: segments arrive and are stored or refused, blocks of minibatches leave.

Segments: `_ingest`, `_read_segments`, `_store`, `Ring.extend`. A request: `_accept`, `_next_count`, `make_block`.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Sequence

import numpy as np
import reverb
from absl import logging

from tfagents_system.replay import sampling
from tfagents_system.replay.pacing import Pacing, WorkerOrder
from tfagents_system.replay.priorities import Priorities
from tfagents_system.replay.ring import MAX_WORKERS, Ring
from tfagents_system.replay.sampling import DrawSettings, make_block
from tfagents_system.replay.snapshots import SnapshotWriter
from tfagents_system.run_files.heartbeat import TimeShares
from tfagents_system.transport import tables
from tfagents_system.transport.connection import Connection
from tfagents_system.transport.segments import MalformedSegmentError, Segment, from_wire

_IDLE_SECS = 0.02  # Until it looks whether the trainer has taken a block; what arrives wakes it at once.
_TELL_SECS = 0.02  # Between two messages of what is stored: one costs as much as storing a segment.
_ITEMS_A_ROUND = 64  # Segments, or bundles of them: A flood of segments must not keep the trainer waiting.


class ReplayService:
    """One loop, `step`, in the server's process.

    Args:
      ring: Where experience lives.
      connection: To the server of this process.
      blocks: The server's table of blocks: how full it is is known here without asking.
      max_workers: Slots for workers; segments of others are refused.
      draw: How minibatches are drawn.
      pacing: When they may be.
      snapshots: Writes the replay server's part of checkpoints.
      order: Decides in which order segments are stored; None: as they come.

    Attributes:
      time_shares: Where the loop's time goes.
      duplicates: Segments that were stored already.
      malformed: Items with segments, and requests, that were refused.
    """

    def __init__(
        self,
        ring: Ring,
        connection: Connection,
        blocks: reverb.Table,
        max_workers: int,
        draw: DrawSettings,
        pacing: Pacing,
        snapshots: SnapshotWriter,
        order: WorkerOrder | None = None,
    ) -> None:
        self._ring = ring
        self._connection = connection
        self._max_workers = max_workers
        self._draw_settings = draw
        self._pacing = pacing
        self._snapshots = snapshots
        self._order = order
        self._blocks = blocks
        self._wake = threading.Event()
        self._segments = connection.reader(tables.SEGMENTS, prefetch=_ITEMS_A_ROUND, wake=self._wake)
        self._requests = connection.reader(tables.REQUESTS, wake=self._wake)
        self._snapshot_requests = connection.reader(tables.SNAPSHOTS, wake=self._wake)
        self._priorities = draw.prioritized.priorities if draw.prioritized is not None else None
        if self._priorities is not None:
            self._td_errors = connection.reader(tables.PRIORITIES, wake=self._wake)
        self._pending: list[tuple[tables.Request, int]] = []  # with the number of minibatches already sent
        self._server_start = time.time_ns()
        self._latest_session = 0
        self._is_held_back = False
        self._lacks: str | None = None  # What the oldest request can't be served from.
        self._is_told, self._tell_at = False, 0.0
        self._wanted_told = False
        self._received = 0
        self.time_shares = TimeShares(after_first=None)
        self.duplicates = 0
        self.malformed = 0
        self._publish_stored()

    @property
    def waiting_for(self) -> str | None:
        """What the trainer's request waits for, None if nothing waits."""
        if not self._pending or not self._is_held_back:
            return None
        request, done = self._pending[0]
        why, told = _why_untrained(self._ring), self._pacing.waiting_for(request)
        if self._lacks or why is None:
            return self._lacks or told
        if self._pacing.allowed(request, done) > 0:
            return f"experience to train on{why}"
        return f"{told}; nothing to train on so far{why}" if self._ring.filled_rows else told

    def step(self) -> None:
        """Takes in what has arrived, then serves what may be served; waits a few ms where there was nothing to do."""
        self._wake.clear()
        if self._priorities is not None:
            with self.time_shares.spend("priorities"):
                self._measure(self._priorities)
        self._take_snapshots()
        stored = self._ingest()
        served = self._serve()
        if not stored and not served:
            with self.time_shares.spend("idle"):
                self._wake.wait(_IDLE_SECS)

    def _measure(self, priorities: Priorities) -> None:
        """The TD errors of drawn steps become their priorities."""
        while (arrays := self._td_errors.get(0)) is not None:
            rows, errors = arrays
            if np.isfinite(errors).all():  # Else training has diverged, and goes back to a checkpoint.
                with self._ring.lock:
                    priorities.measure(rows.reshape(-1), errors.reshape(-1))

    def drain(self, secs: float) -> None:
        """Takes in the segments still on their way, when the run stops."""
        deadline = time.monotonic() + secs
        while time.monotonic() < deadline and (self._ingest() or self._connection.size(tables.SEGMENTS)):
            pass
        self._publish_stored()

    def _ingest(self) -> bool:
        """Stores the segments that have arrived."""
        count = 0
        with self.time_shares.spend("storing"):
            while count < _ITEMS_A_ROUND and (arrays := self._segments.get(0)) is not None:
                count += 1
                self._store(self._read_segments(arrays))
            self._received += count
            if count == 0 and self._order is not None:
                count = self._append(self._order.release())
        self._is_told = self._is_told and count == 0 and self._wanted_told == self._snapshots.is_wanted
        if not self._is_told and time.monotonic() >= self._tell_at:
            self._publish_stored()
        return count > 0

    def _read_segments(self, arrays: Sequence[np.ndarray]) -> list[Segment]:
        """What came from a worker; nothing if any of it can't be stored."""
        try:
            segments = from_wire(arrays, self._ring.layout)
            for segment in segments:
                if segment.worker_id >= min(self._max_workers, MAX_WORKERS):
                    raise MalformedSegmentError(f"worker {segment.worker_id} of at most {self._max_workers}")
                if segment.num_rows > self._ring.max_segment_rows:
                    raise MalformedSegmentError(f"{segment.num_rows} rows, {self._ring.max_segment_rows} may be")
            return segments
        except MalformedSegmentError as error:
            self._refuse("segment", error)
            return []

    def _store(self, segments: Sequence[Segment]) -> None:
        if self._order is None:
            self._append(segments)
        else:
            for segment in segments:
                self._append(self._order.take(segment))
        for worker_id in {segment.worker_id for segment in segments}:
            self._pacing.heard(worker_id)

    def _append(self, segments: Sequence[Segment]) -> int:
        """Stores segments, and returns how many there were."""
        self.duplicates += len(segments) - self._ring.extend(segments)
        return len(segments)

    def _publish_stored(self) -> None:
        wanted = self._snapshots.is_wanted
        workers = self._ring.worker_rows()
        stored = tables.Stored(self._server_start, self._ring.env_steps, workers, wanted, self._received)
        with self.time_shares.spend("telling what is stored"):
            self._connection.put(tables.STATUS, stored.to_wire())
        self._is_told, self._tell_at = True, time.monotonic() + _TELL_SECS
        self._wanted_told = wanted

    def _serve(self) -> bool:
        """Draws one block for the oldest request, if it may be drawn and there is room for it."""
        while (arrays := self._requests.get(0)) is not None:
            try:
                self._accept(tables.Request.from_wire(arrays))
            except ValueError as error:
                self._refuse("request", error)
        if not self._pending:
            return False
        count = self._next_count()
        self._is_held_back = count is None
        if count is None or self._blocks.info.current_size >= tables.MAX_BLOCKS:
            return False
        request, done = self._pending[0]
        env_steps = 0 if request.iteration == tables.OFFLINE else self._pacing.env_steps(request.iteration)
        settings = self._draw_settings.at(env_steps, request.updates - request.first, request.iteration)
        try:
            with self.time_shares.spend("drawing"):
                block = make_block(self._ring, settings, request, done, count)
        except sampling.NothingToDrawError as error:
            # All that may be trained on is where the frames before have been given up.
            self._is_held_back, self._lacks = True, f"experience, {error}"
            return False
        if request.iteration != tables.OFFLINE:
            block.env_steps, block.init_steps = env_steps, self._ring.init_steps
        with self.time_shares.spend("sending minibatches"):
            self._connection.put(tables.BLOCKS, block.to_wire())
        self._pending[0] = (request, done + count)
        if done + count == request.count:
            self._pending.pop(0)
        return True

    def _accept(self, request: tables.Request) -> None:
        """Queues a request, by iteration; a newer trainer's, or a repeated one, replaces what it asks for again."""
        if request.iteration == tables.OFFLINE and (self._draw_settings.prior is None or request.count < 1):
            raise ValueError("this run has no prior data, or the number of offline updates is missing")
        if request.count == tables.AS_DUE and self._pacing.updates_per_env_step is None:
            raise ValueError("this run has no updates_per_env_step: say how many minibatches")
        if request.session < self._latest_session:
            logging.warning("a request of session %d is of an earlier trainer and is ignored", request.session)
            return
        self._latest_session = request.session
        self._pending = [
            (other, done)
            for other, done in self._pending
            if other.session == request.session and other.iteration != request.iteration
        ]
        self._pending.append((request, 0))
        self._pending.sort(key=lambda pending: pending[0].iteration)

    def _next_count(self) -> int | None:
        """Minibatches of the next block, for the oldest request; None while it is held back."""
        request, done = self._pending[0]
        self._lacks = None
        if request.iteration == tables.OFFLINE:
            return min(request.count - done, self._draw_settings.max_block_minibatches)
        if request.count == tables.AS_DUE:
            settled = self._settle(request)
            if settled is None:
                return None
            self._pending[0] = (settled, 0)
            request = settled
        if request.count == 0:
            return 0  # A block that says so.
        if _why_untrained(self._ring) is not None:
            return None
        allowed = self._pacing.allowed(request, done)
        return min(allowed, self._draw_settings.max_block_minibatches) if allowed > 0 else None

    def _settle(self, request: tables.Request) -> tables.Request | None:
        """See `Pacing.settle`. An iteration that is complete has no updates where there is nothing to train on.

        They become due with a later one. It is not held back: its workers would wait for its end, and with them what
        is to be trained on.
        """
        settled, why = self._pacing.settle(request), _why_untrained(self._ring)
        if settled is None or settled.count == 0 or why is None:
            return settled
        what, secs = "iteration %d has no updates yet%s", 60
        logging.log_every_n_seconds(logging.WARNING, what, secs, request.iteration, why)
        return dataclasses.replace(settled, count=0)

    def _take_snapshots(self) -> None:
        """Takes the ring's header for the checkpoints that the trainer is writing: here, nothing is half stored."""
        while (arrays := self._snapshot_requests.get(0)) is not None:
            try:
                request = tables.Snapshot.from_wire(arrays)
                with self.time_shares.spend("snapshots"):
                    self._snapshots.take(request.checkpoint, is_far=request.is_far)
            except ValueError as error:
                self._refuse("request for a snapshot", error)

    def _refuse(self, what: str, error: ValueError) -> None:
        self.malformed += 1
        logging.error("refused a %s: %s", what, error)


def _why_untrained(ring: Ring) -> str | None:
    """Why there is nothing to train on; None: there is."""
    if ring.training_steps:
        return None
    if ring.ring_steps:
        return ", all that the ring holds is held out: lower validation_share, or raise buffer_size"
    return (
        ", no sample starts yet at what the ring holds, because the steps behind it that a sample needs are still "
        "to come: raise env_steps_per_iter, or have fewer environments a worker"
    )
