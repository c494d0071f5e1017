"""Pools of runs: which run when and where, how all of them end; sweeps over grids and seeds."""

from __future__ import annotations

import fcntl
import re
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.login_node import be_on_login_node
from tests.support.machines import flat
from tests.support.waiting import until
from tests.tasks.conftest import Project
from tfagents_system.errors import UserError
from tfagents_system.launch import cpus as planning
from tfagents_system.launch.cpus import Place, places_of
from tfagents_system.machine.cpus import Usable
from tfagents_system.machine.signals import StopFlag
from tfagents_system.run_files.run_lock import RunLock
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.tasks import pool, sweep
from tfagents_system.tasks.pool import DONE, FAILED, RUNNING, STOPPED, WAITING, Pool, Source, Task, View, progress

SAVES = 'trap "touch $FOLDER/saved_$SLURM_ARRAY_TASK_ID; exit 75" TERM; touch $FOLDER/up_$SLURM_ARRAY_TASK_ID; '
SAVES += "while :; do sleep 0.05; done"


class Programs(Source):
    """Tasks that are programs of bash."""

    def __init__(self, folder: Path, *programs: str) -> None:
        super().__init__(folder / "try_tasks", [], None)
        for number, program in enumerate(programs):
            paths, command = RunPaths(folder / f"try_task_{number}"), ["bash", "-c", program]
            save = {"save_deadline_secs": 0.5}
            self.tasks.append(Task(number, {"SAC_SEED": number}, command, paths, variables=save))

    def run(self, stop: StopFlag | None = None, places: Sequence[Place] = (Place(), Place())) -> int:
        self.shown: list[list[str]] = []
        show = lambda tasks: self.shown.append([task.state for task in tasks])  # noqa: E731
        return Pool(self, places, stop or StopFlag(signals=()), show).run()

    @property
    def states(self) -> list[str]:
        return [task.state for task in self.tasks]


@pytest.fixture
def programs(project: Project, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Programs]:
    monkeypatch.setenv("FOLDER", str(project.folder))
    return lambda *texts: Programs(project.folder, *texts)


def stopping(stop: StopFlag, folder: Path, count: int) -> threading.Thread:
    """Sets it once so many programs are up."""

    def stop_when_up() -> None:
        until(lambda: len(list(folder.glob("up_*"))) >= count, 40.0, "up")
        stop.set()

    thread = threading.Thread(target=stop_when_up)
    thread.start()
    return thread


def test_as_many_as_there_are_places_run_at_once_and_one_failure_ends_nothing(programs: Any) -> None:
    source = programs("sleep 0.3", "echo 'error: no luck'; echo more; exit 1", "sleep 0.3", "exit 7")
    source.tasks[3].state = DONE
    assert source.run() == 1 and source.states == [DONE, FAILED, DONE, DONE]
    assert max(states.count(RUNNING) for states in source.shown) == 2
    assert source.tasks[1].reason == "exit code 1: no luck" and "more" in source.tasks[1].log.read_text()
    assert programs("exit 0").run() == 0


def test_a_log_that_is_gone_and_a_start_that_fails_end_no_other_run(programs: Any, tmp_path: Path) -> None:
    (tmp_path / "try_task_1").write_text("in the way of its folder")
    source = programs("mv $FOLDER/try_task_0 $FOLDER/elsewhere; exit 1", "", "")
    assert source.run() == 1 and source.states == [FAILED, FAILED, DONE]
    assert source.tasks[0].reason == "exit code 1" and source.tasks[1].exit_code is None
    assert re.fullmatch(r"it can't be started: .*(Not a directory|File exists).*", source.tasks[1].reason)


def test_a_stop_is_passed_on_and_nothing_more_starts(programs: Any, tmp_path: Path) -> None:
    stop, source = StopFlag(signals=()), programs(SAVES, SAVES, SAVES)
    thread = stopping(stop, tmp_path, 2)
    assert source.run(stop) == 75 and source.states == [STOPPED, STOPPED, WAITING]
    thread.join()
    assert {path.name for path in tmp_path.glob("saved_*")} == {"saved_0", "saved_1"}


@pytest.mark.parametrize("name", ["INT", "TERM", "USR1", "USR2"])
def test_a_run_that_the_stop_signal_ends_before_it_is_up_was_stopped(programs: Any, tmp_path: Path, name: str) -> None:
    stop = StopFlag(signals=())
    source = programs(f'trap "trap - {name}; kill -{name} $$" TERM; touch $FOLDER/up_0; while :; do sleep 0.02; done')
    thread = stopping(stop, tmp_path, 1)
    assert source.run(stop) == 75 and source.states == [STOPPED]
    thread.join()


def test_a_run_that_does_not_stop_is_killed(programs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "_STOP_GRACE_SECS", 0.2)
    stop, source = StopFlag(signals=()), programs("trap '' TERM; touch $FOLDER/up_0; while :; do sleep 0.05; done")
    thread = stopping(stop, tmp_path, 1)
    assert source.run(stop) == 1 and source.states == [FAILED] and source.tasks[0].reason == "signal 9"
    thread.join()


def test_tasks_that_others_work_on_are_left_to_them(programs: Any, tmp_path: Path) -> None:
    source = programs("", "", "")
    source.folder.mkdir()
    with (source.folder / "task_0.lock").open("w") as file, RunLock(source.tasks[1].paths):
        fcntl.flock(file, fcntl.LOCK_EX)
        assert source.run() == 75 and source.states == [WAITING, WAITING, DONE]
    assert "try_task_1 is in use by" in source.tasks[1].reason
    assert programs("", "", "").run() == 0


def test_a_place_has_room_for_the_largest_task(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Usable, "here", lambda environ: flat(range(12)))
    monkeypatch.setattr(planning, "held_cpus", dict)
    source = sweep.Sweep.of_vars_file(project.vars_file, ["SAC_SHARE_CPUS=0"], [])
    experts: list[dict[str, Any]] = [{}, {"SAC_EXPERT_WORKERS": 3}]
    tasks = [source.new_task(number, settings) for number, settings in enumerate(experts)]
    runs = [(task.variables, task.environ) for task in tasks]
    assert [list(place.cpus) for place in places_of(runs, 2)] == [[*range(6)], [*range(6, 12)]]
    with pytest.raises(UserError, match="3 runs of 6 CPUs need 18, 12 are free"):
        places_of(runs, 3)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-1,GPU-2")
    task = source.new_task(0, {"SAC_TRAIN_GPUS": 1})
    runs = [(task.variables, task.environ)]
    assert [place.gpu for place in places_of(runs, 2)] == ["GPU-1", "GPU-2"]
    with pytest.raises(UserError, match=r"3 runs at once need a GPU each, 2 may be used here .*: lower --parallel"):
        places_of(runs, 3)


def test_what_changes_is_shown_once(programs: Any, capsys: pytest.CaptureFixture[str], project: Project) -> None:
    source, view = programs("", ""), View()
    one, two = source.tasks
    one.state = RUNNING
    view.show(source.tasks)
    view.show(source.tasks)
    one.state, one.reason, two.state = FAILED, "exit code 1: no luck", DONE
    view.show(source.tasks)
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(" (log in ")[0] for line in lines] == [
        "task 0 (SAC_SEED=0): running", "task 0 (SAC_SEED=0): failed, exit code 1: no luck", "task 1 (SAC_SEED=1): done"
    ]  # fmt: skip
    one.state = RUNNING
    assert progress(one) == "starting"
    sweep.main([str(project.vars_file), "--seeds", "0"])
    task = Task(0, {}, [], project.run(0), state=RUNNING, started_at=0.0)
    assert progress(task).split()[1:] == ["1/10", "eval", "5", "best", "-"]
    task.started_at = 1e12
    assert progress(task).startswith("starting 1/10")  # What an earlier start has left.


# Sweeps


def test_each_task_is_a_run_with_its_settings_and_what_is_done_is_not_started_again(project: Project) -> None:
    grid = project.write("g.json", {"batch_size": [64, 128]})
    command = [str(project.vars_file), "--grid", grid, "--seeds", "5-6", "--parallel", "3", "--set", "config.horizon=9"]
    assert sweep.main([*command, "--keep"]) == 0
    starts = sorted(project.starts(), key=lambda start: start["number"])
    settings = [{"batch_size": size, "SAC_SEED": seed} for size in (64, 128) for seed in (5, 6)]
    assert [start["settings"] for start in starts] == settings
    words = ["--set", "config.horizon=9", "--keep", str(project.vars_file), "--set"]
    assert all(start["words"] == [*words, f"SAC_GRID={project.tasks}/tasks.json"] for start in starts)
    assert sweep.main(command) == 0 and project.starts() == []
    assert sweep.main([*command, "--set", "num_iter=20"]) == 0 and len(project.starts()) == 4
    command[command.index("5-6")] = "7-8"
    sweep.main(command)
    assert len(project.starts()) == 4, "their starts say that these are the runs of other seeds"


def test_a_refused_task_stops_no_other_and_is_told(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    project.behave({0: {"code": 2}, 2: {"code": 75}})
    command = [str(project.vars_file), "--seeds", "0-3"]
    assert sweep.main(command) == 75
    told = capsys.readouterr().out.splitlines()
    assert told[-2].startswith("task 0 (SAC_SEED=0): exit code 2: no luck (log in ")
    assert told[-1] == "2 of 4 tasks are done: the same command continues with the others"
    project.behave({0: {"code": 1}})
    project.starts()
    assert sweep.main(command) == 1 and [start["number"] for start in project.starts()] == [0, 2]


def test_the_vars_files_grid_and_seed_are_those_of_the_sweep(project: Project) -> None:
    project.write("g.json", [{"discount": 0.9}, {"discount": 0.99}])
    with project.vars_file.open("a") as file:
        file.write("SAC_SEED=4\nSAC_GRID=g.json\n")
    assert sweep.main([str(project.vars_file)]) == 0
    assert [start["settings"] for start in project.starts()] == [{"discount": 0.9}, {"discount": 0.99}]


@pytest.mark.parametrize(
    ("options", "finding"),
    [
        ([], "nothing to sweep over"),
        (["--seeds", "x"], "--seeds must be numbers"),
        (["--grid", "none.json"], "none.json cannot be read"),
        (["--seeds", "0-1", "--set", "SAC_SEED=3"], "SAC_SEED is swept over and given by --set"),
        (["--seeds", "0-1", "--set", "SAC_SED=1"], "SAC_SED is not a known variable: SAC_SEED"),
        (["--seeds", "0-1", "--set", "SAC_PARAMS=q.py"], "SAC_PARAMS=q.py must be an existing file"),
        (["--seeds", "0-2", "--set", "SAC_EXP_NAME=try_task_1"], "SAC_EXP_NAME=try_task_1 must not end in _task_1"),
        (["--seeds", "0-1", "--set", "SAC_SHARE_CPUS=0", "--set", "SAC_TRAIN_CPUS=900"], "runs of 902 CPUs"),
    ],
)
def test_what_is_wrong_with_all_tasks_is_told_before_any_starts(
    project: Project, options: list[str], finding: str
) -> None:
    with pytest.raises(UserError, match=finding):
        sweep.main([str(project.vars_file), *options])
    assert project.starts() == [] and not (project.folder / "logs").exists()


def test_a_list_of_tasks_is_that_of_one_sweep_or_search(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    command = [str(project.vars_file), "--seeds", "0"]
    project.tasks.mkdir(parents=True)
    with (project.tasks / "sweep.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="another sweep works on the tasks of"):
            sweep.main(command)
    (project.tasks / "study.json").write_text("{}")
    with pytest.raises(UserError, match="is that of a search"):
        sweep.main(command)
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "3")
    with pytest.raises(UserError, match="this is a task of a job array already"):
        sweep.main(command)


def test_on_a_login_node_a_sweep_is_to_be_submitted(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.vars_file.write_text(project.vars_file.read_text().replace(" SAC_ALLOW_LOGIN=1", ""))
    be_on_login_node(project.folder / "tools", monkeypatch)
    with pytest.raises(UserError, match=r"an array, with SAC_GRID in the vars file: sac submit \S+ --array 0-1, or"):
        sweep.main([str(project.vars_file), "--seeds", "0-1"])
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert sweep.main([str(project.vars_file), "--seeds", "0-1"]) == 0
