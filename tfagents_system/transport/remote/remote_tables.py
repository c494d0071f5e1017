"""Tables of a run on another machine, read from the remote end."""

from __future__ import annotations

import dataclasses
import queue
import threading
from collections.abc import Callable

import msgspec

from tfagents_system.transport.remote import messages
from tfagents_system.transport.remote.frames import Arrays


@dataclasses.dataclass
class Answer:
    """What the gateway says to a question; `message` stays None where nothing comes in time or the line breaks."""

    event: threading.Event = dataclasses.field(default_factory=threading.Event)
    message: msgspec.Struct | None = None
    arrays: Arrays = dataclasses.field(default_factory=list)


class RemoteNewest:
    """The newest item of a table that holds one.

    Args:
      ask: Sends the message that is made for a number, and gives the answer within so many seconds.
      table: Its name.
    """

    def __init__(self, ask: Callable[[Callable[[int], msgspec.Struct], float], Answer], table: str) -> None:
        self._ask = ask
        self._table = table

    def get(self, timeout_secs: float = 5.0) -> Arrays | None:
        """The newest item, or None if there is none or the server does not answer in time."""
        answer = self._ask(lambda number: messages.Newest(number, self._table), timeout_secs)
        return answer.arrays if isinstance(answer.message, messages.NewestIs) and answer.message.found else None


class RemoteNews:
    """The newest item, once; older ones that nobody asked for are forgotten."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._newest: Arrays | None = None

    def get(self, timeout_secs: float) -> Arrays | None:
        """What is new since the last call, or None if there is nothing in time."""
        with self._changed:
            self._changed.wait_for(lambda: self._newest is not None, timeout_secs)
            newest, self._newest = self._newest, None
        return newest

    def take(self, arrays: Arrays) -> None:
        with self._changed:
            self._newest = arrays
            self._changed.notify_all()


class RemoteQueue:
    """Items of a queue, each once.

    Args:
      tell: Sends a message if the gateway is reached.
      table: Its name.
      room: Items that may come without being asked for.
      wake: Set when an item has come.
    """

    def __init__(
        self, tell: Callable[[msgspec.Struct], None], table: str, room: int, wake: threading.Event | None
    ) -> None:
        self._tell = tell
        self._table = table
        self._wake = wake
        self._lock = threading.Lock()
        self._items: queue.Queue[Arrays] = queue.Queue()
        self._room = room
        self._seen = 0

    def get(self, timeout_secs: float) -> Arrays | None:
        """The next item, or None if there is none in time."""
        try:
            arrays = self._items.get(timeout=timeout_secs) if timeout_secs > 0 else self._items.get_nowait()
        except queue.Empty:
            return None
        self._tell(messages.Take(self._table, 1, self._seen))
        return arrays

    def request(self) -> messages.Take:
        """To a gateway that does not know yet what we have."""
        with self._lock:
            return messages.Take(self._table, max(0, self._room - self._items.qsize()), self._seen)

    def start_anew(self) -> None:
        """Another gateway counts from 1."""
        with self._lock:
            self._seen = 0

    def take(self, number: int, arrays: Arrays) -> None:
        with self._lock:
            if number <= self._seen:
                return  # It was sent again, and had arrived.
            self._seen = number
        self._items.put(arrays)
        if self._wake is not None:
            self._wake.set()
