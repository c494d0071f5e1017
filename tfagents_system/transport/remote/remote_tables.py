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
    """The gateway's answer; `message` stays None where the connection breaks before it comes.

    Attributes:
      event: Set when there is nothing more to wait for.
    """

    event: threading.Event = dataclasses.field(default_factory=threading.Event)
    message: msgspec.Struct | None = None
    arrays: Arrays = dataclasses.field(default_factory=list)


class Questions:
    """Questions to the gateway, sent in any thread. It answers each, unless the connection ends.

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
        """Sends a question; returns at once what its answer will be.

        Args:
          make: Makes the question, with an id.
          timeout_secs: A connection that is down is waited for so long.
          arrays: Go with the question.

        Raises:
          GatewayRefusedError: The gateway does not let us in.
        """
        channel, number, answer = self._channel, next(self._ids), Answer()
        with channel.changed:
            channel.changed.wait_for(lambda: channel.transport is not None or channel.is_over, timeout_secs)
            if (transport := channel.transport) is not None:
                self._answers[number] = answer
        try:
            if transport is not None:
                transport.send(make(number), arrays)
                return answer
        except ChannelError:
            self._answers.pop(number, None)
        channel.raise_if_refused()
        if channel.is_over:
            time.sleep(min(timeout_secs, _PAUSE_SECS))  # A caller that asks repeatedly does not spin.
        answer.event.set()
        return answer

    def take(self, number: int, message: msgspec.Struct, arrays: Arrays) -> None:
        """The answer to a question has arrived."""
        if (answer := self._answers.pop(number, None)) is not None:
            answer.message, answer.arrays = message, arrays
            answer.event.set()

    def raise_if_refused(self) -> None:
        """Raises: GatewayRefusedError, SlotLostError."""
        self._channel.raise_if_refused()

    def give_up(self) -> None:
        """The connection has ended: open questions get no answers."""
        for number in list(self._answers):
            if (answer := self._answers.pop(number, None)) is not None:
                answer.event.set()


class Question:
    """A question that is asked as often as wanted, and not again while its answer may be on its way.

    Over a slow line that may take longer than anyone waits for it at a time.

    Args:
      questions: Asks it.
      make: Makes it, with an id.
      arrays: Go with it.
    """

    def __init__(
        self, questions: Questions, make: Callable[[int], msgspec.Struct], arrays: Sequence[np.ndarray] = ()
    ) -> None:
        self._questions = questions
        self._make = make
        self._arrays = arrays
        self._open: Answer | None = None

    @property
    def is_pending(self) -> bool:
        """Whether it was asked and its answer has not been returned."""
        return self._open is not None

    def answer(self, timeout_secs: float) -> Answer | None:
        """The answer; None if it has not come in time, counted from when the question was sent.

        Raises:
          GatewayRefusedError: The gateway does not let us in.
        """
        self._open = answer = self._open or self._questions.ask(self._make, timeout_secs, self._arrays)
        if not answer.event.wait(timeout_secs):
            return None
        self._open = None
        self._questions.raise_if_refused()
        return answer


class RemoteNewest:
    """The newest item of a table that holds one.

    What `get` returns was the newest after the call began, or after an earlier one that returned without it.

    Args:
      questions: Asks for it.
      table: Its name.
    """

    def __init__(self, questions: Questions, table: str) -> None:
        self._question = Question(questions, lambda number: messages.Newest(number, table))

    @property
    def is_pending(self) -> bool:
        """Whether it is on its way: the next call takes it."""
        return self._question.is_pending

    def get(self, timeout_secs: float = 5.0) -> Arrays | None:
        """The newest item, or None if there is none or the server does not answer in time."""
        answer = self._question.answer(timeout_secs)
        if answer is None or not isinstance(answer.message, messages.NewestIs) or not answer.message.found:
            return None
        return answer.arrays


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
