"""The tunnel to another machine: it carries bytes, comes back when it breaks, and leaves nothing over."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from tests.support import ssh_for_tests
from tests.support.ssh_for_tests import FAKE_HOST
from tests.support.waiting import gone
from tfagents_system.cluster import ssh
from tfagents_system.cluster.ssh import SshTunnel
from tfagents_system.errors import UserError


@pytest.fixture(params=["fake", "sshd"])
def host(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Where the login is."""
    monkeypatch.setattr(ssh, "_FIRST_BACKOFF_SECS", 0.1)
    if request.param == "sshd":
        with ssh_for_tests.real_host(tmp_path, monkeypatch) as real:
            yield real
        return
    ssh_for_tests.make_fake(tmp_path, monkeypatch)
    yield FAKE_HOST


@pytest.fixture
def target() -> Iterator[str]:
    """A server that gives back each byte."""

    def serve(connection: socket.socket) -> None:
        with connection:
            while data := connection.recv(4096):
                connection.sendall(data)

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)


def answers(server: str) -> bool:
    """Whether what is sent comes back."""
    address, _, port = server.rpartition(":")
    try:
        with socket.create_connection((address, int(port)), timeout=5) as connection:
            connection.sendall(b"there and back")
            return connection.recv(100) == b"there and back"
    except OSError:
        return False


def in_time(is_so: Callable[[], bool], look: Callable[[], None]) -> bool:
    deadline = time.monotonic() + 20.0
    while not is_so():
        if time.monotonic() > deadline:
            return False
        look()
        time.sleep(0.05)
    return True


def processes() -> list[psutil.Process]:
    """Those of `ssh` that tunnels of this process have started."""
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.ZombieProcess, psutil.NoSuchProcess):  # What another test has left.
            if "ExitOnForwardFailure=yes" in child.cmdline():  # Of Slurm's daemons, too, `-N` is an option.
                found.append(child)
    return found


def test_it_comes_back_at_the_same_port_and_leaves_nothing_over(
    host: str, target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with SshTunnel(host, target) as tunnel:
        assert answers(tunnel.server)
        (first,) = processes()
        assert os.getsid(first.pid) == first.pid, "Ctrl-C at the terminal is not for it"
        for _ in range(2):
            (process,) = processes()
            process.kill()
            assert gone(process.pid, 10.0) and in_time(lambda: answers(tunnel.server), tunnel.look)
        (last,) = processes()
    assert capsys.readouterr().out.count(f"the tunnel by ssh {host} is broken") == 1, "told once a minute"
    assert gone(last.pid, 10.0) and processes() == []
    assert not answers(tunnel.server)


def test_it_ends_with_a_program_that_is_killed(host: str, target: str) -> None:
    code = (
        "import sys, time; from tfagents_system.cluster.ssh import SshTunnel\n"
        "with SshTunnel(*sys.argv[1:]) as tunnel: print(tunnel._process.pid, flush=True); time.sleep(60)"
    )
    owner = subprocess.Popen([sys.executable, "-c", code, host, target], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    pid = int(owner.stdout.readline())
    assert not gone(pid, 0.0)
    owner.send_signal(signal.SIGKILL)
    owner.communicate(timeout=10)
    assert gone(pid, 5.0)


@pytest.mark.parametrize(("words", "tries"), [("administratively prohibited", 1), ("Address already in use", 3)])
def test_what_ssh_says_is_told(words: str, tries: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ssh_for_tests.make_fake(tmp_path, monkeypatch)
    ssh_for_tests.refuse(words, monkeypatch)
    ports = iter([1, 2, 3])  # Nobody listens there. The system may choose the same one twice.

    def create_server(at: tuple[str, int]) -> contextlib.AbstractContextManager[Any]:
        chosen = at[0], at[1] or next(ports)
        return contextlib.nullcontext(SimpleNamespace(getsockname=lambda: chosen))

    monkeypatch.setattr(ssh, "socket", SimpleNamespace(create_server=create_server))
    with pytest.raises(UserError, match=rf"ssh me@fake opens no tunnel .* \({words}\).*AllowTcpForwarding"):
        SshTunnel(FAKE_HOST, "127.0.0.1:9")
    calls = ssh_for_tests.calls(tmp_path)
    forwards = [call.partition("-L ")[2].split()[0] for call in calls]
    assert forwards == [f"127.0.0.1:{port}:127.0.0.1:9" for port in range(1, tries + 1)], "another port each time"
    for option in ("BatchMode=yes", "ExitOnForwardFailure=yes", "ServerAliveInterval=15", "ControlMaster=no"):
        assert f"-o {option}" in calls[0]


def test_a_host_that_does_not_answer_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh, "_OPEN_SECS", 0.3)
    ssh_for_tests.put_in_path("exec sleep 60", tmp_path, monkeypatch)
    with pytest.raises(UserError, match=r"opens no tunnel .* \(not in 0 s\)"):
        SshTunnel(FAKE_HOST, "127.0.0.1:9")
    assert processes() == []


def test_what_the_system_refuses_is_tried_again(target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ssh_for_tests.make_fake(tmp_path, monkeypatch)
    monkeypatch.setattr(ssh, "_FIRST_BACKOFF_SECS", 0.1)
    start = ssh.processes.start_apart
    refused: list[Any] = []

    def refuse_twice(*command: Any, **options: Any) -> Any:
        if len(refused) < 2:
            refused.append(command)
            raise OSError(11, "Resource temporarily unavailable")
        return start(*command, **options)

    with ssh.SshTunnel("user@host", target) as tunnel:
        assert answers(tunnel.server)
        monkeypatch.setattr(ssh.processes, "start_apart", refuse_twice)
        assert tunnel._process is not None
        tunnel._process.kill()
        assert in_time(lambda: len(refused) == 2, tunnel.look)
        assert in_time(lambda: answers(tunnel.server), tunnel.look)
