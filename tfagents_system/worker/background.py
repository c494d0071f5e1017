"""What may block is done in threads, for a worker that steps a device: between two steps it waits for nothing."""

from __future__ import annotations

import collections
import dataclasses
import gc
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, Protocol

import numpy as np
from absl import logging

from tfagents_system.replay.ring import INIT_ITERATION
from tfagents_system.run_files.heartbeat import Heartbeat
from tfagents_system.transport.connection import Connection, ServerUnreachableError, StoppedError, Waiting
from tfagents_system.transport.segments import Segment
from tfagents_system.worker.sender import SegmentSender, num_bytes

_LAST_WORDS, _LAST_SECS = ("done", "stopped"), 5.0
_MIB = 2**20
_CONFIRM_SECS = 1.0
_POLL_SECS = 0.02
_TELL_SECS = 10.0
_SWITCH_SECS = 0.0005  # How long another thread may keep Python to itself while a step is due; usually 5 ms.


def leave_python_to_steps() -> None:
    """Other threads hold up a step as little as possible, and garbage is collected between episodes alone."""
    sys.setswitchinterval(_SWITCH_SECS)
    gc.collect()
    gc.freeze()  # What is there by now stays: searching it for garbage again and again takes time.
    gc.disable()


class Reader(Protocol):
    """The newest item of a table."""

    def get(self, timeout_secs: float = ...) -> list[np.ndarray] | None: ...


def look(reader: Reader) -> list[np.ndarray] | None:
    """The newest item, or None; an answer that is on its way already is not waited for once more."""
    return reader.get(0.0) if is_pending(reader) else reader.get()


def is_pending(reader: Reader) -> bool:
    """Whether what was asked for is on its way: the next call takes it."""
    return getattr(reader, "is_pending", False)


class BackgroundReader:
    """A reader that returns at once: what the read that an earlier call has begun has brought, else None.

    Attributes:
      is_pending: A read is under way.
    """

    def __init__(self, reader: Reader, name: str) -> None:
        self._reader = reader
        self._executor = ThreadPoolExecutor(1, f"newest {name}")
        self._read: Future[list[np.ndarray] | None] | None = None

    @property
    def is_pending(self) -> bool:
        return self._read is not None

    def get(self, timeout_secs: float = 0.0) -> list[np.ndarray] | None:
        """Begins a read unless one is under way; `timeout_secs` is for who uses a reader that waits."""
        del timeout_secs
        if self._read is None:
            self._read = self._executor.submit(self._reader.get)
        if not self._read.done():
            return None
        read, self._read = self._read, None
        return read.result()


class BackgroundConnection:
    """A connection to the replay server whose methods return at once.

    Args:
      connection: The real one.
      sender: Its thread writes the items, in order and behind the segments before them.
    """

    def __init__(self, connection: Connection, sender: BackgroundSender) -> None:
        self._connection = connection
        self._sender = sender
        self.address = connection.address
        self.news = connection.news

    def newest(self, table: str) -> BackgroundReader:
        """Reads the newest item of a table as often as wanted."""
        return BackgroundReader(self._connection.newest(table), table)

    def put(self, table: str, arrays: Sequence[np.ndarray]) -> None:
        """Has one item written."""
        self._sender.call(lambda: self._connection.put(table, arrays))

    def try_put(self, table: str, arrays: Sequence[np.ndarray], timeout_secs: float) -> bool:
        """The same, unless something else waits to be written."""
        if not self._sender.is_idle:
            return False
        self._sender.call(lambda: self._connection.try_put(table, arrays, timeout_secs))
        return True


AnyConnection = Connection | BackgroundConnection


class BackgroundHeartbeat:
    """A heartbeat that is written in a thread; of those that are due while another is being written only the last is.

    Last words wait for that, and are written at once.
    """

    def __init__(self, heartbeat: Heartbeat) -> None:
        self._heartbeat = heartbeat
        self._chore = Chore("heartbeat")

    def beat(self, state: str, **fields: Any) -> None:
        """See Heartbeat."""
        if state in _LAST_WORDS:
            self._chore.finish(_LAST_SECS)
            self._heartbeat.beat(state, **fields)
        else:
            self._chore.begin(lambda: self._heartbeat.beat(state, **fields))


class Chore:
    """Something that is done now and then, in a thread; what is asked for last is done in any case."""

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(1, name)
        self._asked = collections.deque[Callable[[], None]](maxlen=1)
        self._last: Future[None] | None = None

    def begin(self, function: Callable[[], None]) -> None:
        """Does it, after what is under way, and instead of what waits for that."""
        self._asked.append(function)  # Before the question whether the thread has yet to look there.
        if self._last is None or self._last.running() or self._last.done():
            self._last = self._executor.submit(self._do)

    def _do(self) -> None:
        try:
            function = self._asked.pop()
        except IndexError:  # `finish` has left it out.
            return
        function()

    def finish(self, secs: float) -> None:
        """Waits until what is under way is done, at most so long; what has not begun is left out."""
        self._asked.clear()
        if self._last is not None:
            wait([self._last], secs)


@dataclasses.dataclass
class _Item:
    """What the thread is to do; in order.

    Attributes:
      segment: It sends this one; None: it does something else.
    """

    do: Callable[[], object]
    segment: Segment | None = None
    num_bytes: int = 0


class BackgroundSender:
    """A SegmentSender whose methods return at once.

    What waits is bounded: beyond `max_unsent_mb` the oldest segments that have not been sent yet are dropped. They have
    no number by then, so those behind them are stored all the same. Never dropped are the newest segment, the first
    random experience, for whose amount a run waits, and in lock-step the end of a worker's share of an iteration.

    Args:
      sender: Used by the thread alone.
      max_unsent_mb: MiB of segments that are not known to be stored.
      is_lockstep: The replay server waits for each iteration.

    Attributes:
      dropped_segments, dropped_steps: How many there were.
    """

    def __init__(self, sender: SegmentSender, max_unsent_mb: int, *, is_lockstep: bool) -> None:
        self._sender = sender
        self._max_bytes = max_unsent_mb * _MIB
        self._is_lockstep = is_lockstep
        self._changed = threading.Condition()
        self._waiting: collections.deque[_Item] = collections.deque()
        self._waiting_bytes = 0
        self._is_busy = self._is_asked = self._is_hurried = False
        self._error: BaseException | None = None
        self._tell_at = float("-inf")
        self._told_segments = self._told_steps = 0  # In the log, and in the metrics.
        self.dropped_segments = self.dropped_steps = 0
        threading.Thread(target=self._serve, name="send segments", daemon=True).start()

    @property
    def unconfirmed_segments(self) -> int:
        """Segments that are not known to be stored."""
        with self._changed:
            waiting = sum(item.segment is not None for item in self._waiting)
        return waiting + self._sender.unconfirmed_segments + self._is_busy

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits to be sent."""
        return not self._waiting and not self._is_busy

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
        """Has the thread send again what is not stored, where it is time to."""
        with self._changed:
            self._raise()
            self._is_asked = True
            self._changed.notify()

    def take_metrics(self) -> dict[str, float]:
        """`dropped_steps` since the last call."""
        dropped, self._told_steps = self.dropped_steps - self._told_steps, self.dropped_steps
        return {"dropped_steps": float(dropped)}

    def flush(self, waiting: Waiting) -> None:
        """Waits until everything is stored.

        Raises:
          StoppedError, ServerUnreachableError: See `Waiting.check`. Nothing is sent any more, whatever the reason.
        """
        with self._changed:
            self._is_hurried = True
            self._changed.notify()
        while self.unconfirmed_segments:
            if self._error is not None:
                logging.error("sending has ended: %r", self._error)
                raise StoppedError from self._error
            waiting.check()
            time.sleep(_POLL_SECS)

    def _put(self, item: _Item) -> None:
        with self._changed:
            self._raise()
            self._waiting.append(item)
            self._waiting_bytes += item.num_bytes
            if self._waiting_bytes + self._sender.unconfirmed_bytes > self._max_bytes:
                self._drop()
            self._changed.notify()

    def _drop(self) -> None:
        """Drops the oldest, as far as is necessary and allowed."""
        newest = self._waiting[-1]
        kept: list[_Item] = []
        while self._waiting and self._waiting_bytes + self._sender.unconfirmed_bytes > self._max_bytes:
            item = self._waiting.popleft()
            if item is newest or item.segment is None or not self._may_drop(item.segment):
                kept.append(item)
                continue
            self._waiting_bytes -= item.num_bytes
            self.dropped_segments += 1
            self.dropped_steps += item.segment.num_steps
        self._waiting.extendleft(reversed(kept))
        if time.monotonic() >= self._tell_at:
            self._tell_dropped()

    def _tell_dropped(self) -> None:
        """Of how many there were so far, where some have not been told."""
        if self.dropped_segments > self._told_segments:
            self._tell_at, self._told_segments = time.monotonic() + _TELL_SECS, self.dropped_segments
            logging.warning(
                "the replay server takes segments too slowly: %d segments with %d steps were dropped so far, the "
                "oldest beyond max_unsent_mb=%d",
                *(self.dropped_segments, self.dropped_steps, self._max_bytes // _MIB),
            )

    def _may_drop(self, segment: Segment) -> bool:
        is_needed = self._is_lockstep and segment.end_of_iteration
        return segment.iteration != INIT_ITERATION and not is_needed

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

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
            secs = _POLL_SECS if self._is_hurried else _CONFIRM_SECS
            self._changed.wait_for(lambda: self._waiting or self._is_asked or self._is_hurried, secs)
            if not self._waiting and self._is_hurried:
                self._changed.wait(_POLL_SECS)
            if not self._waiting:
                self._is_asked = False
                return _Item(self._sender.confirm)
            item = self._waiting.popleft()
            self._waiting_bytes -= item.num_bytes
            self._is_busy = item.segment is not None
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
        with self._changed:
            self._is_busy = False
            if not self._waiting:
                self._tell_dropped()


AnySender = SegmentSender | BackgroundSender
