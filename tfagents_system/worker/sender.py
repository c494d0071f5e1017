"""The worker's end of experience: segments are kept, and sent again where needed, until they are stored.

A worker that steps a device has this done, and whatever else may block, in threads.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import gc
import math
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, wait
from typing import Any

import numpy as np
from absl import logging

from tfagents_system.envs.real_time import Background
from tfagents_system.replay.ring import INIT_ITERATION
from tfagents_system.run_files.heartbeat import Heartbeat
from tfagents_system.transport import tables
from tfagents_system.transport.connection import Connection, ServerUnreachableError, Waiting
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


@dataclasses.dataclass(eq=False)
class SegmentSender:
    """Sends one worker's segments, in order, each stored exactly once.

    Attributes:
      connection: To the replay server.
      worker_id: The worker.
      incarnation: Of this process: larger than that of any earlier one of the same worker.
      is_patient: Segments may wait for those of other workers: one that is not stored for long was not refused. What
        an earlier process of the worker has brought of an iteration may be stored instead of the same from this one.
      max_bundle_rows: Segments wait until so many rows go together in one item, or for `confirm`; 0: they do not wait.

      unconfirmed_bytes: What segments take that are not known to be stored.
    """

    connection: Connection
    worker_id: int
    incarnation: int
    _: dataclasses.KW_ONLY
    is_patient: bool = False
    max_bundle_rows: int = 0

    def __post_init__(self) -> None:
        self._status: NewestItem = self.connection.newest(tables.STATUS)
        self._unsent: collections.deque[Segment] = collections.deque()  # They have no number yet.
        self._unsent_rows = 0
        self._next_number = 0
        self._is_known = not self.is_patient  # To the server, as the worker's process.
        self._unconfirmed: collections.deque[Segment] = collections.deque()  # Of those that were sent.
        self.unconfirmed_bytes = 0
        self._server: int | None = None
        self._received = 0  # Segments that the server had taken in when it was last heard of before sending again.
        self._oldest, self._sends = -1, 0  # The oldest unconfirmed segment, and how often it was sent again.
        self._last_sent = 0.0

    @property
    def unconfirmed_segments(self) -> int:
        """Segments that are not known to be stored."""
        return len(self._unconfirmed) + len(self._unsent)

    def send(self, segment: Segment) -> None:
        """Numbers a segment and sends it, at once or together with others.

        Raises:
          RefusedError: See `confirm`.
          StoppedError: The worker is to stop.
        """
        if not self._is_known and self._unconfirmed and segment.iteration > self._unconfirmed[-1].iteration:
            # Whether the numbers continue depends on whose segments are stored.
            self.flush(Waiting("the iteration before to be stored", math.inf, self.connection.stop))
        if self._unsent_rows + segment.num_rows > self.max_bundle_rows:
            self._send_unsent()
        self._unsent.append(segment)
        self._unsent_rows += segment.num_rows
        self.unconfirmed_bytes += num_bytes(segment)
        if self._unsent_rows >= self.max_bundle_rows:
            self._send_unsent()
        if self.unconfirmed_bytes > _ASK_BYTES:
            self.confirm()

    def confirm(self) -> tables.Stored | None:
        """Forgets what is stored; sends the rest again if the server was restarted or has not stored it in time.

        Segments that wait for others are sent. Asks the server only while there is anything to hear: many workers
        wait, and a question costs it 0.4 ms.

        Raises:
          RefusedError: A segment was sent again and again to a server that takes in segments, but not this one.
        """
        self._send_unsent()
        arrays = self._status.get() if self._unconfirmed else None
        if arrays is None:
            return None
        stored = tables.Stored.from_wire(arrays)
        record = stored.worker(self.worker_id)
        if record.incarnation == self.incarnation:
            self._is_known = True
            while self._unconfirmed and self._unconfirmed[0].number <= record.number:
                self.unconfirmed_bytes -= num_bytes(self._unconfirmed.popleft())
        elif not self._is_known and self._unconfirmed[-1].iteration <= record.iteration_done:
            self._unconfirmed.clear()
            self.unconfirmed_bytes = self._next_number = 0
        if self._unconfirmed and not self._may_put():
            return stored
        restarted, self._server = self._server not in (None, stored.server), stored.server
        if self._unconfirmed and (restarted or time.monotonic() - self._last_sent > _RESEND_SECS):
            self._count_sends(stored, restarted)
            logging.info("sending %d segments again", len(self._unconfirmed))
            self._put(self._unconfirmed)
        return stored

    def call(self, function: Callable[[], object]) -> None:
        """Calls a function that sends something else."""
        function()

    def take_metrics(self) -> dict[str, float]:
        """None: it drops nothing."""
        return {}

    def flush(self, waiting: Waiting) -> None:
        """Waits until everything is stored."""
        while self.unconfirmed_segments:
            self.confirm()
            if self.unconfirmed_segments:
                waiting.check()
                time.sleep(_POLL_SECS)

    def _count_sends(self, stored: tables.Stored, restarted: bool) -> None:
        """Counts how often the oldest segment was sent in vain: a server that takes in none does not count."""
        oldest = self._unconfirmed[0]
        if restarted or oldest.number != self._oldest:
            self._oldest, self._sends = oldest.number, 0
        self._sends += self._sends == 0 or stored.received > self._received
        self._received = stored.received
        if self._sends >= _MAX_SENDS and not self.is_patient:
            raise RefusedError(
                f"the replay server has not stored segment {oldest.number} ({oldest.num_steps} steps of iteration "
                f"{oldest.iteration}), sent {_MAX_SENDS} times, though it takes in segments: its log "
                "(logs/replay.log) says what it refused. The steps that it has not stored are given up"
            )

    def _send_unsent(self) -> None:
        """Numbers and sends what has not been sent yet, so much at a time that the rest may still be dropped."""
        while self._unsent and self._may_put():
            segments, size = list[Segment](), 0
            while self._unsent and size < _ASK_BYTES:
                segment = dataclasses.replace(
                    self._unsent.popleft(),
                    worker_id=self.worker_id,
                    incarnation=self.incarnation,
                    number=self._next_number,
                )
                segments.append(segment)
                self._next_number += 1
                self._unsent_rows -= segment.num_rows
                size += num_bytes(segment)
            self._unconfirmed += segments
            self._put(segments)

    def _may_put(self) -> bool:
        """Whether nothing is being put now."""
        return True

    def _put(self, segments: Iterable[Segment]) -> None:
        self._last_sent = time.monotonic()
        self.call(functools.partial(self._put_bundles, list(bundled(segments, self.max_bundle_rows))))

    def _put_bundles(self, bundles: Sequence[Sequence[Segment]]) -> None:
        for bundle in bundles:
            self.connection.put(tables.SEGMENTS, to_wire(bundle))
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
        self._table, self._thread = table, Background(f"newest {name}")
        self._read: Future[list[np.ndarray] | None] | None = None

    @property
    def is_pending(self) -> bool:
        """Whether a read is under way."""
        return self._read is not None

    def get(self) -> list[np.ndarray] | None:
        """Begins a read unless one is under way."""
        if self._read is None:
            self._read = self._thread.call(self._table.get)
        if not self._read.done():
            return None
        read, self._read = self._read, None
        return read.result()


class BackgroundHeartbeat:
    """A heartbeat that is written in a thread; those that come while another is being written are left out.

    Last words wait for that, and are written at once.
    """

    def __init__(self, heartbeat: Heartbeat) -> None:
        self._heartbeat, self._thread = heartbeat, Background("heartbeat")
        self._writing: Future[None] | None = None

    def beat(self, state: str, **fields: Any) -> None:
        """See Heartbeat."""
        if state in _LAST_WORDS:
            wait([self._writing] if self._writing is not None else [], _LAST_SECS)
            self._heartbeat.beat(state, **fields)
        elif self._writing is None or self._writing.done():
            self._writing = self._thread.call(functools.partial(self._heartbeat.beat, state, **fields))


@dataclasses.dataclass(eq=False)
class BackgroundSender(SegmentSender):
    """A SegmentSender whose methods return at once, but for `flush`: a thread puts what it sends, in order.

    What is not stored is bounded: beyond `max_unsent_mb` the oldest segments that were not sent yet are dropped. They
    have no number by then, so those behind them are stored all the same. Never dropped are the newest segment, the
    first random experience, for whose amount a run waits, and in lock-step the end of a worker's share of an iteration.

    Attributes:
      max_unsent_mb: MiB of segments that are not known to be stored.
      is_lockstep: The replay server waits for each iteration.
      dropped_steps: How many there were.
    """

    max_unsent_mb: int
    _: dataclasses.KW_ONLY
    is_lockstep: bool

    def __post_init__(self) -> None:
        super().__post_init__()
        self._status = BackgroundReader(self._status, tables.STATUS)
        self._thread = Background("send segments")
        self._newest_call: Future[None] | None = None
        self._error: BaseException | None = None
        self._reported_steps = self.dropped_steps = 0

    def send(self, segment: Segment) -> None:
        """See SegmentSender; raises what the thread ended with."""
        super().send(segment)
        self._drop()

    def call(self, function: Callable[[], object]) -> None:
        """Has the thread call a function, behind all that it is to do already."""
        self._newest_call = self._thread.call(functools.partial(self._do, function))

    def confirm(self) -> tables.Stored | None:
        """To be called now and then: sends what a slow server has held up. Raises what the thread ended with."""
        self._may_put()
        return super().confirm()

    def take_metrics(self) -> dict[str, float]:
        """`dropped_steps` since the last call."""
        dropped, self._reported_steps = self.dropped_steps - self._reported_steps, self.dropped_steps
        return {"dropped_steps": float(dropped)}

    def _may_put(self) -> bool:
        if self._error is not None:
            raise self._error
        return self._newest_call is None or self._newest_call.done()

    def _do(self, function: Callable[[], object]) -> None:
        """Does it however long the server is away: the worker continues meanwhile, and nothing of it may be lost."""
        while self._error is None:
            try:
                function()
                return
            except ServerUnreachableError as error:
                logging.warning("%s; the worker continues, and keeps what it can't send", error)
                time.sleep(_POLL_SECS)
            except BaseException as error:  # For whoever sends next.
                self._error = error

    def _drop(self) -> None:
        """Drops the oldest segments, as far as is necessary and allowed."""
        number = 0
        while self.unconfirmed_bytes > self.max_unsent_mb * _MIB and number < len(self._unsent) - 1:
            segment = self._unsent[number]
            is_needed = self.is_lockstep and segment.end_of_iteration
            if is_needed or segment.iteration == INIT_ITERATION:
                number += 1
                continue
            del self._unsent[number]
            self._unsent_rows -= segment.num_rows
            self.unconfirmed_bytes -= num_bytes(segment)
            self.dropped_steps += segment.num_steps
            logging.log_every_n_seconds(
                logging.WARNING,
                "the replay server takes segments too slowly: %d steps were dropped so far, the oldest beyond "
                "max_unsent_mb=%d",
                _SPEAK_SECS,
                *(self.dropped_steps, self.max_unsent_mb),
            )
