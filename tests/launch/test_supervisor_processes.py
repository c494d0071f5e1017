"""Supervisors as processes of their own: signals, two runs at a time, a killed supervisor."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.fake_run import DONE, SAVES
from tests.support.shell import ROOT
from tests.support.supervised import log
from tfagents_system.machine.processes import processes_of_run


class FakeRun:
    """A supervisor process of its own."""

    def __init__(self, exp_dir: Path, prefix: str, roles: dict[str, str] | None = None, **more: Any) -> None:
        self.exp_dir = exp_dir
        programs = {"replay": SAVES, "trainer": SAVES, "worker": SAVES} | (roles or {})
        spec = {"exp_dir": str(exp_dir), "prefix": prefix, "roles": programs, **more}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.fake_run", json.dumps(spec)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # Tests may be run under nohup.
        )

    def wait_until_up(self) -> None:
        deadline = time.monotonic() + 30.0
        logs = [self.exp_dir / "logs" / f"{role}.log" for role in ("replay", "trainer", "worker_0")]
        while not all(path.exists() and "up" in path.read_text() for path in logs):
            assert self.process.poll() is None, self.process.communicate()[0]
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def end(self, number: int | None = None) -> tuple[int, str]:
        if number is not None:
            self.process.send_signal(number)
        out, _ = self.process.communicate(timeout=60)
        return self.process.returncode, out


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., FakeRun]]:
    prefix = f"test_{uuid.uuid4().hex}"
    runs: list[FakeRun] = []

    def start_run(name: str, **more: Any) -> FakeRun:
        runs.append(FakeRun(tmp_path / name, prefix, **more))
        return runs[-1]

    yield start_run
    for run in runs:
        if run.process.poll() is None:
            run.process.terminate()
            run.process.communicate(timeout=60)
        assert list(processes_of_run(run.exp_dir)) == []


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGUSR1])
def test_every_stop_signal_saves(start: Callable[..., FakeRun], number: int) -> None:
    run = start("a")
    run.wait_until_up()
    code, out = run.end(number)
    assert code == 75, out
    assert "everything is saved, the same command goes on" in out
    assert "saved" in log(run.exp_dir, "trainer")


def test_a_run_after_a_killed_supervisor_waits_for_its_roles_and_goes_on(start: Callable[..., FakeRun]) -> None:
    # No PDEATHSIG in these roles: they outlive their supervisor, as one that is saving does for a while.
    first = start("a")
    first.wait_until_up()
    assert processes_of_run(first.exp_dir) == [], "their supervisor is alive"
    assert first.end(signal.SIGKILL)[0] == -signal.SIGKILL
    assert len(processes_of_run(first.exp_dir)) >= 3
    second = start("a", roles={"trainer": "echo up; " + DONE}, save_deadline_secs=1.0)
    code, out = second.end()
    assert code == 0, out
    assert "of an earlier start of this run to save and end" in out


def test_two_runs_take_different_cpus_and_ports(start: Callable[..., FakeRun]) -> None:
    cpus = {"cpus": list(range(7)), "share": False}
    first = start("a", **cpus)
    first.wait_until_up()
    second = start("b", **cpus)
    second.wait_until_up()
    third = start("c", **cpus)
    code, out = third.end()
    assert code == 2
    assert "needs 3 CPUs, 1 of 7 are free" in out and f"pid {first.process.pid}" in out
    plans = [json.loads((run.exp_dir / "status.json").read_text())["plan"] for run in (first, second)]
    assert plans[0] == {"replay": [0], "trainer": [1], "worker_0": [2]}
    assert plans[1] == {"replay": [3], "trainer": [4], "worker_0": [5]}
    ports = [re.search(r"port (\d+)", run.end(signal.SIGTERM)[1]) for run in (first, second)]
    assert ports[0] and ports[1] and ports[0][1] != ports[1][1]


def test_a_port_that_another_run_holds_is_refused_by_name(start: Callable[..., FakeRun]) -> None:
    with socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::", 0))
        port = probe.getsockname()[1]
    first = start("a", port=port)
    first.wait_until_up()
    code, out = start("b", port=port).end()
    assert code == 2 and f"SAC_REVERB_PORT={port} is in use by pid {first.process.pid}" in out
