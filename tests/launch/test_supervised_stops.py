"""Stops of a supervised run: who saves when, deadlines, a second signal, what is said."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.support.fake_run import SAVES, STUBBORN
from tests.support.supervised import beating, log, make_supervisor, once_stopping, once_up, status_of
from tfagents_system.launch import supervisor as supervisor_module
from tfagents_system.launch.supervisor import Supervisor
from tfagents_system.machine import signals
from tfagents_system.machine.signals import StopFlag
from tfagents_system.report.status import problems
from tfagents_system.report.terminal import ProgressView

pytestmark = pytest.mark.usefixtures("fast")


class StopClock:
    """Replaces a supervisor's `time`: it passes only while nothing runs but a role that hangs and the replay server.

    So the others save in no time, however busy the machine is, and so does the replay server, which is told last.

    Attributes:
      passed_secs: How much has passed: 0.25 s with each look.
    """

    time = staticmethod(time.time)

    def __init__(self, supervisor: Supervisor, hangs: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self._supervisor, self._alone, self.passed_secs = supervisor, {hangs, "replay"}, 0.0
        monkeypatch.setattr(supervisor_module, "time", self)

    def monotonic(self) -> float:
        return self.passed_secs

    def sleep(self, secs: float) -> None:
        time.sleep(secs)
        if {name for name, role in self._supervisor.roles.items() if role.is_running()} == self._alone:
            self.passed_secs += 0.25
        assert self.passed_secs < 60.0


def test_a_stop_lets_trainer_and_workers_save_before_the_replay_server(run_dir: Path, stop: StopFlag) -> None:
    def saves(role: str, secs: float) -> str:
        stamp = f"date +%s.%N > {run_dir}/{role}"
        return f"trap '{stamp}.told; sleep {secs}; {stamp}.saved; exit 75' TERM; echo up; while :; do sleep 0.02; done"

    roles = {"replay": saves("replay", 0), "trainer": saves("trainer", 0.3), "worker": saves("worker", 0.1)}
    once_up(run_dir, stop.set)
    assert make_supervisor(run_dir, stop, roles).run() == 75
    at = {path.name: float(path.read_text()) for path in [*run_dir.glob("*.told"), *run_dir.glob("*.saved")]}
    assert at["trainer.saved"] < at["replay.told"] and at["worker.saved"] < at["replay.told"]
    status = status_of(run_dir)
    assert status["run"]["state"] == "stopped"


def test_a_normal_stop_shows_no_role_as_down(
    run_dir: Path, stop: StopFlag, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(supervisor_module, "_VIEW_SECS", 0.02)
    saves = "trap 'sleep {secs}; exit 75' TERM; echo up; while :; do sleep 0.02; done"
    told = '"updates_per_s": 9, "eval_return": -310.21, "best_eval_return": -298.7, "eval_success": 0.5'
    beat = f"""echo '{{"state": "saving", {told}}}' > {run_dir}/heartbeats/trainer.json; """
    roles = {"replay": saves.format(secs=0.5), "trainer": beat + saves.format(secs=0), "worker": saves.format(secs=0)}
    supervisor = make_supervisor(run_dir, stop, roles)
    supervisor.view = ProgressView(Console(force_terminal=False), line_secs=0.01)
    looks: list[dict[str, Any]] = []
    monkeypatch.setattr(supervisor_module, "write_status", lambda path, status: looks.append(status))
    monkeypatch.setattr(supervisor_module, "BEAT_SECS", 0.02)
    once_up(run_dir, stop.set)
    assert supervisor.run() == 75
    out = capfd.readouterr().out
    assert "iteration" in out and "down" not in out
    assert "\nlast evaluation: return -310.2, best -298.7, success 50%\nrun: stopped by SIGTERM" in out
    waiting = [look["roles"] for look in looks if look["roles"]["replay"]["alive"]]
    assert any(not roles["trainer"]["alive"] for roles in waiting), "it was seen while the others were saving"
    assert not any(problems(look, look["run"]["updated_at"]) for look in looks)
    (first, *_) = [look["run"] for look in looks if look["run"]["message"]]
    assert (first["state"], first["message"]) == ("running", "stopped by SIGTERM"), "joined workers read it there"


@pytest.mark.parametrize(("state", "code"), [("updating", 1), ("starting", 75)])
def test_a_trainer_that_dies_unsaved_is_not_called_saved(run_dir: Path, stop: StopFlag, state: str, code: int) -> None:
    once_up(run_dir, stop.set)
    roles = {"trainer": beating(run_dir, state) + "echo up; exec sleep 600"}
    assert make_supervisor(run_dir, stop, roles).run() == code


def test_a_role_that_does_not_end_is_killed_at_the_deadline(
    run_dir: Path, stop: StopFlag, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    once_up(run_dir, stop.set)
    roles = {"trainer": beating(run_dir, "updating") + STUBBORN}
    supervisor = make_supervisor(run_dir, stop, roles, save_deadline_secs=2.0)
    run_dir.mkdir()
    supervisor.paths.saved.write_text('{"train_step": 40}')
    clock = StopClock(supervisor, "trainer", monkeypatch)
    assert supervisor.run() == 1
    assert clock.passed_secs == 1.75, "the first look after 1.5 s: the rest is the replay server's"
    out = capfd.readouterr().out
    assert "killing trainer after 2 s" in out and ": the same command continues from train step 40\n" in out
    assert "saved" in log(run_dir, "replay")  # It still stores what it has.


def test_a_second_signal_kills_at_once(run_dir: Path, stop: StopFlag, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "_SAME_SIGNAL_SECS", 0.0)
    once_up(run_dir, stop.set)
    once_stopping(run_dir, stop.set)
    roles = {"trainer": beating(run_dir, "updating") + STUBBORN, "replay": STUBBORN}
    start = time.monotonic()
    assert make_supervisor(run_dir, stop, roles, save_deadline_secs=60.0).run() == 1
    assert time.monotonic() - start < 10.0


def test_a_hanging_worker_costs_a_stop_half_of_its_time_and_nothing_else(
    run_dir: Path, stop: StopFlag, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    once_up(run_dir, stop.set, ("trainer", "replay", "worker_0", "worker_1"))
    roles = {"trainer": beating(run_dir, "updating") + SAVES, "worker_1": STUBBORN}
    supervisor = make_supervisor(run_dir, stop, roles, workers=2, save_deadline_secs=3.0)
    clock = StopClock(supervisor, "worker_1", monkeypatch)
    assert supervisor.run() == 75
    assert clock.passed_secs == 1.75, "the first look after 1.5 s, and nothing after that"
    out = capfd.readouterr().out
    assert "killing worker_1 after 2 s" in out
    assert "everything is saved" in out
    assert "saved" in log(run_dir, "replay") and "saved" in log(run_dir, "worker_0")
