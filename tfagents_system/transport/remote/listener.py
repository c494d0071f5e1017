"""The gateway's port: accepts connections, only a few unauthenticated ones at a time."""

from __future__ import annotations

import collections
import contextlib
import socket
import threading
import time
from collections.abc import Callable

from absl import logging

from tfagents_system.transport.remote.admission import Refusals

_MAX_HANDSHAKES, _MAX_HANDSHAKES_OF_ONE = 128, 64


class Listener:
    """Accepts connections in a thread.

    Args:
      serve: Serves one, in a thread of its own: the connection, the other side's host and its port. It must call
        `has_shaken_hands` once.
      refusals: Counts connections beyond that limit.
    """

    def __init__(self, serve: Callable[[socket.socket, str, int], None], refusals: Refusals) -> None:
        self._serve, self._refusals = serve, refusals
        self._lock = threading.Lock()
        self._shaking_hands: collections.Counter[str] = collections.Counter()
        self._socket: socket.socket | None = None
        self._is_closed = False

    def listen(self, port: int) -> int:
        """Begins, on every address; returns the port. See `Gateway.listen`."""
        if socket.has_dualstack_ipv6():
            self._socket = socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=256)
        else:
            self._socket = socket.create_server(("", port), backlog=256)
        threading.Thread(target=self._accept_forever, args=(self._socket,), name="accept", daemon=True).start()
        return int(self._socket.getsockname()[1])

    def close(self) -> None:
        """Stops accepting."""
        self._is_closed = True
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # Wakes the thread that accepts.
            self._socket.close()

    @property
    def shaking_hands(self) -> int:
        """Unauthenticated connections."""
        with self._lock:
            return self._shaking_hands.total()

    def has_shaken_hands(self, host: str) -> None:
        """A connection is authenticated, or closed."""
        with self._lock:
            self._shaking_hands -= collections.Counter([host])

    def _may_shake_hands(self, host: str) -> bool:
        with self._lock:
            is_full = self._shaking_hands.total() >= _MAX_HANDSHAKES
            if is_full or self._shaking_hands[host] >= _MAX_HANDSHAKES_OF_ONE:
                return False
            self._shaking_hands[host] += 1
            return True

    def _accept_forever(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, address = listener.accept()
            except OSError as error:
                if self._is_closed:
                    return
                logging.log_every_n_seconds(logging.WARNING, "accept: %s", 60, error)
                time.sleep(0.1)  # For example, no file descriptor is left.
                continue
            host, port = address[0].removeprefix("::ffff:"), address[1]
            if self._may_shake_hands(host):
                try:
                    threading.Thread(target=self._serve, args=(connection, host, port), daemon=True).start()
                    continue
                except RuntimeError:  # No thread can be started.
                    self.has_shaken_hands(host)
            self._refusals.add("busy", f"{host} port {port}", "too many connections that have not proved themselves")
            connection.close()
