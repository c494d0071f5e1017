"""The replay server stays as long as what a killed supervisor has left still saves."""

import os
import subprocess
import types

import pytest

from tfagents_system.machine.signals import SUPERVISOR_PID_VARIABLE
from tfagents_system.replay import server
from tfagents_system.run_files.heartbeat import write_json
from tfagents_system.run_files.run_paths import TRAINER, RunPaths


@pytest.fixture
def role(tmp_path):
    stopped = []
    stop = types.SimpleNamespace(is_set=lambda: bool(stopped), set=lambda: stopped.append(True))
    return types.SimpleNamespace(stop=stop, paths=RunPaths(tmp_path))


@pytest.fixture
def orphaned(monkeypatch):
    monkeypatch.setenv(SUPERVISOR_PID_VARIABLE, "1" if os.getppid() != 1 else "2")


def trainer_says(role, state, pid):
    write_json(role.paths.heartbeat(TRAINER), {"state": state, "pid": pid})


def test_a_stop_by_its_supervisor_is_its_end(role, monkeypatch):
    monkeypatch.setenv(SUPERVISOR_PID_VARIABLE, str(os.getppid()))
    trainer_says(role, "saving", os.getpid())
    ends = server._End(role)
    assert not ends.has_come()
    role.stop.set()
    assert ends.has_come()


def test_without_a_supervisor_it_stays_until_the_trainer_has_said_that_it_stopped(role, orphaned):
    trainer_says(role, "saving", os.getpid())
    ends = server._End(role)
    role.stop.set()
    assert not ends.has_come()
    trainer_says(role, "stopped", os.getpid())
    assert ends.has_come()


def test_it_does_not_stay_for_a_trainer_that_died_or_never_was(role, orphaned):
    ends = server._End(role)
    role.stop.set()
    assert ends.has_come()
    with subprocess.Popen(["true"]) as process:
        pass
    trainer_says(role, "saving", process.pid)
    assert ends.has_come()


def test_nor_longer_than_a_stop_may_take(role, orphaned, monkeypatch):
    monkeypatch.setenv("SAC_SAVE_DEADLINE_SECS", "20")
    clock = [100.0]
    monkeypatch.setattr(server.time, "monotonic", lambda: clock[0])
    trainer_says(role, "saving", os.getpid())
    ends = server._End(role)
    role.stop.set()
    assert not ends.has_come()
    clock[0] += 4.9
    assert not ends.has_come()
    clock[0] += 0.2
    assert ends.has_come()
