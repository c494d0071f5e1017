"""The replay server's tables as remote programs share them: each table is read once for all."""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from absl import logging

from tfagents_system.transport import tables
from tfagents_system.transport.connection import Connection
from tfagents_system.transport.remote.errors import ChannelError
from tfagents_system.transport.remote.frames import Arrays

_READ_SECS = 5.0
_FOLLOW_SECS = 0.025
_IDLE_SECS = 0.5
# A worker polls it until its segments are stored; the server writes it every 20 ms.
_MAX_AGE_SECS = {tables.STATUS: 0.02}


class NewestShare:
    """The newest item of a table, for any number of concurrent threads.

    What `get` returns was read after the call began (STATUS: at most 20 ms before), so a caller that was notified of a
    new policy finds it.

    Args:
      connection: To the replay server.
      table: Of the item.
    """

    def __init__(self, connection: Connection, table: str) -> None:
        self._reader = connection.newest(table)
        self._max_age_secs = _MAX_AGE_SECS.get(table, 0.0)
        self._changed = threading.Condition()
        self._newest: Arrays | None = None
        self._began_at = float("-inf")  # When the read of `_newest` began.
        self._is_reading = False

    def get(self) -> Arrays | None:
        """None if there is none or the server does not answer."""
        oldest = time.monotonic() - self._max_age_secs
        with self._changed:
            while self._began_at < oldest:
                if not self._is_reading:
                    self._is_reading = True
                    break
                self._changed.wait(_READ_SECS)
            else:
                return self._newest
        began, newest = time.monotonic(), None
        try:
            newest = self._reader.get(_READ_SECS)
        finally:
            with self._changed:
                self._began_at, self._newest, self._is_reading = began, newest, False
                self._changed.notify_all()
        return newest


class Follower(Protocol):
    """A connection that follows a table."""

    def send_news(self, arrays: Arrays) -> None: ...


class NewsShare:
    """Notifies followers of the trainer's progress.

    The news tables serve this machine's workers with one stream each; here one poll every 25 ms serves all.

    Args:
      progress: The table with the trainer's progress.
    """

    def __init__(self, progress: NewestShare) -> None:
        self._progress = progress
        self._lock = threading.Lock()
        self._told: dict[Follower, bytes] = {}
        self._is_wanted = threading.Event()
        threading.Thread(target=self._follow, name="follow progress", daemon=True).start()

    def add(self, follower: Follower) -> None:
        with self._lock:
            self._told.setdefault(follower, b"")
        self._is_wanted.set()

    def remove(self, follower: Follower) -> None:
        with self._lock:
            self._told.pop(follower, None)
            if not self._told:
                self._is_wanted.clear()

    def _follow(self) -> None:
        while True:
            self._is_wanted.wait()
            if (arrays := self._progress.get()) is not None:
                self._tell(arrays, arrays[0].tobytes())
            time.sleep(_FOLLOW_SECS)

    def _tell(self, arrays: Arrays, content: bytes) -> None:
        with self._lock:
            due = [follower for follower, told in self._told.items() if told != content]
            self._told.update(dict.fromkeys(due, content))
        for follower in due:
            try:
                follower.send_news(arrays)
            except ChannelError:
                pass  # Its own thread ends it.


SendItem = Callable[[str, int, Arrays], None]


class QueueShare:
    """A queue for a remote reader: items that it has not acknowledged are sent again when it reconnects.

    Args:
      connection: To the replay server.
      table: The queue.
    """

    def __init__(self, connection: Connection, table: str) -> None:
        self._reader = connection.reader(table)
        self._table = table
        self._changed = threading.Condition()
        self._in_order = threading.Lock()  # Held while items are sent: a reader takes them in order of their numbers.
        self._send: SendItem | None = None
        self._credits = 0
        self._next_number = 1
        self._sent: collections.deque[tuple[int, Arrays]] = collections.deque()  # not acknowledged
        threading.Thread(target=self._feed, name=f"feed {table}", daemon=True).start()

    def take(self, send: SendItem, credits: int, seen: int) -> None:
        """A reader has room for more.

        Args:
          send: Sends an item to it; a different function than before means a new connection.
          credits: Items beyond those already requested.
          seen: Number of the last item that has arrived.
        """
        with self._changed:
            while self._sent and self._sent[0][0] <= seen:
                self._sent.popleft()
            if send == self._send:
                self._credits += credits
                self._changed.notify_all()
                return
        with self._in_order:
            again = list(self._sent)
            for number, arrays in again:
                send(self._table, number, arrays)
            with self._changed:
                self._send, self._credits = send, credits - len(again)
                self._changed.notify_all()

    def forget(self, send: SendItem) -> None:
        """A connection has ended."""
        with self._changed:
            if self._send == send:
                self._send = None

    def _feed(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._send is not None and self._credits > 0)
            if (arrays := self._reader.get(_IDLE_SECS)) is None:
                continue
            with self._in_order:
                with self._changed:
                    number, send = self._next_number, self._send
                    self._next_number += 1
                    self._credits -= 1
                    self._sent.append((number, arrays))
                if send is not None:
                    try:
                        send(self._table, number, arrays)
                    except ChannelError as error:
                        logging.info("an item of %s is sent again later: %s", self._table, error)


class SharedTables:
    """Everything of the replay server that remote programs use.

    Args:
      connection: To the replay server, on this machine.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._lock = threading.Lock()
        self._newest: dict[str, NewestShare] = {}
        self._queues: dict[str, QueueShare] = {}
        self._news: NewsShare | None = None

    def newest(self, table: str) -> Arrays | None:
        return self._share(table).get()

    @property
    def news(self) -> NewsShare:
        progress = self._share(tables.PROGRESS)
        with self._lock:
            self._news = self._news or NewsShare(progress)
            return self._news

    def _share(self, table: str) -> NewestShare:
        with self._lock:
            if table not in self._newest:
                self._newest[table] = NewestShare(self.connection, table)
            return self._newest[table]

    def queue(self, table: str) -> QueueShare:
        with self._lock:
            if table not in self._queues:
                self._queues[table] = QueueShare(self.connection, table)
            return self._queues[table]

    def feed(self, table: str, arrays: Sequence[np.ndarray]) -> None:
        """See `Connection.feed_dead_reader`; the stream of this process is alive once there is one."""
        with self._lock:
            is_read = table in self._queues
        if not is_read:
            self.connection.feed_dead_reader(table, arrays)

    def forget(self, follower: Follower, send: SendItem) -> None:
        """A connection has ended."""
        with self._lock:
            news, queues = self._news, list(self._queues.values())
        if news is not None:
            news.remove(follower)
        for queue in queues:
            queue.forget(send)
