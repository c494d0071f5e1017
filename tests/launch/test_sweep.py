"""Sweeps: which tasks there are, which run when and where, how a sweep ends."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.login_node import be_on_login_node
from tests.support.machines import flat
from tests.support.waiting import gone, until
from tfagents_system.errors import EXIT_RESUMABLE, UserError
from tfagents_system.launch import sweep, sweep_plan
from tfagents_system.launch.run_settings import EDITS, TAKE, jobs_of
from tfagents_system.launch.sweep import parse_seeds
from tfagents_system.launch.sweep_tasks import DONE, FAILED, RUNNING, STOPPED, WAITING, Place, Task, TaskRunner
from tfagents_system.machine.gpus import FOUND
from tfagents_system.machine.signals import StopFlag
from tfagents_system.machine.topology import split_cpus
from tfagents_system.run_files import params_folder
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.settings.overrides import Overrides

ROOT = Path(__file__).resolve().parents[2]
PARAMS = """
from tfagents_system.train_params_base import TrainParamsBase

class TrainParams(TrainParamsBase):
    num_iter = 3

    def env_ctor(self, *args, seed=None, **kwargs):
        raise RuntimeError("the simulator is not asked")
"""


@pytest.mark.parametrize(
    ("text", "seeds"), [("0-2", [0, 1, 2]), ("7", [7]), ("3,0-1", [3, 0, 1]), (" 1 , 5-6", [1, 5, 6])]
)
def test_seeds_are_numbers_and_ranges(text: str, seeds: list[int]) -> None:
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["", "a", "2-1", "-1", "1,,2", "0-99999999", "4294967296", "1-3,2"])
def test_other_seeds_are_refused(text: str) -> None:
    with pytest.raises(UserError, match="--seeds"):
        parse_seeds(text)


@pytest.mark.parametrize(
    ("cpus", "held", "parallel", "needed", "share", "places"),
    [
        (8, (), 2, 4, False, [[0, 1, 2, 3], [4, 5, 6, 7]]),
        (8, (), 2, 3, False, [[0, 1, 2, 3], [4, 5, 6, 7]]),
        (8, (0, 5), 2, 3, False, [[1, 2, 3], [4, 6, 7]]),
        (7, (), 3, 5, True, [[0, 1, 2], [3, 4], [5, 6]]),
        (2, (), 2, 4, True, [[0], [1]]),
        (2, (0, 1), 2, 4, True, [[0], [1]]),
        (2, (), 3, 4, True, [[0], [1], [0]]),
        (4, (), 1, 9, True, [[0, 1, 2, 3]]),
    ],
)
def test_runs_at_once_have_cpus_of_their_own(
    cpus: int, held: tuple[int, ...], parallel: int, needed: int, share: bool, places: list[list[int]]
) -> None:
    assert split_cpus(flat(range(cpus)), parallel, needed, held=held, share=share) == places


def test_a_runs_place_has_room_for_its_experts(
    vars_file: Path, started: list[Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    vars_file.write_text(vars_file.read_text().replace("SAC_SHARE_CPUS=1", "SAC_EXPERT_WORKERS=2"))
    monkeypatch.setattr(sweep_plan, "cores_of", lambda ids: flat(range(12)))
    monkeypatch.setattr(sweep_plan, "held_cpus", dict)
    monkeypatch.setattr(sweep_plan, "cgroup_quota", lambda: None)
    needed = []

    def split(cores: Any, parallel: int, count: int, **more: Any) -> list[list[int]]:
        needed.append(count)
        return [[0]] * parallel

    monkeypatch.setattr(sweep_plan, "split_cpus", split)
    expert = "\n    def expert_policy_ctor(self):\n        return lambda observation: observation\n"
    (vars_file.parent / "p.py").write_text(PARAMS + expert)
    sweep.main([str(vars_file), "--seeds", "0-1", "--parallel", "2"])
    assert needed == [5]


def test_too_few_cpus_are_told_with_numbers() -> None:
    with pytest.raises(UserError, match="2 runs of 5 CPUs need 10, 7 are free"):
        split_cpus(flat(range(8)), 2, 5, held=[3])


# The runner, with small programs in the place of runs.


@pytest.fixture
def stop() -> StopFlag:
    return StopFlag([])


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
        "from test_sweep import *\n"
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


# What is checked before anything starts.


@pytest.fixture
def vars_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "p.py").write_text(PARAMS)
    (tmp_path / "c.json").write_text('{"horizon": 20}')
    (tmp_path / "v.sh").write_text(
        "SAC_REVERB_CPUS=1 SAC_TRAIN_CPUS=1 SAC_NUM_COLLECT_WORKERS=1 SAC_COLLECT_WORKER_CPUS=1 SAC_SHARE_CPUS=1\n"
        "SAC_PARAMS=p.py SAC_CONFIG=c.json SAC_EXP_NAME=try SAC_LOGS_DIR=logs SAC_ALLOW_LOGIN=1\n"
    )
    monkeypatch.delenv("SLURM_ARRAY_TASK_ID", raising=False)
    for name in [name for name in os.environ if name.startswith("SAC_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "v.sh"


started_places: list[Place] = []


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Task]:
    """The tasks that would be run."""
    tasks: list[Task] = []

    class Runner:
        def __init__(self, all_tasks: Sequence[Task], places: Sequence[Place], *more: Any) -> None:
            tasks.extend(all_tasks)
            started_places[:] = places

        def run(self) -> int:
            return 0

    monkeypatch.setattr(sweep, "TaskRunner", Runner)
    monkeypatch.setattr(StopFlag, "of_supervisor", lambda: None)
    return tasks


def grid_file(folder: Path, content: Any) -> str:
    (folder / "g.json").write_text(json.dumps(content))
    return str(folder / "g.json")


def test_a_sweep_is_not_called_as_a_task_of_another_one(vars_file: Path, started: list[Task]) -> None:
    vars_file.write_text(vars_file.read_text() + "SAC_EXP_NAME=try_task_1\n")
    with pytest.raises(UserError, match="tasks 0, 2: SAC_EXP_NAME=try_task_1 must not end in _task_1 in a sweep"):
        sweep.main([str(vars_file), "--seeds", "0-2"])
    assert not started


@pytest.mark.parametrize("variable", ["SAC_REVERB_PORT", "SAC_GATEWAY_PORT"])
def test_simultaneous_runs_have_no_port_in_common(vars_file: Path, started: list[Task], variable: str) -> None:
    vars_file.write_text(vars_file.read_text() + f"{variable}=8123\n")
    with pytest.raises(UserError, match=rf"^{variable}=8123 can be the port of one run at a time: unset it"):
        sweep.main([str(vars_file), "--seeds", "0-2", "--parallel", "2"])
    for words in (["--seeds", "0", "--parallel", "2"], ["--seeds", "0-2"]):
        assert sweep.main([str(vars_file), *words]) == 0
    grid = grid_file(vars_file.parent, {variable: [8123, 8124]})
    assert sweep.main([str(vars_file), "--grid", grid, "--parallel", "2"]) == 0


def test_a_large_sweep_has_the_time_of_its_tasks(
    vars_file: Path, started: list[Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    def check_slowly(environ: Mapping[str, str], *_: object) -> list[str]:
        time.sleep(secs[int(environ["SAC_SEED"]) % len(secs)])
        return []

    secs = [0.4]
    monkeypatch.setattr(sweep_plan, "_CHECK_SECS", 2.0)
    monkeypatch.setattr(sweep_plan, "check_inputs", check_slowly)
    assert sweep.main([str(vars_file), "--seeds", "0-7"]) == 0 and len(started) == 8
    secs.append(60.0)  # Of the second task.
    with pytest.raises(UserError, match="configuration of task 1 has not ended within 2 s"):
        sweep.main([str(vars_file), "--seeds", "0-1"])


def test_what_its_runs_begin_with_may_be_gone_where_they_have_begun(vars_file: Path, started: list[Task]) -> None:
    vars_file.write_text(vars_file.read_text() + "SAC_AGENT_FROM=other\n")
    with pytest.raises(UserError, match=r"^SAC_AGENT_FROM=other must be an existing file or folder"):
        sweep.main([str(vars_file), "--seeds", "0"])
    paths = RunPaths(vars_file.parent / "logs" / "try_task_0")
    paths.exp_dir.mkdir(parents=True)
    paths.run_json.write_text("{}")
    paths.status_json.write_text('{"run": {}, "roles": {"trainer": {"train_step": 5}}}')
    sweep.main([str(vars_file), "--seeds", "0"])
    assert [task.number for task in started] == [0]


def test_each_task_is_a_run_with_its_settings(vars_file: Path, started: list[Task]) -> None:
    grid = grid_file(vars_file.parent, {"train_batch_size": [64, 128]})
    assert sweep.main([str(vars_file), "--grid", grid, "--seeds", "5-6", "--set", "config.horizon=9"]) == 0
    assert [dict(t.settings) for t in started] == [
        {"train_batch_size": size, "SAC_SEED": seed, "config.horizon": 9} for size in (64, 128) for seed in (5, 6)
    ]
    assert [t.paths.exp_dir for t in started] == [vars_file.parent / f"logs/try_task_{k}" for k in range(4)]
    words = [word for word in started[2].command if word != "--set"]
    assert words[1:] == ["SAC_GRID=", "train_batch_size=128", "SAC_SEED=5", "config.horizon=9", str(vars_file)]
    assert started[2].environ["SLURM_ARRAY_TASK_ID"] == "2" and started[2].command[0] == str(
        ROOT / "tfagents_system/launch/run_script.sh"
    )


@pytest.mark.parametrize(
    ("visible", "more", "options", "gpus"),
    [
        ("0,1,2", "", ["--parallel", "2"], ["0", "1"]),
        ("0,1,2", "", ["--parallel", "1"], ["0"]),
        ("7", "", ["--parallel", "3", "--set", "SAC_TRAIN_GPUS=0"], [None] * 2),
        ("GPU-1,GPU-2", "", ["--parallel", "3"], ["GPU-1", "GPU-2"]),  # Two tasks: no third run goes on at once.
        ("0", "CUDA_VISIBLE_DEVICES=4,5\n", ["--parallel", "2"], ["4", "5"]),  # The vars file's word counts.
    ],
)
def test_runs_at_once_have_gpus(
    vars_file: Path,
    started: list[Task],
    monkeypatch: pytest.MonkeyPatch,
    visible: str,
    more: str,
    options: list[str],
    gpus: list[str | None],
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with vars_file.open("a") as file:
        file.write(f"SAC_TRAIN_GPUS=1\n{more}")
    assert sweep.main([str(vars_file), "--seeds", "0-1", *options]) == 0
    assert [place.gpu for place in started_places] == gpus


@pytest.mark.parametrize(("visible", "number"), [("3", 1), ("", 0)])
def test_fewer_gpus_than_runs_are_refused(
    vars_file: Path, started: list[Task], monkeypatch: pytest.MonkeyPatch, visible: str, number: int
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    options = ["--seeds", "0-2", "--parallel", "2", "--set", "SAC_TRAIN_GPUS=1"]
    with pytest.raises(
        UserError, match=f"2 runs at once need a GPU each, {number} may be used here .*: lower --parallel"
    ):
        sweep.main([str(vars_file), *options])
    assert not started


def test_runs_at_once_of_tasks_that_come_later_have_gpus(vars_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-1,GPU-2,GPU-3")
    for parallel in (3, 4):
        plan = sweep_plan.SweepPlan(vars_file, {0: {}, 1: {}}, ["SAC_TRAIN_GPUS=1"], parallel, is_open=True)
        if parallel == 3:
            plan.raise_findings()
            assert [place.gpu for place in plan.places] == ["GPU-1", "GPU-2", "GPU-3"]
    with pytest.raises(UserError, match="4 runs at once need a GPU each, 3 may be used here"):
        plan.raise_findings()


def test_the_check_of_params_sees_no_gpu(vars_file: Path, started: list[Task], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    seen = "import os, pathlib; pathlib.Path('seen').write_text(os.environ['CUDA_VISIBLE_DEVICES'])\n"
    (vars_file.parent / "p.py").write_text(seen + PARAMS)
    assert sweep.main([str(vars_file), "--seeds", "0"]) == 0
    assert Path("seen").read_text() == "-1" and started[0].environ["CUDA_VISIBLE_DEVICES"] == "0"


def test_the_check_of_params_has_the_environment_of_the_task(vars_file: Path, started: list[Task]) -> None:
    """Whatever that of the sweep is: variables of the user's own, and where modules are."""
    (vars_file.parent / "mine").mkdir()
    (vars_file.parent / "mine/on_the_path.py").write_text("")
    with vars_file.open("a") as file:
        file.write('export MY_ENV_NAME=Arm-v0 "PYTHONPATH=$PWD/mine:${PYTHONPATH:-}"\n')
    reads = "import os\nimport on_the_path\n" + "".join(
        f"assert os.environ['{name}'] {value}\n" for name, value in [("MY_ENV_NAME", "== 'Arm-v0'"), ("SAC_SEED", "")]
    )
    (vars_file.parent / "p.py").write_text(reads + PARAMS)
    before = dict(os.environ), list(sys.path)
    assert sweep.main([str(vars_file), "--seeds", "0-2"]) == 0 and len(started) == 3
    assert (dict(os.environ), sys.path) == before


def test_each_task_is_checked_with_the_modules_beside_its_own_params(vars_file: Path, started: list[Task]) -> None:
    for name, steps in (("a", 10), ("b", -20)):
        (vars_file.parent / name).mkdir()
        (vars_file.parent / name / "helper_of_p.py").write_text(f"STEPS = {steps}\n")
        own = PARAMS.replace("num_iter = 3", "num_iter = helper_of_p.STEPS")
        (vars_file.parent / name / "p.py").write_text("import helper_of_p\n" + own)
    grid = grid_file(vars_file.parent, {"SAC_PARAMS": ["a/p.py", "b/p.py"]})
    with pytest.raises(UserError) as error:
        sweep.main([str(vars_file), "--grid", grid])
    assert error.value.findings == ("task 1: TrainParams.num_iter must be an integer of at least 1, found -20",)


def test_modules_are_imported_once_for_all_tasks_that_share_them(vars_file: Path, started: list[Task]) -> None:
    (vars_file.parent / "slow_to_import.py").write_text("open('imported', 'a').write('1')\n")
    (vars_file.parent / "p.py").write_text("import slow_to_import\n" + PARAMS)
    grid = grid_file(vars_file.parent, {"discount": [0.9, 0.99], "SAC_TRAIN_CPUS": [1, 2]})
    assert sweep.main([str(vars_file), "--grid", grid, "--seeds", "0-2"]) == 0 and len(started) == 12
    assert Path("imported").read_text() == "11"


def test_a_check_that_hangs_leaves_no_process(
    vars_file: Path, started: list[Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs = "import os, pathlib, time\npathlib.Path('begun').write_text(str(os.getpid()))\n"
    (vars_file.parent / "p.py").write_text(hangs + "os.replace('begun', 'pid')\ntime.sleep(1000)\n")
    for secs in (1, 4, 16, 64):  # A busy machine may not have come to the import yet.
        monkeypatch.setattr(sweep_plan, "_CHECK_SECS", float(secs))
        with pytest.raises(UserError, match=f"configuration of task 0 has not ended within {secs} s"):
            sweep.main([str(vars_file), "--seeds", "0-1"])
        if Path("pid").exists():
            break
    assert gone(int(Path("pid").read_text()), within_secs=20.0)


def test_a_thread_that_params_leave_holds_up_no_check(vars_file: Path, started: list[Task]) -> None:
    leaves = "import threading, time\nthreading.Thread(target=time.sleep, args=(1000,)).start()\n"
    (vars_file.parent / "p.py").write_text(leaves + PARAMS)
    grid = grid_file(vars_file.parent, {"SAC_TRAIN_CPUS": [1, 2]})
    assert sweep.main([str(vars_file), "--grid", grid]) == 0 and len(started) == 2


def test_without_seeds_all_tasks_have_that_of_the_vars_file(vars_file: Path, started: list[Task]) -> None:
    with vars_file.open("a") as file:
        file.write("SAC_SEED=4\nSAC_GRID=g.json\n")
    grid_file(vars_file.parent, {"discount": [0.9, 0.99]})
    assert sweep.main([str(vars_file)]) == 0
    assert all("SAC_SEED=4" in t.command and "SAC_GRID=" in t.command for t in started) and len(started) == 2


def test_what_is_done_is_not_started_again(vars_file: Path, started: list[Task]) -> None:
    paths = RunPaths(vars_file.parent / "logs/try_task_1")
    paths.exp_dir.mkdir(parents=True)
    paths.run_json.write_text('{"num_iter": 3}')
    paths.status_json.write_text(json.dumps({"run": {}, "roles": {"trainer": {"state": "done", "num_iter": 3}}}))
    assert sweep.main([str(vars_file), "--seeds", "0-2"]) == 0
    assert [t.state for t in started] == [WAITING, DONE, WAITING]


@pytest.mark.parametrize(
    ("began", "options", "state"),
    [
        (None, ["--set", "num_iter=5"], WAITING),
        (None, ["--set", "num_iter=3"], DONE),
        ({"num_iter": 3}, [], DONE),  # Given at an earlier start, and kept.
        ({"num_iter": 3}, ["--set", "num_iter=5"], WAITING),
    ],
)
def test_more_iterations_are_asked_of_what_is_done(
    vars_file: Path, started: list[Task], began: dict[str, int] | None, options: list[str], state: str
) -> None:
    paths = RunPaths(vars_file.parent / "logs/try_task_0")
    paths.exp_dir.mkdir(parents=True)
    paths.run_json.write_text('{"num_iter": 3, "seed": 0}')
    paths.status_json.write_text(json.dumps({"run": {}, "roles": {"trainer": {"state": "done", "num_iter": 3}}}))
    if began is not None:
        paths.overrides.write_text(Overrides(params=began, variables={"SAC_SEED": "0"}).to_json())
    assert sweep.main([str(vars_file), "--seeds", "0", *options]) == 0
    assert [t.state for t in started] == [state]


def test_all_findings_come_before_anything_starts(vars_file: Path, started: list[Task]) -> None:
    grid = grid_file(vars_file.parent, [{"discount": 0.9}, {"discount": 7}, {"discont": 0.9}, {"config.horizn": 3}])
    with pytest.raises(UserError) as raised:
        sweep.main([str(vars_file), "--grid", grid, "--set", "SAC_SED=1", "--set", "num_iter=0"])
    findings = "\n".join(raised.value.findings)
    for part in (
        "--set: SAC_SED is not a known variable: SAC_SEED", "TrainParams.num_iter must be an integer",
        "task 1: TrainParams.discount must be a number in [0, 1], or a schedule", "task 2: TrainParams of",
        "task 3: config.horizn is not in SAC_CONFIG",
    ):  # fmt: skip
        assert part in findings
    assert not started and not (vars_file.parent / "logs").exists()


def test_tasks_that_began_otherwise_are_refused(vars_file: Path, started: list[Task]) -> None:
    paths = RunPaths(vars_file.parent / "logs/try_task_1")
    paths.exp_dir.mkdir(parents=True)
    paths.run_json.write_text("{}")
    paths.params.write_text(PARAMS)
    paths.config.write_text('{"horizon": 20}')
    paths.overrides.write_text('{"params": {"discount": 0.5}}')
    paths.status_json.write_text('{"run": {}, "roles": {"trainer": {"train_step": 5}}}')
    with pytest.raises(UserError, match=r"task 1: discount=0.99 is not what this run began with \(discount=0.5\)"):
        sweep.main([str(vars_file), "--grid", grid_file(vars_file.parent, {"discount": [0.9, 0.99]})])


def test_runs_of_earlier_seeds_are_not_those_of_the_new_ones(vars_file: Path, started: list[Task]) -> None:
    for number in range(2):
        run = begun(vars_file.parent, number, "done").run_json
        run.write_text(json.dumps({**json.loads(run.read_text()), "seed": number}))
    with pytest.raises(UserError) as refused:
        sweep.main([str(vars_file), "--seeds", "5-6"])
    assert len(refused.value.findings) == 2 and not started
    assert re.match(r"task 0: SAC_SEED=5 is not what the run in \S*try_task_0 began with", refused.value.findings[0])
    assert sweep.main([str(vars_file), "--seeds", "0-2"]) == 0
    assert [task.state for task in started] == [DONE, DONE, WAITING]


def begun(folder: Path, number: int, state: str = "running") -> RunPaths:
    """A task's run that has copies of p.py and of the JSON as they are."""
    paths = RunPaths(folder / f"logs/try_task_{number}")
    params_folder.copy(folder, ["p.py"], paths.params_folder)
    (paths.params_folder / "p.py").rename(paths.params)
    paths.config.write_text((folder / "c.json").read_text())
    paths.run_json.write_text(json.dumps({"num_iter": 3, "params_source": str(folder / "p.py")}))
    trainer = {"train_step": 5, "state": state, "num_iter": 3}
    paths.status_json.write_text(json.dumps({"run": {}, "roles": {"trainer": trainer}}))
    return paths


def test_tasks_whose_files_were_edited_are_refused_together(
    vars_file: Path, started: list[Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, state in ((0, "done"), (1, "running"), (2, "running")):
        begun(vars_file.parent, number, state)
    command = [str(vars_file), "--seeds", "0-3"]
    assert sweep.main(command) == 0 and len(started) == 4
    started.clear()
    (vars_file.parent / "p.py").write_text(PARAMS + "\n\nX = 1\n")
    with pytest.raises(UserError) as refused:
        sweep.main(command)
    (finding,) = refused.value.findings
    assert finding.startswith("tasks 1, 2: edited since the run began") and "p.py (line 11)" in finding
    assert "--keep goes on" in finding and "--fresh" in finding and not started
    for option, states in (("--keep", [DONE, *[WAITING] * 3]), ("--take_edits", [DONE, *[WAITING] * 3])):
        assert sweep.main([*command, option]) == 0
        assert [t.state for t in started] == states and all(option in t.command for t in started)
        started.clear()
    assert sweep.main([*command, "--fresh"]) == 0 and [t.state for t in started] == [WAITING] * 4
    assert all("TFAGENTS_EDITS" not in t.environ for t in started)
    begun(vars_file.parent, 1)
    (vars_file.parent / "p.py").write_text(PARAMS + "\n\nX = 2\n")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    assert sweep.main(command) == 0, "nobody is there to answer"
    assert all("--keep" in t.command for t in started[-4:])


def test_take_edits_asks_tasks_that_ended_early_for_a_reason_in_their_files(
    vars_file: Path, started: list[Task], capsys: pytest.CaptureFixture[str]
) -> None:
    for number, why in enumerate(("max_hours=1 is used up", "eval_return >= 5", None)):
        paths = begun(vars_file.parent, number, "done")
        status = json.loads(paths.status_json.read_text())
        status["roles"]["trainer"] |= {"ended_early": why} if why else {}
        paths.status_json.write_text(json.dumps(status))
    command = [str(vars_file), "--seeds", "0-2"]
    for options, states in ((["--take_edits"], [DONE, WAITING, DONE]), (["--keep"], [DONE] * 3)):
        started.clear()
        sweep.main([*command, *options])
        assert [task.state for task in started] == states


def test_a_fresh_sweep_moves_no_folder_with_files_that_it_needs(vars_file: Path, started: list[Task]) -> None:
    begun(vars_file.parent, 0)
    inside = vars_file.parent / "logs/try_task_0/mine.py"
    (vars_file.parent / "p.py").rename(inside)
    vars_file.write_text(vars_file.read_text().replace("p.py", "logs/try_task_0/mine.py"))
    with pytest.raises(UserError, match=r"task 0: .*try_task_0 has .*mine.py in it, so --fresh can't move it aside"):
        sweep.main([str(vars_file), "--seeds", "0-1", "--fresh"])
    assert inside.exists() and not started


@pytest.mark.parametrize("inside", ["@best", "/policies/greedy_policy"])
def test_a_fresh_sweep_moves_no_run_that_another_task_begins_with(
    vars_file: Path, started: list[Task], inside: str
) -> None:
    folder = vars_file.parent
    run = begun(folder, 1)
    (run.policies / "greedy_policy").mkdir(parents=True)
    grid = grid_file(folder, {"SAC_AGENT_FROM": [f"logs/try_task_1{inside}", ""]})
    with pytest.raises(UserError) as refused:
        sweep.main([str(vars_file), "--grid", grid, "--fresh"])
    assert refused.value.findings == (
        f"task 0: {run.exp_dir}{inside} is needed, and --fresh would move it aside with the run of task 1: choose "
        "another SAC_EXP_NAME, or name a copy elsewhere",
    )
    assert run.run_json.exists() and not started
    run.exp_dir.rename(folder / "logs/elsewhere")
    grid = grid_file(folder, {"SAC_AGENT_FROM": [f"logs/elsewhere{inside}", ""]})
    begun(folder, 1)
    assert sweep.main([str(vars_file), "--grid", grid, "--fresh"]) == 0 and len(started) == 2


def test_a_fresh_sweep_leaves_no_earlier_run_in_its_place(
    vars_file: Path, started: list[Task], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, command = vars_file.parent, [str(vars_file), "--seeds", "0-2", "--fresh"]
    begun(folder, 0, "done"), begun(folder, 1)
    with pytest.raises(UserError):
        sweep.main([*command, "--set", "nosuch=1"])
    assert not list(folder.glob("logs/try_before_*")), "what is refused moves nothing"
    monkeypatch.setattr(sweep.TaskRunner, "run", lambda runner: EXIT_RESUMABLE)
    assert sweep.main(command) == EXIT_RESUMABLE
    told = capsys.readouterr().out
    assert "2 runs that were there are in try_before_<n>_task_<id> now" in told
    assert "0 of 3 tasks are done: the same command without --fresh goes on with the others" in told
    assert sorted(path.name for path in folder.glob("logs/*")) == ["try_before_1_task_0", "try_before_1_task_1"]
    assert not any("--fresh" in task.command for task in started), "what is begun from now on goes on"


def test_on_a_login_node_nothing_is_moved_for_tasks_that_would_be_refused(
    vars_file: Path, started: list[Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(vars_file.parent, 0, "done")
    vars_file.write_text(vars_file.read_text().replace(" SAC_ALLOW_LOGIN=1", ""))
    be_on_login_node(vars_file.parent / "tools", monkeypatch)
    with pytest.raises(
        UserError,
        match=r"array: \./submit\.sh \S+ --array 0-1, with a grid file as SAC_GRID that .*, or set SAC_ALLOW_LOGIN",
    ):
        sweep.main([str(vars_file), "--seeds", "0-1", "--fresh"])
    assert not started and not list(vars_file.parent.glob("logs/try_before_*"))
    assert sweep.main([str(vars_file), "--seeds", "0"]) == 0 and started[0].state == DONE, "nothing is to be trained"
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert sweep.main([str(vars_file), "--seeds", "0-1"]) == 0 and len(started) == 3


def test_cpus_are_divided_by_the_runs_that_are_left(
    vars_file: Path, started: list[Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"cores_of": flat(range(12)), "held_cpus": {}, "cgroup_quota": None}.items():
        monkeypatch.setattr(sweep_plan, name, lambda *_, value=value: value)
    for number in range(2):
        begun(vars_file.parent, number, "done")
    command = [str(vars_file), "--parallel", "8", "--seeds"]
    for seeds, places in (("0-3", [[*range(6)], [*range(6, 12)]]), ("0-2", [[*range(12)]]), ("0-1", [])):
        assert sweep.main([*command, seeds]) == 0
        assert [list(place.cpus) for place in started_places] == places


def test_a_requeued_sweep_does_once_with_each_task_what_it_asks_for(
    vars_file: Path, started: list[Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, command = vars_file.parent, [str(vars_file), "--seeds", "0-2"]
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")

    def begun_by_job(number: int, job: str) -> None:
        run = begun(folder, number, "done").run_json
        run.write_text(json.dumps(json.loads(run.read_text()) | {"jobs": [job]}))

    for number, job in ((0, "7"), (1, "6")):
        begun_by_job(number, job)
    assert sweep.main([*command, "--take_edits"]) == 0
    options = [{"--keep", "--take_edits"} & set(task.command) for task in started]
    # Task 2 has no run yet.
    assert options == [{"--keep"}, {"--take_edits"}, {"--take_edits"}]
    started.clear()
    assert sweep.main([*command, "--fresh"]) == 0
    assert [task.state for task in started] == [DONE, WAITING, WAITING]
    assert [path.name for path in folder.glob("logs/try_before_*")] == ["try_before_1_task_1"]


@pytest.mark.parametrize("option", ["--take_edits", "--fresh"])
def test_each_sweep_of_a_requeued_job_does_once_with_each_task_what_it_asks_for(
    vars_file: Path, started: list[Task], monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    """The job's script has `sweep.sh V` before it, in which it was requeued."""
    command = [str(vars_file), "--seeds", "0"]
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")

    def record(environ: Mapping[str, str]) -> None:
        """As the start of the task does."""
        run = begun(vars_file.parent, 0).run_json
        edits = {EDITS: TAKE} if "--take_edits" in started[-1].command else {}
        jobs = {"jobs": ["7", *jobs_of({**environ, **edits})], "jobs_without_options": []}
        run.write_text(json.dumps(json.loads(run.read_text()) | jobs))

    assert sweep.main(command) == 0
    record(started[-1].environ)
    moved = []
    for _ in range(2):
        assert sweep.main([*command, option]) == 0
        record(started[-1].environ)
        moved.append(len(list(vars_file.parent.glob("logs/try_before_*"))))
    options = [{"--keep", "--take_edits"} & set(task.command) for task in started]
    assert options == [{"--keep"}, {"--take_edits"} if option == "--take_edits" else set(), {"--keep"}]
    assert moved == [int(option == "--fresh")] * 2


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ([], "nothing to sweep over"),
        (["--seeds", "x"], "--seeds must be numbers"),
        (["--grid", "none.json"], "none.json cannot be read"),
        (["--seeds", "0-1", "--set", "SAC_SEED=3"], "SAC_SEED is swept over and given by --set"),
        (
            ["--seeds", "0-1", "--set", "SAC_SHARE_CPUS=0", "--set", "SAC_TRAIN_CPUS=900", "--parallel", "3"],
            "--parallel 2 runs of 902 CPUs need 1804",
        ),
    ],
)
def test_bad_options_are_refused(vars_file: Path, started: list[Task], options: list[str], part: str) -> None:
    with pytest.raises(UserError, match=part):
        sweep.main([str(vars_file), *options])
    assert not started


def test_params_that_end_the_process_are_a_finding(vars_file: Path, started: list[Task]) -> None:
    (vars_file.parent / "p.py").write_text("import os\nos._exit(3)\n")
    with pytest.raises(UserError, match="the process died in the check"):
        sweep.main([str(vars_file), "--seeds", "0-1"])


def test_within_a_job_array_there_is_no_sweep(vars_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "3")
    with pytest.raises(UserError, match="this is a task of a job array already"):
        sweep.main([str(vars_file), "--seeds", "0-1"])


def test_the_script_refuses_with_2_and_no_traceback(vars_file: Path) -> None:
    environ = {**os.environ, "VIRTUAL_ENV": sys.prefix, "CONDA_PREFIX": ""}
    command = [str(ROOT / "sweep.sh"), str(vars_file), "--seeds", "0-1", "--set", "nonsense"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=100)
    assert done.returncode == 2 and "error: --set nonsense: it must be NAME=VALUE" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_script_wants_the_vars_file_first(vars_file: Path) -> None:
    """Only there does it look for SAC_PYTHON and SAC_VENV."""
    command = [str(ROOT / "sweep.sh"), "--seeds", "0-1", str(vars_file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert done.returncode == 2
    assert done.stderr == "error: --seeds: the vars file comes first, as in ./sweep.sh my_vars.sh --seeds 0-4\n"
