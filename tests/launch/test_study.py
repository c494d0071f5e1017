"""Searches for settings: which trials there are, how they go on, and what was found."""

import errno
import os
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState

from tests.support.waiting import until
from tfagents_system.errors import EXIT_BAD_INPUT, EXIT_DONE, EXIT_FAILED, EXIT_RESUMABLE, UserError, exit_with
from tfagents_system.launch import study as studies
from tfagents_system.launch import study_results, study_task, sweep_tasks
from tfagents_system.launch.study import open_study, queued_trials
from tfagents_system.launch.sweep_tasks import DONE, FAILED, STOPPED, Place, Task, TaskRunner
from tfagents_system.launch.trials import (
    Curve,
    Trials,
    curve_of,
    distributions_of,
    numbers_to_run,
    progress_of,
    settings_of,
)
from tfagents_system.machine.signals import StopFlag
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.settings.search_spaces import Range, Space, as_json

SPACE: Space = {"n_step": Range(1, 5), "discount": [0.9, 0.99]}
# A run of 10 iterations with an evaluation after each, worth its n_step; it saves and ends when it is told to.
REFUSED = -10_000.0  # What a run is worth whose start is refused.
RUN = """
import json, os, signal, sys, time
folder, value, secs = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
if value < -9000:
    print("error: there is no room for it")
    sys.exit(2)
# Not sys.exit: while a file is closed because nobody has it any more, an exception is ignored.
signal.signal(signal.SIGTERM, lambda *_: os._exit(int(os.environ.get("CODE", "75"))))
os.makedirs(folder, exist_ok=True)
open(folder + "/starts", "a").write("x")
json.dump({"params": {"num_iter": 10}}, open(folder + "/resolved.json", "w"))
json.dump({"run": {"started_at": time.time()}, "roles": {}}, open(folder + "/status.json", "w"))
with open(folder + "/metrics.csv", "w") as file:
    file.write("train_step,iteration,env_steps,eval_return\\n0,0,0,-100\\n")
    for k in range(1, 11):
        time.sleep(secs)
        file.write(f"{k},{k},{k},{value}\\n")
        file.flush()
sys.exit(0 if value > -1000 else 1)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "swing_study"
    found.mkdir()
    return found


@pytest.fixture
def optuna_study(folder: Path) -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return open_study(folder, "none", 1)


class Search:
    """Trials in runs that only write metrics."""

    def __init__(
        self,
        study: optuna.Study,
        folder: Path,
        wanted: int,
        parallel: int = 1,
        secs: float = 0.0,
        only: int | None = None,
    ) -> None:
        self.folder, self.secs, self.said = folder, secs, list[str]()
        self.runner: TaskRunner | None = None
        self.values: dict[int, float] = {}
        self.is_busy: Callable[[int], bool] = lambda number: False  # Whether a trial's run directory is in use.
        self.stop = StopFlag()
        self.trials = Trials(
            study,
            SPACE,
            folder,
            self.add,
            wanted=wanted,
            parallel=parallel,
            end=lambda task: self.runner.end(task) if self.runner is not None else None,
            say=self.said.append,
            only=only,
        )
        self._places = [Place()] * parallel

    def add(self, number: int, settings: Mapping[str, Any]) -> Task:
        if self.is_busy(number):
            raise UserError("SAC_EXP_DIR is in use by process 1: stop that run first")
        paths = RunPaths(self.folder.with_name(f"swing_task_{number}"))
        value = self.values.get(number, float(settings["n_step"]))
        command = [sys.executable, "-c", RUN, str(paths.exp_dir), str(value), str(self.secs)]
        return Task(number, settings, command, dict(os.environ), paths)

    def begun(self, look: Callable[[], None]) -> TaskRunner:
        """A runner whose first run has started; `look` is called where it shows its tasks."""
        self.trials.look()
        self.runner = TaskRunner(self.trials.tasks, self._places, self.stop, lambda tasks: look())
        self.runner._start_waiting()
        until(lambda: starts(self.folder) == {"swing_task_0": 1}, 30.0, "a run")
        return self.runner

    def run(self) -> int:
        self.trials.look()
        self.runner = TaskRunner(
            self.trials.tasks,
            self._places,
            self.stop,
            lambda tasks: self.trials.look(self.stop.is_set()),
            lambda: self.trials.is_waiting,
        )
        code = self.runner.run()
        if self.stop.is_set():
            self.trials.look(is_stopped=True)
        return code


def starts(folder: Path) -> dict[str, int]:
    return {path.parent.name: len(path.read_text()) for path in folder.parent.glob("swing_task_*/starts")}


def test_as_many_trials_as_wanted_each_with_the_value_of_its_run(optuna_study: optuna.Study, folder: Path) -> None:
    assert Search(optuna_study, folder, wanted=6, parallel=2).run() == EXIT_DONE
    done = optuna_study.get_trials()
    assert [trial.state for trial in done] == [TrialState.COMPLETE] * 6
    assert all(trial.value == settings_of(SPACE, trial.params)["n_step"] for trial in done)
    assert all(list(trial.intermediate_values) == list(range(10, 101, 5)) for trial in done)
    assert starts(folder) == {f"swing_task_{k}": 1 for k in range(6)}


@pytest.mark.parametrize("torn", [b'{"op_code":4,"work', b"\0" * 100_000, b""])
def test_half_a_line_of_a_write_that_was_cut_off_does_not_make_a_study_unreadable(folder: Path, torn: bytes) -> None:
    study = open_study(folder, "none", 1)
    study.enqueue_trial({"n_step": 3})
    journal = folder / "journal.log"
    whole = journal.read_bytes()
    with journal.open("ab") as file:
        file.write(torn)
    study.enqueue_trial({"n_step": 4})  # Also by a process that has it open.
    again = open_study(folder, "none", 1)
    assert journal.read_bytes().startswith(whole + b"{")
    fixed = [trial.system_attrs["fixed_params"]["n_step"] for trial in again.get_trials()]
    assert fixed == [3, 4] and not list(folder.glob("journal.log.lock*"))


def test_the_same_command_adds_only_what_is_wanted_beyond(optuna_study: optuna.Study, folder: Path) -> None:
    Search(optuna_study, folder, wanted=2).run()
    Search(optuna_study, folder, wanted=3).run()
    assert len(optuna_study.get_trials()) == 3 and set(starts(folder).values()) == {1}


def test_a_trial_goes_on_whose_search_was_killed_and_no_other_takes_one_that_is_held(
    optuna_study: optuna.Study, folder: Path
) -> None:
    killed, other = (Search(optuna_study, folder, wanted=3) for _ in range(2))
    killed.trials.look()
    other.trials.look()
    assert [task.number for search in (killed, other) for task in search.trials.tasks] == [0, 1]
    first = killed.trials.tasks[0].settings
    for file in killed.trials._locks.values():
        file.close()  # As the kernel does.
    again = Search(optuna_study, folder, wanted=3)
    assert again.run() == EXIT_DONE
    assert [task.number for task in again.trials.tasks] == [0, 2] and again.trials.tasks[0].settings == first
    assert other.run() == EXIT_DONE
    assert [trial.state for trial in optuna_study.get_trials()] == [TrialState.COMPLETE] * 3


def test_a_stopped_search_leaves_its_trials_to_the_next(optuna_study: optuna.Study, folder: Path) -> None:
    search = Search(optuna_study, folder, wanted=2, secs=5.0)
    runner = search.begun(lambda: None)
    search.stop.set()
    assert runner.run() == EXIT_RESUMABLE
    search.trials.look(is_stopped=True)
    assert [task.state for task in search.trials.tasks] == [STOPPED], "no new trial takes its place"
    assert len(optuna_study.get_trials()) == 1
    search = Search(optuna_study, folder, wanted=2)
    assert search.run() == EXIT_DONE
    assert starts(folder) == {"swing_task_0": 2, "swing_task_1": 1}


def test_a_run_that_did_not_save_when_all_were_stopped_has_not_failed(
    optuna_study: optuna.Study, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CODE", "1")  # As after a second Ctrl-C.
    search = Search(optuna_study, folder, wanted=2, secs=5.0)
    runner = search.begun(lambda: None)
    search.stop.set()
    runner.run()
    search.trials.look(is_stopped=True)
    assert [task.state for task in search.trials.tasks] == [FAILED]
    assert [trial.state for trial in optuna_study.get_trials()] == [TrialState.RUNNING]
    assert search.trials.left == {0} and search.said == []
    assert Search(optuna_study, folder, wanted=1).run() == EXIT_DONE
    assert optuna_study.get_trials()[0].state == TrialState.COMPLETE


def test_a_run_that_is_stopped_alone_is_left_to_the_next_start_and_the_others_go_on(
    optuna_study: optuna.Study, folder: Path
) -> None:
    search = Search(optuna_study, folder, wanted=2, secs=5.0)
    runner = search.begun(search.trials.look)
    search.secs = 0.0
    runner.end(search.trials.tasks[0])
    assert runner.run() == EXIT_RESUMABLE
    assert search.trials.left == {0}
    assert [trial.state for trial in optuna_study.get_trials()] == [TrialState.RUNNING, TrialState.COMPLETE]


def test_a_trial_whose_run_still_saves_holds_up_nobody(optuna_study: optuna.Study, folder: Path) -> None:
    killed = Search(optuna_study, folder, wanted=2)
    killed.trials.look()
    for file in killed.trials._locks.values():
        file.close()
    search = Search(optuna_study, folder, wanted=3, parallel=2)
    search.is_busy = lambda number: number == 0 and len(search.trials.tasks) < 2
    search.trials.look()
    assert [task.number for task in search.trials.tasks] == [1]
    assert search.run() == EXIT_DONE
    assert [task.number for task in search.trials.tasks] == [1, 2, 0], "others took the other place meanwhile"
    assert [trial.state for trial in optuna_study.get_trials()] == [TrialState.COMPLETE] * 3


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """No process starts while it has something; it has the numbers of the tasks that were tried meanwhile."""

    def begin(running: Any, task: Task, place: Place) -> None:
        if tried:
            tried.append(task.number)
            raise OSError(errno.ENOSPC, "No space left on device")
        begun(running, task, place)

    tried, begun = [-1], sweep_tasks._Running.__init__
    monkeypatch.setattr(sweep_tasks._Running, "__init__", begin)
    return tried


def test_runs_that_cannot_be_started_use_up_no_trial(
    optuna_study: optuna.Study, folder: Path, full_disk: list[int]
) -> None:
    search = Search(optuna_study, folder, wanted=50, parallel=2)
    search.run()
    assert full_disk == [-1, 0, 1] and search.trials.left == {0, 1} and "No space left" in search.trials.unstarted
    assert [trial.state for trial in optuna_study.get_trials()] == [TrialState.RUNNING] * 2
    full_disk.clear()
    assert Search(optuna_study, folder, wanted=3, parallel=2).run() == EXIT_DONE
    assert [trial.state for trial in optuna_study.get_trials()] == [TrialState.COMPLETE] * 3


def test_refused_starts_are_failed_trials_and_three_in_a_row_end_the_search(
    optuna_study: optuna.Study, folder: Path
) -> None:
    search = Search(optuna_study, folder, wanted=50)
    search.values = {0: REFUSED, 2: REFUSED, 3: REFUSED, 4: REFUSED}
    search.run()
    failed = TrialState.FAIL
    states = [trial.state for trial in optuna_study.get_trials()]
    assert states == [failed, TrialState.COMPLETE, failed, failed, failed] and len(search.said) == 4
    assert "exit code 2: there is no room for it" in search.trials.unstarted


def test_settings_that_are_refused_ask_for_no_further_trial(optuna_study: optuna.Study, folder: Path) -> None:
    search = Search(optuna_study, folder, wanted=5)
    search.is_busy = lambda number: True
    search.run()
    assert search.trials.refusal is not None and "in use by" in search.trials.refusal.findings[0]
    assert [trial.state for trial in optuna_study.get_trials()] == [TrialState.RUNNING] and search.trials.left == {0}


def test_a_trial_that_was_killed_before_it_had_all_settings_gets_them(optuna_study: optuna.Study, folder: Path) -> None:
    optuna_study._storage.create_new_trial(optuna_study._study_id)
    search = Search(optuna_study, folder, wanted=1)
    assert search.run() == EXIT_DONE
    assert set(search.trials.tasks[0].settings) == set(SPACE)


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        ("done", EXIT_DONE),
        ("one is left", EXIT_RESUMABLE),
        ("refused", EXIT_BAD_INPUT),
        ("full disk", EXIT_FAILED),
    ],
)
def test_how_a_study_ends(
    optuna_study: optuna.Study,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    full_disk: list[int],
    capsys: pytest.CaptureFixture[str],
    outcome: str,
    code: int,
) -> None:
    if outcome != "full disk":
        full_disk.clear()
    search = Search(optuna_study, folder, wanted=2)
    plan = SimpleNamespace(add=search.add, places=[Place()])
    args = SimpleNamespace(pruner="none", parallel=1, trials=2)
    if outcome == "refused":
        monkeypatch.setattr(plan, "add", lambda number, settings: plan.refuse())
        plan.refuse = lambda: (_ for _ in ()).throw(UserError("refused"))
    if outcome == "one is left":
        monkeypatch.setattr(Trials, "look", _leaving(Trials.look))
    with pytest.raises(SystemExit) as ended:
        exit_with(lambda: studies._search(args, plan, SPACE, folder))  # type: ignore[arg-type]
    assert ended.value.code == code
    assert ("error: task 0 (" in capsys.readouterr().err) == (outcome == "full disk")


def _leaving(look: Callable[..., None]) -> Callable[..., None]:
    """As if the first run had been stopped alone."""

    def stopped(trials: Trials, is_stopped: bool = False) -> None:
        for task in trials.tasks[:1]:
            task.state = STOPPED if task.state == DONE else task.state
        look(trials, is_stopped)

    return stopped


def test_a_hopeless_run_is_ended_and_its_trial_pruned(folder: Path) -> None:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = open_study(folder, "median", 1)
    study.pruner = optuna.pruners.MedianPruner(n_startup_trials=2, n_warmup_steps=0)
    search = Search(study, folder, wanted=3)
    search.trials._wanted = 2
    assert search.run() == EXIT_DONE
    search = Search(study, folder, wanted=3, secs=1.0)
    search.values = {2: -50.0}
    search.run()
    assert study.get_trials()[2].state == TrialState.PRUNED
    assert len(curve_of(RunPaths(folder.with_name("swing_task_2"))).evaluations) < 10
    assert any("is pruned" in line for line in search.said)


def test_a_run_that_fails_is_a_failed_trial_and_counts(optuna_study: optuna.Study, folder: Path) -> None:
    search = Search(optuna_study, folder, wanted=2)
    search.values = {0: -2000.0}
    search.run()
    assert [trial.state for trial in optuna_study.get_trials()] == [TrialState.FAIL, TrialState.COMPLETE]
    assert search.trials.tasks[0].state == FAILED and "exit code 1" in search.said[0]


def test_milestones_are_shares_of_a_run() -> None:
    assert progress_of({"iteration": 5.0, "env_steps": 30.0}, {"num_iter": 20}) == 0.25
    assert progress_of({"iteration": 5.0, "env_steps": 30.0}, {"num_iter": 20, "num_env_steps": 60}) == 0.5
    assert progress_of({"env_steps": 70.0}, {"num_env_steps": 60}) == 1.0
    assert Curve([(0.5, 9.0), (0.75, 1.0), (1.0, 3.0)]).value == 2.0
    assert Curve([(0.5, 9.0)]).value is None


def test_a_trial_that_ends_early_is_worth_the_last_quarter_of_what_it_ran(
    optuna_study: optuna.Study, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Curve([(0.1, 9.0), (0.3, 1.0), (0.4, 3.0)], reached=0.4).value == 2.0
    assert Curve([(0.1, 9.0)], reached=0.4).value is None
    # Of 40 iterations ten are done when it has succeeded.
    monkeypatch.setattr(sys.modules[__name__], "RUN", RUN.replace('{"num_iter": 10}', '{"num_iter": 40}'))
    search = Search(optuna_study, folder, wanted=1)
    assert search.run() == EXIT_DONE
    (trial,) = optuna_study.get_trials()
    assert trial.state == TrialState.COMPLETE and trial.value == settings_of(SPACE, trial.params)["n_step"]
    assert curve_of(RunPaths(folder.with_name("swing_task_0"))).reached == 0.25 and search.said == []


def test_the_line_with_the_best_settings_is_one_for_a_shell(optuna_study: optuna.Study, folder: Path) -> None:
    space: Space = {"critic_layers": [[256, 256]], "name": ["a b"]}
    optuna_study.add_trial(
        optuna.trial.create_trial(
            value=1.0, params={"critic_layers": 0, "name": 0}, distributions=distributions_of(space)
        )
    )
    last_line = study_results.write(optuna_study, space, folder)[-1]
    assert shlex.split(last_line) == ["best:", "--set", "critic_layers=[256, 256]", "--set", "name=a b"]


def test_what_was_found_is_a_table_a_plot_and_a_line(optuna_study: optuna.Study, folder: Path) -> None:
    Search(optuna_study, folder, wanted=9, parallel=3).run()
    lines = study_results.write(optuna_study, SPACE, folder)
    best = max(trial.value or 0.0 for trial in optuna_study.get_trials())
    assert lines[0].startswith("9 trials have a value, 0 were pruned, 0 have failed, 0 are unfinished")
    assert lines[-1].startswith(f"best: --set n_step={best:g} --set discount=0.9")
    assert any(line.startswith("matters most: ") for line in lines)
    assert (folder / "study.png").stat().st_size > 10_000
    table = (folder / "trials.csv").read_text().splitlines()
    assert table[0] == "trial,state,value,n_step,discount" and len(table) == 10
    assert study_results.write(open_study(folder.parent, "none", 1), SPACE, folder)[0].startswith(
        "0 trials have a value"
    )


# In a job array.


@pytest.fixture
def array(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Runs the task of a number, of three, as its job does; the run is RUN, or other code."""
    (folder / "space.json").write_text(as_json(SPACE))
    (folder / "plan.json").write_text('{"trials": 3, "pruner": "none"}')

    def run(number: int, code: str = RUN) -> int:
        monkeypatch.setenv("SLURM_ARRAY_TASK_ID", str(number))
        monkeypatch.setenv("SAC_EXP_DIR", str(folder.with_name("swing")))
        exp_dir = str(folder.with_name(f"swing_task_{number}"))
        return study_task.main([str(folder), sys.executable, "-c", code, exp_dir, str(float(number)), "0"])

    return run


def test_a_task_of_an_array_runs_the_trial_of_its_number_once(
    array: Callable[..., int], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert array(2) == EXIT_DONE
    study = open_study(folder, "none", 1)
    assert [(trial.state, trial.value) for trial in study.get_trials()] == [
        (TrialState.WAITING, None),
        (TrialState.WAITING, None),
        (TrialState.COMPLETE, 2.0),
    ]
    assert "1 trials have a value" in capsys.readouterr().out and (folder / "trials.csv").exists()
    assert numbers_to_run(study, folder, 4) == [0, 1, 3]
    assert array(2) == EXIT_DONE and starts(folder) == {"swing_task_2": 1}
    assert Search(study, folder, wanted=3).run() == EXIT_DONE, "here the others"
    assert starts(folder) == {f"swing_task_{k}": 1 for k in range(3)}


@pytest.mark.parametrize(
    ("code", "exit_code", "state"),
    [
        ("import os; os.kill(os.getpid(), 9)", 137, TrialState.RUNNING),  # job.sh requeues it.
        ("raise SystemExit(75)", EXIT_RESUMABLE, TrialState.RUNNING),
        ("raise SystemExit(2)", 2, TrialState.FAIL),
        (RUN.replace("value > -1000", "False"), 1, TrialState.FAIL),
    ],
)
def test_a_trial_is_over_only_where_its_run_has_begun_and_its_job_is_not_requeued(
    array: Callable[..., int], folder: Path, code: str, exit_code: int, state: TrialState
) -> None:
    assert array(0, code) == exit_code
    study = open_study(folder, "none", 1)
    assert study.get_trials()[0].state == state
    settings = study.get_trials()[0].params
    assert array(0) == EXIT_DONE
    assert study.get_trials()[0].params == settings and len(study.get_trials()) == 1


def test_a_trial_whose_run_cannot_be_started_is_submitted_again(
    array: Callable[..., int], folder: Path, full_disk: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert array(1) == EXIT_FAILED and "No space left" in capsys.readouterr().out
    assert numbers_to_run(open_study(folder, "none", 1), folder, 3) == [0, 1, 2]
    full_disk.clear()
    assert array(1) == EXIT_DONE and starts(folder) == {"swing_task_1": 1}


def test_a_trial_that_another_process_runs_is_left_to_it(
    array: Callable[..., int], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study_task, "_HELD_SECS", 0.3)
    other = Search(open_study(folder, "none", 1), folder, wanted=3)
    other.trials.look()
    assert array(0) == EXIT_RESUMABLE and starts(folder) == {}
    assert numbers_to_run(other.trials._study, folder, 3) == [1, 2]


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Those that would have submitted; nothing else is in the queue."""
    found: list[list[str]] = []

    def call(command: list[str]) -> int:
        found.append(command)
        return 0

    monkeypatch.setattr(studies.subprocess, "call", call)
    monkeypatch.setattr(studies, "queued_trials", lambda _: set())
    return found


WORDS = ["vars.sh", "--space", "sac", "--trials=3", "--parallel=2", "--slurm"]
WORDS += ["--set", "discount=0.9", "--keep", "--time", "5:00"]


def test_what_is_left_is_submitted_as_an_array(
    folder: Path, commands: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    args = studies._parse(WORDS)
    assert studies._submit(args, SPACE, folder) == EXIT_DONE
    (command,) = commands
    assert command[0].endswith("/submit.sh") and command[1:] == [
        "vars.sh", "--array=0,1,2%2", f"--study={folder}", "--set", "discount=0.9", "--keep", "--time", "5:00",
    ]  # fmt: skip
    assert studies.read_plan(folder) == studies.StudyPlan(3, "median")
    Search(open_study(folder, "none", 1), folder, wanted=3).run()
    assert studies._submit(args, SPACE, folder) == EXIT_DONE and len(commands) == 1
    assert "3 trials have a value" in capsys.readouterr().out
    for wrong in (["--time", "5:00"], ["--slurm", "--array=0-3"], ["--slurm", "-a0-3"]):
        with pytest.raises(SystemExit):
            studies._parse(["vars.sh", "--space", "sac", *wrong])


def test_trials_in_the_queue_are_not_submitted_again(
    folder: Path, commands: list[list[str]], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    own, other = (f"{folder.parent}/{name}_array/snapshot/20260101-000000-1/job.sbatch" for name in ("swing", "other"))
    queue = folder.parent / "queue"
    queue.write_text(f"1 {own}\n2 {own}\n0 {other}\nN/A /bin/bash\nN/A {own.replace('_array', '')}\n")
    (folder.parent / "squeue").write_text(f"#!/bin/sh\ncat '{queue}'\n")
    (folder.parent / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(studies, "queued_trials", queued_trials)
    args = studies._parse(WORDS)
    assert studies._submit(args, SPACE, folder) == EXIT_DONE
    assert commands.pop()[2] == "--array=0%2"
    with queue.open("a") as file:
        file.write(f"0 {own}\n")
    assert studies._submit(args, SPACE, folder) == EXIT_DONE and not commands
    assert "3 trials wait in the queue, none is left to submit" in capsys.readouterr().out


def test_nothing_is_submitted_where_the_queue_does_not_answer(
    folder: Path, commands: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(studies, "queued_trials", lambda _: None)
    with pytest.raises(UserError, match="squeue does not answer"):
        studies._submit(studies._parse(WORDS), SPACE, folder)
    assert not commands
    assert studies._submit(studies._parse([*WORDS, "--dry_run"]), SPACE, folder) == EXIT_DONE


def test_a_dry_run_of_a_submission_writes_nothing(folder: Path, commands: list[list[str]]) -> None:
    assert studies._submit(studies._parse([*WORDS, "--dry_run"]), SPACE, folder) == EXIT_DONE
    assert commands[0][2] == "--array=0,1,2%2" and commands[0][-1] == "--dry_run" and not any(folder.iterdir())
