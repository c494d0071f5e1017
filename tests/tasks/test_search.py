"""Searches for settings: trials, how they continue, what was found, and who takes them in a job array."""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import sys
import threading
from collections.abc import Callable
from typing import Any

import optuna
import pytest

from tests.support.login_node import be_on_login_node
from tests.support.waiting import until
from tests.tasks.conftest import Project
from tfagents_system.errors import UserError
from tfagents_system.machine.signals import StopFlag
from tfagents_system.settings.grid import SPACES, corners, read_space
from tfagents_system.settings.params_check import check_params
from tfagents_system.tasks import search, study
from tfagents_system.tasks.pool import DONE, FAILED, PRUNED, RUNNING, Task
from tfagents_system.tasks.study import Records, Trial, curve_of, reports_of, settings_of, value_of
from tfagents_system.train_params_base import TrainParamsBase

SPACE = {"n_step": {"low": 1, "high": 5}, "discount": [0.9, 0.99]}


@pytest.fixture
def tune(project: Project) -> Callable[..., int]:
    project.write("space.json", SPACE)

    def run(trials: int, *words: object) -> int:
        command = [project.vars_file, "--space", "space.json", "--trials", trials, "--pruner", "none", *words]
        return search.main([str(word) for word in command])

    return run


def states(project: Project) -> list[str]:
    return [trial.state for trial in Records.read(project.tasks).trials]


def begun(project: Project) -> dict[int, int]:
    """How often each trial was started since the last call."""
    numbers = [start["number"] for start in project.starts()]
    return {number: numbers.count(number) for number in sorted(set(numbers))}


def test_as_many_trials_as_wanted_each_with_the_value_of_its_run(
    tune: Callable[..., int], project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tune(9, "--parallel", 3, "--set", "SAC_SEED=7") == 0
    records, starts = Records.read(project.tasks), project.starts()
    assert {start["number"] for start in starts} == set(range(9)) and len(starts) == 9
    for start in starts:
        trial = records.trials[start["number"]]
        assert start["settings"] == settings_of(SPACE, trial.params) == records.settings()[start["number"]]
        assert trial.state == DONE and trial.value == start["settings"]["n_step"]
        assert list(trial.reports) == [str(percent) for percent in range(10, 101, 10)]
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("9 trials have a value, 0 were pruned, 0 have failed, 0 are") for line in lines)
    assert any(line.startswith("matters most: n_step") for line in lines)
    best = max(trial.value or 0.0 for trial in records.trials)
    assert lines[-1].startswith(f"best: --set n_step={best:g} --set discount=0.9")
    table = (project.tasks / "trials.csv").read_text().splitlines()
    assert table[0] == "trial,state,value,n_step,discount" and len(table) == 10
    assert tune(10) == 0 and begun(project) == {9: 1}, "only what is wanted beyond"


def test_a_trial_whose_search_was_killed_goes_on_and_no_other_takes_one_that_is_held(
    tune: Callable[..., int], project: Project
) -> None:
    tune(2)
    records = Records.read(project.tasks)
    records.trials[0].state = records.trials[1].state = RUNNING
    records.write(project.tasks)
    settings = records.settings()
    begun(project)
    with (project.tasks / "task_1.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert tune(3) == 0 and begun(project) == {0: 1, 2: 1}
    assert tune(3) == 0 and begun(project) == {1: 1} and Records.read(project.tasks).settings()[:2] == settings


@pytest.mark.parametrize("code", [75, 1], ids=["saved", "after a second Ctrl-C"])
def test_a_stopped_search_leaves_its_trials_to_the_next(
    tune: Callable[..., int], project: Project, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    stop = StopFlag(signals=())
    monkeypatch.setattr(StopFlag, "of_supervisor", lambda: stop)
    project.behave({0: {"secs": 3.0, "stopped": code}})

    def stop_when_up() -> None:
        until(project.run(0).metrics_csv.exists, 40.0, "a run")
        stop.set()

    thread = threading.Thread(target=stop_when_up)
    thread.start()
    assert tune(2) == 75 and states(project) == [RUNNING]
    thread.join()
    monkeypatch.setattr(StopFlag, "of_supervisor", lambda: StopFlag(signals=()))
    project.behave({})
    assert tune(2) == 0 and begun(project) == {0: 2, 1: 1} and states(project) == [DONE, DONE]


def test_runs_that_cannot_be_started_use_up_no_trial(
    tune: Callable[..., int], project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(task: Task, place: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Task, "start", fail)
        assert tune(50, "--parallel", 2) == 1 and states(project) == [RUNNING]
    assert "error: task 0 (" in capsys.readouterr().err
    assert tune(2) == 0 and states(project) == [DONE, DONE]


def test_failed_trials_count_and_three_refused_starts_in_a_row_end_a_search(
    tune: Callable[..., int], project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    project.behave({0: {"code": 2}, 2: {"code": 1}} | {number: {"code": 2} for number in range(3, 9)})
    assert tune(50) == 1 and states(project) == [FAILED, DONE, *[FAILED] * 4]
    told = capsys.readouterr()
    assert "task 2 (" in told.out and "exit code 1: no luck" in told.out
    assert "exit code 2: no luck; correct that, and the same command continues" in told.err
    project.behave({})
    assert tune(7) == 0 and states(project)[6:] == [DONE]


def test_a_search_keeps_its_space_unless_nothing_was_learned_with_it(
    tune: Callable[..., int], project: Project
) -> None:
    project.behave({number: {"code": 2} for number in range(3)})
    assert tune(5) == 1 and states(project) == [FAILED] * 3
    project.behave({})
    SPACE_2 = {"n_step": [1, 2]}
    project.write("space.json", SPACE_2)
    assert tune(2) == 0 and states(project) == [DONE] * 2
    project.write("space.json", SPACE)
    with pytest.raises(UserError, match="has begun with another space"):
        tune(2)
    (project.tasks / "study.json").unlink()
    with pytest.raises(UserError, match="is that of a sweep"):
        tune(2)


@pytest.mark.parametrize("pruner", ["median", "hyperband"])
def test_a_hopeless_run_is_ended_and_its_trial_pruned(
    tune: Callable[..., int], project: Project, monkeypatch: pytest.MonkeyPatch, pruner: str
) -> None:
    monkeypatch.setitem(study.PRUNERS, "median", lambda: optuna.pruners.MedianPruner(2, 0))
    monkeypatch.setitem(study.PRUNERS, "hyperband", lambda: optuna.pruners.HyperbandPruner(10, 10, 2))
    project.behave({0: {"secs": 0.1, "value": 5}, 1: {"secs": 0.1, "value": 5}, 2: {"value": -50.0, "secs": 1.0}})
    assert tune(3, "--pruner", pruner) == 0
    trial = Records.read(project.tasks).trials[2]
    assert trial.state == PRUNED and trial.value is None and len(trial.reports) < 10


def test_a_trial_is_worth_the_last_quarter_of_what_it_ran(tune: Callable[..., int], project: Project) -> None:
    assert value_of([(0.5, 9.0), (0.75, 1.0), (1.0, 3.0)]) == 2.0 and value_of([(0.5, 9.0)]) is None
    assert value_of([(0.1, 9.0), (0.3, 1.0), (0.4, 3.0)], reached=0.4) == 2.0
    assert reports_of([(0.1, 9.0), (0.12, 1.0), (0.4, 3.0), (1.0, 2.0)]) == {"10": 1.0, "40": 3.0, "100": 2.0}
    project.behave({0: {"num_iter": 40}, 1: {"num_iter": 40, "value": ""}})  # Ten of 40 are done when it succeeds.
    assert tune(2) == 1 and states(project) == [DONE, FAILED]
    assert curve_of(project.run(0))[1] == 0.25
    project.run(0).run_json.write_text('{"attributes": {"num_iter": 20, "num_env_steps": 8}}')
    evaluations, reached = curve_of(project.run(0))
    assert [share for share, _ in evaluations] == [*(k / 8 for k in range(1, 9)), 1.0, 1.0] and reached == 1.0


def test_the_line_with_the_best_settings_is_one_for_a_shell(project: Project) -> None:
    space = {"critic_layers": [[256, 256], [1]], "name": ["a b", ""], "rate": {"low": 1e-4, "high": 1e-3}}
    project.tasks.mkdir(parents=True)
    params = {"critic_layers": 0, "name": 0, "rate": 0.000123456}
    Records(space, "none", 1, [Trial(params, DONE, 1.0)]).write(project.tasks)
    words = shlex.split(study.Study(project.tasks, [], None).write_results()[-1])
    assert words[2::2] == ["critic_layers=[256, 256]", "name=a b", "rate=0.0001235"]


class Params(TrainParamsBase):
    def env_ctor(self, *args: Any, seed: int | None = None, **kwargs: Any) -> Any:
        raise AssertionError("not built here")


@pytest.mark.parametrize("algorithm", SPACES)
def test_settings_at_the_ends_of_shipped_spaces_are_right(algorithm: str) -> None:
    for settings in corners(SPACES[algorithm]):
        params = Params({"horizon": 100})
        params.algorithm = algorithm  # type: ignore[assignment]
        for name, value in settings.items():
            attribute, _, key = name.partition(".")
            assert hasattr(TrainParamsBase, attribute), name
            setattr(params, attribute, {**getattr(params, attribute), key: value} if key else value)
        assert check_params(params) == []


def test_a_shipped_space_is_printed_as_it_is_read(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    assert search.main(["--show_space", "sac"]) == 0
    assert read_space(project.write("mine.json", json.loads(capsys.readouterr().out))) == SPACES["sac"]
    wrong = {"a": [1], "b": {"low": 2, "high": 1}, "c": {"low": 0, "high": 1, "log": True}, "d": {"low": 1}, "e": 3}
    with pytest.raises(UserError) as caught:
        read_space(project.write("mine.json", wrong | {"SAC_EXP_NAME": ["f", "g"]}))
    assert [finding.split(": ")[1].split()[0] for finding in caught.value.findings] == ["SAC_EXP_NAME", *"abcde"]
    with pytest.raises(UserError, match="JSON file, or one of sac"):
        read_space("ppo")


def test_a_search_that_is_wrong_for_all_trials_is_refused(
    tune: Callable[..., int], project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match="n_step is swept over and given by --set"):
        tune(2, "--set", "n_step=1")
    for words in (["--time", "5:00"], ["--slurm", "--array=0-3"], ["--slurm", "--nodes", "2"], ["--fresh"]):
        with pytest.raises(UserError, match=r"leave it out|unrecognized arguments: "):
            tune(2, *words)
    project.write("space.json", {"SAC_NUM_COLLECT_WORKERS": {"low": 1, "high": 2}, "SAC_CONFIG": ["c.json", "b.json"]})
    with pytest.raises(UserError) as refused:
        tune(2, "--slurm")
    assert ["can't be in a job array" in finding for finding in refused.value.findings] == [True, True]
    project.vars_file.write_text(project.vars_file.read_text().replace("SAC_ALLOW_LOGIN=1", ""))
    be_on_login_node(project.folder / "tools", monkeypatch)
    with pytest.raises(UserError, match="this is no job: add --slurm"):
        tune(2)
    assert not project.tasks.exists()


# In a job array


@pytest.fixture
def submitted(project: Project, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What submit.sh was asked; the queue is what the file `queue` says."""
    commands: list[list[str]] = []

    def call(command: list[str]) -> int:
        commands.append(command)
        return 0

    monkeypatch.setattr(search.subprocess, "call", call)
    (project.folder / "tools").mkdir()
    squeue = project.folder / "tools/squeue"
    squeue.write_text(f"#!/bin/sh\ncat {project.folder}/queue\n")
    squeue.chmod(0o755)
    (project.folder / "queue").write_text("")
    monkeypatch.setenv("PATH", f"{squeue.parent}:{os.environ['PATH']}")
    return commands


def test_workers_are_submitted_for_what_is_left(
    tune: Callable[..., int], project: Project, submitted: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--parallel", 2, "--slurm", "--set", "discount.x=0.9", "--keep", "--time", "5:00"]
    assert tune(3, *words, "--dry_run") == 0 and not project.tasks.exists()
    assert tune(3, *words) == 0
    array = ["--array=0,1%2", f"--study={project.tasks}", "--set", "discount.x=0.9", "--keep", "--time", "5:00"]
    assert submitted[0][1:] == [str(project.vars_file), *array, "--dry-run"]
    assert submitted[1][1:] == [str(project.vars_file), *array]
    scripts = [f"{project.folder}/logs/{name}_array/snapshot/20260101-000000-1/job.sbatch" for name in ("try", "you")]
    queue = project.folder / "queue"
    queue.write_text(f"1 {scripts[0]}\n0 {scripts[1]}\nN/A /bin/bash\nN/A {scripts[0].replace('_array', '')}\n")
    assert tune(3, *words) == 0 and submitted[2][2] == "--array=0%2"
    queue.write_text(f"1 {scripts[0]}\n0 {scripts[0]}\n")
    assert tune(3, *words) == 0 and "3 trials are left, and 2 tasks of a job array" in capsys.readouterr().out
    queue.unlink()
    with pytest.raises(UserError, match="squeue does not say"):
        tune(3, *words)
    assert len(submitted) == 3


def test_a_worker_takes_trials_until_none_is_left(
    tune: Callable[..., int],
    project: Project,
    submitted: list[list[str]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    tune(3, "--slurm")
    assert states(project) == []
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "5")
    monkeypatch.setenv("SAC_EXP_DIR", str(project.folder / "logs/try"))
    command = ["study", str(project.tasks), sys.executable, str(project.folder / "bin/run_script.sh")]
    monkeypatch.setattr(sys, "argv", command)
    project.behave({1: {"code": 75}})
    assert study.main() == 75 and begun(project) == {0: 1, 1: 1, 2: 1}
    assert states(project) == [DONE, RUNNING, DONE]
    link = project.tasks / "worker_5/status.json"
    assert link.readlink() == project.run(2).status_json
    assert link.parent.joinpath("checkpoints").readlink() == project.run(2).trainer_checkpoints
    project.behave({1: {"code": 1}})
    assert study.main() == 1 and states(project) == [DONE, FAILED, DONE]
    assert "2 trials have a value, 0 were pruned, 1 have failed" in capsys.readouterr().out
    monkeypatch.delenv("SLURM_ARRAY_TASK_ID")
    assert tune(3, "--slurm") == 0 and len(submitted) == 1, "what was found is shown"
