"""A TCP proxy that can be cut: a network partition between one worker and the replay server, without root."""

from __future__ import annotations

import contextlib
import socket
import threading


class Proxy:
    """Forwards connections to a port of this machine until it is cut.

    While it is cut nothing passes and nothing is refused: packets are gone, as in a partition. What was open then is
    reset when it heals, as hosts do with connections that have been silent for long.

    Attributes:
      port: Where it listens.
    """

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        # Its port is shared, as the replay server's is: clients dial no other ones.
        self._listener = socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True, reuse_port=True)
        self.port = int(self._listener.getsockname()[1])
        self._passes = threading.Event()
        self._passes.set()
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()

    def cut(self) -> None:
        """From now on nothing passes."""
        self._passes.clear()

    def heal(self) -> None:
        """New connections pass; those from before are reset."""
        for end in list(self._open):
            _close(end)
        self._passes.set()

    def close(self) -> None:
        """Ends it and its connections."""
        _close(self._listener)  # shutdown() ends a blocked accept(); close() alone lets it take one more.
        self.heal()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._open.add(client)
            threading.Thread(target=self._connect, args=(client,), daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        self._passes.wait()
        try:
            server = socket.create_connection(("127.0.0.1", self._target_port))
        except OSError:
            _close(client)
            return
        self._open.add(server)
        for source, sink in ((client, server), (server, client)):
            threading.Thread(target=self._forward, args=(source, sink), daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self._passes.wait()
                sink.sendall(data)
        for end in (source, sink):
            self._open.discard(end)
            _close(end)


def _close(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
