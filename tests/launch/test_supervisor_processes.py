"""Supervisors as processes of their own: signals, two runs at a time, a killed supervisor."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.fake_run import DONE, SAVES
from tests.support.ports import free_port
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


def test_a_terminal_that_closes_saves(start: Callable[..., FakeRun]) -> None:
    """Other stop signals: abilities/test_survival.py."""
    run = start("a")
    run.wait_until_up()
    code, out = run.end(signal.SIGHUP)
    assert code == 75, out
    assert "nothing had been trained yet, the same command begins the run" in out  # These trainers tell of no update.
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


def test_runs_take_different_cpus_and_ports_and_name_who_holds_them(start: Callable[..., FakeRun]) -> None:
    cpus = {"cpus": list(range(7)), "share": False}
    first = start("a", **cpus, port=free_port())
    first.wait_until_up()
    second = start("b", **cpus)
    second.wait_until_up()
    code, out = start("c", **cpus).end()
    assert code == 2
    assert "needs 3 CPUs, 1 of 7 are free" in out and f"pid {first.process.pid}" in out
    statuses = [json.loads((run.exp_dir / "status.json").read_text()) for run in (first, second)]
    assert statuses[0]["plan"] == {"replay": [0], "trainer": [1], "worker_0": [2]}
    assert statuses[1]["plan"] == {"replay": [3], "trainer": [4], "worker_0": [5]}
    ports = [status["run"]["port"] for status in statuses]
    assert ports[0] != ports[1]
    code, out = start("d", port=ports[0]).end()
    assert code == 2 and f"SAC_REVERB_PORT={ports[0]} is in use by pid {first.process.pid}" in out
