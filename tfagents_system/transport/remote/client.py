"""The remote end: gives access to the tables of a run on another machine as if they were local."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tfagents_system.machine.files import json_text
from tfagents_system.transport.connection import Waiting
from tfagents_system.transport.news import News
from tfagents_system.transport.remote import messages
from tfagents_system.transport.remote.channel import Channel
from tfagents_system.transport.remote.frames import Arrays
from tfagents_system.transport.remote.messages import Hello, Welcome, identity_of
from tfagents_system.transport.remote.remote_tables import Answer, Question, Questions, RemoteNewest, RemoteQueue
from tfagents_system.transport.remote.stream import Transport
from tfagents_system.transport.remote.tls_client import TlsClient

__all__ = ["Hello", "RemoteConnection", "Welcome", "identity_of"]

_PING_SECS = 5.0
_PUT_SECS = 5.0
_POLL_SECS = 0.05


class RemoteConnection:
    """Puts items into the tables of a run on another machine and reads them; see `replay.connection.Connection`.

    A thread keeps it connected. Each call waits for an answer, and asks again where the connection breaks before that.

    Args:
      address: `host:port` of the run's gateway.
      stop: Tells whether the role is to stop; ends every wait.
      hello: Who we are.
      credentials: Folder with ca.pem, client.pem and client.key.
      password_file: The run's password, if it asks for one.

    Attributes:
      address, stop: As above; `stop` may be replaced.

    Raises:
      UserError: The credentials or the password can't be used, or the address is invalid.
    """

    def __init__(
        self,
        address: str,
        stop: Callable[[], bool],
        hello: Hello,
        *,
        credentials: Path,
        password_file: Path | None = None,
    ) -> None:
        self.address = address
        self.stop = stop
        tls_client = TlsClient(address, credentials, password_file)
        self._channel = Channel(tls_client, hello, self._begin, self._take, self._lost)
        self._questions = Questions(self._channel)
        self._news: dict[str, News] = {}
        self._queues: dict[str, RemoteQueue] = {}
        self._fed: dict[str, Arrays] = {}
        self._channel.start()
        threading.Thread(target=self._tend, name=f"tend {address}", daemon=True).start()

    # The methods of Connection.

    def wait_until_up(self, deadline_secs: float) -> None:
        """Waits until the gateway has let us in.

        Raises:
          StoppedError, ServerUnreachableError: See `Waiting.check`.
          GatewayRefusedError: The gateway refuses us.
        """
        channel, waiting = self._channel, self._waiting("to let us in", deadline_secs)
        while True:
            channel.raise_if_refused()
            if channel.transport is not None:
                return
            waiting.check()
            with channel.changed:
                channel.changed.wait(_POLL_SECS)

    def put(self, table: str | Sequence[str], arrays: Sequence[np.ndarray], deadline_secs: float = 600.0) -> None:
        """Writes one item, into one or several tables, and waits until the server has it.

        If the connection breaks, the item is written again: it may then arrive twice.

        Raises:
          StoppedError, ServerUnreachableError: See `Waiting.check`.
          GatewayRefusedError: The gateway does not take it.
        """
        names = [table] if isinstance(table, str) else list(table)
        waiting = self._waiting(f"to take {table}", deadline_secs)
        question = Question(self._questions, lambda number: messages.Put(number, names), arrays)
        while not _is_done(question.answer(_PUT_SECS)):
            waiting.check()

    def try_put(self, table: str | Sequence[str], arrays: Sequence[np.ndarray], timeout_secs: float) -> bool:
        """Like `put`, once; False if the server has not confirmed it in time (it may still arrive)."""
        names = [table] if isinstance(table, str) else list(table)
        question = Question(self._questions, lambda number: messages.Put(number, names), arrays)
        return _is_done(question.answer(timeout_secs))

    def feed_dead_reader(self, table: str, arrays: Sequence[np.ndarray]) -> None:
        """See `Connection.feed_dead_reader`; the reader is the gateway, which is fed again after its restart."""
        self._fed[table] = list(arrays)

    def size(self, table: str) -> int | None:
        """Items in a table now; None if the server does not answer."""
        answer = Question(self._questions, lambda number: messages.Size(number, table)).answer(_PUT_SECS)
        return answer.message.size if answer is not None and isinstance(answer.message, messages.SizeIs) else None

    def reader(self, table: str, prefetch: int = 1, wake: threading.Event | None = None) -> RemoteQueue:
        """Reads a queue, item by item; `wake` is set with each."""
        reader = self._queues[table] = RemoteQueue(self._channel.tell, table, prefetch + 1, wake)
        self._channel.tell(reader.request())
        return reader

    def news(self, table: str) -> News:
        """Waits for new items of a table."""
        news = self._news[table] = News()
        self._channel.tell(messages.Follow(table))
        return news

    def newest(self, table: str) -> RemoteNewest:
        """Reads the newest item of a table as often as wanted."""
        return RemoteNewest(self._questions, table)

    # Only for remote programs.

    @property
    def end_of_run(self) -> str | None:
        """`done` or `stopped` once the run is over, None before."""
        return self._channel.end_of_run

    @property
    def welcome(self) -> Welcome:
        """The gateway's welcome message; available after `wait_until_up`."""
        assert self._channel.welcome is not None, "not connected yet: wait_until_up() first"
        return self._channel.welcome

    @property
    def slot(self) -> int:
        """Our worker number."""
        return self.welcome.worker_id

    def tell(self, heartbeat: Mapping[str, Any]) -> None:
        """Passes a heartbeat on to the run, if we are connected."""
        self._channel.tell(messages.Beat(json_text(heartbeat)))

    def close(self) -> None:
        """Says goodbye, which frees the slot; waits until the gateway has read that and everything before it."""
        self._channel.close()

    def describe(self) -> str:
        """Who can't reach whom, since when, why, and what to check; empty if all is well."""
        return self._channel.describe()

    # Waiting.

    def _waiting(self, what: str, deadline_secs: float) -> Waiting:
        def told() -> str:
            trouble = self.describe()
            return f"the gateway at {self.address} {what}{f': {trouble}' if trouble else ''}"

        return Waiting(told, deadline_secs, lambda: self.stop() or self._channel.is_left)

    # Called by the channel, in its thread.

    def _begin(self, transport: Transport, is_new_gateway: bool) -> None:
        """Sends everything that a gateway needs after it has let us in."""
        for table in list(self._news):
            transport.send(messages.Follow(table))
        for table, reader in list(self._queues.items()):
            if is_new_gateway:
                reader.start_anew()
                if table in self._fed:
                    transport.send(messages.Feed(table), self._fed[table])
            transport.send(reader.request())
        self._channel.use(transport)

    def _take(self, message: msgspec.Struct, arrays: Arrays) -> None:
        match message:
            case messages.Done() | messages.SizeIs() | messages.NewestIs():
                self._questions.take(message.id, message, arrays)
            case messages.News():
                if (news := self._news.get(message.table)) is not None:
                    news.take(arrays)
            case messages.Item():
                if (reader := self._queues.get(message.table)) is not None:
                    reader.take(message.number, arrays)

    def _lost(self) -> None:
        self._questions.give_up()

    # A thread of its own.

    def _tend(self) -> None:
        """Says that we are alive; not in the receiving thread, for which the gateway may wait."""
        while not (self._channel.is_closed or self._channel.refusal):
            time.sleep(_PING_SECS)
            self._channel.tell(messages.Ping())


def _is_done(answer: Answer | None) -> bool:
    return answer is not None and isinstance(answer.message, messages.Done) and answer.message.ok
