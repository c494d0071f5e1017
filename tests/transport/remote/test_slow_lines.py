"""Lines that take longer for a message than anyone waits at a time."""

from __future__ import annotations

import contextlib
import math
import ssl
import threading
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.channel_for_tests import Cable, Running, running_gateway, wait_until
from tfagents_system.transport import tables
from tfagents_system.transport.remote import client as client_module
from tfagents_system.transport.remote import messages, session, stream
from tfagents_system.transport.remote.errors import ChannelError

WEIGHTS = [np.array([1, 5, 500]), np.frombuffer(b"[]", np.uint8), np.random.default_rng(0).normal(size=50_000)]
NUM_BYTES, SECS = 400_000.0, 2.0
SLOW = NUM_BYTES / SECS
PATIENCE_SECS = SECS / 20


@contextlib.contextmanager
def behind(running: Running, *bytes_per_sec: float) -> Iterator[Cable]:
    cable = Cable(running.port, (bytes_per_sec[0], bytes_per_sec[1]))
    try:
        yield cable
    finally:
        cable.close()


@pytest.mark.parametrize("is_cut", [False, True])
def test_weights_arrive_that_come_later_than_they_are_waited_for(tmp_path: Path, is_cut: bool) -> None:
    with running_gateway(tmp_path) as running, behind(running, math.inf, SLOW) as cable:
        worker = running.client(cable=cable)
        worker.wait_until_up(10)
        running.tables.try_put(tables.WEIGHTS, WEIGHTS, 1)
        reader = worker.newest(tables.WEIGHTS)
        got: list[list[np.ndarray] | None] = []
        assert not reader.is_pending
        assert reader.get(PATIENCE_SECS) is None and reader.is_pending
        wait_until(lambda: running.tables.reads[tables.WEIGHTS] == 1)
        if is_cut:
            cable.cut()

        def has_come() -> bool:
            got.append(reader.get(PATIENCE_SECS))
            return got[-1] is not None

        wait_until(has_come)
        assert got[-1] is not None
        np.testing.assert_array_equal(got[-1][2], WEIGHTS[2])
        assert running.tables.reads[tables.WEIGHTS] == 1 + is_cut, "it was asked for once on each connection"
        assert not reader.is_pending and cable.connections == 1 + is_cut
        newer = [np.array([1, 6, 600]), *WEIGHTS[1:]]
        running.tables.try_put(tables.WEIGHTS, newer, 1)
        wait_until(has_come)
        assert got[-1] is not None and got[-1][0].tolist() == [1, 6, 600], "it is asked for anew"
        worker.close()


def test_what_is_put_goes_up_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "_PUT_SECS", PATIENCE_SECS)
    with running_gateway(tmp_path) as running, behind(running, SLOW, math.inf) as cable:
        trainer = running.client("trainer", cable)
        trainer.wait_until_up(10)
        trainer.put(tables.WEIGHTS, WEIGHTS, deadline_secs=15.0)
        trainer.put(tables.PROGRESS, tables.Progress(1, 5, 500, 0).to_wire(), deadline_secs=15.0)
        assert {name: len(items) for name, items in running.tables.items.items()} == {"weights": 1, "progress": 1}
        assert len(cable.recorded[0]) < 1.1 * NUM_BYTES + 20_000
        trainer.close()


def test_the_gateway_speaks_while_a_long_message_arrives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_ALIVE_SECS", SECS / 20)
    monkeypatch.setattr(client_module, "_PING_SECS", 60.0)  # It answers nothing.
    came: list[str] = []
    take = client_module.RemoteConnection._take

    def note(self: Any, message: Any, arrays: Any) -> None:
        came.append(type(message).__name__)
        take(self, message, arrays)

    monkeypatch.setattr(client_module.RemoteConnection, "_take", note)
    with running_gateway(tmp_path) as running, behind(running, SLOW, math.inf) as cable:
        trainer = running.client("trainer", cable)
        trainer.wait_until_up(10)
        trainer.put(tables.WEIGHTS, WEIGHTS, deadline_secs=20.0)
        assert len(running.tables.items[tables.WEIGHTS]) == 1
        assert came.count("Pong") >= 2 and came[-1] == "Done"
        trainer.close()


def test_an_upload_is_read_while_something_long_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_ALIVE_SECS", 0.0)
    with running_gateway(tmp_path) as running:
        trainer = running.client("trainer")
        trainer.wait_until_up(10)
        wait_until(running.gateway._all_sessions)
        (serving,) = running.gateway._all_sessions()
        assert trainer._channel.transport is not None
        assert trainer._channel.transport._hears_out and not serving.transport._hears_out
        uploading = threading.Thread(target=trainer.put, args=(tables.WEIGHTS, WEIGHTS), daemon=True)
        with serving.transport._sending:  # As whoever sends a block.
            trainer._channel.tell(messages.Ping())
            uploading.start()
            wait_until(lambda: len(running.tables.items[tables.WEIGHTS]) == 1, 10.0)
        uploading.join(20.0)
        assert not uploading.is_alive() and list(running.gateway._all_sessions()) == [serving]
        trainer.close()


@pytest.mark.parametrize("hears_out", [False, True])
@pytest.mark.parametrize("speaks", [False, True])
def test_who_does_not_read_while_it_speaks_is_waited_for(
    hears_out: bool, speaks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway that sends a policy for minutes reads no segments meanwhile. A client must read all the time."""
    now, sent = [0.0], []

    class Tls:
        def send(self, piece: memoryview) -> int:
            if now[0] < 200.0:
                raise ssl.SSLWantWriteError
            sent.append(len(piece))
            return len(piece)

        def recv_into(self, view: memoryview) -> int:
            return len(view)

        def fileno(self) -> int:
            return -1

        setblocking = setsockopt = lambda *_: None

    tls: Any = Tls()
    transport = stream.Transport(tls, 30.0, hears_out)

    class Poll:
        def register(self, *_: int) -> None: ...

        def poll(self, _: float) -> None:
            now[0] += 1.0
            if speaks:
                transport._fill(memoryview(bytearray(1)), 1.0, "a byte")

    monkeypatch.setattr(stream, "select", types.SimpleNamespace(poll=Poll, POLLIN=0, POLLOUT=1))
    monkeypatch.setattr(stream, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
    if hears_out and speaks:
        transport.send(messages.Ping())
        assert sent and now[0] == 200.0
    else:
        monkeypatch.setattr(transport, "shut", lambda: None)
        with pytest.raises(ChannelError, match="room to send"):
            transport.send(messages.Ping())
        assert now[0] == 30.0
