"""The replay server is reached from this machine only, in fact."""

import contextlib
import ipaddress
import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.namespaces import needs_namespaces, two_hosts
from tfagents_system.errors import UserError
from tfagents_system.replay import loopback, peers

ROOT = Path(__file__).resolve().parents[2]
_SCAN = """
import socket, sys
for family, host in ((socket.AF_INET, sys.argv[1]), (socket.AF_INET6, sys.argv[2])):
    for port in range(int(sys.argv[3]), int(sys.argv[4])):
        with socket.socket(family) as probe:
            probe.settimeout(2)
            if probe.connect_ex((host, port)) == 0:
                print(port)
"""


@contextlib.contextmanager
def server(how, port, prefix=()):
    command = [*prefix, sys.executable, "-m", "tests.replay.server_for_tests", str(port), how]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            yield json.loads(process.stdout.readline())
            process.stdin.write("\n")
            process.stdin.flush()
            assert process.wait(30) == 0
        finally:
            process.kill()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def ipv4(host, port=8008):
    return struct.pack("=H", socket.AF_INET) + struct.pack(">H", port) + socket.inet_aton(host) + bytes(8)


def ipv6(host, port=8008):
    packed = ipaddress.IPv6Address(host).packed
    return struct.pack("=H", socket.AF_INET6) + struct.pack(">H", port) + bytes(4) + packed + bytes(4)


def test_every_address_becomes_loopback_with_the_same_port():
    assert loopback.confined(ipv4("0.0.0.0")) == ipv4("127.0.0.1")
    assert loopback.confined(ipv6("::")) == ipv6("::ffff:127.0.0.1")
    assert loopback.confined(ipv6("::ffff:0.0.0.0")) == ipv6("::ffff:127.0.0.1")


def test_other_addresses_stay():
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


def test_reverb_without_a_bind_that_can_be_changed_is_not_started(monkeypatch):
    monkeypatch.setattr(loopback, "_objects_in", lambda folder: [])
    started = []
    with pytest.raises(UserError, match="no entry for bind"):
        loopback.start_confined(lambda: started.append(1), 8008)
    assert not started


def test_where_the_kernel_does_not_tell_the_server_is_stopped(monkeypatch):
    def fail():
        raise PermissionError("no /proc")

    monkeypatch.setattr(loopback, "listening", fail)
    server = OpenServer()
    with pytest.raises(UserError, match="can't be read from /proc"):
        loopback.start_confined(lambda: server, server.port)
    assert server.socket.fileno() == -1


@pytest.mark.slow
def test_reverb_listens_on_loopback_alone():
    port = free_port()
    with server("confined", port) as told:
        assert told == {"listening": [["::ffff:127.0.0.1", port]], "refused": ""}
        for host in ("127.0.0.1", "localhost"):
            socket.create_connection((host, port), timeout=5).close()


@pytest.mark.slow
def test_without_the_hook_reverb_is_refused():
    port = free_port()
    with server("unhooked", port) as told:
        assert told["listening"] == []
        assert f"did on :: port {port}, and was stopped" in told["refused"]


@pytest.mark.slow
@needs_namespaces
@pytest.mark.parametrize(("how", "ports", "found"), [("confined", (1, 65536), set()), ("open", (8000, 8020), {"8008"})])
def test_a_scan_of_all_ports_from_another_host(how, ports, found):
    with two_hosts() as (here, elsewhere), server(how, 8008, here.command([])):
        scan = elsewhere.command([sys.executable, "-c", _SCAN, here.ipv4, here.ipv6, *map(str, ports)])
        result = subprocess.run(scan, capture_output=True, text=True, timeout=120, check=True)
    assert set(result.stdout.split()) == found


def test_whose_a_connection_is():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        accepted, _ = listener.accept()
        assert peers.uid_of_peer(accepted) == os.geteuid() and peers.uid_of_peer(client) == os.geteuid()
        client.close()
        assert peers.uid_of_peer(accepted) is None  # What is closed is nobody's, and not root's.
        accepted.close()
    assert peers.can_tell()


_STRANGER = """
import os, socket, sys
import encodings.idna  # While the interpreter's folder can be read.
os.setgroups([]); os.setgid(65534); os.setuid(65534)
with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=5) as stranger:
    try:
        stranger.sendall(b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n" + bytes(9))
        print(len(stranger.recv(100)))
    except ConnectionError:
        print(0)
"""


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="taking another user's place needs root")
@pytest.mark.parametrize(("how", "is_heard"), [("confined", False), ("open", True)])
def test_another_user_of_this_machine_is_not_heard(how, is_heard):
    port = free_port()
    with server(how, port):
        answers = [
            int(
                subprocess.run(
                    [sys.executable, "-c", _STRANGER, host, str(port)], capture_output=True, check=True
                ).stdout
            )
            for host in ("127.0.0.1", "::ffff:127.0.0.1")
        ]
        assert [answer > 0 for answer in answers] == [is_heard, is_heard]
        # We are, after him as before.
        import reverb

        client = reverb.Client(f"localhost:{port}")
        assert client.server_info(timeout=10)["status"].current_size == 0


@pytest.mark.slow
def test_a_server_stops_though_connections_come_all_the_time():
    port = free_port()
    stop = threading.Event()

    def knock():
        while not stop.is_set():
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port), timeout=1).close()

    threads = [threading.Thread(target=knock) for _ in range(3)]
    try:
        with server("confined", port):
            for thread in threads:
                thread.start()
            time.sleep(1)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
