"""A gateway in a thread of this process, in front of any server; and what its tests share.

As a program, `gateway_for_tests.py FOLDER PORT REPLAY_PORT`, it prints its port and serves until its input ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

import tfagents_system
from tests.support.settings_for_tests import variables_with
from tests.support.waiting import until
from tfagents_system.cluster import gateway as gateway_module
from tfagents_system.cluster.gateway import Gateway, Slots
from tfagents_system.machine.claims import SlotCounts
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.settings.resolved import Settings
from tfagents_system.transport.credentials import make_credentials, server_context, tls_context
from tfagents_system.transport.tunnel import Answer, Hello, Tunnel, line_of

IDENTITY = {"params": "a" * 64, "config": "b" * 64, "specs": "c" * 64}
DEADLINE_SECS = 20.0


@dataclasses.dataclass
class Running:
    """A gateway that listens."""

    gateway: Gateway
    port: int
    paths: RunPaths
    loop: asyncio.AbstractEventLoop

    @property
    def address(self) -> str:
        return f"localhost:{self.port}"

    def hello(self, kind: str = "collect", **changes: Any) -> Hello:
        values: dict[str, Any] = {
            "identity": IDENTITY,
            "version": tfagents_system.__version__,
            "token": "t",
        }
        return Hello(kind, **values | changes)

    def tunnel(self, token: str = "t") -> Tunnel:
        return tunnel_to(self.address, self.paths, token=token)

    @contextlib.contextmanager
    def said(self, hello: Hello) -> Iterator[tuple[Any, Answer]]:
        """A client's connection after its hello, and the answer; for a connection of data there is none."""
        with (
            self.dialled() as tls,
            tls.makefile("rwb", buffering=0) as stream,
        ):
            stream.write(line_of(hello))
            line = b"{}" if hello.kind == "data" else stream.readline()
            yield stream, msgspec.json.decode(line or b"{}", type=Answer)

    @contextlib.contextmanager
    def dialled(self) -> Iterator[ssl.SSLSocket]:
        """A client's connection before its hello."""
        with (
            socket.create_connection(("localhost", self.port), timeout=DEADLINE_SECS) as plain,
            tls_context(ssl.PROTOCOL_TLS_CLIENT, self.paths.credentials).wrap_socket(plain) as tls,
        ):
            yield tls

    def refused(self, reason: str) -> int:
        return self.gateway.refused[reason]

    def end(self, why: str, secs: float = 0.5) -> None:
        asyncio.run_coroutine_threadsafe(self.gateway.end(why, secs), self.loop).result(DEADLINE_SECS)


def tunnel_to(
    address: str, paths: RunPaths, kind: str = "collect", identity: dict[str, str] = IDENTITY, token: str = "t"
) -> Tunnel:
    """Of a role on this machine, whose heartbeats are in a file beside the run directory."""
    return Tunnel(address, Hello(kind, identity, token=token), paths.credentials, None, beat_file(paths))


def beat_file(paths: RunPaths) -> Path:
    return paths.exp_dir.with_name("beat.json")


@contextlib.contextmanager
def running_gateway(
    folder: Path,
    *,
    password: str = "",
    max_workers: int = 4,
    port: int = 0,
    has_trainer: bool = True,
    replay_port: int = 1,
    local: int = 1,
) -> Iterator[Running]:
    """A gateway of a run with one planned worker, which it starts itself unless `local` is 0."""
    paths = RunPaths(folder / "run")
    for path in (paths.logs, paths.heartbeats):
        path.mkdir(parents=True, exist_ok=True)
    make_credentials(paths.credentials, "test")
    welcome = Answer(run=7, settings=Settings(variables_with(max_workers=max_workers)).shared())
    slots = Slots(SlotCounts(local, 1, max_workers), has_trainer)
    gateway = Gateway(paths, IDENTITY, welcome, replay_port, slots, password)
    listener, loop = gateway_module.listen(port), asyncio.new_event_loop()
    loop.set_exception_handler(lambda loop, context: None)
    context = server_context(paths.credentials)

    def serve() -> None:
        asyncio.set_event_loop(loop)
        loop.run_until_complete(gateway.listen(listener, context))
        loop.run_forever()
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        loop.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield Running(gateway, listener.getsockname()[1], paths, loop)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(DEADLINE_SECS)
        listener.close()


@contextlib.contextmanager
def server_that(serves: Callable[[socket.socket], None]) -> Iterator[int]:
    """Serves each connection in a thread of its own; yields the port."""
    listener = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=serves, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def echo_server() -> contextlib.AbstractContextManager[int]:
    """In the place of a replay server: sends back what it gets."""

    def echo(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            while data := connection.recv(65536):
                connection.sendall(data)

    return server_that(echo)


def slow_line(port: int, bytes_per_sec: float) -> contextlib.AbstractContextManager[int]:
    """A relay to a port of this machine, which carries so much each way."""

    def carry(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(int(1 + bytes_per_sec / 50)):
                time.sleep(len(data) / bytes_per_sec)
                target.sendall(data)
        for end in (source, target):  # While another thread waits in recv(), close() alone does not end a connection.
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def relay(client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", port)) as server:
            threading.Thread(target=carry, args=(server, client), daemon=True).start()
            carry(client, server)

    return server_that(relay)


def wait_until(condition: Callable[[], object], secs: float = DEADLINE_SECS) -> None:
    until(condition, secs, "what a gateway or a tunnel does")


if __name__ == "__main__":
    place: dict[str, Any] = {"port": int(sys.argv[2]), "replay_port": int(sys.argv[3])}
    with running_gateway(Path(sys.argv[1]), max_workers=40, local=0, has_trainer=False, **place) as own:
        print(own.port, flush=True)
        sys.stdin.read()
        print(dict(own.gateway.refused), flush=True)
