"""The remote end: the tables of a run on another machine, as if they were here."""

from __future__ import annotations

import contextlib
import itertools
import json
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from absl import logging

from tfagents_system.run_files.heartbeat import json_text
from tfagents_system.transport.connection import ServerUnreachableError, Waiting
from tfagents_system.transport.remote import messages, permissions
from tfagents_system.transport.remote.errors import ChannelError, GatewayRefusedError
from tfagents_system.transport.remote.frames import Arrays, Limits
from tfagents_system.transport.remote.messages import Hello, Welcome, identity_of
from tfagents_system.transport.remote.remote_tables import Answer, RemoteNewest, RemoteNews, RemoteQueue
from tfagents_system.transport.remote.stream import Transport, describe
from tfagents_system.transport.remote.streaming import SendWindow
from tfagents_system.transport.remote.tls_client import CONNECT_SECS, TlsClient

__all__ = ["Hello", "RemoteConnection", "Welcome", "identity_of"]

_IDLE_SECS = 30.0
_PING_SECS = 5.0
_FAREWELL_SECS = 5.0
_PUT_SECS = 5.0
_POLL_SECS = 0.05
_FIRST_BACKOFF_SECS, _MAX_BACKOFF_SECS = 0.5, 5.0
_GATEWAY_LIMITS = Limits(message_bytes=2**20, body_bytes=2**32)
_LOG_CHUNK_CHARS, _LOG_CHARS = 30_000, 200_000
_SPEAK_SECS = 60.0


class RemoteConnection:
    """Puts items into the tables of a run on another machine and reads them; see `replay.connection.Connection`.

    A thread keeps it connected. Segments and requests are sent without waiting for each to arrive, in order, and again
    where the connection broke: whoever sends them hears of what came of them in another way. All else is waited for.

    Args:
      address: `host:port` of the run's gateway.
      stop: Tells whether the role is to stop; ends every wait.
      hello: Who we are.
      credentials: Folder with ca.pem, client.pem and client.key.
      password_file: The run's password, if it asks for one.
      on_end: Told once, in another thread, when the run is over: `done` or `stopped`.

    Attributes:
      address, stop: As above; `stop` may be replaced.
      end_of_run: `done` or `stopped` once the run is over, None before.

    Raises:
      UserError: The credentials or the password can't be used, or the address is none.
    """

    def __init__(
        self,
        address: str,
        stop: Callable[[], bool],
        hello: Hello,
        *,
        credentials: Path,
        password_file: Path | None = None,
        on_end: Callable[[str], None] | None = None,
    ) -> None:
        self.address = address
        self.stop = stop
        self.end_of_run: str | None = None
        self._tls_client = TlsClient(address, credentials, password_file)
        self._hello = msgspec.structs.replace(
            hello, token=hello.token or secrets.token_hex(16), host=hello.host or messages.this_host()
        )
        self._on_end = on_end
        self._changed = threading.Condition()
        self._transport: Transport | None = None
        self._welcome: Welcome | None = None
        self._refusal: GatewayRefusedError | None = None
        self._down_since, self._why_down = time.time(), "not connected yet"
        self._is_closed = False
        self._send_again_from: int | None = None  # An item that the replay server did not take in time.
        self._ids = itertools.count(1)
        self._answers: dict[int, Answer] = {}
        self._window = SendWindow()
        self._news: dict[str, RemoteNews] = {}
        self._queues: dict[str, RemoteQueue] = {}
        self._fed: dict[str, Arrays] = {}
        threading.Thread(target=self._stay_connected, name=f"channel {address}", daemon=True).start()
        threading.Thread(target=self._tend, name=f"tend {address}", daemon=True).start()

    # What Connection has, too.

    def wait_until_up(self, deadline_secs: float) -> None:
        """Waits until the gateway has let us in.

        Raises:
          StoppedError, ServerUnreachableError: See `Waiting.check`.
          GatewayRefusedError: It does not.
        """
        self._wait("to let us in", deadline_secs, lambda: self._transport is not None)

    def put(self, table: str | Sequence[str], arrays: Sequence[np.ndarray], deadline_secs: float = 600.0) -> None:
        """Writes one item, into one or several tables, and waits until the server has it (`STREAMED`: until sent).

        Where the connection breaks, the item is written again: it may then arrive twice.

        Raises:
          StoppedError, ServerUnreachableError: See `Waiting.check`.
          GatewayRefusedError: The gateway does not take it.
        """
        names = [table] if isinstance(table, str) else list(table)
        if _is_streamed(names):
            self._stream(names, arrays, deadline_secs)
            return
        waiting = self._waiting(f"to take {table}", deadline_secs)
        while not self.try_put(names, arrays, _PUT_SECS):
            waiting.check()

    def try_put(self, table: str | Sequence[str], arrays: Sequence[np.ndarray], timeout_secs: float) -> bool:
        """Like `put`, once; False where the server has not confirmed it in time (it may arrive still)."""
        names = [table] if isinstance(table, str) else list(table)
        if _is_streamed(names):
            try:
                self._stream(names, arrays, timeout_secs)
            except ServerUnreachableError:
                return False
            return True
        answer = self._ask(lambda number: messages.Put(number, names), timeout_secs, arrays).message
        return isinstance(answer, messages.Done) and answer.ok

    def feed_dead_reader(self, table: str, arrays: Sequence[np.ndarray]) -> None:
        """See `Connection.feed_dead_reader`; the reader is the gateway, and fed again where that was restarted."""
        self._fed[table] = list(arrays)

    def size(self, table: str) -> int | None:
        """Items in a table now, None where the server does not answer."""
        answer = self._ask(lambda number: messages.Size(number, table), _PUT_SECS).message
        return answer.size if isinstance(answer, messages.SizeIs) else None

    def reader(self, table: str, prefetch: int = 1, wake: threading.Event | None = None) -> RemoteQueue:
        """Reads a queue, item by item; `wake` is set with each."""
        reader = self._queues[table] = RemoteQueue(self._tell_if_up, table, prefetch + 1, wake)
        self._tell_if_up(reader.request())
        return reader

    def news(self, table: str) -> RemoteNews:
        """Waits for what is new in a table."""
        news = self._news[table] = RemoteNews()
        self._tell_if_up(messages.Follow(table))
        return news

    def newest(self, table: str) -> RemoteNewest:
        """Reads the newest item of a table as often as wanted."""
        return RemoteNewest(self._ask, table)

    # What only a remote program has.

    @property
    def welcome(self) -> Welcome:
        """What the gateway said when it let us in; to be asked for after `wait_until_up`."""
        assert self._welcome is not None, "not connected yet: wait_until_up() first"
        return self._welcome

    @property
    def slot(self) -> int:
        """The worker that we are."""
        return self.welcome.worker_id

    @property
    def run(self) -> dict[str, Any]:
        """The run's run.json."""
        run = json.loads(self.welcome.run)
        return run if isinstance(run, dict) else {}

    def tell(self, heartbeat: Mapping[str, Any]) -> None:
        """Passes a heartbeat on to the run, if we are connected."""
        self._tell_if_up(messages.Beat(json_text(heartbeat)))

    def send_log(self, name: str, text: str) -> None:
        """Passes the end of a log on to the run, if we are connected.

        Args:
          name: Of the log, for its readers.
          text: Lines; the last 200,000 characters of them are sent.
        """
        text = text[-_LOG_CHARS:]
        for start in range(0, len(text), _LOG_CHUNK_CHARS):
            self._tell_if_up(messages.Log(name, text[start : start + _LOG_CHUNK_CHARS]))

    def close(self) -> None:
        """Says goodbye: the slot is free for others. Waits until the gateway has read that, and all before it."""
        self._is_closed = True
        self._tell_if_up(messages.Goodbye())
        with self._changed:
            # It is the gateway that ends the connection: what it has not read yet would be lost with it.
            self._changed.wait_for(lambda: self._transport is None, _FAREWELL_SECS)
            if self._transport is not None:
                self._transport.shut()
            self._changed.notify_all()

    def describe(self) -> str:
        """Who can't reach whom, since when, why, and what to check; empty where all is well."""
        with self._changed:
            if self._transport is not None:
                return ""
            since = time.strftime("%H:%M:%S", time.localtime(self._down_since))
            return (
                f"{self._hello.kind} on {self._hello.host} can't reach the gateway at {self.address} since {since} "
                f"({self._why_down}): check that the run is alive, that gateway.json in its directory has this "
                "address, and that no firewall is between (run_script.sh --check tries the whole path)"
            )

    # What is not waited for.

    def _stream(self, names: list[str], arrays: Sequence[np.ndarray], deadline_secs: float) -> None:
        num_bytes = sum(array.nbytes for array in arrays)
        self._wait(f"to take {names[0]}", deadline_secs, lambda: self._window.has_room(num_bytes))
        with self._window.in_order:
            message = self._window.add(names, arrays, num_bytes)
            with self._changed:
                transport = self._transport
            if transport is not None:
                with contextlib.suppress(ChannelError):  # All of the window is sent again when we are back.
                    transport.send(message, arrays)

    # Questions.

    def _ask(
        self, make: Callable[[int], msgspec.Struct], timeout_secs: float, arrays: Sequence[np.ndarray] = ()
    ) -> Answer:
        """Sends a question and waits for its answer, which stays empty where there is none in time.

        Args:
          make: Makes the question, with an id.
          timeout_secs: A connection that is down is waited for, too.
          arrays: Go with the question.
        """
        deadline = time.monotonic() + timeout_secs
        number, answer = next(self._ids), Answer()
        with self._changed:
            self._answers[number] = answer
            self._changed.wait_for(lambda: self._transport is not None or self._is_over(), timeout_secs)
            transport = self._transport
        try:
            if transport is not None:
                transport.send(make(number), arrays)
                answer.event.wait(max(0.0, deadline - time.monotonic()))
            elif self._is_over():
                time.sleep(min(timeout_secs, _POLL_SECS))  # Whoever asks again and again does not spin.
        except ChannelError:
            pass
        finally:
            self._answers.pop(number, None)
        self._raise_if_refused()
        return answer

    def _tell_if_up(self, message: msgspec.Struct) -> None:
        with self._changed:
            transport = self._transport
        if transport is not None:
            with contextlib.suppress(ChannelError):
                transport.send(message)

    # Waiting.

    def _is_over(self) -> bool:
        return self._is_closed or self._refusal is not None or self.end_of_run is not None

    def _raise_if_refused(self) -> None:
        if self._refusal is not None:
            raise self._refusal

    def _waiting(self, what: str, deadline_secs: float) -> Waiting:
        def told() -> str:
            trouble = self.describe()
            return f"the gateway at {self.address} {what}{f': {trouble}' if trouble else ''}"

        return Waiting(told, deadline_secs, lambda: self.stop() or self._is_closed or self.end_of_run is not None)

    def _wait(self, what: str, deadline_secs: float, is_met: Callable[[], bool]) -> None:
        waiting = self._waiting(what, deadline_secs)
        while True:
            self._raise_if_refused()
            if is_met():
                return
            waiting.check()
            with self._changed:
                self._changed.wait(_POLL_SECS)

    # The thread that stays connected and receives.

    def _stay_connected(self) -> None:
        backoff_secs, spoke_at = _FIRST_BACKOFF_SECS, 0.0
        while not self._is_over():
            try:
                with contextlib.closing(self._connect()) as transport:
                    backoff_secs = _FIRST_BACKOFF_SECS
                    self._receive_forever(transport)
            except GatewayRefusedError as refusal:
                self._refusal = refusal
                logging.error("%s", refusal)
            except (ChannelError, OSError) as error:
                self._went_down(str(error) if isinstance(error, ChannelError) else describe(error))
            except BaseException as error:  # A mistake of ours must not leave the role waiting without a word.
                self._went_down(f"{type(error).__name__}: {error}")
                logging.exception("channel")
            with self._changed:
                self._transport = None
                self._changed.notify_all()
            for answer in list(self._answers.values()):
                answer.event.set()
            if self._is_over():
                return
            if time.monotonic() - spoke_at > _SPEAK_SECS:
                spoke_at = time.monotonic()
                logging.warning("%s", self.describe())
            with self._changed:
                self._changed.wait(backoff_secs)
            backoff_secs = min(_MAX_BACKOFF_SECS, 2 * backoff_secs)

    def _went_down(self, why: str) -> None:
        with self._changed:
            if self._transport is not None:
                self._down_since = time.time()
            self._transport, self._why_down = None, why

    def _connect(self) -> Transport:
        transport = self._tls_client.open()
        try:
            transport.send(self._tls_client.with_password(self._hello))
            answer, _ = transport.receive(messages.FromGateway, _GATEWAY_LIMITS, CONNECT_SECS)
            if isinstance(answer, messages.Refused):
                if answer.final:
                    raise GatewayRefusedError(
                        f"the gateway at {self.address} refuses us: {answer.message}", answer.reason
                    )
                raise ChannelError(f"it refuses us for now: {answer.message}")
            if isinstance(answer, messages.End):
                self._ended(answer.why)
            if not isinstance(answer, Welcome):
                raise ChannelError(f"it answers with {type(answer).__name__}")
            self._begin(transport, answer)
        except BaseException:
            transport.close()
            raise
        return transport

    def _begin(self, transport: Transport, welcome: Welcome) -> None:
        """Says all that a gateway must know that has just let us in."""
        is_new_gateway = self._welcome is None or self._welcome.gateway != welcome.gateway
        # The slot that we have is the slot that we are: a later connection gets the same one, or none.
        self._hello = msgspec.structs.replace(
            self._hello, worker_id=welcome.worker_id if welcome.worker_id >= 0 else self._hello.worker_id
        )
        self._welcome = welcome
        for table in list(self._news):
            transport.send(messages.Follow(table))
        for table, reader in list(self._queues.items()):
            if is_new_gateway:
                reader.start_anew()
                if table in self._fed:
                    transport.send(messages.Feed(table), self._fed[table])
            transport.send(reader.request())
        with self._window.in_order:
            for message, arrays in self._window.items():
                transport.send(message, arrays)
            with self._changed:
                self._transport = transport
                self._changed.notify_all()

    def _receive_forever(self, transport: Transport) -> None:
        """Until the connection ends, also when the run is over: last words are still to be said."""
        while True:
            message, arrays = transport.receive(messages.FromGateway, _GATEWAY_LIMITS, _IDLE_SECS)
            match message:
                case messages.Done() if message.id < 0 and message.ok:
                    self._window.remove(message.id)
                    with self._changed:
                        self._changed.notify_all()
                case messages.Done() if message.id < 0:
                    with self._changed:
                        self._send_again_from = message.id
                        self._changed.notify_all()
                case messages.Done() | messages.SizeIs() | messages.NewestIs():
                    if (answer := self._answers.get(message.id)) is not None:
                        answer.message, answer.arrays = message, arrays
                        answer.event.set()
                case messages.News():
                    if (news := self._news.get(message.table)) is not None:
                        news.take(arrays)
                case messages.Item():
                    if (reader := self._queues.get(message.table)) is not None:
                        reader.take(message.number, arrays)
                case messages.Refused():
                    raise GatewayRefusedError(
                        f"the gateway at {self.address} refuses us: {message.message}", message.reason
                    )
                case messages.End():
                    self._ended(message.why)

    def _ended(self, why: str) -> None:
        if self.end_of_run is None:
            self.end_of_run = why
            logging.info("the run is over: %s", why)
            if self._on_end is not None:
                self._on_end(why)

    def _tend(self) -> None:
        """Sends what is due by itself, not in the thread that receives: the gateway may wait for that one."""
        while not (self._is_closed or self._refusal is not None):
            with self._changed:
                self._changed.wait_for(lambda: self._send_again_from is not None, _PING_SECS)
                first, self._send_again_from = self._send_again_from, None
                transport = self._transport
            if transport is None:
                continue
            with contextlib.suppress(ChannelError):
                if first is None:
                    transport.send(messages.Ping())
                    continue
                with self._window.in_order:
                    for message, arrays in self._window.items(first):
                        transport.send(message, arrays)


def _is_streamed(names: list[str]) -> bool:
    return len(names) == 1 and names[0] in permissions.STREAMED
