"""One trial of a study as a task of a job array: `sac tune-params --slurm`.

    python -m tfagents_system.launch.study_task STUDY_FOLDER COMMAND...

With `--study=STUDY_FOLDER` run_script.sh becomes this in place of COMMAND, which starts the run. The trial has the
number of the task (SLURM_ARRAY_TASK_ID), whenever the task begins and however often it is requeued. Exit codes are
those of the run; 0 if its trial is over, also one that was pruned.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tfagents_system.errors import EXIT_DONE, EXIT_FAILED, EXIT_RESUMABLE, UserError, exit_with
from tfagents_system.launch.python_path import ROOT
from tfagents_system.launch.study import open_study, read_plan
from tfagents_system.launch.sweep_tasks import FAILED, Place, Task, TaskRunner
from tfagents_system.machine.file_locks import lock
from tfagents_system.machine.signals import StopFlag
from tfagents_system.run_files.run_lock import owner_of_run
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.settings.grid import assignment
from tfagents_system.settings.search_spaces import read_space
from tfagents_system.settings.variables import GRID, TASK, read_variables

_HELD_SECS = 150.0  # So long the lock of a trial may outlive the process that had it.


def main(arguments: Sequence[str] | None = None) -> int:
    """The program; returns its exit code."""
    from tfagents_system.launch import study_results
    from tfagents_system.launch.trials import Trials

    folder, *command = sys.argv[1:] if arguments is None else arguments
    study_folder, number = Path(folder), int(os.environ[TASK])
    plan = read_plan(study_folder)
    space = read_space(study_folder / "space.json")
    study = open_study(study_folder, plan.pruner, parallel=2)
    stop = StopFlag.of_supervisor()

    def add(number: int, settings: Mapping[str, Any]) -> Task:
        return _task(number, settings, command)

    def end(task: Task) -> None:
        runner.end(task)

    def look(tasks: Sequence[Task]) -> None:
        # A run that was killed is requeued.
        trials.look(is_stopped=stop.is_set() or any((task.exit_code or 0) < 0 for task in tasks))

    def expects_more() -> bool:
        is_held = not trials.tasks and not trials.is_over(number) and trials.refusal is None
        return trials.is_waiting or (is_held and time.monotonic() < deadline)

    trials = Trials(
        study, space, study_folder, add, wanted=plan.trials, parallel=1, end=end, say=_say, only=number
    )  # fmt: skip
    runner = TaskRunner(trials.tasks, [Place()], stop, look, expects_more)
    deadline = time.monotonic() + _HELD_SECS
    runner.run()
    look(trials.tasks)
    if trials.refusal is not None:
        raise trials.refusal
    if trials.unstarted:  # Its job is not requeued, which might go on for ever.
        _say(f"error: {trials.unstarted}; sac tune-params --slurm submits that trial again")
        return EXIT_FAILED
    is_over = trials.is_over(number)
    if is_over:
        with (study_folder / "results.lock").open("w") as file:
            lock(file.fileno(), Path(file.name))
            for line in study_results.write(study, space, study_folder):
                _say(line)
    return _exit_code(trials.tasks, is_over=is_over)


def _exit_code(tasks: Sequence[Task], *, is_over: bool) -> int:
    for task in tasks:
        if task.state == FAILED and task.exit_code is not None:
            _say(f"{task}: {task.reason} (log in {task.log})")
            return task.exit_code if task.exit_code >= 0 else 128 - task.exit_code
    return EXIT_DONE if is_over else EXIT_RESUMABLE


def _task(number: int, settings: Mapping[str, Any], command: Sequence[str]) -> Task:
    """The run of a trial.

    Raises:
      UserError: Another process has its directory.
    """
    values, findings = read_variables(os.environ, vars_file=None, root=ROOT)
    if "exp_dir" not in values:
        raise UserError(*findings)
    paths = RunPaths(values["exp_dir"])
    if (owner := owner_of_run(paths)) is not None:
        raise UserError(f"the run directory {paths.exp_dir} is in use by {owner}: stop that run first")
    # As in a study on one machine, a trial's number adds nothing to its seed.
    own = {GRID: "", "SAC_SEED": os.environ.get("SAC_SEED") or "0"} | dict(settings)
    words = [word for name, value in own.items() for word in ("--set", assignment(name, value))]
    task = Task(number, settings, [*command, *words], dict(os.environ), paths, values.get("save_deadline_secs", 60.0))
    _say(f"{task}: log in {task.log}")
    return task


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    exit_with(main)
