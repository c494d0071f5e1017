"""Tables of a run on another machine, read from the remote end."""

from __future__ import annotations

import dataclasses
import itertools
import queue
import threading
import time
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from tfagents_system.transport.remote import messages
from tfagents_system.transport.remote.channel import Channel
from tfagents_system.transport.remote.errors import ChannelError
from tfagents_system.transport.remote.frames import Arrays

_PAUSE_SECS = 0.05


@dataclasses.dataclass
class Answer:
    """The gateway's answer; `message` stays None if nothing arrives in time or the connection breaks."""

    event: threading.Event = dataclasses.field(default_factory=threading.Event)
    message: msgspec.Struct | None = None
    arrays: Arrays = dataclasses.field(default_factory=list)


class Questions:
    """Questions that wait for their answers; asked in any thread.

    Args:
      channel: To the gateway.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._ids = itertools.count(1)
        self._answers: dict[int, Answer] = {}

    def ask(
        self, make: Callable[[int], msgspec.Struct], timeout_secs: float, arrays: Sequence[np.ndarray] = ()
    ) -> Answer:
        """Sends a question and waits for its answer, which stays empty if none arrives in time.

        Args:
          make: Makes the question, with an id.
          timeout_secs: A connection that is down is waited for, too.
          arrays: Go with the question.

        Raises:
          GatewayRefusedError: The gateway does not let us in.
        """
        channel, deadline = self._channel, time.monotonic() + timeout_secs
        number, answer = next(self._ids), Answer()
        with channel.changed:
            self._answers[number] = answer
            channel.changed.wait_for(lambda: channel.transport is not None or channel.is_over, timeout_secs)
            transport = channel.transport
        try:
            if transport is not None:
                transport.send(make(number), arrays)
                answer.event.wait(max(0.0, deadline - time.monotonic()))
            elif channel.is_over:
                time.sleep(min(timeout_secs, _PAUSE_SECS))  # A caller that asks repeatedly does not spin.
        except ChannelError:
            pass
        finally:
            self._answers.pop(number, None)
        channel.raise_if_refused()
        return answer

    def take(self, number: int, message: msgspec.Struct, arrays: Arrays) -> None:
        """The answer to a question has arrived."""
        if (answer := self._answers.get(number)) is not None:
            answer.message, answer.arrays = message, arrays
            answer.event.set()

    def give_up(self) -> None:
        """The connection has ended: open questions get no answers."""
        for answer in list(self._answers.values()):
            answer.event.set()


class RemoteNewest:
    """The newest item of a table that holds one.

    Args:
      questions: Asks for it.
      table: Its name.
    """

    def __init__(self, questions: Questions, table: str) -> None:
        self._questions = questions
        self._table = table

    def get(self, timeout_secs: float = 5.0) -> Arrays | None:
        """The newest item, or None if there is none or the server does not answer in time."""
        answer = self._questions.ask(lambda number: messages.Newest(number, self._table), timeout_secs)
        return answer.arrays if isinstance(answer.message, messages.NewestIs) and answer.message.found else None


class RemoteQueue:
    """Items of a queue, each once.

    Args:
      tell: Sends a message if the gateway is reached.
      table: Its name.
      room: Items that may arrive ahead of `get`.
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
        """Tells a new gateway which items have arrived."""
        with self._lock:
            return messages.Take(self._table, max(0, self._room - self._items.qsize()), self._seen)

    def start_anew(self) -> None:
        """A new gateway process counts from 1."""
        with self._lock:
            self._seen = 0

    def take(self, number: int, arrays: Arrays) -> None:
        with self._lock:
            if number <= self._seen:
                return  # A repetition of an item that had arrived.
            self._seen = number
        self._items.put(arrays)
        if self._wake is not None:
            self._wake.set()
