"""What a run holds is its own while it lives, and free the moment it is dead."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tfagents_system.errors import UserError
from tfagents_system.machine import claims as claims_module
from tfagents_system.machine import peers
from tfagents_system.machine.claims import Claims, held_cpus, holder, process_in_words

ROOT = Path(__file__).resolve().parents[2]


pytestmark = pytest.mark.usefixtures("claims_prefix")


def other_process(prefix: str, code: str) -> subprocess.Popen[str]:
    """Another process that runs `code`, says a line when it has, and stays."""
    program = (
        "import time\n"
        "from tfagents_system.machine import claims\n"
        f"claims._PREFIX = {prefix!r}\n{code}\nprint('ready', flush=True)\ntime.sleep(60)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


@pytest.fixture
def cpu_holder(claims_prefix: str) -> Iterator[subprocess.Popen[str]]:
    process = other_process(claims_prefix, "c = claims.Claims()\nc.take_cpus([3, 4], exclusive=True)")
    yield process
    process.kill()
    process.wait()


def test_cpus_of_another_process_are_seen_and_named_and_free_when_it_is_dead(cpu_holder: subprocess.Popen[str]) -> None:
    held = held_cpus()
    assert sorted(held) == [3, 4]
    assert f"pid {cpu_holder.pid} ({sys.executable} -c " in held[3]
    cpu_holder.send_signal(signal.SIGKILL)
    cpu_holder.wait()
    assert held_cpus() == {}
    assert Claims().take_cpus([3, 4], exclusive=True) == []


def test_a_runs_process_is_named_by_its_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAC_EXP_DIR", "/logs/a run")
    waits = ["sh", "-c", "echo ready; read answer"]
    with subprocess.Popen(waits, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"  # Its environment is there.
        told = process_in_words(process.pid)
        process.kill()
    assert told == f"pid {process.pid} (run /logs/a run)"


def test_exclusive_cpus_are_taken_all_or_none(cpu_holder: subprocess.Popen[str]) -> None:
    claims = Claims()
    assert claims.take_cpus([2, 3], exclusive=True) == [3]
    other = Claims()
    assert other.take_cpus([2], exclusive=True) == []
    assert claims.take_cpus([3, 5], exclusive=False) == []  # 5 is claimed, 3 is shared
    assert holder("cpu/5") == os.getpid() and holder("cpu/4") == cpu_holder.pid and holder("cpu/6") is None
    claims.release_all()
    other.release_all()


def port_is_free(port: int) -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::", port))
            return True
    except OSError:
        return False


def free_port() -> int:
    with peers.hold_port(0) as probe:
        return int(probe.getsockname()[1])


def test_a_free_port_is_looked_for_upwards(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_INET6) as busy:
        # As gRPC does: without a check, a second server would share the port.
        busy.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        busy.bind(("::", 0))
        busy.listen()
        port = busy.getsockname()[1]
        monkeypatch.setattr(claims_module, "FIRST_PORT", port)
        monkeypatch.setattr(claims_module, "_LAST_PORT", port + 50)
        first, second = Claims(), Claims()
        assert not port_is_free(port)
        chosen = first.take_port(None)
        assert port < chosen <= port + 50
        assert second.take_port(None) > chosen  # claimed, though nobody listens yet
        with pytest.raises(UserError, match=f"SAC_REVERB_PORT={port} is in use by another program"):
            first.take_port(port)
        with pytest.raises(UserError, match=rf"SAC_REVERB_PORT={chosen} is in use by pid {os.getpid()}"):
            second.take_port(chosen)
        first.release_all()
        assert second.take_port(chosen) == chosen
        second.release_all()


def test_a_claimed_port_is_held_until_it_is_released_though_clients_of_its_last_server_wait_there() -> None:
    port = free_port()
    with peers.hold_port(port), peers.hold_port(port):
        claims = Claims()
        assert claims.take_port(port) == port
    assert not port_is_free(port)
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port))
    claims.release_all()
    assert port_is_free(port)


def test_a_port_taken_on_ipv4_is_not_free() -> None:
    with socket.socket(socket.AF_INET) as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        with pytest.raises(UserError, match="is in use by another program"):
            Claims().take_port(busy.getsockname()[1])
