"""Trains the tasks of a grid on this machine, a few at a time: what a job array does on a cluster.

    python -m tfagents_system.launch.sweep VARS.sh [--seeds 0-4] [--grid FILE] [--parallel 2] [--set NAME=VALUE]...

Called by sweep.sh. Each task has the run directory <name>_task_<id>. The same command continues what is unfinished.
Exit codes: 0 all are done, 1 some have failed, 2 bad input: nothing was started, 75 stopped and saved.
"""

from __future__ import annotations

import argparse
import itertools
import math
import multiprocessing
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tfagents_system.errors import EXIT_DONE, UserError, exit_with, shown
from tfagents_system.launch.inspection import check_inputs
from tfagents_system.launch.python_path import LAUNCHERS, ROOT
from tfagents_system.launch.run_settings import resolve
from tfagents_system.launch.sweep_tasks import DONE, FAILED, Place, Task, TaskRunner
from tfagents_system.launch.sweep_view import SweepView
from tfagents_system.launch.vars_file import read_vars_file
from tfagents_system.machine.claims import held_cpus
from tfagents_system.machine.gpus import found, usable_gpus
from tfagents_system.machine.signals import StopFlag
from tfagents_system.machine.topology import (
    allowed_cpus,
    cgroup_quota,
    cores_of,
    is_confined,
    slurm_allotment,
    split_cpus,
)
from tfagents_system.run_files import run_directory
from tfagents_system.run_files.run_lock import owner_of_run
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.settings.grid import Grid, GridError, assignment, read_grid
from tfagents_system.settings.overrides import parse_assignments
from tfagents_system.settings.variables import read_variables

_TASK, _SEED = "SLURM_ARRAY_TASK_ID", "SAC_SEED"
_COUNTS = {"reverb_cpus", "train_cpus", "num_collect_workers", "collect_worker_cpus"}
_MOST_SEEDS = 10_000
_CHECK_SECS = 300.0


class _Plan:
    """The tasks of a sweep and their checks, which are all made before anything starts."""

    def __init__(self, vars_file: Path, grid: Grid, assignments: Sequence[str], parallel: int) -> None:
        self.tasks: list[Task] = []
        self.places: list[Place] = []
        self._findings: dict[str, list[int]] = {}  # With the tasks that have them.
        self._vars_file = vars_file
        self._assignments = assignments
        self._values: list[dict[str, Any]] = []
        environs = self._environs = [self._add(number, grid.settings(number)) for number in range(len(grid))]
        everyone = range(len(grid))
        try:
            to_check = {task.number: environs[task.number] for task in self.tasks if task.state != DONE}
            for number, findings in _check_all(to_check, vars_file).items():
                self._note([number], findings)
        except UserError as error:
            self._note(everyone, error.findings)
        self._note(everyone, self._place(parallel))

    def raise_findings(self) -> None:
        """Raises:
        UserError: With all findings, and the tasks that they concern.
        """
        if self._findings:
            count = len(self.tasks)
            raise UserError(
                *(
                    text if len(numbers) == count or count == 1 else f"{_numbered(numbers)}: {text}"
                    for text, numbers in self._findings.items()
                )
            )

    def _note(self, numbers: Iterable[int], findings: Iterable[str]) -> None:
        for finding in dict.fromkeys(findings):
            self._findings.setdefault(finding, []).extend(numbers)

    def _add(self, number: int, settings: Mapping[str, Any]) -> dict[str, str]:
        """Adds a task; returns its environment as the run will have it."""
        base = {**os.environ, _TASK: str(number)}
        environ = read_vars_file(self._vars_file, base)
        own = dict(settings)
        given, _ = parse_assignments(self._assignments)
        own_seed = _SEED in own or any(setting.name == _SEED for setting in given)
        # Only the grid's tasks are asked for: a task's number adds nothing to its seed.
        seed = [] if own_seed else [f"{_SEED}={environ.get(_SEED) or 0}"]
        texts = ["SAC_GRID=", *seed, *(assignment(name, value) for name, value in own.items()), *self._assignments]
        resolved = resolve(environ, texts, vars_file=self._vars_file, root=ROOT)
        values, findings = read_variables(resolved.environ, vars_file=self._vars_file, root=ROOT)
        self._note([number], [*resolved.findings, *findings])
        paths = RunPaths(values.get("exp_dir", Path()))
        options = [word for text in texts for word in ("--set", text)]
        task = Task(
            number=number,
            settings=own | {setting.name: setting.value for setting in given},
            command=[str(LAUNCHERS / "run_script.sh"), *options, str(self._vars_file)],
            environ=base,
            paths=paths,
            save_secs=values.get("save_deadline_secs", 60.0),
        )
        if "exp_dir" in values:
            if run_directory.is_finished(paths, resolved.overrides):
                task.state = DONE
            elif (owner := owner_of_run(paths)) is not None:
                self._note([number], [f"SAC_EXP_DIR={paths.exp_dir} is in use by {owner}: stop that run first"])
        self.tasks.append(task)
        self._values.append(values)
        return resolved.environ

    def _place(self, parallel: int) -> list[str]:
        """Gives each of the simultaneous runs its CPUs and its GPU; returns what prevents that."""
        if not all(values.keys() >= _COUNTS for values in self._values):
            return []
        cpus, findings = self._cpus(parallel)
        gpus, found = self._gpus(parallel)
        self.places = [Place(*place) for place in itertools.zip_longest(cpus, gpus)]
        return findings + found

    def _cpus(self, parallel: int) -> tuple[list[list[int]], list[str]]:
        """CPU ids for each of the simultaneous runs, and what prevents that."""
        needed = max(
            values["reverb_cpus"]
            + values["train_cpus"]
            + sum(values.get(f"{kind}_workers", 0) for kind in ("num_collect", "expert", "eval"))
            * values["collect_worker_cpus"]
            for values in self._values
        )
        share = all(values.get("share_cpus", False) for values in self._values)
        whole_cores = not all(values.get("use_hyperthreads", True) for values in self._values)
        cores, quota = cores_of(allowed_cpus()), cgroup_quota()
        limit = None if quota is None else max(1, math.floor(quota))
        nothing: list[list[int]] = [[] for _ in range(parallel)]
        if not is_confined(slurm_allotment(os.environ), cores, whole_cores=whole_cores):
            return nothing, []  # The ids are not ours to give.
        try:
            held = held_cpus()
            split = split_cpus(cores, parallel, needed, held=held, share=share, whole_cores=whole_cores, limit=limit)
        except UserError as error:
            return nothing, list(error.findings)
        return split, []

    def _gpus(self, parallel: int) -> tuple[list[str], list[str]]:
        """A GPU for each of the simultaneous runs, if any task trains on one, and what prevents that."""
        waiting = [k for k, task in enumerate(self.tasks) if task.state != DONE]
        wanting = [self._environs[k] for k in waiting if self._values[k].get("train_gpus", False)]
        if not wanting:
            return [], []
        usable, at_once = usable_gpus(wanting[0]), min(parallel, len(waiting))
        if len(usable) >= at_once:
            return usable[:at_once], []
        return [], [
            f"SAC_TRAIN_GPUS=1: {at_once} runs at once need a GPU each, {len(usable)} may be used here "
            f"(CUDA_VISIBLE_DEVICES: {found(wanting[0])}): lower --parallel, ask the cluster for more "
            f"(--gpus-per-node={at_once}), or unset SAC_TRAIN_GPUS"
        ]


def parse_seeds(text: str) -> list[int]:
    """`"0-2,7"` -> `[0, 1, 2, 7]`.

    Raises:
      UserError: It is something else.
    """
    seeds: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,10})(?:-([0-9]{1,10}))?\s*", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not first <= last < 2**31 or len(seeds) + last - first >= _MOST_SEEDS:
            raise UserError(f"--seeds must be numbers and ranges such as 0-4 or 0,3,7-9, found {shown(text)}")
        seeds += range(first, last + 1)
    if len(set(seeds)) < len(seeds):
        raise UserError(f"--seeds {text} has a seed twice: give each once")
    return seeds


def _check_all(environs: Mapping[int, Mapping[str, str]], vars_file: Path) -> dict[int, list[str]]:
    """What is wrong with params and configuration of each task, found in a process that a user's code may end.

    Raises:
      UserError: That process has died, or takes too long.
    """
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_check_each, args=(environs, vars_file, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        if not ours.poll(_CHECK_SECS):
            raise UserError(f"the check of params and configuration has not ended within {_CHECK_SECS:g} s: correct it")
        found: dict[int, list[str]] = ours.recv()
        return found
    except EOFError:
        raise UserError(
            "the process died in the check of params and configuration: see above, and correct it"
        ) from None
    finally:
        process.kill()
        process.join()


def _check_each(environs: Mapping[int, Mapping[str, str]], vars_file: Path, answer: Connection) -> None:
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # The GPUs are for the trainers.
    answer.send({number: check_inputs(environ, vars_file) for number, environ in environs.items()})


def _numbered(numbers: Sequence[int]) -> str:
    return f"task {numbers[0]}" if len(numbers) == 1 else f"tasks {', '.join(map(str, numbers))}"


def _grid_of(args: argparse.Namespace, vars_file: Path) -> Grid:
    """The grid of --grid, else of the vars file's SAC_GRID, with the seeds of --seeds.

    Raises:
      UserError: With all findings.
    """
    environ = read_vars_file(vars_file, {**os.environ, _TASK: "0"})
    path = args.grid
    if path is None and environ.get("SAC_GRID", "").strip():
        values, findings = read_variables(environ, vars_file=vars_file, root=ROOT)
        if "grid" not in values:
            raise UserError(*(finding for finding in findings if finding.startswith("SAC_GRID")))
        path = values["grid"]
    if path is None and args.seeds is None:
        raise UserError("there is nothing to sweep over: give --seeds 0-4, --grid FILE, or both")
    try:
        grid = Grid() if path is None else read_grid(str(path))
        grid = grid if args.seeds is None else grid.with_axis(_SEED, parse_seeds(args.seeds))
    except GridError as error:
        raise UserError(*error.findings) from None
    names = {setting.name for setting in parse_assignments(args.assignments)[0]}
    if twice := [key for key in grid.names() if key in names]:
        raise UserError(*(f"{key} is swept over and given by --set as well: give it once" for key in twice))
    return grid


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./sweep.sh", description="Train the tasks of a grid on this machine.")
    parser.add_argument("vars_file", type=Path, metavar="VARS.sh")
    parser.add_argument("--seeds", help="such as 0-4 or 0,3,7-9")
    parser.add_argument("--grid", type=Path, metavar="FILE", help="grid file (default: SAC_GRID)")
    parser.add_argument("--parallel", type=int, default=1, help="runs at once (default: 1)")
    parser.add_argument("--set", action="append", default=[], dest="assignments", metavar="NAME=VALUE")
    args = parser.parse_args(arguments)
    if not 1 <= args.parallel <= 1000:
        parser.error(f"--parallel must be from 1 to 1000, found {args.parallel}")
    return args


def main(arguments: Sequence[str] | None = None) -> int:
    args = _parse(arguments)
    if os.environ.get(_TASK):
        raise UserError(f"{_TASK} is set, this is a task of a job array already: submit the grid with ./submit.sh")
    vars_file = args.vars_file.absolute()
    plan = _Plan(vars_file, _grid_of(args, vars_file), args.assignments, args.parallel)
    plan.raise_findings()
    # Nothing is running before: a Ctrl-C just ends.
    stop = StopFlag.of_supervisor()
    with SweepView() as view:
        code = TaskRunner(plan.tasks, plan.places, stop, view.show).run()
    for task in plan.tasks:
        if task.state == FAILED:
            print(f"{task}: {task.reason} (log in {task.log})")
    print(_ending(code, plan.tasks), flush=True)
    return code


def _ending(code: int, tasks: Sequence[Task]) -> str:
    folders = f"{os.path.relpath(tasks[0].paths.exp_dir).rpartition('_task_')[0]}_task_*"
    done = sum(task.state == DONE for task in tasks)
    if code == EXIT_DONE or done == len(tasks):
        return f"all {done} tasks are done: python -m tfagents_system.report compare {folders}"
    return f"{done} of {len(tasks)} tasks are done: the same command goes on with the others"


if __name__ == "__main__":
    exit_with(main)
