"""Whoever can't prove who he is, or does what he may not, is refused, counted and logged; good traffic goes on."""

import logging as python_logging
import re
import socket
import ssl
import struct
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.channel_for_tests import (
    DEADLINE_SECS,
    IDENTITY,
    MAX_BYTES,
    Cable,
    report,
    running_gateway,
    segment,
    wait_until,
)
from tfagents_system.transport import tables
from tfagents_system.transport.remote import admission, credentials, frames, gateway, listener, messages
from tfagents_system.transport.remote.errors import ChannelError, FrameError, GatewayRefusedError
from tfagents_system.transport.remote.tls_client import TlsClient

PASSWORD = "correct horse battery"


def tls_client(running, folder=None):
    return TlsClient(running.address, folder or running.paths.credentials, None)


def in_session(running, kind="collect", **hello):
    """A transport of a client that has been let in, and its welcome."""
    transport = tls_client(running).open()
    transport.send(messages.Hello(kind, IDENTITY, token=hello.pop("token", "attacker"), **hello))
    answer, _ = transport.receive(messages.FromGateway, frames.Limits(10**6, 10**6), 5)
    assert isinstance(answer, messages.Welcome), answer
    return transport, answer


def refusal(transport):
    """Why the gateway ends a session."""
    answer, _ = transport.receive(messages.FromGateway, frames.Limits(10**6, 10**6), 10)
    assert isinstance(answer, messages.Refused), answer
    with pytest.raises(ChannelError):
        transport.receive(messages.FromGateway, frames.Limits(10**6, 10**6), 5)
    transport.close()
    return answer.message


class Counted:
    """Exactly one more refusal of a reason, in the end."""

    def __init__(self, running, reason, more=1):
        self._running, self._reason, self._more = running, reason, more

    def __enter__(self):
        self._before = self._running.refused(self._reason)

    def __exit__(self, *error):
        if error[0] is None:
            wait_until(lambda: self._running.refused(self._reason) >= self._before + self._more)
            assert self._running.refused(self._reason) == self._before + self._more


# Those who can't prove themselves.


def check_alert(running, context, alert):
    """The gateway ends a TLS connection of this context with an alert, and counts it once."""
    with (
        Counted(running, "tls"),
        socket.create_connection(("localhost", running.port), timeout=5) as plain,
        context.wrap_socket(plain) as tls,
        pytest.raises(OSError, match=alert),
    ):
        tls.recv(1)


def test_plain_text_is_refused(shared):
    running, _ = shared
    for words in (b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9), b"\0" * 64):
        with Counted(running, "tls"), socket.create_connection(("localhost", running.port), timeout=5) as plain:
            plain.sendall(words)
            answer = b""
            try:
                while piece := plain.recv(100):
                    answer += piece
            except ConnectionResetError:
                pass
            assert len(answer) < 100  # An alert of TLS, and no word of ours.


def test_no_certificate_is_refused(shared):
    running, _ = shared
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(running.paths.credentials / "ca.pem")
    context.check_hostname = False
    check_alert(running, context, "certificate")


def test_a_certificate_of_another_authority_is_refused(shared, tmp_path):
    running, _ = shared
    credentials.make_credentials(tmp_path / "other", "other")
    # It takes the gateway for what it is, but has a certificate of another authority.
    for name in ("client.pem", "client.key"):
        (tmp_path / name).write_bytes((credentials.folder_of_client(tmp_path / "other") / name).read_bytes())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(running.paths.credentials / "ca.pem")
    context.load_cert_chain(tmp_path / "client.pem", tmp_path / "client.key")
    context.check_hostname = False
    check_alert(running, context, "unknown ca")


def test_a_gateway_of_another_authority_is_not_believed(shared, tmp_path):
    running, _ = shared
    credentials.make_credentials(tmp_path / "other", "other")
    with pytest.raises(ChannelError, match="self-signed certificate|unable to get|verify"):
        tls_client(running, tmp_path / "other").open()


def test_a_client_can_not_pass_for_the_gateway(tmp_path):
    """Its certificate is of the right authority, but made for clients."""
    credentials.make_credentials(tmp_path / "credentials", "test")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    own = credentials.folder_of_client(tmp_path / "credentials")
    context.load_cert_chain(own / "client.pem", own / "client.key")
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def pretend():
            connection, _ = listener.accept()
            with pytest.raises(OSError), context.wrap_socket(connection, server_side=True) as tls:
                tls.recv(1)

        thread = threading.Thread(target=pretend)
        thread.start()
        host = TlsClient(f"127.0.0.1:{listener.getsockname()[1]}", tmp_path / "credentials", None)
        with pytest.raises(ChannelError, match="purpose|unsuitable"):
            host.open()
        thread.join()


def test_an_older_tls_is_refused(shared):
    running, _ = shared
    context = credentials.client_context(credentials.folder_of_client(running.paths.credentials))
    context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_2
    context.check_hostname = False
    with (
        Counted(running, "tls"),
        socket.create_connection(("localhost", running.port), timeout=5) as plain,
        pytest.raises(OSError, match="protocol version"),
    ):
        context.wrap_socket(plain)


def test_recorded_traffic_that_is_replayed_is_refused(shared):
    running, _ = shared
    cable = Cable(running.port)
    victim = running.client(cable=cable)
    victim.wait_until_up(10)
    victim.put(tables.REPORTS, report(victim.slot).to_wire())
    victim.close()
    wait_until(lambda: running.gateway.state()["remote_workers"] == 1)
    reports = len(running.tables.items[tables.REPORTS])
    with Counted(running, "tls"), socket.create_connection(("localhost", running.port), timeout=5) as replay:
        replay.sendall(bytes(cable.recorded[0]))
        try:
            while replay.recv(1000):
                pass
        except ConnectionResetError:
            pass
    cable.close()
    assert len(running.tables.items[tables.REPORTS]) == reports


@pytest.mark.parametrize("given", ["", "wrong horse battery!"])
def test_a_wrong_password_is_refused_in_words(tmp_path, given):
    with running_gateway(tmp_path, password=PASSWORD) as running, Counted(running, "password"):
        file = tmp_path / "password"
        file.write_text(given)
        file.chmod(0o600)
        impostor = running.client(password_file=file if given else None)
        with pytest.raises(GatewayRefusedError, match="password, (another one|none) was given: set SAC_PASSWORD_FILE"):
            impostor.wait_until_up(10)


def test_the_right_password_is_let_in_and_told_nowhere(tmp_path, caplog):
    caplog.set_level(python_logging.DEBUG, logger="absl")
    file = tmp_path / "password"
    file.write_text(f"{PASSWORD}\n")
    file.chmod(0o600)
    with running_gateway(tmp_path, password=PASSWORD) as running:
        good = running.client(password_file=file)
        good.wait_until_up(10)
        wait_until(lambda: "worker_1 of" in caplog.text and " is in" in caplog.text)
        good.close()
        # Its goodbye is written into the run by a thread: then nothing changes any more.
        wait_until(lambda: not running.gateway.state()["connections"])
    assert PASSWORD not in caplog.text
    assert PASSWORD not in repr(messages.Hello("collect", password=PASSWORD, token="secret"))
    for path in running.paths.exp_dir.rglob("*"):
        assert path.is_dir() or PASSWORD.encode() not in path.read_bytes()


@pytest.mark.parametrize(
    ("changes", "reason", "words"),
    [
        ({"version": "9.9.9"}, "version", r"has tfagents_system 0\.1\.0, you have 9\.9\.9"),
        ({"protocol": 99}, "version", "speaks protocol 4, you speak 99"),
        (
            {"identity": IDENTITY | {"params": "d" * 64}},
            "inputs",
            r"another params file \(SHA-256 aaaaaaaaaaaa there, dddd",
        ),
        ({"identity": {}}, "inputs", "another params file .* none here.*another configuration.*other specs"),
        ({"kind": "boss"}, "kind", "'boss' is none of collect"),
        ({"worker_id": 0}, "slots", "slot 0 is not free"),
        ({"kind": "trainer"}, "trainer", "has a trainer of its own"),
    ],
)
def test_what_does_not_belong_to_the_run_is_refused_with_both_sides_named(tmp_path, changes, reason, words):
    with running_gateway(tmp_path, has_trainer=True) as running, Counted(running, reason):
        kind = changes.get("kind", "collect")
        stranger = running.client(kind, hello={name: v for name, v in changes.items() if name != "kind"})
        with pytest.raises(GatewayRefusedError, match=words):
            stranger.wait_until_up(10)


def test_another_reward_file_is_refused_where_the_run_has_one():
    own = IDENTITY | {"reward": "d" * 64}
    with_reward = admission.Admission(own, "")
    with_reward.check(messages.Hello("collect", own))
    for theirs in (IDENTITY, own | {"reward": "e" * 64}):
        with pytest.raises(admission.RefusedClientError, match="another reward file .*: use the run's own .*, reward"):
            with_reward.check(messages.Hello("collect", theirs))
    admission.Admission(IDENTITY, "").check(messages.Hello("collect", own))


def test_a_changed_layout_of_progress_is_another_protocol():
    """Machines with another version of this package are refused, and do not misread what the trainer tells."""
    progress = tables.Progress(1, 2, 3, 4, 5, 6, 7, (8, 9))
    assert (messages.PROTOCOL, progress.to_wire()[0].tolist()) == (4, [1, 2, 3, 4, 5, 6, 7, 8, 9])


def test_slow_loris_connections_are_ended(shared, monkeypatch):
    running, _ = shared
    hear_hello = gateway.Gateway._hear_hello
    left, all_have_begun = [], threading.Event()

    def hear(transport, secs):
        left.append(secs)
        assert all_have_begun.wait(DEADLINE_SECS)
        return hear_hello(transport, 0.5)

    with Counted(running, "silent", 12):
        with monkeypatch.context() as patched:
            patched.setattr(gateway.Gateway, "_hear_hello", staticmethod(hear))
            handshaken = [tls_client(running).open() for _ in range(6)]
            wait_until(lambda: len(left) == 6)
        assert all(0.0 < secs < gateway.HANDSHAKE_SECS for secs in left), "a hello has what the handshake leaves of it"
        assert gateway.HANDSHAKE_SECS == 10.0
        monkeypatch.setattr(gateway, "HANDSHAKE_SECS", 0.5)
        began = time.monotonic()
        silent = [socket.create_connection(("localhost", running.port), timeout=9) for _ in range(6)]
        for transport in handshaken:
            transport._tls.setblocking(True)
            transport._tls.send(b"S")
        all_have_begun.set()
        for slow in silent:
            slow.sendall(b"\x16\x03\x01")
            slow.recv(10)
        for transport in handshaken:
            with pytest.raises(ChannelError, match="ended"):
                transport.receive(messages.FromGateway, frames.HELLO_LIMITS, 9)
        assert time.monotonic() - began < 9, "unpatched it is 10 s"
    wait_until(lambda: running.gateway._listener.shaking_hands == 0)


def test_more_connections_than_may_prove_themselves_at_once_are_refused(shared, monkeypatch):
    running, _ = shared
    monkeypatch.setattr(listener, "_MAX_HANDSHAKES_OF_ONE", 5)
    with Counted(running, "busy", 3), Counted(running, "silent", 5):
        crowd = [socket.create_connection(("localhost", running.port), timeout=5) for _ in range(8)]
        wait_until(lambda: running.refused("busy") >= 3)
        for one in crowd:
            one.close()


# Those who have proved themselves, but do what they may not.


def test_frames_that_are_too_long_are_refused_before_memory_is_taken(shared):
    running, _ = shared
    for head, words in [
        (struct.pack("<4sIQ", b"SAC1", 2**31, 0), "a message of 2147483648 bytes, at most 262144"),
        (struct.pack("<4sIQ", b"SAC1", 10, 2**60), f"arrays of {2**60} bytes, at most {MAX_BYTES}"),
        (struct.pack("<4sIQ", b"SAC1", 10, MAX_BYTES + 1), f"arrays of {MAX_BYTES + 1} bytes"),
        (b"GET / HTTP/1.1\r\n", "not a frame: it begins with b'GET '"),
    ]:
        with Counted(running, "frame"):
            transport, _ = in_session(running)
            transport._send_all([head])
            assert words in refusal(transport)


def test_a_frame_that_is_cut_short_is_counted(shared):
    running, _ = shared
    with Counted(running, "truncated"):
        transport, welcome = in_session(running)
        whole = frames.encode(messages.Put(1, [tables.SEGMENTS]), segment(0, welcome.worker_id).to_wire())
        transport._send_all([b"".join(whole)[:100]])
        transport.close()


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (messages.Hello("collect"), "a second hello"),
        (messages.Beat("[1]"), "no JSON object with a state"),
        (messages.Beat("[" * 100_000), "no JSON object with a state"),
        (messages.Pong(), "malformed message"),
    ],
)
def test_messages_that_no_client_sends_end_its_session(shared, message, words):
    running, _ = shared
    with Counted(running, "frame"):
        transport, _ = in_session(running)
        transport.send(message)
        assert re.search(words, refusal(transport))


def test_arrays_that_could_run_code_do_not_travel(shared):
    running, _ = shared
    with pytest.raises(FrameError, match="arrays of object do not travel"):
        frames.encode(messages.Put(1, ["reports"]), [np.array([print], object)])
    for dtype in ("object", "O", "V16", "datetime64[ns]", "str", ">f4", "float128"):
        with Counted(running, "frame"):
            transport, _ = in_session(running)
            put = messages.Put(1, ["reports"])
            put.arrays = [messages.ArrayHead(dtype, [1])]
            transport.send(put)
            assert "does not travel" in refusal(transport)


@settings(max_examples=60)
@given(junk=st.binary(min_size=1, max_size=200))
def test_a_fuzzed_stream_ends_the_session_and_nothing_else(shared, junk):
    running, _ = shared
    transport, _ = in_session(running)
    transport._send_all([struct.pack("<4sIQ", b"SAC1", len(junk), 0) + junk])
    transport._send_all([struct.pack("<4sIQ", b"SAC1", len(junk), len(junk)) + junk + junk])
    transport.shut()
    transport.close()
    wait_until(lambda: running.gateway.state()["remote_workers"] == 1)
