"""Searches for good settings: trials proposed by Optuna, each a run like all others, hopeless ones ended early.

The search is in <name>_tasks beside its runs <name>_task_<trial>. The same command continues with what is unfinished,
also after everything was killed. Several of them, on one machine or many, share a search. With --slurm a job array
takes the trials. Exit codes are those of a sweep.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tfagents_system.checks.findings import is_installed
from tfagents_system.errors import EXIT_DONE, OptionParser, UserError
from tfagents_system.launch.cpus import places_of
from tfagents_system.launch.run_settings import add_edit_options
from tfagents_system.launch.vars_file import LAUNCHERS, refuse_login_node
from tfagents_system.machine.signals import StopFlag
from tfagents_system.settings.grid import SPACES, corners, faults_in_job, read_space
from tfagents_system.tasks.pool import View

if TYPE_CHECKING:
    from tfagents_system.tasks.study import Study

_SQUEUE_SECS = 10.0


def main(arguments: Sequence[str] | None = None) -> int:
    """The program; returns its exit code."""
    args = _parse(arguments)
    if args.show_space:
        print(json.dumps(SPACES[args.show_space], indent=1))
        return EXIT_DONE
    if not is_installed("optuna"):
        raise UserError("the package optuna is not installed: install the extra (pip install '.[tuning]')")
    from tfagents_system.tasks.study import Study

    args.vars_file = args.vars_file.absolute()
    space = read_space(args.space)
    if args.slurm:
        lists = {name: values if isinstance(values, list) else [] for name, values in space.items()}
        if faults := faults_in_job(lists):
            raise UserError(*(f"--space {args.space}: {fault}" for fault in faults))
    else:
        refuse_login_node(args.vars_file, "add --slurm, which submits trials, and shows what was found afterwards")
    options = [f"--{args.edits}"] if args.edits else []
    study = Study.of_vars_file(args.vars_file, args.assignments, options, space)
    extremes = [study.new_task(0, settings) for settings in corners(space)]
    if findings := dict.fromkeys(finding for task in extremes for finding in task.findings):
        raise UserError(*findings)
    runs = [(task.variables, task.environ) for task in extremes]
    places = [] if args.slurm else places_of(runs, min(args.parallel, args.trials))
    if "--dry-run" in args.further:
        return _submit(args, study, args.trials, set())
    study.begin(space, args.pruner, args.trials)
    if args.slurm and (left := study.left()):
        return _submit(args, study, left, queued_workers(study.folder))
    return study.run(places, StopFlag.of_supervisor(), View().show)


def _submit(args: argparse.Namespace, study: Study, left: int, queued: set[int] | None) -> int:
    """Submits so many workers that, with those in the queue, `--parallel` of them take the trials that are left."""
    if queued is None:
        raise UserError("squeue does not say which workers are queued: try again later, or load SLURM's module")
    numbers = [number for number in range(min(args.parallel, left)) if number not in queued]
    if not numbers:
        print(f"{left} trials are left, and {len(queued)} tasks of a job array take them", flush=True)
        return EXIT_DONE
    settings = [word for text in args.assignments for word in ("--set", text)]
    settings += [f"--{args.edits}"] if args.edits else []
    array = f"--array={','.join(map(str, numbers))}%{args.parallel}"
    command = [LAUNCHERS / "submit.sh", args.vars_file, array, f"--study={study.folder}", *settings, *args.further]
    return subprocess.call([str(word) for word in command])


def queued_workers(folder: Path) -> set[int] | None:
    """Numbers of this user's queued or running array tasks that work on a search; None if SLURM does not say."""
    # A user's own SQUEUE_STATES, SQUEUE_PARTITION and such would leave jobs out.
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SQUEUE_")}
    command = ["squeue", "--noheader", "--all", f"--user={os.getuid()}", "--format=%K %o", "--array"]
    try:
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=_SQUEUE_SECS, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    snapshots = f"{os.path.realpath(folder).removesuffix('_tasks')}_array/snapshot/"
    lines = [line.partition(" ") for line in done.stdout.splitlines()]
    return {int(n) for n, _, script in lines if n.isdigit() and snapshots in os.path.realpath(script.strip())}


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    names = ", ".join(SPACES)
    parser = OptionParser()
    parser.add_argument("vars_file", nargs="?", type=Path, metavar="VARS.sh", help="assigns the SAC_ variables")
    parser.add_argument("--space", metavar="FILE", help=f"JSON of what is tried, or a name: {names}")
    parser.add_argument("--show-space", choices=SPACES, metavar="NAME", help="print a space as JSON, to edit, and end")
    parser.add_count("--trials", "runs altogether", 40)
    pruners = ("median", "hyperband", "none")
    parser.add_argument("--pruner", choices=pruners, default="median", help="who ends hopeless runs (default: median)")
    parser.add_count("--parallel", "runs at once", 1)
    parser.add_settings()
    add_edit_options(parser, fresh=False)
    parser.add_argument(
        "--slurm", action="store_true", help="submit a job array; further options are those of sac submit"
    )
    args, further = parser.parse_known_args(arguments)
    args.further = further
    if not args.show_space and (args.vars_file is None or args.space is None):
        parser.error("VARS.sh and --space are needed")
    if further and not args.slurm:
        parser.error(f"unrecognized arguments: {' '.join(further)}")
    if wrong := [word for word in further if re.match(r"-[aN]|--(array|nodes|study|from|take)(=|$)", word)]:
        parser.error(f"{' '.join(wrong)}: --slurm submits an array of workers, each on one node: leave it out")
    if args.trials > 10_000:
        parser.error(f"--trials must be at most 10000, found {args.trials}")
    return args
