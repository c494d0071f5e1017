"""A supervised run: its course, its environment and its status, with small shell programs as roles."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from tests.support.fake_run import SAVES, STUBBORN
from tests.support.shell import ROOT
from tests.support.supervised import beating, log, make_supervisor, once_stopping, once_up, status_of, waits_for_up
from tests.support.waiting import until
from tfagents_system.launch import supervisor as supervisor_module
from tfagents_system.launch.prepare import tell_finished
from tfagents_system.machine.signals import StopFlag
from tfagents_system.report.status import summary
from tfagents_system.run_files import heartbeat as heartbeat_module
from tfagents_system.run_files.heartbeat import write_status
from tfagents_system.run_files.run_lock import RunLock
from tfagents_system.run_files.run_paths import RunPaths

pytestmark = pytest.mark.usefixtures("fast")


def test_the_trainers_end_is_the_runs_end(run_dir: Path, stop: StopFlag, capfd: pytest.CaptureFixture[str]) -> None:
    trainer = waits_for_up("replay", "worker_0", "worker_1") + "exit 0"
    assert make_supervisor(run_dir, stop, {"trainer": trainer}, workers=2).run() == 0
    assert "saved" in log(run_dir, "replay") and "saved" in log(run_dir, "worker_1")
    status = status_of(run_dir)
    assert status["run"]["state"] == "done" and status["run"]["exit_code"] == 0
    assert set(status["roles"]) == {"replay", "trainer", "worker_0", "worker_1"}
    assert not any(role["alive"] for role in status["roles"].values())
    assert "results" in capfd.readouterr().out


def test_a_start_tells_how_far_the_run_had_come_until_its_trainer_does(tmp_path: Path, stop: StopFlag) -> None:
    made = make_supervisor(tmp_path / "run", stop, {})
    made.paths.heartbeats.mkdir(parents=True)
    beat = {"iteration": 7, "num_iter": 9, "env_steps": 1700, "state": "stopped", "pid": 4}
    write_status(made.paths.status_json, {"run": {"name": "x", "state": "stopped"}, "roles": {"trainer": beat}})
    for _ in range(2):  # A start that is stopped early, and the next one.
        made = make_supervisor(tmp_path / "run", stop, {})
        status = made.to_json()
        shown = summary(status, status["run"]["updated_at"])
        assert (shown["state"], shown["iteration"], shown["env steps"]) == ("starting", "7/9", "1,700")
        write_status(made.paths.status_json, status)
    made.paths.heartbeat("trainer").write_text(json.dumps({"state": "training", "iteration": 8, "num_iter": 9}))
    status = made.to_json()
    assert "before" not in status["run"] and summary(status, 0.0)["env steps"] == "-"


def test_roles_get_their_cpus_threads_and_numbers_and_the_trainer_the_gpu(
    run_dir: Path, stop: StopFlag, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TFAGENTS_CUDA_VISIBLE_DEVICES", "5,6")
    tells = (
        "grep Cpus_allowed_list /proc/self/status; env | sort; ps -o sid= -p $$ | tr -d ' ' | sed s/^/sid=/; "
        "echo pid=$$; readlink /proc/self/fd/0; "
    )
    roles = {"trainer": tells + waits_for_up("worker_1") + "exit 0", "worker": tells + SAVES}
    supervisor = make_supervisor(run_dir, stop, roles, workers=2, train_gpus=True)
    status = supervisor.to_json()
    plan, port = status["plan"], status["run"]["port"]
    assert supervisor.run() == 0 and port == 8123
    for role in ("trainer", "worker_1"):
        text = log(run_dir, role)
        assert re.search(rf"Cpus_allowed_list:\s+{plan[role][0]}\n", text)
        assert f"SAC_EXP_DIR={run_dir}\n" in text and "SAC_REVERB_PORT=8123\n" in text and "SAC_SEED=0\n" in text
        assert "SAC_NUM_COLLECT_WORKERS=2\n" in text and "SAC_SHARE_CPUS=1\n" in text
        assert "OMP_NUM_THREADS=1\n" in text
        assert f"\nCUDA_VISIBLE_DEVICES={5 if role == 'trainer' else -1}\n" in text
        assert f"PYTHONPATH={ROOT}" in text
        assert text[text.index("sid=") :].split()[0][4:] == text[text.index("pid=") :].split()[0][4:]
        assert "/dev/null" in text
    assert "SLURM_PROCID=1\n" in log(run_dir, "worker_1")


@pytest.mark.parametrize("is_saving", [False, True])
def test_a_start_whose_lock_is_lost_ends_at_once_and_writes_nothing_more(
    run_dir: Path, stop: StopFlag, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, is_saving: bool
) -> None:
    monkeypatch.setattr(supervisor_module, "_LOCK_SECS", 0.05)
    lock = RunLock(RunPaths(run_dir), {}, "node1")
    trainer = beating(run_dir, "updating") + (STUBBORN if is_saving else SAVES)
    supervisor = make_supervisor(run_dir, stop, {"trainer": trainer}, lock=lock, save_deadline_secs=60.0)
    taken: list[float] = []

    def take_over() -> None:
        until((run_dir / "status.json").exists, 10.0, "its first status")
        beside = run_dir / "run.lock.new"  # Who reads meanwhile would find an empty file, of nobody.
        beside.write_text('{"pid": 7, "host": "node2", "token": "other"}')
        beside.replace(supervisor.paths.lock)
        taken.append(time.monotonic())

    if is_saving:
        once_up(run_dir, stop.set)
        once_stopping(run_dir, take_over)
    else:
        once_up(run_dir, take_over)
    written: list[float] = []
    write_status = supervisor_module.write_status

    def note_and_write(path: Path, status: dict[str, Any]) -> None:
        written.append(time.monotonic())
        write_status(path, status)

    monkeypatch.setattr(supervisor_module, "write_status", note_and_write)
    with lock:
        assert supervisor.run() == 1
    until(lambda: taken, 10.0, "when it was taken over is noted")
    assert time.monotonic() - taken[0] < 10.0
    assert max(written, default=taken[0]) - taken[0] < 1.0
    out = capfd.readouterr().out
    assert "was taken over by the run with pid 7 on node2, started at an unknown time: this start ends and" in out
    assert json.loads((run_dir / "run.lock").read_text())["host"] == "node2"
    status = status_of(run_dir)
    assert status["run"]["state"] == "running"
    assert is_saving or "saved" not in log(run_dir, "trainer")


@pytest.mark.parametrize(
    ("trainer", "line"),
    [
        ({"num_iter": 25}, "run is finished: num_iter=25 is reached"),
        (
            {"num_iter": 25, "ended_early": "num_env_steps=400 is reached"},
            "run is finished: num_env_steps=400 is reached",
        ),
        ({"num_iter": 25, "ended_early": "enough"}, "run is finished early: enough"),
    ],
)
def test_the_last_line_says_why_a_run_is_finished(
    tmp_path: Path, stop: StopFlag, trainer: dict[str, Any], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    made = make_supervisor(tmp_path / "run", stop, {})
    made.paths.heartbeats.mkdir(parents=True)
    made.paths.heartbeat("trainer").write_text(json.dumps({"state": "done", **trainer}))
    told = make_supervisor(tmp_path / "run", stop, {}).closing_lines(0)
    assert told[-1] == line
    made.paths.run_json.write_text(json.dumps({"attributes": {"num_iter": 25}}))
    write_status(made.paths.status_json, {"run": {"name": "run"}, "roles": {"trainer": trainer}})
    tell_finished("run", made.paths)
    assert capsys.readouterr().out.startswith(f"{line} ({made.paths.exp_dir}). Nothing is to be done: choose"), "again"


def test_the_last_line_is_of_training_where_nothing_was_evaluated() -> None:
    def lines(which: str, **trainer: float) -> list[str]:
        return supervisor_module._result_lines(which, trainer)

    assert lines("final", train_return=-9.5) == ["final training return: -9.5"]
    assert lines("last", train_return=-9.5, best_eval_return=-3.5) == ["last evaluation: best -3.5"]
    cut = lines("final", eval_return=-9.5, eval_faults=3, eval_episodes=4)
    assert cut == ["final evaluation: return -9.5 (a fault cut 3 of its 4 episodes)"]
    assert lines("final", eval_return=-9.5, eval_faults=0, eval_episodes=4) == ["final evaluation: return -9.5"]
    assert lines("last") == []


def test_a_run_that_failed_says_which_command_goes_on_from_where(
    tmp_path: Path, stop: StopFlag, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_supervisor(tmp_path / "run", stop, {})
    made.paths.logs.mkdir(parents=True)
    made.finish(1, "trainer can't continue (error: mass)")
    failed = f"run failed: trainer can't continue (error: mass) (logs in {made.paths.logs}): correct that, and "
    assert made.closing_lines(1)[-1] == f"{failed}the same command begins again"
    made.paths.saved.write_text('{"train_step": 4800}')
    assert made.closing_lines(1)[-1] == f"{failed}the same command continues from train step 4,800"
    monkeypatch.setenv("TFAGENTS_CALL", "sac train 'my arm/vars.sh' --fresh --seed 3")
    again = "`sac train 'my arm/vars.sh' --seed 3` continues from train step 4,800"
    assert made.closing_lines(1)[-1] == failed + again
    made.finish(1, "stopped by SIGTERM, not everything was saved")
    assert made.closing_lines(1)[-1].endswith(f"not everything was saved (logs in {made.paths.logs}): {again}")


def test_a_full_disk_is_told_until_a_status_can_be_written(
    tmp_path: Path, stop: StopFlag, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made, now = make_supervisor(tmp_path / "run", stop, {}), 100.0
    made.paths.exp_dir.mkdir()
    monkeypatch.setattr(supervisor_module.time, "monotonic", lambda: now)
    with monkeypatch.context() as patch:
        patch.setattr(heartbeat_module, "write_json", MagicMock(side_effect=OSError(28, "No space left on device")))
        made.show()
    assert made.to_json()["run"]["unwritable"] == "No space left on device"
    now += 2.0
    made.show()
    assert status_of(tmp_path / "run")["run"]["unwritable"], "until all roles have written again"
    now += 4.0
    made.show()
    assert "unwritable" not in status_of(tmp_path / "run")["run"]


def test_a_run_directory_that_is_removed_ends_the_run_in_words(
    run_dir: Path, stop: StopFlag, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(supervisor_module, "_LOCK_SECS", 0.0)
    once_up(run_dir, lambda: run_dir.rename(run_dir.with_name("elsewhere")))
    began = time.monotonic()
    with RunLock(RunPaths(run_dir), {}, "node1") as lock:
        supervisor = make_supervisor(run_dir, stop, {"trainer": STUBBORN}, lock=lock, save_deadline_secs=60.0)
        assert supervisor.run() == 1
    assert time.monotonic() - began < 10.0, "nothing can be saved: nobody is waited for"
    out = capfd.readouterr().out
    assert "was taken over" not in out, "the lock has gone with it"
    assert f"error: the run directory {run_dir} was removed or replaced while the run was going: put it back" in out
