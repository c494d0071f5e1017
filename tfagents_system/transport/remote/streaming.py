"""Items that are not awaited one by one: those in flight from the remote end, and those that the gateway stores."""

from __future__ import annotations

import collections
import threading
from collections.abc import Iterator, Sequence

import numpy as np

from tfagents_system.transport import tables
from tfagents_system.transport.connection import Connection, ItemWriter
from tfagents_system.transport.remote import messages
from tfagents_system.transport.remote.frames import Arrays

# Their writers do not wait for each item: they resend lost items by themselves, seconds later.
STREAMED = (tables.SEGMENTS, tables.REQUESTS)
# In flight: enough to fill a slow line, few enough to be sent again.
_WINDOW_ITEMS, _WINDOW_BYTES = 32, 64 * 2**20
_ITEMS_TOGETHER, _BYTES_TOGETHER = 16, 8 * 2**20


class SendWindow:
    """Streamed items in flight, oldest first."""

    def __init__(self) -> None:
        self.in_order = threading.Lock()  # Held while they are sent: they must not overtake each other.
        self._lock = threading.Lock()
        self._items: collections.deque[tuple[messages.Put, Sequence[np.ndarray], int]] = collections.deque()
        self._bytes = 0
        self._next_id = -(2**62)  # Other ids are above 0.

    def has_room(self, num_bytes: int) -> bool:
        with self._lock:
            fits = len(self._items) < _WINDOW_ITEMS and self._bytes + num_bytes <= _WINDOW_BYTES
            return fits or not self._items

    def add(self, names: list[str], arrays: Sequence[np.ndarray], num_bytes: int) -> messages.Put:
        with self._lock:
            message = messages.Put(id=self._next_id, tables=names)
            self._next_id += 1
            self._items.append((message, arrays, num_bytes))
            self._bytes += num_bytes
            return message

    def remove(self, number: int) -> None:
        """All items up to this id have arrived."""
        with self._lock:
            while self._items and self._items[0][0].id <= number:
                self._bytes -= self._items.popleft()[2]

    def items(self, first: int = -(2**62)) -> Iterator[tuple[messages.Put, Sequence[np.ndarray]]]:
        with self._lock:
            items = [(message, arrays) for message, arrays, _ in self._items if message.id >= first]
        return iter(items)


class Arrivals:
    """Items of one client for a streamed table: those that arrive together are stored together.

    They arrive without waiting for each other, with increasing ids: after one that was not stored, later items are
    dropped until it arrives again.

    Args:
      connection: To the replay server.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._writers: dict[str, ItemWriter] = {}
        self._expected: int | None = None
        self._table = ""
        self._first = 0
        self._items: list[Arrays] = []
        self._bytes = 0

    def has_room(self, table: str) -> bool:
        """Whether an item may be stored together with the gathered ones."""
        is_full = len(self._items) >= _ITEMS_TOGETHER or self._bytes >= _BYTES_TOGETHER
        return not self._items or (table == self._table and not is_full)

    def add(self, number: int, table: str, arrays: Arrays) -> None:
        if self._expected not in (None, number):
            return
        if not self._items:
            self._first, self._table = number, table
        self._expected = number + 1
        self._items.append(arrays)
        self._bytes += sum(array.nbytes for array in arrays)

    def store(self, timeout_secs: float) -> messages.Done | None:
        """The answer to the client; None if there is nothing to store."""
        if not self._items:
            return None
        if self._table not in self._writers:
            self._writers[self._table] = self._connection.writer(self._table)
        ok = self._writers[self._table].put(self._items, timeout_secs)
        self._items, self._bytes = [], 0
        if ok:
            assert self._expected is not None
            return messages.Done(self._expected - 1, True)
        self._expected = self._first
        return messages.Done(self._first, False)
