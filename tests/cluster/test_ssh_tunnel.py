"""The tunnel to another machine: it carries bytes, comes back when it breaks, and leaves nothing over."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support import ssh_for_tests
from tests.support.gateway_for_tests import echo_server
from tests.support.ssh_for_tests import FAKE_HOST
from tests.support.waiting import gone
from tfagents_system.cluster import ssh
from tfagents_system.cluster.ssh import SshTunnel
from tfagents_system.errors import UserError


@pytest.fixture(params=["fake", "sshd"])
def host(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Where the login is."""
    monkeypatch.setattr(ssh, "_AGAIN_SECS", 0.1)
    if request.param == "sshd":
        with ssh_for_tests.real_host(tmp_path, monkeypatch) as real:
            yield real
        return
    ssh_for_tests.make_fake(tmp_path, monkeypatch)
    yield FAKE_HOST


@pytest.fixture
def target() -> Iterator[str]:
    with echo_server() as port:
        yield f"127.0.0.1:{port}"


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
    with contextlib.closing(SshTunnel(host, target)) as tunnel:
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
        "tunnel = SshTunnel(*sys.argv[1:]); print(tunnel._process.pid, flush=True); time.sleep(60)"
    )
    owner = subprocess.Popen([sys.executable, "-c", code, host, target], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    pid = int(owner.stdout.readline())
    assert not gone(pid, 0.0)
    owner.send_signal(signal.SIGKILL)
    owner.communicate(timeout=10)
    assert gone(pid, 5.0)


def test_what_ssh_says_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ssh_for_tests.make_fake(tmp_path, monkeypatch)
    ssh_for_tests.refuse("administratively prohibited", monkeypatch)
    with pytest.raises(UserError, match=r"me@fake opens no tunnel .* \(administratively prohibited\).*AllowTcpForward"):
        SshTunnel(FAKE_HOST, "127.0.0.1:9")
    (call,) = ssh_for_tests.calls(tmp_path)
    for option in ("BatchMode=yes", "ExitOnForwardFailure=yes", "ServerAliveInterval=15", "ControlMaster=no"):
        assert f"-o {option}" in call


def test_a_host_that_does_not_answer_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh, "_OPEN_SECS", 0.3)
    ssh_for_tests.put_in_path("exec sleep 60", tmp_path, monkeypatch)
    with pytest.raises(UserError, match=r"opens no tunnel .* \(no answer\)"):
        SshTunnel(FAKE_HOST, "127.0.0.1:9")
    assert processes() == []


def test_what_the_system_refuses_is_tried_again(target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ssh_for_tests.make_fake(tmp_path, monkeypatch)
    monkeypatch.setattr(ssh, "_AGAIN_SECS", 0.1)
    start = ssh.processes.start_apart
    refused: list[Any] = []

    def refuse_twice(*command: Any, **options: Any) -> Any:
        if len(refused) < 2:
            refused.append(command)
            raise OSError(11, "Resource temporarily unavailable")
        return start(*command, **options)

    with contextlib.closing(SshTunnel("user@host", target)) as tunnel:
        assert answers(tunnel.server)
        monkeypatch.setattr(ssh.processes, "start_apart", refuse_twice)
        assert tunnel._process is not None
        tunnel._process.kill()
        assert in_time(lambda: len(refused) == 2, tunnel.look)
        assert in_time(lambda: answers(tunnel.server), tunnel.look)
