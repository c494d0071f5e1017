"""Who can't prove who he is, or does not belong to the run, is refused and counted; the others get slots and bytes."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateway_for_tests import (
    DEADLINE_SECS,
    IDENTITY,
    Running,
    echo_server,
    running_gateway,
    wait_until,
)
from tfagents_system.cluster import gateway as gateway_module
from tfagents_system.cluster.gateway import RefusedError, Session, Slots, host_name
from tfagents_system.machine.claims import COLLECT, SlotCounts
from tfagents_system.transport import credentials
from tfagents_system.transport.tunnel import DATA, LEAVES, SLOT_LOST, Hello, line_of

PASSWORD = "correct horse battery"
COUNTS = SlotCounts(local=1, planned=1, most=3)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One gateway; whatever is done to it, it lets the next one in."""
    with echo_server() as port, running_gateway(tmp_path_factory.mktemp("gateway"), replay_port=port) as running:
        yield running
        with running.said(running.hello(token="last")) as (_, answer):
            assert answer.run is not None


def test_it_tells_what_a_role_takes_over(shared: Running) -> None:
    with shared.said(shared.hello(token="first")) as (stream, answer):
        assert answer.run is not None
        assert (answer.slot, answer.run) == (1, 7)
        assert answer.settings["variables"]["max_workers"] == 4
        stream.write(LEAVES)
        assert stream.readline() and stream.readline() == b""
    wait_until(lambda: not shared.gateway.slots.sessions)


@pytest.mark.parametrize(
    ("changes", "reason", "words"),
    [
        ({"version": "9.9.9"}, "version", "has tfagents_system 0.1.0, you have 9.9.9: install the same"),
        (
            {"identity": IDENTITY | {"params": "d" * 64}},
            "inputs",
            "params (SHA-256 aaaaaaaaaaaa there, d",
        ),
        (
            {"identity": {}},
            "inputs",
            "none here), environment's specs (install the simulator's version that the run has",
        ),
        ({"kind": "boss"}, "kind", "'boss' is none of collect"),
        ({"kind": "trainer"}, "trainer", "has a trainer of its own"),
        ({"kind": DATA, "token": "nobody's"}, "session", "a connection without a session"),
    ],
)
def test_what_does_not_belong_to_the_run_is_refused_with_both_sides_named(
    shared: Running, changes: dict[str, Any], reason: str, words: str
) -> None:
    before = shared.refused(reason)
    with shared.said(shared.hello(**{"kind": "collect"} | changes)) as (stream, answer):
        assert words in (answer.message or stream.readline().decode())
        assert stream.readline() == b""
    assert shared.refused(reason) == before + 1


def test_a_wrong_password_is_refused_late_and_the_right_one_is_told_nowhere(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with running_gateway(tmp_path, password=PASSWORD) as running:
        for given, words in (("", "none was given"), ("wrong horse battery!", "another one was given")):
            began = time.monotonic()
            with running.said(running.hello(password=given)) as (_, answer):
                assert answer.refused == "password" and words in answer.message
            assert time.monotonic() - began > 0.9
        assert running.refused("password") == 2
        with running.said(running.hello(password=PASSWORD)) as (_, answer):
            assert answer.run is not None
    assert PASSWORD not in caplog.text and PASSWORD not in repr(Hello("collect", password=PASSWORD))


# Strangers.


def is_ended(connection: socket.socket) -> bool:
    with contextlib.suppress(ConnectionResetError):
        while connection.recv(1000):
            pass
    return True


@pytest.mark.parametrize("kind", ["nameless", "other", "older"])
def test_who_has_no_certificate_of_the_run_or_an_older_tls_is_not_heard(
    shared: Running, tmp_path: Path, kind: str
) -> None:
    """Though he takes the gateway for what it is."""
    context, is_heard = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), False
    context.check_hostname = False
    context.load_verify_locations(shared.paths.credentials / credentials.CERTIFICATE)
    own = shared.paths.credentials if kind == "older" else tmp_path / "other"
    credentials.make_credentials(own, "other")
    if kind != "nameless":
        context.load_cert_chain(own / credentials.CERTIFICATE, own / credentials.KEY)
    if kind == "older":
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    with (
        socket.create_connection(("localhost", shared.port), timeout=DEADLINE_SECS) as plain,
        contextlib.suppress(OSError),
        context.wrap_socket(plain) as tls,
    ):
        tls.sendall(line_of(shared.hello()))
        is_heard = tls.recv(1) != b""
    assert not is_heard


@pytest.mark.parametrize("words", [b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9)])
def test_plain_text_is_not_answered(shared: Running, words: bytes) -> None:
    with socket.create_connection(("localhost", shared.port), timeout=DEADLINE_SECS) as plain:
        plain.sendall(words)
        assert is_ended(plain)


@pytest.mark.parametrize("garbage", [b"nonsense\n", b"x" * 2_000_000])
def test_garbage_with_a_certificate_is_refused(shared: Running, garbage: bytes) -> None:
    before = shared.refused("malformed")
    with shared.dialled() as tls, contextlib.suppress(OSError):
        tls.sendall(garbage)
        assert is_ended(tls)
    wait_until(lambda: shared.refused("malformed") == before + 1)


def test_silent_ones_are_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before they have proved themselves, and after it."""
    assert gateway_module.HANDSHAKE_SECS == 10.0
    monkeypatch.setattr(gateway_module, "HANDSHAKE_SECS", 0.5)
    with running_gateway(tmp_path) as running:
        with socket.create_connection(("localhost", running.port), timeout=DEADLINE_SECS) as plain:
            assert is_ended(plain)
        with running.dialled() as tls:
            assert is_ended(tls)


# Those who have joined.


def test_bytes_of_a_role_reach_the_server_and_end_with_its_session(shared: Running) -> None:
    with shared.said(shared.hello(token="mine")) as (_, answer):
        assert answer.run is not None
        with shared.said(shared.hello(DATA, token="mine")) as (stream, _):
            stream.write(b"PRI * HTTP/2.0")
            assert stream.read(100) == b"PRI * HTTP/2.0"
            with shared.said(shared.hello(token="mine", slot=answer.slot)) as (_, again):
                assert again.slot == answer.slot
                assert stream.read(1) == b"", "that of the connection before is over"
    wait_until(lambda: not shared.gateway.slots.sessions)


def test_heartbeats_are_written_by_our_clock_and_name(shared: Running) -> None:
    with shared.said(shared.hello(token="beats", host="laptop")) as (stream, answer):
        assert answer.run is not None
        path = shared.paths.heartbeat(f"worker_{answer.slot}")
        beat = {"role": "trainer", "state": "stopped", "time": 5.0, "since": 2.0, "host": "node7", "steps": 3}
        stream.write(json.dumps(beat).encode() + b"\n")
        assert stream.readline() == b"{}\n"
        written = json.loads(path.read_text())
        assert (written["role"], written["host"], written["remote"]) == (path.stem, "laptop", True)
        assert abs(written["time"] - time.time()) < 10 and abs(written["time"] - written["since"] - 3.0) < 0.1
        stream.write(b"\n")
        assert stream.readline() == b"{}\n"
        stream.write(b"[1]\n")
        assert stream.readline() == b"", "no heartbeat"


def test_texts_of_clients_can_not_control_the_terminal_of_who_reads_the_log(
    shared: Running, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_module, "_SPEAK_SECS", 0.0)
    with shared.said(shared.hello("a\x1b[2Jb\n" + 1000 * "c")) as (_, answer):
        assert answer.refused == "kind"
    assert "refused" in caplog.text and "\x1b" not in caplog.text and 501 * "c" not in caplog.text


def test_each_reason_is_told(shared: Running, caplog: pytest.LogCaptureFixture) -> None:
    for reason in ("one", "other", "one"):
        shared.gateway._count(reason, "peer", f"because of {reason}")
    assert [caplog.text.count(f"because of {reason}") for reason in ("one", "other")] == [1, 1]


def test_the_end_of_the_run_is_told(tmp_path: Path) -> None:
    with running_gateway(tmp_path) as running:
        with running.said(running.hello()) as (stream, _):
            running.end("done")
            assert json.loads(stream.readline()) == {"end": "done"}
        with running.said(running.hello(token="late")) as (_, answer):
            assert answer.end == "done"


# Slots.


@pytest.fixture
def slots() -> Slots:
    return Slots(COUNTS)


class FakeSession(Session):
    def __init__(self, token: str, slot: int | None = None, kind: str = COLLECT) -> None:
        super().__init__(Hello(kind, slot=slot, token=token), None)  # type: ignore[arg-type]
        self.is_ended = False

    def end(self) -> None:
        self.is_ended = True


def take(slots: Slots, *arguments: Any) -> FakeSession:
    session = FakeSession(*arguments)
    slots.take(session)
    return session


def vanish(slots: Slots, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its worker is away for longer than its slot is kept."""
    slots.leave(session, for_good=False)
    monkeypatch.setattr(gateway_module, "KEEP_SECS", -1.0)


def test_a_worker_that_comes_back_has_its_slot_while_nobody_else_wants_it(
    slots: Slots, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = take(slots, "first"), take(slots, "second")
    assert (first.slot, second.slot) == (1, 2)
    again = take(slots, "first", 1)
    assert again.slot == 1 and first.is_ended, "the dead connection is ended"
    slots.leave(first, for_good=False)
    assert slots.session_of("first") is again
    with pytest.raises(RefusedError, match="all 2 slots for workers of kind collect that join are taken") as refusal:
        take(slots, "third")
    assert not refusal.value.may_try_again
    slots.leave(again, for_good=False)
    with pytest.raises(RefusedError) as refusal:
        take(slots, "third")
    assert refusal.value.may_try_again and "for now" in refusal.value.answer().down, "it is kept for a while"
    vanish(slots, again, monkeypatch)
    assert take(slots, "first", 1).slot == 1


def test_no_slot_is_given_to_two_workers(slots: Slots, monkeypatch: pytest.MonkeyPatch) -> None:
    laptop, other = take(slots, "laptop"), take(slots, "other")
    assert (laptop.slot, other.slot) == (1, 2)
    vanish(slots, laptop, monkeypatch)
    assert take(slots, "third").slot == 1
    with pytest.raises(RefusedError, match="slot 1 was given to another worker meanwhile") as refusal:
        take(slots, "laptop", 1)
    assert (refusal.value.reason, refusal.value.may_try_again) == (SLOT_LOST, False)
    slots.leave(other, for_good=True)
    assert take(slots, "laptop").slot == 2, "its process is started again"


def test_one_trainer_elsewhere_is_let_in() -> None:
    slots = Slots(COUNTS, has_trainer=False)
    assert take(slots, "first", None, "trainer").slot is None
    with pytest.raises(RefusedError, match="another trainer: stop that one first"):
        take(slots, "second", None, "trainer")
    assert take(slots, "first", None, "trainer").slot is None, "that was restarted"


@pytest.mark.parametrize(
    ("full", "node", "expected"),
    [("n7.example.org", "", "n7.example.org"), ("localhost", "n7", "n7"), ("localhost.localdomain", "", "n7host")],
)
def test_the_address_for_others_is_no_loopback_name(
    monkeypatch: pytest.MonkeyPatch, full: str, node: str, expected: str
) -> None:
    monkeypatch.setattr(socket, "getfqdn", lambda: full)
    monkeypatch.setattr(socket, "gethostname", lambda: "n7host")
    monkeypatch.setenv("SLURMD_NODENAME", node)
    assert host_name() == expected
