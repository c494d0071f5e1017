"""Trains the tasks of a grid on this machine, a few at a time: what a job array does on a cluster.

    sac sweep VARS.sh [--seeds 0-4] [--grid FILE] [--parallel 2] [--set NAME=VALUE]...

Each task has the run directory <name>_task_<id>. The same command continues what is unfinished.
Exit codes: 0 all are done, 1 some have failed, 2 bad input: nothing was started, 75 stopped and saved.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Sequence
from pathlib import Path

from tfagents_system.errors import EXIT_DONE, UserError, exit_with, shown
from tfagents_system.launch.login_node import refuse_login_node
from tfagents_system.launch.python_path import ROOT
from tfagents_system.launch.run_settings import FRESH, add_edit_options
from tfagents_system.launch.sweep_plan import SweepPlan
from tfagents_system.launch.sweep_tasks import DONE, FAILED, Task, TaskRunner
from tfagents_system.launch.sweep_view import SweepView
from tfagents_system.launch.vars_file import read_vars_file
from tfagents_system.machine.signals import StopFlag
from tfagents_system.settings.grid import Grid, GridError, read_grid
from tfagents_system.settings.overrides import parse_assignments
from tfagents_system.settings.variables import GRID, SEED, TASK, read_variables

_MOST_SEEDS = 10_000


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


def _grid_of(args: argparse.Namespace, vars_file: Path) -> Grid:
    """The grid of --grid, else of the vars file's SAC_GRID, with the seeds of --seeds.

    Raises:
      UserError: With all findings.
    """
    environ = read_vars_file(vars_file, {**os.environ, TASK: "0"})
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
        grid = grid if args.seeds is None else grid.with_axis(SEED, parse_seeds(args.seeds))
    except GridError as error:
        raise UserError(*error.findings) from None
    names = {setting.name for setting in parse_assignments(args.assignments)[0]}
    if twice := [key for key in grid.names() if key in names]:
        raise UserError(*(f"{key} is swept over and given by --set as well: give it once" for key in twice))
    return grid


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="sac sweep",
        description="Train every task of a grid here, in the run directories <name>_task_<id>. The same command "
        "continues what is unfinished.",
    )
    parser.add_argument("vars_file", type=Path, metavar="VARS.sh")
    parser.add_argument("--seeds", help="such as 0-4 or 0,3,7-9: one more list of the grid")
    parser.add_argument(
        "--grid",
        type=Path,
        metavar="FILE",
        help='JSON: an object of lists, such as {"discount": [0.9, 0.99]}, or a list of objects (default: SAC_GRID)',
    )
    parser.add_argument("--parallel", type=int, default=1, help="runs at once (default: 1)")
    parser.add_argument("--set", action="append", default=[], dest="assignments", metavar="NAME=VALUE")
    add_edit_options(parser)
    args = parser.parse_args(arguments)
    if not 1 <= args.parallel <= 1000:
        parser.error(f"--parallel must be from 1 to 1000, found {args.parallel}")
    return args


def main(arguments: Sequence[str] | None = None) -> int:
    args = _parse(arguments)
    if os.environ.get(TASK):
        raise UserError(f"{TASK} is set, this is a task of a job array already: submit the grid with ./submit.sh")
    vars_file = args.vars_file.absolute()
    grid = _grid_of(args, vars_file)
    settings = {number: grid.settings(number) for number in range(len(grid))}
    plan = SweepPlan(vars_file, settings, args.assignments, args.parallel, edits=args.edits)
    plan.raise_findings()
    if any(task.state != DONE for task in plan.tasks):
        refuse_login_node(
            vars_file,
            f"submit them as an array, with {GRID} in the vars file: sac submit {vars_file} --array 0-{len(grid) - 1}",
        )
    plan.move_aside()
    # Nothing is running before: a Ctrl-C just ends.
    stop = StopFlag.of_supervisor()
    code = TaskRunner(plan.tasks, plan.places, stop, SweepView().show).run()
    for task in plan.tasks:
        if task.state == FAILED:
            print(f"{task}: {task.reason} (log in {task.log})")
    print(_ending(code, plan.tasks, args.edits), flush=True)
    return code


def _ending(code: int, tasks: Sequence[Task], edits: str | None) -> str:
    folders = f"{os.path.relpath(tasks[0].paths.exp_dir).rpartition('_task_')[0]}_task_*"
    done = sum(task.state == DONE for task in tasks)
    if code == EXIT_DONE or done == len(tasks):
        return f"all {done} tasks are done: sac compare {folders}"
    command = "the same command without --fresh" if edits == FRESH else "the same command"
    return f"{done} of {len(tasks)} tasks are done: {command} goes on with the others"


if __name__ == "__main__":
    exit_with(main)
