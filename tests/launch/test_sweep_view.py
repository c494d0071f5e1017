"""What a sweep shows: a table on a terminal, lines elsewhere."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tfagents_system.launch.sweep_tasks import DONE, FAILED, RUNNING, WAITING, Task
from tfagents_system.launch.sweep_view import SweepView, own_settings, row, totals
from tfagents_system.run_files.run_paths import RunPaths


def task(folder: Path, number: int, state: str, **more: object) -> Task:
    paths = RunPaths(folder / f"try_task_{number}")
    return Task(number, {"discount": 0.9, "SAC_SEED": number}, [], {}, paths, state=state, **more)  # type: ignore[arg-type]


def with_status(one: Task, state: str, started_at: float) -> Task:
    trainer = {"state": "updating", "iteration": 3, "num_iter": 9, "env_steps": 4800, "eval_return": -310.2}
    run = {"name": "x", "state": state, "started_at": started_at, "updated_at": time.time()}
    one.paths.exp_dir.mkdir(parents=True)
    one.paths.status_json.write_text(json.dumps({"run": run, "roles": {"trainer": trainer}}))
    return one


def test_a_row_tells_of_this_start(tmp_path: Path) -> None:
    now = time.time()
    assert row(task(tmp_path, 0, WAITING), now)["state"] == "waiting"
    assert row(task(tmp_path, 1, RUNNING, started_at=now), now)["state"] == "starting"
    live = row(with_status(task(tmp_path, 2, RUNNING, started_at=now - 5), "running", now - 3), now)
    assert (live["state"], live["iteration"], live["eval return"]) == ("running", "3/9", "-310.2")
    # A status that an earlier start left: how far it was counts, what it was doing does not.
    old = row(with_status(task(tmp_path, 3, RUNNING, started_at=now), "stopped", now - 100), now)
    assert (old["state"], old["iteration"]) == ("starting", "3/9")
    ends = row(with_status(task(tmp_path, 4, RUNNING, started_at=now - 5), "done", now - 3), now)
    assert ends["state"] == "finishing"


def test_changes_are_told_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tasks = [task(tmp_path, 0, RUNNING), task(tmp_path, 1, WAITING)]
    view = SweepView(line_secs=100.0)
    view.show(tasks)
    view.show(tasks)
    tasks[0].state, tasks[0].reason, tasks[1].state = FAILED, "exit code 1: no luck", DONE
    view.show(tasks)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("task 0 (SAC_SEED=0): running (log in ")
    assert lines[1].startswith("task 0 (SAC_SEED=0): failed, exit code 1: no luck (log in ")
    assert lines[2] == "task 1 (SAC_SEED=1): done, eval return -, best -"
    assert totals(tasks) == "1 done, 1 failed"


def test_tasks_are_told_apart_by_what_differs_and_a_single_one_by_all(tmp_path: Path) -> None:
    tasks = [task(tmp_path, k, WAITING) for k in range(3)]
    assert own_settings(tasks) == {k: f"SAC_SEED={k}" for k in range(3)}
    assert own_settings(tasks[:1]) == {0: "discount=0.9 SAC_SEED=0"}
    assert own_settings([]) == {}
