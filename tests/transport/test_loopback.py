"""The replay server is reached from this machine only, in fact."""

import contextlib
import ipaddress
import json
import os
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.ports import free_port
from tests.support.warm_starts import WarmPopen
from tfagents_system.errors import UserError
from tfagents_system.machine import peers
from tfagents_system.transport import loopback
from tfagents_system.transport.connection import Connection

ROOT = Path(__file__).resolve().parents[2]


@contextlib.contextmanager
def confined_server(port):
    """A Reverb server as the replay server starts it; yields where it listens."""
    command = [sys.executable, "-m", "tests.support.server_for_tests", str(port)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    with WarmPopen(command, cwd=ROOT, env=os.environ, **pipes) as process:
        try:
            yield json.loads(process.stdout.readline())
            process.stdin.write("\n")
            process.stdin.flush()
            assert process.wait(30) == 0
        finally:
            process.kill()


def ipv4(host, port=8008):
    return struct.pack("=H", socket.AF_INET) + struct.pack(">H", port) + socket.inet_aton(host) + bytes(8)


def ipv6(host, port=8008):
    packed = ipaddress.IPv6Address(host).packed
    return struct.pack("=H", socket.AF_INET6) + struct.pack(">H", port) + bytes(4) + packed + bytes(4)


def test_every_address_becomes_loopback_with_the_same_port_and_others_stay():
    assert loopback.confined(ipv4("0.0.0.0")) == ipv4("127.0.0.1")
    for everywhere in ("::", "::ffff:0.0.0.0"):
        assert loopback.confined(ipv6(everywhere)) == ipv6("::ffff:127.0.0.1")
    for address in (ipv4("127.0.0.1"), ipv4("10.0.0.1"), ipv6("::1"), ipv6("fd00::1"), b"\x01\x00/tmp/socket\0", b""):
        assert loopback.confined(address) == address


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("::ffff:127.0.0.1", True), ("::", False)]
    + [(host, False) for host in ("0.0.0.0", "::ffff:0.0.0.0", "10.0.0.1", "::ffff:10.0.0.1", "fe80::1")],
)
def test_what_is_loopback(host, expected):
    assert loopback.is_loopback(host) is expected


class OpenServer:
    """Listens on every address, as Reverb would."""

    def __init__(self):
        self.socket = socket.create_server(("", 0))
        self.port = self.socket.getsockname()[1]

    def stop(self):
        self.socket.close()


def test_a_server_that_listens_elsewhere_is_stopped_and_told_of():
    server = OpenServer()
    with pytest.raises(UserError, match=rf"did on 0.0.0.0 port {server.port}, and was stopped.*unshare"):
        loopback.start_confined(lambda: server, server.port)
    assert server.socket.fileno() == -1
    assert loopback.listening() == []


def test_reverb_without_a_bind_that_can_be_changed_is_not_started_and_joins_no_other_machine(monkeypatch):
    monkeypatch.setattr(loopback, "_objects_in", lambda folder: [])
    started = []
    with pytest.raises(UserError, match="no entry for bind"):
        loopback.start_confined(lambda: started.append(1), 8008)
    assert not started
    with pytest.raises(UserError, match=r"for getpid\(\)\), so no run on another machine can be joined"):
        loopback.never_in_process()


def test_whose_a_connection_is():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        accepted, _ = listener.accept()
        assert peers.uid_of_peer(accepted) == os.geteuid() and peers.uid_of_peer(client) == os.geteuid()
        client.close()
        assert peers.uid_of_peer(accepted) is None  # What is closed is nobody's, and not root's.
        accepted.close()
    assert peers.can_tell()


def test_where_the_kernel_does_not_tell_whose_connections_are_no_server_is_started(monkeypatch, tmp_path):
    monkeypatch.setattr(peers, "_TABLES", (tmp_path / "none",))
    with pytest.raises(UserError, match=r"does not tell whose a connection is.*set SAC_ALLOW_STRANGERS=1"):
        loopback.start_confined(lambda: pytest.fail("it was started"), 8008)
    monkeypatch.setenv("SAC_ALLOW_STRANGERS", "1")
    peers.require_owners()
    loopback.keep_other_users_out()


# Every way in which another user may try to listen on a port.
_LISTENERS = [
    (family, host, v6only, options)
    for family, host, v6only in (
        (socket.AF_INET, "127.0.0.1", None),
        (socket.AF_INET, "0.0.0.0", None),
        (socket.AF_INET6, "::1", 1),
        (socket.AF_INET6, "::", 1),
        (socket.AF_INET6, "::", 0),
        (socket.AF_INET6, "::ffff:127.0.0.1", 0),
    )
    for options in ((), (socket.SO_REUSEADDR,), (socket.SO_REUSEPORT,), (socket.SO_REUSEADDR, socket.SO_REUSEPORT))
]


@contextlib.contextmanager
def as_nobody():
    """Sockets that are made meanwhile are another user's."""
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def listener(port, family, host, v6only, options):
    server = socket.socket(family)
    try:
        for option in options:
            server.setsockopt(socket.SOL_SOCKET, option, 1)
        if v6only is not None:
            server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, v6only)
        server.bind((host, port))
        server.listen()
    except OSError:
        server.close()
        raise
    return server


def ways_for_nobody(port):
    """In which another user can listen on a port."""
    ways = []
    for way in _LISTENERS:
        with as_nobody(), contextlib.suppress(OSError):
            listener(port, *way).close()
            ways.append(way)
    return ways


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="taking another user's place needs root")


@needs_root
def test_a_port_that_is_held_is_no_other_users_and_still_our_servers():
    with peers.hold_port(0) as held:
        port = held.getsockname()[1]
        assert ways_for_nobody(port) == []
        assert peers.users_listening(port) == set()
        # As gRPC's, twice: it is restarted. Meanwhile nobody gets in between; no connection comes to who only holds.
        ours = (socket.AF_INET6, "::ffff:127.0.0.1", 0, (socket.SO_REUSEADDR, socket.SO_REUSEPORT))
        for _ in range(2):
            with listener(port, *ours) as server, peers.hold_port(port):
                assert peers.users_listening(port) == {os.geteuid()}
                for _ in range(50):
                    with socket.create_connection(("127.0.0.1", port), timeout=5), server.accept()[0]:
                        pass
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port), timeout=5)
            assert ways_for_nobody(port) == []
    assert _LISTENERS[2] in ways_for_nobody(port), "nobody holds it any more"


@needs_root
@pytest.mark.parametrize("host", ["::ffff:127.0.0.1", "::1", "::"])
def test_clients_do_not_dial_another_users_server(host):
    with as_nobody():
        stranger = listener(0, socket.AF_INET6, host, 0, (socket.SO_REUSEADDR, socket.SO_REUSEPORT))
    with stranger:
        port = stranger.getsockname()[1]
        words = rf"port {port} of this machine belongs to another user.*SAC_ALLOW_STRANGERS=1"
        with pytest.raises(UserError, match=words):
            Connection(f"localhost:{port}", lambda: False)
        stranger.settimeout(0)
        with pytest.raises(BlockingIOError):  # Nobody came.
            stranger.accept()


@needs_root
def test_while_a_client_lives_no_other_user_takes_the_place_of_its_server():
    port = free_port()
    dialler = Connection(f"localhost:{port}", lambda: False)
    assert dialler.address == f"127.0.0.1:{port}"
    dialler.close()  # gRPC's own threads may dial still.
    assert ways_for_nobody(port) == []


@pytest.mark.slow
def test_reverb_listens_on_loopback_alone_and_hears_no_other_user():
    port = free_port()
    with peers.hold_port(port), confined_server(port) as addresses:  # As the supervisor holds it.
        assert addresses == [["::ffff:127.0.0.1", port]]
        for host in ("127.0.0.1", "localhost"):
            socket.create_connection((host, port), timeout=5).close()
        if os.geteuid() == 0:
            for host in ("127.0.0.1", "::ffff:127.0.0.1"):
                with as_nobody():
                    stranger = socket.create_connection((host, port), timeout=5)
                with stranger, contextlib.suppress(ConnectionError):
                    stranger.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9))
                    assert stranger.recv(100) == b""
        import reverb

        client = reverb.Client(f"localhost:{port}")  # We are heard, after him as before.
        assert client.server_info(timeout=10)["status"].current_size == 0
