"""A gateway over tables in memory, and clients of it."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import math
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tfagents_system.machine.worker_slots import SlotCounts
from tfagents_system.report.episodes import Episode, Report
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.transport import tables
from tfagents_system.transport.remote import credentials
from tfagents_system.transport.remote.client import Hello, RemoteConnection
from tfagents_system.transport.remote.gateway import Gateway, RunFacts
from tfagents_system.transport.remote.remote_slots import RemoteSlots
from tfagents_system.transport.remote.shared_tables import SharedTables
from tfagents_system.transport.segments import Column, Layout, Segment

LAYOUT = Layout((Column("observation", (3,), "float32"),), (Column("action", (2,), "float32"),))
IDENTITY = {"params": "a" * 64, "config": "b" * 64, "specs": "c" * 64}
MAX_BYTES = 1_000_000
DEADLINE_SECS = 20.0


class FakeConnection:
    """What of `replay.connection.Connection` a gateway uses, in memory."""

    def __init__(self) -> None:
        self.items: dict[str, list[list[np.ndarray]]] = collections.defaultdict(list)
        self.newest_items: dict[str, list[np.ndarray]] = {}
        self.queues: dict[str, queue.Queue[list[np.ndarray]]] = collections.defaultdict(queue.Queue)
        self.takes = True
        self.reads: collections.Counter[str] = collections.Counter()  # Of the newest item, by table.
        self.fed: list[str] = []

    def try_put(self, names: Any, arrays: Any, timeout_secs: float) -> bool:
        del timeout_secs
        if not self.takes:
            time.sleep(0.05)
            return False
        for name in [names] if isinstance(names, str) else names:
            self.items[name].append([array.copy() for array in arrays])
            self.newest_items[name] = self.items[name][-1]
        return True

    def size(self, table: str) -> int:
        return len(self.items[table])

    def newest(self, table: str) -> Any:
        return _FakeNewest(self, table)

    def reader(self, table: str, prefetch: int = 1, wake: Any = None) -> Any:
        del prefetch, wake
        return _FakeQueue(self.queues[table])

    def feed_dead_reader(self, table: str, arrays: Any) -> None:
        del arrays
        self.fed.append(table)


@dataclasses.dataclass
class _FakeNewest:
    connection: FakeConnection
    table: str

    def get(self, timeout_secs: float = 5.0) -> list[np.ndarray] | None:
        del timeout_secs
        self.connection.reads[self.table] += 1
        return self.connection.newest_items.get(self.table)


@dataclasses.dataclass
class _FakeQueue:
    items: queue.Queue[list[np.ndarray]]

    def get(self, timeout_secs: float) -> list[np.ndarray] | None:
        try:
            return self.items.get(timeout=max(timeout_secs, 0.001))
        except queue.Empty:
            return None


@dataclasses.dataclass
class Running:
    """A gateway that listens."""

    gateway: Gateway
    port: int
    tables: FakeConnection
    paths: RunPaths

    @property
    def address(self) -> str:
        return f"localhost:{self.port}"

    def client(self, kind: str = "collect", cable: Cable | None = None, **changes: Any) -> RemoteConnection:
        address = f"localhost:{cable.port}" if cable else self.address
        hello = Hello(kind, **({"identity": IDENTITY} | changes.pop("hello", {})))
        arguments: dict[str, Any] = {"credentials": self.paths.credentials, "stop": lambda: False} | changes
        return RemoteConnection(address, arguments.pop("stop"), hello, **arguments)

    def refused(self, reason: str) -> int:
        return self.gateway.refusals.counts.get(reason, 0)


@contextlib.contextmanager
def running_gateway(
    folder: Path,
    *,
    password: str = "",
    max_workers: int = 4,
    port: int = 0,
    fake: FakeConnection | None = None,
    has_trainer: bool = False,
    max_worker_bytes: int = MAX_BYTES,
    run: int = 7,
) -> Iterator[Running]:
    """A gateway of a run with one planned worker."""
    paths = RunPaths(folder / "run")
    for path in (paths.exp_dir, paths.logs, paths.heartbeats):
        path.mkdir(parents=True, exist_ok=True)
    credentials.ensure_credentials(paths.credentials, "test")
    fake = fake or FakeConnection()
    facts = RunFacts(
        paths=paths,
        identity=IDENTITY,
        max_workers=max_workers,
        settings={"variables": {"seed": 7}, "defaults": {}},
        run=run,
        max_worker_bytes=max_worker_bytes,
    )
    slots = RemoteSlots(SlotCounts(1, 1, max_workers), 1, paths.gateway_slots, NoClaims())  # type: ignore[arg-type]
    context = credentials.server_context(paths.credentials)
    gateway = Gateway(
        facts, SharedTables(fake), slots, context, password,  # type: ignore[arg-type]
        has_trainer=has_trainer,
    )  # fmt: skip
    try:
        yield Running(gateway, gateway.listen(port), fake, paths)
    finally:
        gateway.close()


class NoClaims:
    """Every slot is free on this machine."""

    def take(self, name: str) -> bool:
        return True

    def release(self, name: str) -> None:
        pass

    def answer(self) -> None:
        pass


def wait_until(condition: Callable[[], Any], secs: float = DEADLINE_SECS) -> None:
    deadline = time.monotonic() + secs
    while not condition():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.01)


def segment(number: int, worker_id: int = 1, steps: int = 5) -> Segment:
    return Segment(
        worker_id=worker_id,
        incarnation=1,
        number=number,
        iteration=0,
        end_of_iteration=False,
        starts_episode=True,
        ends_episode=True,
        observation=[np.full((steps + 1, 3), number, np.float32)],
        action=[np.zeros((steps, 2), np.float32)],
        reward=np.arange(steps, dtype=np.float32),
        discount=np.ones(steps, np.float32),
    )


def report(worker_id: int = 1) -> Report:
    return Report("train", 0, worker_id, 0, 0, 0, [Episode(1.5, 5)])


def numbers_of(fake: FakeConnection) -> list[int]:
    """Of the segments that were put, in order."""
    return [int(arrays[0][3]) for arrays in list(fake.items[tables.SEGMENTS])]


class Cable:
    """A TCP relay in the way, which can be cut, and which records what goes from the client to the gateway.

    Args:
      port: The gateway's.
      bytes_per_sec: What it carries to the gateway, and from there.
    """

    def __init__(self, port: int, bytes_per_sec: tuple[float, float] = (math.inf, math.inf)) -> None:
        self._port = port
        self._bytes_per_sec = bytes_per_sec
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.recorded: list[bytearray] = []
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self.connections = 0
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def cut(self) -> None:
        """Ends all connections."""
        for pair in self._pairs:
            for end in pair:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
        self._pairs.clear()

    def close(self) -> None:
        # A blocked accept() outlives close() and takes one more connection; shutdown() ends it.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join(DEADLINE_SECS)
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                gateway = socket.create_connection(("127.0.0.1", self._port))
            except OSError:
                client.close()
                continue
            self.connections += 1
            self._pairs.append((client, gateway))
            self.recorded.append(bytearray())
            up, down = self._bytes_per_sec
            for way in ((client, gateway, up, self.recorded[-1]), (gateway, client, down, None)):
                threading.Thread(target=self._pass, args=way, daemon=True).start()

    @staticmethod
    def _pass(source: Any, target: Any, bytes_per_sec: float, record: bytearray | None) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(int(min(65536, 1 + bytes_per_sec / 50))):
                time.sleep(len(data) / bytes_per_sec)
                if record is not None:
                    record += data
                target.sendall(data)
        for end in (source, target):  # While another thread waits in recv(), close() alone does not end a connection.
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
