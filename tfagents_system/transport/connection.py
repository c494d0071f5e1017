"""A role's connection to the Reverb server: every wait has a deadline, is logged, and ends when the role stops."""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np
import reverb
from absl import logging

from tfagents_system.errors import UserError
from tfagents_system.machine import peers
from tfagents_system.transport import loopback

_INFO_TIMEOUT_SECS = 5
_PUT_TIMEOUT_SECS = 5.0
_RECONNECT_SECS = 1.0
_ITEMS_A_FLUSH = 40  # Reverb fills the log with warnings when more items wait for confirmation.
_SPEAK_SECS = 60.0
# Consecutive segments of the same shapes share a stream, at half the cost. It keeps the last item in the server, so
# larger ones get a stream of their own, which ends with them. Workers send segments from one thread.
_STREAMED, _STREAM_BYTES = "segments", 2**18
_LEAST_BYTES_PER_SEC = 16 * 1024  # Of a line to another machine.
# Sockets that hold the servers' ports for the life of the process: gRPC may reconnect by itself at any time.
_HELD: dict[int, socket.socket] = {}


class StoppedError(Exception):
    """The role was told to stop while it waited."""


class ServerUnreachableError(Exception):
    """The replay server did not answer before the deadline."""


class Waiting:
    """One wait with a deadline, which logs every minute what it waits for.

    Args:
      what: Completes "waiting for ..."; a function is called each time the wait is logged.
      deadline_secs: Seconds until `check` raises.
      stop: Tells whether the role is to stop.
    """

    def __init__(self, what: str | Callable[[], str], deadline_secs: float, stop: Callable[[], bool]) -> None:
        self._what = what
        self._deadline_secs = deadline_secs
        self._stop = stop
        self._started = time.monotonic()
        self._speak_at = _SPEAK_SECS

    def check(self) -> None:
        """To be called in the waiting loop.

        Raises:
          StoppedError: The role was told to stop.
          ServerUnreachableError: The deadline has passed.
        """
        waited = time.monotonic() - self._started
        if self._stop():
            raise StoppedError
        if waited >= self._deadline_secs:
            raise ServerUnreachableError(f"waited {waited:.0f} s for {self._words()}: giving up, see its log")
        if waited >= self._speak_at:
            logging.info("waiting %.0f s for %s", waited, self._words())
            self._speak_at += _SPEAK_SECS

    def _words(self) -> str:
        return self._what if isinstance(self._what, str) else self._what()


def _hold(port: int) -> None:
    """Keeps other users from listening on a port of this machine until this process ends."""
    if port in _HELD or peers.other_users_are_allowed():
        return
    try:
        _HELD[port] = peers.hold_port(port)
    except OSError as error:
        if peers.users_listening(port) - {os.geteuid()}:
            raise UserError(
                f"port {port} of this machine belongs to another user. Nothing is sent there: whoever answers could "
                f"run programs as you. Choose another SAC_REVERB_PORT, or set {peers.ALLOW_STRANGERS}=1 where all "
                "users of this machine may do what you may"
            ) from None
        # Older kernels report a connection that our killed server left half closed as root's, for at most a minute.
        logging.warning("port %d is not held: %s", port, error)


class Connection:
    """Puts items into tables and reads them.

    Args:
      address: `host:port`: of the server on this machine, or of the gateway where there is a tunnel.
      stop: Tells whether the role is to stop; ends every wait.
      tunnel: The Unix socket that leads to the gateway.

    Attributes:
      address: As above; on this machine `127.0.0.1:port`, as `localhost` means `[::1]` as well.
      stop: As above; may be replaced.
      is_far: There is a tunnel.
      is_closed: Its threads read no more, see `close`.

    Raises:
      UserError: Another user owns the port, so we would talk to their server.
    """

    def __init__(self, address: str, stop: Callable[[], bool], tunnel: str | None = None) -> None:
        self.address, self.stop, self.is_far = address, stop, tunnel is not None
        if tunnel is not None:
            loopback.never_in_process()
            self._client = reverb.Client(f"unix:{tunnel}")
        else:
            port = int(address.rpartition(":")[2])
            _hold(port)
            self.address = f"127.0.0.1:{port}"
            self._client = reverb.Client(self.address)
        self.is_closed = False
        self._stream: reverb.TrajectoryWriter | None = None
        self._stream_shapes: list[tuple[tuple[int, ...], np.dtype]] = []
        # The writer of what the server has not confirmed in time, and its arrays. It sends them when the server is
        # back. Reverb may corrupt memory where such a writer is given up and another one appends: it is waited for.
        self._unconfirmed: tuple[reverb.TrajectoryWriter, Sequence[np.ndarray]] | None = None

    def close(self) -> None:
        """Ends the threads of its readers at their next item or error, for tests: a program ends with them."""
        self.is_closed = True

    def wait_until_up(self, deadline_secs: float) -> None:
        """Waits for the server to answer.

        Raises:
          StoppedError, ServerUnreachableError: See `Waiting.check`.
        """
        waiting = Waiting(f"the replay server at {self.address}", deadline_secs, self.stop)
        while True:
            try:
                self._client.server_info(timeout=1)
                return
            except (reverb.errors.ReverbError, RuntimeError):
                waiting.check()
                time.sleep(0.1)

    def put(self, table: str | Sequence[str], arrays: Sequence[np.ndarray], deadline_secs: float = 600.0) -> None:
        """Writes one item, into one or several tables, and waits until the server has it.

        While the server is away, the item's writer waits for it. After an error it is written again, and may arrive
        twice.

        Raises:
          StoppedError, ServerUnreachableError: See `Waiting.check`.
        """
        waiting = Waiting(f"the replay server at {self.address} to take {table}", deadline_secs, self.stop)
        while not self.try_put(table, arrays, _PUT_TIMEOUT_SECS):
            waiting.check()

    def try_put(self, table: str | Sequence[str], arrays: Sequence[np.ndarray], timeout_secs: float) -> bool:
        """Like `put`, once; False if the server has not confirmed it in time (it may still arrive)."""
        names = [table] if isinstance(table, str) else table
        shapes = [(array.shape, array.dtype) for array in arrays]
        is_streamed = names == [_STREAMED] and sum(array.nbytes for array in arrays) <= _STREAM_BYTES
        try:
            if self._unconfirmed is not None:
                writer, earlier = self._unconfirmed
                self._confirm(writer, earlier, timeout_secs)
                self._unconfirmed = None
                if earlier is arrays:
                    return True
            if is_streamed and self._stream is not None and shapes == self._stream_shapes:
                writer = self._stream
            else:  # A writer keeps the shapes of its first item; another one takes 0.7 ms.
                writer = self._client.trajectory_writer(num_keep_alive_refs=1)
                if is_streamed:
                    self._stream, self._stream_shapes = writer, shapes
            writer.append(list(arrays))
            for number, name in enumerate(names, 1):  # The data is sent once.
                writer.create_item(name, 1.0, [column[-1:] for column in writer.history])
                if number % _ITEMS_A_FLUSH == 0 or number == len(names):
                    self._unconfirmed = writer, arrays if number == len(names) else []
                    self._confirm(writer, arrays, timeout_secs)
            self._unconfirmed = None
        except reverb.errors.DeadlineExceededError:
            return False
        except (reverb.errors.ReverbError, RuntimeError) as error:
            self._unconfirmed = self._stream = None
            logging.log_every_n_seconds(logging.WARNING, "put %s: %s", 60, table, error)
            time.sleep(min(timeout_secs, _RECONNECT_SECS))
            return False
        return True

    def _confirm(self, writer: reverb.TrajectoryWriter, arrays: Sequence[np.ndarray], timeout_secs: float) -> None:
        """Waits until the server has what was written: on its way to another machine, as long as a slow line takes.

        Raises:
          DeadlineExceededError: It has not, in time.
        """
        far_secs = sum(array.nbytes for array in arrays) / _LEAST_BYTES_PER_SEC if self.is_far else 0.0
        deadline = time.monotonic() + timeout_secs + far_secs
        while True:
            secs = min(deadline - time.monotonic(), _PUT_TIMEOUT_SECS)
            try:
                writer.flush(timeout_ms=max(1, int(secs * 1000)))
                return
            except reverb.errors.DeadlineExceededError:
                if time.monotonic() >= deadline or self.stop():
                    raise

    def feed_dead_reader(self, table: str, arrays: Sequence[np.ndarray]) -> None:
        """Puts a dummy item into an empty queue before this process reads from it.

        The stream of a killed reader stays in the server until it has taken one more item, which would otherwise be a
        real one. Without such a stream, the next reader gets the dummy item and must recognize it.
        """
        if self.size(table) == 0:
            self.try_put(table, arrays, _PUT_TIMEOUT_SECS)

    def size(self, table: str) -> int | None:
        """Items in a table now; None if the server does not answer."""
        try:
            return self._client.server_info(timeout=_INFO_TIMEOUT_SECS)[table].current_size
        except (reverb.errors.ReverbError, RuntimeError):
            return None

    def reader(self, table: str, prefetch: int = 1, wake: threading.Event | None = None) -> Reader:
        """Reads a queue item by item in a thread of its own, which sets `wake` with each item."""
        return Reader(self, table, prefetch, wake)

    def news(self, table: str) -> Reader:
        """Reads a news table in a thread of its own: older items that nobody asked for are forgotten.

        An item may get lost (the stream of a killed process takes one more before it ends): look at the newest table,
        too.
        """
        return Reader(self, table, keeps_newest=True)

    def newest(self, table: str) -> NewestReader:
        """Reads the newest item of a table as often as wanted."""
        return NewestReader(self, table)


class Reader:
    """Items of a queue or a news table, each once.

    Reverb's reads block in C++, where no signal handler runs and no deadline holds: a daemon thread does them.
    """

    def __init__(
        self,
        connection: Connection,
        table: str,
        prefetch: int = 1,
        wake: threading.Event | None = None,
        *,
        keeps_newest: bool = False,
    ) -> None:
        self._connection, self._table = connection, table
        self._wake, self._keeps_newest = wake, keeps_newest
        self._items: queue.Queue[list[np.ndarray]] = queue.Queue(maxsize=prefetch)
        threading.Thread(target=self._read_forever, name=f"read {table}", daemon=True).start()

    def get(self, timeout_secs: float) -> list[np.ndarray] | None:
        """The next item, or None if there is none in time."""
        return _taken(self._items, timeout_secs)

    def _read_forever(self) -> None:
        connection = self._connection
        while not connection.is_closed:
            try:
                for sample in connection._client.sample(self._table, num_samples=2**31, emit_timesteps=False):
                    self._take(_arrays(sample))
                    if connection.is_closed:
                        return
            except (reverb.errors.ReverbError, RuntimeError) as error:
                logging.log_every_n_seconds(logging.INFO, "read %s: %s", 60, self._table, error)
                time.sleep(_RECONNECT_SECS)

    def _take(self, arrays: list[np.ndarray]) -> None:
        while not self._connection.is_closed:
            try:
                self._items.put(arrays, timeout=0.0 if self._keeps_newest else _RECONNECT_SECS)
                break
            except queue.Full:
                if self._keeps_newest:
                    self.get(0.0)
        if self._wake is not None:
            self._wake.set()


class NewestReader:
    """The newest item of a table that holds one; see `Reader` on its thread."""

    def __init__(self, connection: Connection, table: str) -> None:
        self._connection, self._table = connection, table
        self._is_filled = False
        self._wanted: queue.Queue[None] = queue.Queue(maxsize=1)
        self._items: queue.Queue[list[np.ndarray]] = queue.Queue(maxsize=1)
        threading.Thread(target=self._read_forever, name=f"read {table}", daemon=True).start()

    def get(self, timeout_secs: float = 5.0) -> list[np.ndarray] | None:
        """The newest item, or None if there is none or the server does not answer in time."""
        # Asking for the size costs more with more tables: ask only if the table may be empty.
        if not self._is_filled and self._wanted.empty() and self._items.empty():
            self._is_filled = bool(self._connection.size(self._table))
            if not self._is_filled:
                return None
        # What an earlier call has asked for but gave up is outdated, except over a line so slow that all are late.
        late = _taken(self._items, 0.0)
        if late is not None and self._connection.is_far:
            return late
        with contextlib.suppress(queue.Full):  # The thread reads already.
            self._wanted.put_nowait(None)
        item = _taken(self._items, timeout_secs)
        self._is_filled = item is not None  # Else the server may have been restarted.
        return item

    def _read_forever(self) -> None:
        while True:
            self._wanted.get()
            try:
                sample = next(self._connection._client.sample(self._table, num_samples=1, emit_timesteps=False))
                self._items.put(_arrays(sample))
            except (reverb.errors.ReverbError, RuntimeError):
                time.sleep(_RECONNECT_SECS)


def _taken(items: queue.Queue[list[np.ndarray]], timeout_secs: float) -> list[np.ndarray] | None:
    """The next item, or None if there is none in time."""
    try:
        return items.get(timeout=timeout_secs) if timeout_secs > 0 else items.get_nowait()
    except queue.Empty:
        return None


def _arrays(sample: reverb.ReplaySample) -> list[np.ndarray]:
    """The item's arrays, without the time dimension (of 1) that Reverb puts in front."""
    return [array[0] for array in sample.data]
