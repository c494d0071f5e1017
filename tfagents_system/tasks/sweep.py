"""Trains the tasks of a grid on this machine, a few at a time: what a job array does on a cluster.

Each task has the run directory <name>_task_<id>, and checks itself when it begins. The same command continues what is
unfinished. Exit codes: 0 all are done, 1 some have failed, 2 bad input: nothing was started, 75 stopped and saved.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from tfagents_system.errors import OptionParser, UserError
from tfagents_system.launch.cpus import Place, places_of
from tfagents_system.launch.run_settings import add_edit_options
from tfagents_system.launch.vars_file import ROOT, read_vars_file, refuse_login_node
from tfagents_system.machine.signals import StopFlag
from tfagents_system.report.long_work import followed
from tfagents_system.run_files import run_directory
from tfagents_system.settings.grid import Grid, parse_seeds, read_grid
from tfagents_system.settings.resolved import Setting
from tfagents_system.settings.variables import GRID, SEED, TASK, read_variables
from tfagents_system.tasks.pool import DONE, WAITING, Pool, Source, View


class Sweep(Source):
    """The tasks of a grid, which are all known at the beginning."""

    def begin(self, grid: Grid, parallel: int) -> list[Place]:
        """Lists the tasks, those with a finished run as DONE; returns the places of the others.

        A UserError says what is wrong with all of them, that there is too little room, or that others use the list.
        """
        for number in followed(range(len(grid)), "looking at tasks", "tasks", len(grid)):
            task = self.new_task(number, grid.settings(number))
            wanted = [Setting(name, value, "the grid") for name, value in task.settings.items()]
            is_finished = run_directory.is_finished(task.paths, task.overrides)
            task.state = (
                DONE if is_finished and not run_directory.faults_of_task(task.paths, wanted, task.environ) else WAITING
            )
            self.tasks.append(task)
        shared = set.intersection(*(set(task.findings) for task in self.tasks))
        if findings := [finding for finding in self.tasks[0].findings if finding in shared]:
            raise UserError(*findings)
        waiting = [task for task in self.tasks if task.state == WAITING]
        places = places_of([(task.variables, task.environ) for task in waiting], min(parallel, len(waiting)))
        with self.locked():
            if (self.folder / "study.json").exists():
                raise UserError(f"{self.folder} is that of a search: choose another SAC_EXP_NAME")
            if not self.claim("sweep"):
                raise UserError(f"another sweep works on the tasks of {self.folder}: stop that one first")
            self.write_list(task.settings for task in self.tasks)
        return places


def _grid_of(args: argparse.Namespace) -> Grid:
    """The grid of --grid, else of the vars file's SAC_GRID, with the seeds of --seeds; a UserError has all findings."""
    path, environ = args.grid, read_vars_file(args.vars_file, {**os.environ, TASK: "0"})
    if path is None and environ.get(GRID, "").strip():
        values, findings = read_variables(environ, vars_file=args.vars_file, root=ROOT)
        path = values.get("grid")
        if path is None:
            raise UserError(*(finding for finding in findings if finding.startswith(GRID)))
    if path is None and args.seeds is None:
        raise UserError("there is nothing to sweep over: give --seeds 0-4, --grid FILE, or both")
    grid = Grid() if path is None else read_grid(str(path))
    return grid if args.seeds is None else grid.with_axis(SEED, parse_seeds(args.seeds))


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = OptionParser(
        description="Runs are in the directories <name>_task_<id>. The same command continues what is unfinished."
    )
    parser.add_argument("vars_file", type=Path, metavar="VARS.sh", help="assigns the SAC_ variables")
    parser.add_argument("--seeds", metavar="IDS", help="such as 0-4 or 0,3,7-9: one more list of the grid")
    words = 'JSON such as {"discount": [0.9, 0.99]}, or a list of objects (default: SAC_GRID)'
    parser.add_argument("--grid", type=Path, metavar="FILE", help=words)
    parser.add_count("--parallel", "runs at once", 1)
    parser.add_settings(["--name", "--workers"])
    add_edit_options(parser, fresh=False)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """The program; returns its exit code."""
    args = _parse(arguments)
    if os.environ.get(TASK):
        raise UserError(f"{TASK} is set, this is a task of a job array already: submit the grid with ./submit.sh")
    args.vars_file = args.vars_file.absolute()
    grid = _grid_of(args)
    array = f"submit an array, with {GRID} in the vars file: sac submit {args.vars_file} --array 0-{len(grid) - 1}"
    refuse_login_node(args.vars_file, array)
    options = [f"--{args.edits}"] if args.edits else []
    sweep = Sweep.of_vars_file(args.vars_file, args.assignments, options, list(grid.values()))
    places = sweep.begin(grid, args.parallel)
    # Nothing is running before: a Ctrl-C just ends.
    code = Pool(sweep, places, StopFlag.of_supervisor(), View().show).run()
    done = sum(task.state == DONE for task in sweep.tasks)
    folders = f"{os.path.relpath(sweep.folder).removesuffix('_tasks')}_task_*"
    if done == len(grid):
        print(f"all {done} tasks are done: sac compare {folders}", flush=True)
    else:
        print(f"{done} of {len(grid)} tasks are done: the same command continues with the others", flush=True)
    return code
