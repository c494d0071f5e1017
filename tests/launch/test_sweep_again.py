"""The same sweep once more: what is done, what goes on, what was edited, `--fresh`, and jobs that are requeued."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.support.login_node import be_on_login_node
from tests.support.machines import flat
from tests.support.sweeps import PARAMS, begun, grid_file
from tfagents_system.errors import EXIT_RESUMABLE, UserError
from tfagents_system.launch import sweep, sweep_plan
from tfagents_system.launch.sweep_tasks import DONE, WAITING, Place, Task
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.settings.overrides import Overrides


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


def test_tasks_go_on_with_their_copies_of_edited_files(vars_file: Path, started: list[Task]) -> None:
    for number, state in ((0, "done"), (1, "running"), (2, "running")):
        begun(vars_file.parent, number, state)
    command = [str(vars_file), "--seeds", "0-3"]
    (vars_file.parent / "p.py").write_text(PARAMS + "\n\nX = 1\n")
    for options in ([], ["--keep"]):
        assert sweep.main([*command, *options]) == 0
        assert [task.state for task in started] == [DONE, *[WAITING] * 3]
        started.clear()
    assert sweep.main([*command, "--fresh"]) == 0 and [task.state for task in started] == [WAITING] * 4
    assert all("TFAGENTS_EDITS" not in task.environ for task in started)


def test_a_fresh_sweep_moves_no_folder_with_files_that_it_needs(vars_file: Path, started: list[Task]) -> None:
    begun(vars_file.parent, 0)
    inside = vars_file.parent / "logs/try_task_0/mine.py"
    (vars_file.parent / "p.py").rename(inside)
    vars_file.write_text(vars_file.read_text().replace("p.py", "logs/try_task_0/mine.py"))
    with pytest.raises(UserError, match=r"task 0: .*try_task_0 has .*mine.py in it, so --fresh can't move it aside"):
        sweep.main([str(vars_file), "--seeds", "0-1", "--fresh"])
    assert inside.exists() and not started


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
        match=r"as an array, with SAC_GRID in the vars file: sac submit \S+ --array 0-1, or set SAC_ALLOW_LOGIN",
    ):
        sweep.main([str(vars_file), "--seeds", "0-1", "--fresh"])
    assert not started and not list(vars_file.parent.glob("logs/try_before_*"))
    assert sweep.main([str(vars_file), "--seeds", "0"]) == 0 and started[0].state == DONE, "nothing is to be trained"
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert sweep.main([str(vars_file), "--seeds", "0-1"]) == 0 and len(started) == 3


def test_cpus_are_divided_by_the_runs_that_are_left(
    vars_file: Path, started_places: list[Place], started: list[Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"cores_of": flat(range(12)), "held_cpus": {}, "cgroup_quota": None}.items():
        monkeypatch.setattr(sweep_plan, name, lambda *_, value=value: value)
    for number in range(2):
        begun(vars_file.parent, number, "done")
    command = [str(vars_file), "--parallel", "8", "--seeds"]
    for seeds, places in (("0-3", [[*range(6)], [*range(6, 12)]]), ("0-2", [[*range(12)]]), ("0-1", [])):
        assert sweep.main([*command, seeds]) == 0
        assert [list(place.cpus) for place in started_places] == places


def test_a_requeued_sweep_starts_each_task_over_once(
    vars_file: Path, started: list[Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = vars_file.parent
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    for number, job in ((0, "7"), (1, "6")):
        run = begun(folder, number, "done").run_json
        run.write_text(json.dumps(json.loads(run.read_text()) | {"jobs": [job]}))
    assert sweep.main([str(vars_file), "--seeds", "0-2", "--fresh"]) == 0
    assert [task.state for task in started] == [DONE, WAITING, WAITING]
    assert [path.name for path in folder.glob("logs/try_before_*")] == ["try_before_1_task_1"]
