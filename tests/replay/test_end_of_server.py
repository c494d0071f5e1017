"""The replay server stays as long as what a killed supervisor has left still saves."""

import math
import os
import subprocess
import time
import types
from unittest import mock

import pytest

from tests.support.settings_for_tests import variables_with
from tests.support.waiting import until
from tfagents_system.machine.files import write_json
from tfagents_system.machine.signals import SUPERVISOR_PID_VARIABLE
from tfagents_system.replay import server
from tfagents_system.role import Role
from tfagents_system.run_files.heartbeat import Heartbeat, read_heartbeat
from tfagents_system.run_files.run_paths import REPLAY, TRAINER, RunPaths
from tfagents_system.transport.connection import ServerUnreachableError


@pytest.fixture
def role(tmp_path):
    stopped = []
    stop = types.SimpleNamespace(is_set=lambda: bool(stopped), set=lambda: stopped.append(True))
    return types.SimpleNamespace(stop=stop, paths=RunPaths(tmp_path), variables=variables_with())


@pytest.fixture
def orphaned(monkeypatch):
    monkeypatch.setenv(SUPERVISOR_PID_VARIABLE, "1" if os.getppid() != 1 else "2")


def trainer_says(role, state, pid):
    role.paths.heartbeats.mkdir(exist_ok=True)
    write_json(role.paths.heartbeat(TRAINER), {"state": state, "pid": pid})


def test_without_a_supervisor_it_stays_until_the_trainer_has_said_that_it_stopped(role, orphaned, monkeypatch):
    assert not server.stays_for_trainer(role, math.inf), "there never was a trainer"
    trainer_says(role, "saving", os.getpid())
    assert server.stays_for_trainer(role, math.inf)
    assert not server.stays_for_trainer(role, time.monotonic() - 0.1), "no longer than a stop may take"
    trainer_says(role, "stopped", os.getpid())
    assert not server.stays_for_trainer(role, math.inf)
    with subprocess.Popen(["true"]) as process:
        pass
    trainer_says(role, "saving", process.pid)
    assert not server.stays_for_trainer(role, math.inf), "it died"
    trainer_says(role, "saving", os.getpid())
    monkeypatch.setenv(SUPERVISOR_PID_VARIABLE, str(os.getppid()))
    assert not server.stays_for_trainer(role, math.inf), "its supervisor stops it last"


def test_its_start_says_what_it_is_at_and_the_others_wait_as_long(role, monkeypatch):
    """Such as a large ring that is verified: nobody is to take it for a server that hangs."""
    role.heartbeat, role.params = Heartbeat(role.paths.heartbeat(REPLAY), REPLAY, 0.02), None
    waiting = types.SimpleNamespace(
        paths=role.paths, heartbeat=Heartbeat(role.paths.heartbeat(TRAINER), TRAINER, min_secs=0.02)
    )
    waits = []

    class Unreachable:
        def wait_until_up(self, deadline_secs):
            until(lambda: read_heartbeat(role.paths.heartbeat(TRAINER)), 10.0, "a heartbeat of who waits")
            waits.append(deadline_secs)
            raise ServerUnreachableError

    class Opening:
        def open_ring(self, role, layout, work):
            work.doing, work.done, work.total, work.unit = "another size", 3, 10, "MiB"
            path = role.paths.heartbeat(REPLAY)
            until(lambda: "another size" in ((read_heartbeat(path) or {}).get("doing") or ""), 10.0, "a heartbeat")
            assert read_heartbeat(path)["doing"].startswith("ring: 3 of 10 MiB (30 %), another size, ")
            raise InterruptedError

    for name in ("run_layout", "specs"):
        monkeypatch.setattr(server, name, mock.MagicMock())
    monkeypatch.setattr(server, "_open_ring", Opening().open_ring)
    with pytest.raises(ServerUnreachableError):
        Role.wait_until_up(waiting, Unreachable(), 600.0)
    assert waits == [600.0], "nobody says anything"
    with pytest.raises(InterruptedError):
        server.serve(role)
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 200 * len(waits))
    with pytest.raises(ServerUnreachableError):
        Role.wait_until_up(waiting, Unreachable(), 600.0)
    assert waits == [600.0] * 3, "the server has said nothing for longer than that"
