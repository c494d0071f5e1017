"""Tasks of a sweep, with small programs in the place of runs: which run when and where, how all of them end."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.waiting import until
from tfagents_system.launch.sweep_tasks import DONE, FAILED, RUNNING, STOPPED, WAITING, Place, Task, TaskRunner
from tfagents_system.machine.gpus import FOUND
from tfagents_system.machine.signals import StopFlag
from tfagents_system.run_files.run_paths import RunPaths

ROOT = Path(__file__).resolve().parents[2]


def task(folder: Path, number: int, program: str, state: str = WAITING, save_secs: float = 10.0) -> Task:
    paths = RunPaths(folder / f"try_task_{number}")
    environ = {**os.environ, "FOLDER": str(folder), "TASK": str(number)}
    return Task(number, {"SAC_SEED": number}, ["bash", "-c", program], environ, paths, save_secs, state)


def run(
    tasks: Sequence[Task], stop: StopFlag, places: Sequence[Place] = (Place(), Place())
) -> tuple[int, list[list[str]]]:
    """Returns the exit code and the states that were shown."""
    shown: list[list[str]] = []
    code = TaskRunner(tasks, places, stop, lambda all_tasks: shown.append([t.state for t in all_tasks])).run()
    return code, shown


def test_at_most_as_many_as_there_are_places_run_at_once_and_one_failure_ends_nothing(
    tmp_path: Path, stop: StopFlag
) -> None:
    good, bad = "sleep 0.3", "echo 'error: no luck'; echo more; exit 1"
    tasks = [
        task(tmp_path, 0, good),
        task(tmp_path, 1, bad),
        task(tmp_path, 2, good),
        task(tmp_path, 3, "exit 7", DONE),
    ]
    code, shown = run(tasks, stop)
    assert code == 1
    assert [t.state for t in tasks] == [DONE, FAILED, DONE, DONE]
    assert max(states.count(RUNNING) for states in shown) == 2
    assert tasks[1].reason == "exit code 1: no luck" and "more" in tasks[1].log.read_text()


SAVES = 'trap "touch $FOLDER/saved_$TASK; exit 75" TERM; touch $FOLDER/up_$TASK; while :; do sleep 0.05; done'


def test_a_log_that_is_gone_and_a_start_that_fails_end_no_other_run(tmp_path: Path, stop: StopFlag) -> None:
    (tmp_path / "try_task_2").write_text("in the way of its folder")
    moved = "mv $FOLDER/try_task_1 $FOLDER/elsewhere; exit 1"
    tasks = [task(tmp_path, 0, "sleep 0.5"), task(tmp_path, 1, moved), task(tmp_path, 2, ""), task(tmp_path, 3, "")]
    assert run(tasks, stop)[0] == 1
    assert [t.state for t in tasks] == [DONE, FAILED, FAILED, DONE]
    assert tasks[1].reason == "exit code 1"
    assert re.fullmatch(r"it can't be started: .*(Not a directory|File exists).*", tasks[2].reason)


def test_after_a_fault_of_the_sweep_its_runs_save(
    tmp_path: Path, stop: StopFlag, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tfagents_system.launch.sweep_tasks._STOP_GRACE_SECS", 0.0)
    stubborn = "trap '' TERM; touch $FOLDER/up_$TASK; while :; do sleep 0.05; done"
    tasks = [task(tmp_path, 0, SAVES, save_secs=2.0), task(tmp_path, 1, stubborn, save_secs=0.5)]

    def show(all_tasks: Sequence[Task]) -> None:
        until(lambda: len(list(tmp_path.glob("up_*"))) == 2, 40.0, "up")
        raise ZeroDivisionError

    runner = TaskRunner(tasks, [Place(), Place()], stop, show)
    with pytest.raises(ZeroDivisionError):
        runner.run()
    assert (tmp_path / "saved_0").exists() and not (tmp_path / "saved_1").exists()
    assert {running.process.returncode for running in runner._running.values()} == {75, None}


def test_all_done(tmp_path: Path, stop: StopFlag) -> None:
    assert run([task(tmp_path, number, "exit 0") for number in range(3)], stop)[0] == 0


def test_a_run_is_pinned_to_its_place(tmp_path: Path, stop: StopFlag) -> None:
    cpu = sorted(os.sched_getaffinity(0))[0]
    one = task(tmp_path, 0, "grep Cpus_allowed_list /proc/self/status")
    assert run([one], stop, [Place([cpu])])[0] == 0
    assert one.log.read_text().split() == ["Cpus_allowed_list:", str(cpu)]


def test_each_run_at_once_has_a_gpu_of_its_own(tmp_path: Path, stop: StopFlag) -> None:
    meet = "touch $FOLDER/up_$TASK; until [[ -e $FOLDER/up_$((TASK ^ 1)) ]]; do sleep 0.02; done"
    says = f"echo ${{{FOUND}-none}}; {meet}"
    tasks = [task(tmp_path, number, f"timeout 20 bash -c '{says}'") for number in range(4)]
    assert run(tasks, stop, [Place(gpu="2"), Place(gpu="GPU-5")])[0] == 0
    seen = [t.log.read_text().strip() for t in tasks]
    assert {*seen[:2]} == {*seen[2:]} == {"2", "GPU-5"}


def test_a_stop_is_handed_on_and_nothing_more_starts(tmp_path: Path, stop: StopFlag) -> None:
    tasks = [task(tmp_path, number, SAVES) for number in range(3)]

    def stop_when_up() -> None:
        deadline = time.monotonic() + 20.0
        while len(list(tmp_path.glob("up_*"))) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        stop.set()

    thread = threading.Thread(target=stop_when_up)
    thread.start()
    code, _ = run(tasks, stop)
    thread.join()
    assert code == 75 and [t.state for t in tasks] == [STOPPED, STOPPED, WAITING]
    assert {path.name for path in tmp_path.glob("saved_*")} == {"saved_0", "saved_1"}


@pytest.mark.parametrize("name", ["INT", "TERM", "USR1", "USR2"])
def test_a_run_that_the_stop_signal_ends_before_it_is_up_was_stopped(tmp_path: Path, stop: StopFlag, name: str) -> None:
    dies = f'trap "trap - {name}; kill -{name} $$" TERM; touch $FOLDER/up; while :; do sleep 0.02; done'
    one = task(tmp_path, 0, dies)

    def stop_when_up() -> None:
        until((tmp_path / "up").exists, 40.0, "up")
        stop.set()

    thread = threading.Thread(target=stop_when_up)
    thread.start()
    code, _ = run([one], stop)
    thread.join()
    assert (code, one.state) == (75, STOPPED)


def test_a_run_that_does_not_stop_is_ended(tmp_path: Path, stop: StopFlag, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tfagents_system.launch.sweep_tasks._STOP_GRACE_SECS", 0.5)
    stubborn = task(tmp_path, 0, "trap '' TERM; while :; do sleep 0.05; done", save_secs=0.5)
    threading.Timer(1.0, stop.set).start()
    began = time.monotonic()
    code, _ = run([stubborn, task(tmp_path, 1, "exit 0")], stop)
    assert time.monotonic() - began < 15.0
    assert stubborn.state == FAILED and stubborn.reason == "signal 9" and code == 1


def test_a_sweep_that_is_killed_has_its_runs_stopped(tmp_path: Path) -> None:
    program = 'trap "touch $FOLDER/saved; exit 75" TERM; touch $FOLDER/up; while :; do sleep 0.05; done'
    script = (
        "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[1])\n"
        "from test_task_runner import *\n"
        "run([task(Path(sys.argv[2]), 0, sys.argv[3])], StopFlag())\n"
    )
    command = [sys.executable, "-c", script, str(Path(__file__).parent), str(tmp_path), program]
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)})
    try:
        until((tmp_path / "up").exists, 40.0, "up")
    finally:
        process.kill()
        process.wait()
    until((tmp_path / "saved").exists, 40.0, "saved")
