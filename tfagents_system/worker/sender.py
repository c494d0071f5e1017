"""The worker's end of experience: segments are kept, and sent again where needed, until they are stored.

A worker that steps a device has this done, and whatever else may block, in threads.
"""

from __future__ import annotations

import collections
import dataclasses
import gc
import math
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import numpy as np
from absl import logging

from tfagents_system.replay.ring import INIT_ITERATION
from tfagents_system.run_files.heartbeat import Heartbeat
from tfagents_system.transport import tables
from tfagents_system.transport.connection import Connection, ServerUnreachableError, StoppedError, Waiting
from tfagents_system.transport.segments import Segment, bundled, to_wire
from tfagents_system.worker.newest_policy import NewestItem

_RESEND_SECS = 10.0
_MAX_SENDS = 6  # Of one segment, to a server that takes in segments meanwhile.
_POLL_SECS = 0.02  # Until it is asked again what is stored.
_ASK_BYTES = 16 * 2**20  # With more than that unconfirmed, each further segment asks what is stored.
_LAST_WORDS, _LAST_SECS = ("done", "stopped"), 5.0
_MIB = 2**20
_SPEAK_SECS = 10
_SWITCH_SECS = 0.0005  # How long another thread may keep Python to itself while a step is due; usually 5 ms.


class RefusedError(Exception):
    """The replay server does not store a segment, however often it is sent."""


class SegmentSender:
    """Sends one worker's segments, in order, each stored exactly once.

    Args:
      connection: To the replay server.
      worker_id: The worker.
      incarnation: Of this process: larger than that of any earlier one of the same worker.
      is_patient: Segments may wait for those of other workers: one that is not stored for long was not refused. What
        an earlier process of the worker has brought of an iteration may be stored instead of the same from this one.
      max_bundle_rows: Segments wait until so many rows go together in one item, or for `confirm`; 0: they do not wait.
    """

    def __init__(
        self,
        connection: Connection,
        worker_id: int,
        incarnation: int,
        *,
        is_patient: bool = False,
        max_bundle_rows: int = 0,
    ) -> None:
        self._connection = connection
        self._status = connection.newest(tables.STATUS)
        self._worker_id = worker_id
        self._incarnation = incarnation
        self._is_patient = is_patient
        self._max_bundle_rows = max_bundle_rows
        self._held: list[Segment] = []  # The last unconfirmed ones: not sent yet.
        self._held_rows = 0
        self._next_number = 0
        self._is_known = not is_patient  # To the server, as the worker's process.
        self._unconfirmed: collections.deque[Segment] = collections.deque()
        self._unconfirmed_bytes = 0
        self._server: int | None = None
        self._received = 0  # Segments that the server had taken in when it was last heard of before sending again.
        self._first_sends: tuple[int, int] = (-1, 0)  # The oldest unconfirmed segment, and how often it was sent again.
        self._last_sent = 0.0

    @property
    def unconfirmed_segments(self) -> int:
        """Segments that are not known to be stored."""
        return len(self._unconfirmed)

    @property
    def unconfirmed_bytes(self) -> int:
        """What these take."""
        return self._unconfirmed_bytes

    def send(self, segment: Segment) -> None:
        """Numbers a segment and sends it, at once or together with others.

        Raises:
          RefusedError: See `confirm`.
          StoppedError: The worker is to stop.
        """
        if not self._is_known and self._unconfirmed and segment.iteration > self._unconfirmed[-1].iteration:
            # Whether the numbers go on depends on whose segments are stored.
            self.flush(Waiting("the iteration before to be stored", math.inf, self._connection.stop))
        segment = dataclasses.replace(
            segment, worker_id=self._worker_id, incarnation=self._incarnation, number=self._next_number
        )
        self._next_number += 1
        self._unconfirmed.append(segment)
        self._unconfirmed_bytes += num_bytes(segment)
        if self._held_rows + segment.num_rows > self._max_bundle_rows:
            self._send_held()
        self._held.append(segment)
        self._held_rows += segment.num_rows
        if self._held_rows >= self._max_bundle_rows:
            self._send_held()
        if self._unconfirmed_bytes > _ASK_BYTES:
            self.confirm()

    def confirm(self) -> tables.Stored | None:
        """Forgets what is stored; sends the rest again if the server was restarted or has not stored it in time.

        Segments that wait for others are sent. Asks the server only while there is anything to hear: many workers
        wait, and a question costs it 0.4 ms.

        Raises:
          RefusedError: A segment was sent again and again to a server that takes in segments, but not this one.
        """
        self._send_held()
        arrays = self._status.get() if self._unconfirmed else None
        if arrays is None:
            return None
        stored = tables.Stored.from_wire(arrays)
        record = stored.worker(self._worker_id)
        if record.incarnation == self._incarnation:
            self._is_known = True
            while self._unconfirmed and self._unconfirmed[0].number <= record.number:
                self._unconfirmed_bytes -= num_bytes(self._unconfirmed.popleft())
        elif not self._is_known and self._unconfirmed[-1].iteration <= record.iteration_done:
            self._unconfirmed.clear()
            self._unconfirmed_bytes = self._next_number = 0
        restarted = self._server not in (None, stored.server)
        self._server = stored.server
        if self._unconfirmed and (restarted or time.monotonic() - self._last_sent > _RESEND_SECS):
            self._count_sends(stored, restarted)
            logging.info("sending %d segments again", len(self._unconfirmed))
            for bundle in bundled(self._unconfirmed, self._max_bundle_rows):
                self._put(bundle)
        return stored

    def call(self, function: Callable[[], object]) -> None:
        """Calls a function that sends something else."""
        function()

    def take_metrics(self) -> dict[str, float]:
        """None: it drops nothing."""
        return {}

    def flush(self, waiting: Waiting) -> None:
        """Waits until everything is stored."""
        while self._unconfirmed:
            self.confirm()
            if self._unconfirmed:
                waiting.check()
                time.sleep(_POLL_SECS)

    def _count_sends(self, stored: tables.Stored, restarted: bool) -> None:
        """Counts how often the oldest segment was sent in vain: a server that takes in none does not count."""
        oldest = self._unconfirmed[0]
        number, sends = self._first_sends
        if restarted or number != oldest.number:
            self._first_sends = (oldest.number, 1)
        elif stored.received > self._received:
            self._first_sends = (number, sends + 1)
        self._received = stored.received
        if self._first_sends[1] >= _MAX_SENDS and not self._is_patient:
            raise RefusedError(
                f"the replay server has not stored segment {oldest.number} ({oldest.num_steps} steps of iteration "
                f"{oldest.iteration}), sent {_MAX_SENDS} times, though it takes in segments: its log "
                "(logs/replay.log) says what it refused. The steps that it has not stored are given up"
            )

    def _send_held(self) -> None:
        held, self._held, self._held_rows = self._held, [], 0
        if held:
            self._put(held)

    def _put(self, segments: Sequence[Segment]) -> None:
        self._connection.put(tables.SEGMENTS, to_wire(segments))
        self._last_sent = time.monotonic()


def num_bytes(segment: Segment) -> int:
    """What a segment takes, bytes."""
    return sum(array.nbytes for array in segment.to_wire())


# For a worker that steps a device: what may block is done in threads, between two steps it waits for nothing.


def leave_python_to_steps() -> None:
    """Other threads hold up a step as little as possible, and garbage is collected between episodes alone."""
    sys.setswitchinterval(_SWITCH_SECS)
    gc.collect()
    gc.freeze()  # What is there by now stays: searching it for garbage again and again takes time.
    gc.disable()


class BackgroundReader:
    """A reader that returns at once: what the read that an earlier call has begun has brought, else None."""

    def __init__(self, table: NewestItem, name: str) -> None:
        self._table = table
        self._executor = ThreadPoolExecutor(1, f"newest {name}")
        self._read: Future[list[np.ndarray] | None] | None = None

    @property
    def is_pending(self) -> bool:
        """Whether a read is under way."""
        return self._read is not None

    def get(self) -> list[np.ndarray] | None:
        """Begins a read unless one is under way."""
        if self._read is None:
            self._read = self._executor.submit(self._table.get)
        if not self._read.done():
            return None
        read, self._read = self._read, None
        return read.result()


class BackgroundHeartbeat:
    """A heartbeat that is written in a thread; those that come while another is being written are left out.

    Last words wait for that, and are written at once.
    """

    def __init__(self, heartbeat: Heartbeat) -> None:
        self._heartbeat = heartbeat
        self._executor = ThreadPoolExecutor(1, "heartbeat")
        self._writing: Future[None] | None = None

    def beat(self, state: str, **fields: Any) -> None:
        """See Heartbeat."""
        if state in _LAST_WORDS:
            wait([self._writing] if self._writing is not None else [], _LAST_SECS)
            self._heartbeat.beat(state, **fields)
        elif self._writing is None or self._writing.done():
            self._writing = self._executor.submit(self._heartbeat.beat, state, **fields)


@dataclasses.dataclass(eq=False)
class _Item:
    """What the thread is to do.

    Attributes:
      segment: It sends this one; None: it does something else.
    """

    do: Callable[[], object]
    segment: Segment | None = None
    num_bytes: int = 0


class BackgroundSender:
    """A SegmentSender whose methods return at once. Its thread sends, and then asks what is stored until all is.

    What waits is bounded: beyond `max_unsent_mb` the oldest segments that have not been sent yet are dropped. They have
    no number by then, so those behind them are stored all the same. Never dropped are the newest segment, the first
    random experience, for whose amount a run waits, and in lock-step the end of a worker's share of an iteration.

    Args:
      sender: Used by the thread alone.
      max_unsent_mb: MiB of segments that are not known to be stored.
      is_lockstep: The replay server waits for each iteration.

    Attributes:
      dropped_steps: How many there were.
    """

    def __init__(self, sender: SegmentSender, max_unsent_mb: int, *, is_lockstep: bool) -> None:
        self._sender = sender
        self._max_bytes = max_unsent_mb * _MIB
        self._is_lockstep = is_lockstep
        self._changed = threading.Condition()
        self._waiting: collections.deque[_Item] = collections.deque()
        self._waiting_bytes = 0
        self._under_way = 0  # Segments: 0 or 1.
        self._error: BaseException | None = None
        self._reported_steps = 0
        self.dropped_steps = 0
        threading.Thread(target=self._serve, name="send segments", daemon=True).start()

    @property
    def unconfirmed_segments(self) -> int:
        """Segments that are not known to be stored. The one that is being sent may count twice."""
        with self._changed:
            waiting = sum(item.segment is not None for item in self._waiting)
            return waiting + self._under_way + self._sender.unconfirmed_segments

    def send(self, segment: Segment) -> None:
        """Hands a segment over.

        Raises:
          RefusedError, StoppedError: What the thread ended with.
        """
        self._put(_Item(lambda: self._sender.send(segment), segment, num_bytes(segment)))

    def call(self, function: Callable[[], object]) -> None:
        """Has the thread call a function, behind all that waits."""
        self._put(_Item(function))

    def confirm(self) -> None:
        """The thread does so by itself; raises what it ended with."""
        if self._error is not None:
            raise self._error

    def take_metrics(self) -> dict[str, float]:
        """`dropped_steps` since the last call."""
        dropped, self._reported_steps = self.dropped_steps - self._reported_steps, self.dropped_steps
        return {"dropped_steps": float(dropped)}

    def flush(self, waiting: Waiting) -> None:
        """Waits until everything is stored.

        Raises:
          StoppedError, ServerUnreachableError: See `Waiting.check`. Nothing is sent any more, whatever the reason.
        """
        while self.unconfirmed_segments:
            if self._error is not None:
                logging.error("sending has ended: %r", self._error)
                raise StoppedError from self._error
            waiting.check()
            time.sleep(_POLL_SECS)

    def _put(self, item: _Item) -> None:
        self.confirm()
        with self._changed:
            self._waiting.append(item)
            self._waiting_bytes += item.num_bytes
            self._drop()
            self._changed.notify()

    def _drop(self) -> None:
        """Drops the oldest segments, as far as is necessary and allowed."""
        over_bytes = self._waiting_bytes + self._sender.unconfirmed_bytes - self._max_bytes
        newest = self._waiting[-1]
        for item in list(self._waiting) if over_bytes > 0 else ():
            if over_bytes > 0 and item is not newest and item.segment is not None and self._may_drop(item.segment):
                self._waiting.remove(item)
                self._waiting_bytes -= item.num_bytes
                over_bytes -= item.num_bytes
                self.dropped_steps += item.segment.num_steps
                logging.log_every_n_seconds(
                    logging.WARNING,
                    "the replay server takes segments too slowly: %d steps were dropped so far, the oldest beyond "
                    "max_unsent_mb=%d",
                    _SPEAK_SECS,
                    *(self.dropped_steps, self._max_bytes // _MIB),
                )

    def _may_drop(self, segment: Segment) -> bool:
        is_needed = self._is_lockstep and segment.end_of_iteration
        return segment.iteration != INIT_ITERATION and not is_needed

    # The thread.

    def _serve(self) -> None:
        try:
            while True:
                self._do(self._next())
        except BaseException as error:  # For whoever sends next.
            self._error = error

    def _next(self) -> _Item:
        """Waits for something to do."""
        with self._changed:
            if self._sender.unconfirmed_segments == 0:
                self._changed.wait_for(lambda: self._waiting)
            elif not self._waiting:
                self._changed.wait(_POLL_SECS)
            if not self._waiting:
                return _Item(self._sender.confirm)
            item = self._waiting.popleft()
            self._waiting_bytes -= item.num_bytes
            self._under_way = int(item.segment is not None)
            return item

    def _do(self, item: _Item) -> None:
        """Does it however long the server is away: the worker goes on meanwhile, and nothing of it may be lost."""
        while True:
            try:
                item.do()
                break
            except ServerUnreachableError as error:
                logging.warning("%s; the worker goes on, and keeps what it can't send", error)
                if item.segment is not None:
                    break  # It has its number: whatever confirms sends it again.
                time.sleep(_POLL_SECS)
        self._under_way = 0
