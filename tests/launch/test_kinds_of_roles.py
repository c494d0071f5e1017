"""Experts, evaluators, the gateway and the tracker, and roles on other machines: what their ends mean for a run."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.fake_run import CRASHES, SAVES, STUBBORN
from tests.support.supervised import beating, log, make_supervisor, once, once_up, status_of, waits_for_up
from tfagents_system.launch import supervisor as supervising
from tfagents_system.machine.files import write_json
from tfagents_system.machine.signals import StopFlag

pytestmark = pytest.mark.usefixtures("fast")


def test_experts_and_evaluators_are_started_as_such_and_named(run_dir: Path, stop: StopFlag) -> None:
    program = f"echo I am $SLURM_PROCID; {SAVES}"
    trainer = waits_for_up("worker_0", "worker_1", "worker_2") + "exit 0"
    supervisor = make_supervisor(run_dir, stop, {"worker": program, "trainer": trainer}, experts=1, evaluators=1)
    assert supervisor.run() == 0
    lines = [log(run_dir, f"worker_{number}").splitlines()[0] for number in range(3)]
    assert lines == [f"I am {number}" for number in range(3)]
    assert [supervisor.variables.kind_of(number) for number in range(4)] == ["collect", "expert", "eval", "collect"]
    roles = supervisor.to_json()["roles"]
    assert [roles[f"worker_{number}"].get("kind") for number in range(3)] == [None, "expert", "eval"]
    assert [role.name for role in supervisor.collectors] == ["worker_0"]


def test_a_given_up_expert_leaves_the_run_going_and_a_run_with_experts_alone_fails(
    run_dir: Path, stop: StopFlag, capfd: pytest.CaptureFixture[str]
) -> None:
    supervisor = make_supervisor(run_dir, stop, {"worker_1": CRASHES}, experts=1, max_restarts=1)
    once(lambda: supervisor.roles["worker_1"].given_up, stop.set)
    assert supervisor.run() == 75
    assert "worker_1 (expert): given up after 1 restarts" in capfd.readouterr().out
    again = StopFlag(signals=())
    assert make_supervisor(run_dir, again, {"worker_0": CRASHES}, experts=1, max_restarts=1).run() == 1
    assert "error: every worker was given up" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("role", "variables", "without"),
    [("gateway", {"gateway_port": 0}, "other machines"), ("tracker", {"wandb": "offline"}, "sending its metrics")],
)
def test_a_gateway_or_tracker_that_dies_or_refuses_its_input_later_does_not_end_the_run(
    run_dir: Path, stop: StopFlag, capfd: pytest.CaptureFixture[str], role: str, variables: dict[str, Any], without: str
) -> None:
    program = f"if [ -e {run_dir}/begun ]; then echo 'error: expired'; exit 2; fi; touch {run_dir}/begun; exit 1"
    roles = {role: program, "trainer": f"until [ -e {run_dir}/enough ]; do sleep 0.05; done; exit 0"}
    supervisor = make_supervisor(run_dir, stop, roles, max_restarts=2, **variables)
    once(lambda: supervisor.roles[role].given_up, (run_dir / "enough").touch)
    assert supervisor.run() == 0
    status = status_of(run_dir)
    assert status["roles"][role]["given_up"] and status["roles"]["trainer"]["restarts"] == 0
    assert f"the run continues without {without}" in capfd.readouterr().out


def test_a_tracker_that_hangs_takes_no_time_from_those_that_save_and_a_stop_says_how_to_have_a_report(
    run_dir: Path, stop: StopFlag, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(supervising, "_TRACKER_SECS", 0.3)
    run_dir.mkdir(exist_ok=True)
    (run_dir / "metrics.csv").touch()
    once_up(run_dir, stop.set)
    roles = {"tracker": STUBBORN, "trainer": beating(run_dir, "updating") + SAVES}
    start = time.monotonic()
    assert make_supervisor(run_dir, stop, roles, wandb="offline", save_deadline_secs=60.0).run() == 75
    assert time.monotonic() - start < 30.0 and "saved" in log(run_dir, "replay")
    out = capfd.readouterr().out
    assert re.search(r"killing tracker after \d s\n", out), "nothing of it is unsaved"
    assert f"a report so far: sac report {run_dir}\n" in out


def test_the_gateway_is_told_of_the_end_before_the_replay_server(run_dir: Path, stop: StopFlag) -> None:
    order = run_dir / "order"
    roles = {
        role: f"trap 'sleep 0.2; echo {role} >> {order}; exit 75' TERM; echo up; while :; do sleep 0.05; done"
        for role in ("gateway", "replay", "worker")
    }
    roles["trainer"] = waits_for_up("gateway", "replay", "worker_0") + "exit 0"
    assert make_supervisor(run_dir, stop, roles, gateway_port=0).run() == 0
    assert sorted(order.read_text().split()[:2]) == ["gateway", "worker"] and order.read_text().split()[2] == "replay"


def test_workers_on_other_machines_are_in_the_status(run_dir: Path, stop: StopFlag) -> None:
    supervisor = make_supervisor(run_dir, stop, {}, gateway_port=0)
    beats = {"worker_5": time.time(), "worker_6": time.time() - 60}
    supervisor.paths.heartbeats.mkdir(parents=True, exist_ok=True)
    for role, told in beats.items():
        write_json(supervisor.paths.heartbeat(role), {"state": "collecting", "time": told, "remote": True})
    write_json(supervisor.paths.heartbeat("worker_7"), {"state": "collecting", "time": time.time()})
    roles = supervisor.to_json()["roles"]
    assert list(roles) == ["replay", "trainer", "worker_0", "gateway", "worker_5", "worker_6"]
    assert (roles["worker_5"]["alive"], roles["worker_6"]["alive"]) == (True, False)


def test_a_run_whose_workers_all_join_from_elsewhere_waits_for_them(
    run_dir: Path, stop: StopFlag, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervising, "_ALL_WORKERS_GONE_SECS", 0.1)
    assert make_supervisor(run_dir, stop, {"trainer": "sleep 0.8; exit 0"}, workers=0).run() == 0


def test_a_run_whose_trainer_is_elsewhere_ends_with_it(
    run_dir: Path, stop: StopFlag, capfd: pytest.CaptureFixture[str]
) -> None:
    beat = '{"state": "done", "remote": true, "num_iter": 3, "time": \'$(date +%s)\'}'
    gateway = f"{waits_for_up('replay')} echo '{beat}' > {run_dir}/heartbeats/trainer.json; {SAVES}"
    roles = {"gateway": gateway}
    assert make_supervisor(run_dir, stop, roles, workers=0, gateway_port=0, local_trainer=False).run() == 0
    status = status_of(run_dir)
    assert status["run"]["state"] == "done"
    assert set(status["roles"]) == {"replay", "gateway", "trainer"} and status["roles"]["trainer"]["num_iter"] == 3
    assert "saved" in log(run_dir, "replay"), "told to stop, it saves"
    assert "results" not in capfd.readouterr().out, "they are where the trainer is"


def test_a_trainer_alone_gets_the_server_and_ends_when_its_run_is_stopped(
    run_dir: Path, stop: StopFlag, capfd: pytest.CaptureFixture[str]
) -> None:
    roles = {"trainer": "echo at $SAC_TRAINER_SERVER; sleep 0.3; exit 75"}
    assert make_supervisor(run_dir, stop, roles, workers=0, trainer_server="node7:8443").run() == 75
    assert log(run_dir, "trainer").count("at node7:8443") == 1, "and is not started again"
    assert "the run was stopped where its replay server is" in capfd.readouterr().out


def test_a_run_goes_on_without_own_workers_while_others_are_at_work(
    run_dir: Path, stop: StopFlag, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervising, "_ALL_WORKERS_GONE_SECS", 0.1)
    beat = '{"state": "collecting", "remote": true, "time": \'$(date +%s)\'}'
    tells = f"sleep 0.2; echo '{beat}' > {run_dir}/heartbeats/worker_7.json; exit 0"
    roles = {"trainer": "sleep 1.2; exit 0", "worker": tells}
    assert make_supervisor(run_dir, stop, roles).run() == 0
