"""Roles that outlive their supervisor are waited for before the run directory is locked, and ended after that."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tfagents_system.launch import role_process
from tfagents_system.launch.role_process import end_orphans, wait_for_orphans
from tfagents_system.machine.processes import processes_of_run
from tfagents_system.run_files.run_paths import RunPaths

_PIPES: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    return RunPaths(tmp_path)


@pytest.fixture
def start_orphan(paths: RunPaths) -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    """Starts a role whose supervisor has ended; it ends soon after the file `saved` is there."""
    started = []
    supervisor = subprocess.Popen(["true"])
    supervisor.wait()

    program = (
        "import os, sys, time\n"
        "end = time.monotonic() + 60.0\n"
        "while not os.path.exists(sys.argv[1]) and time.monotonic() < end: time.sleep(0.02)\n"
        "time.sleep(0.2)\n"
    )

    def start() -> subprocess.Popen[bytes]:
        environ = os.environ | {"SAC_EXP_DIR": str(paths.exp_dir), "TFAGENTS_SUPERVISOR_PID": str(supervisor.pid)}
        started.append(subprocess.Popen([sys.executable, "-c", program, str(paths.exp_dir / "saved")], env=environ))
        deadline = time.monotonic() + 10.0
        while started[-1].pid not in processes_of_run(paths.exp_dir):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        threading.Thread(target=started[-1].wait, daemon=True).start()
        return started[-1]

    yield start
    for process in started:
        process.kill()


def test_those_that_save_are_waited_for_and_not_touched(
    paths: RunPaths,
    start_orphan: Callable[[], subprocess.Popen[bytes]],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def print_and_save(line: str, **options: Any) -> None:
        print(line, **options)
        (paths.exp_dir / "saved").touch()

    monkeypatch.setattr(role_process, "print", print_and_save, raising=False)
    orphan = start_orphan()
    wait_for_orphans(paths, 30.0)
    assert processes_of_run(paths.exp_dir) == [], "it was waited for"
    assert orphan.wait(10.0) == 0, "it ended by itself"
    line = "waiting for 1 processes of an earlier start of this run to save and end\n"
    assert capfd.readouterr().out == line
    wait_for_orphans(paths, 30.0)
    assert capfd.readouterr().out == "", "there is nobody to wait for"


def test_at_the_deadline_they_are_left_alone_until_the_run_is_locked(
    paths: RunPaths, start_orphan: Callable[[], subprocess.Popen[bytes]]
) -> None:
    orphan = start_orphan()
    wait_for_orphans(paths, 0.3)
    assert orphan.poll() is None, "another start may have begun, whose roles these are"
    end_orphans(paths, 0.3)
    assert orphan.wait(10.0) == -9


def test_roles_of_a_run_that_somebody_has_are_not_waited_for(
    paths: RunPaths, start_orphan: Callable[[], subprocess.Popen[bytes]]
) -> None:
    start_orphan()
    with open(paths.lock, "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        began = time.monotonic()
        wait_for_orphans(paths, 30.0)
        assert time.monotonic() - began < 15.0


@pytest.mark.parametrize("supervisor", ["", "none", "-1", "1.5"])
def test_what_is_no_pid_of_a_supervisor_stops_no_start(paths: RunPaths, supervisor: str) -> None:
    """In whichever process of this machine: it may be of another run, or of no run at all."""
    marks = {"SAC_EXP_DIR": str(paths.exp_dir), "TFAGENTS_SUPERVISOR_PID": supervisor}
    with subprocess.Popen(["sh", "-c", "echo up; read end"], env={**os.environ, **marks}, **_PIPES) as odd:
        assert odd.stdout is not None and odd.stdout.readline() == "up\n"
        assert processes_of_run(paths.exp_dir) == []
        odd.communicate("end\n", timeout=10.0)


def test_a_start_at_the_same_time_is_no_earlier_one(paths: RunPaths) -> None:
    """Its processes are still checking: whoever has the lock neither waits for them nor ends them."""
    program = (
        "import os, subprocess, sys\n"
        f"marks = {{'SAC_EXP_DIR': {str(paths.exp_dir)!r}, 'TFAGENTS_SUPERVISOR_PID': str(os.getpid())}}\n"
        "inner = \"import subprocess; subprocess.run(['sh', '-c', 'echo up; read end'])\"\n"
        "subprocess.run([sys.executable, '-c', inner], env={**os.environ, **marks})\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], **_PIPES) as other:
        assert other.stdout is not None and other.stdout.readline() == "up\n"
        assert processes_of_run(paths.exp_dir) == []
        end_orphans(paths, 0.0)
        assert other.poll() is None
        other.communicate("end\n", timeout=10.0)
    assert other.returncode == 0
