"""What may block is done in threads, for a worker that steps a device: between two steps it waits for nothing."""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, Protocol

import numpy as np

from tfagents_system.run_files.heartbeat import Heartbeat
from tfagents_system.transport.connection import Connection
from tfagents_system.worker.background_sender import BackgroundSender
from tfagents_system.worker.sender import SegmentSender

_LAST_WORDS, _LAST_SECS = ("done", "stopped"), 5.0


AnySender = SegmentSender | BackgroundSender


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
