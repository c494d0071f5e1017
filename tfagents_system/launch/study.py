"""Searches for good settings: trials chosen by Optuna, each a run like all others, hopeless ones ended early.

    python -m tfagents_system.launch.study VARS.sh --space sac|FILE [--trials 40] [--parallel 2] [--set NAME=VALUE]...
                                           [--slurm [SBATCH_OPTION]...]

The study lies in <name>_study beside its runs <name>_task_<trial>. The same command goes on with what is unfinished,
also after everything was killed. Several of them, on one machine or many, share a study. With --slurm the trials are
tasks of a job array, which submit.sh submits. Exit codes: 0 all trials are over, or are submitted, 1 none of them has
succeeded or a run can't be started, 2 bad input: nothing was started, 75 stopped and saved.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from tfagents_system.checks.called_as import called_as
from tfagents_system.errors import EXIT_DONE, EXIT_FAILED, EXIT_RESUMABLE, UserError, exit_with
from tfagents_system.launch.login_node import refuse_login_node
from tfagents_system.launch.python_path import LAUNCHERS
from tfagents_system.launch.run_settings import (
    EDIT_OPTIONS,
    add_edit_options,
    edits_of_start,
)
from tfagents_system.launch.sweep_plan import SweepPlan
from tfagents_system.launch.sweep_tasks import Task, TaskRunner
from tfagents_system.launch.sweep_view import SweepView
from tfagents_system.machine.files import write_atomically
from tfagents_system.machine.installed import is_installed
from tfagents_system.machine.signals import StopFlag
from tfagents_system.report.long_work import LongWork
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.settings.grid import faults_in_job
from tfagents_system.settings.search_spaces import SPACES, Space, as_json, corners, read_space

if TYPE_CHECKING:
    import optuna

PRUNERS = ("median", "hyperband", "none")
_STUDY = "_study"  # Behind the name of its runs.
_JOURNAL = "journal.log"
_SQUEUE_SECS = 10.0
_CORNERS = 10**6  # Task numbers of settings that are checked and never run.


def main(arguments: Sequence[str] | None = None) -> int:
    """The program; returns its exit code."""
    args = _parse(arguments)
    if not is_installed("optuna"):
        raise UserError("the package optuna is not installed: install the extra (pip install '.[tuning]')")
    vars_file = args.vars_file.absolute()
    if not args.slurm:
        refuse_login_node(
            vars_file, "add --slurm, which submits the trials, and shows what was found once they are over"
        )
    space = _space(args.space)
    checked = dict(enumerate(corners(space), start=_CORNERS))
    args.parallel = min(args.parallel, args.trials)
    parallel = 0 if args.slurm else args.parallel
    plan = SweepPlan(vars_file, checked, args.assignments, parallel, is_open=True, edits=args.edits)
    plan.raise_findings()
    folder = _folder(plan.tasks[0].paths)
    if args.slurm and not (folder / _JOURNAL).exists():  # Else the study would have begun with that space.
        _refuse_in_job(args.space, space)
    if not args.is_dry or (folder / _JOURNAL).exists():
        _keep_space(folder, space)
    return _submit(args, space, folder) if args.slurm else _search(args, plan, space, folder)


@dataclasses.dataclass(frozen=True)
class StudyPlan:
    """What the tasks of a job array read in plan.json.

    Attributes:
      trials: Of the study, failed ones included.
      pruner: One of PRUNERS.
    """

    trials: int
    pruner: str


def read_plan(folder: Path) -> StudyPlan:
    """Raises:
    UserError: The study was not submitted.
    """
    try:
        return StudyPlan(**json.loads((folder / "plan.json").read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise UserError(f"{folder} has no plan.json: submit its study with sac tune-params --slurm") from None


def _submit(args: argparse.Namespace, space: Space, folder: Path) -> int:
    """Submits the trials that are not over and that no job has or will have, each as the task of its number."""
    numbers = list(range(args.trials))
    if (folder / _JOURNAL).exists() or not args.is_dry:
        numbers = _numbers_to_submit(args, space, folder)
    if not numbers:
        return EXIT_DONE
    _refuse_in_job(args.space, space)
    if not args.is_dry:
        plan = StudyPlan(args.trials, args.pruner)
        write_atomically(folder / "plan.json", json.dumps(dataclasses.asdict(plan)).encode())
    settings = [word for text in args.assignments for word in ("--set", text)]
    edits = edits_of_start(args.edits, None, os.environ)
    settings += [EDIT_OPTIONS[edits]] if edits else []
    array = f"--array={','.join(map(str, numbers))}%{args.parallel}"
    command = [LAUNCHERS / "submit.sh", args.vars_file, array, f"--study={folder}", *settings, *args.further]
    if code := subprocess.call([str(word) for word in command]):
        return code
    if not args.is_dry:
        print(f"{len(numbers)} trials are submitted; the same command shows what was found, and submits what is left")
    return EXIT_DONE


def _numbers_to_submit(args: argparse.Namespace, space: Space, folder: Path) -> list[int]:
    """Where there are none, it tells what was found, or who waits."""
    from tfagents_system.launch import study_results
    from tfagents_system.launch.trials import numbers_to_run

    study = open_study(folder, args.pruner, args.parallel)
    to_run = numbers_to_run(study, folder, args.trials)
    queued = queued_trials(folder)
    if queued is None and not args.is_dry:
        raise UserError(
            "squeue does not answer, and trials that are in the queue must not be submitted again: try again later, or "
            "load SLURM's module"
        )
    queued = queued or set()
    if to_run and queued.issuperset(to_run):
        print(f"{len(to_run)} trials wait in the queue, none is left to submit", flush=True)
    elif not to_run and not args.is_dry:
        print(*study_results.write(study, space, folder), sep="\n", flush=True)
    return [number for number in to_run if number not in queued]


def queued_trials(folder: Path) -> set[int] | None:
    """Trials of a study that are tasks of this user's queued or running arrays; None if SLURM does not say."""
    # A user's own SQUEUE_STATES, SQUEUE_PARTITION and such would leave jobs out.
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SQUEUE_")}
    command = ["squeue", "--noheader", "--all", f"--user={os.getuid()}", "--format=%K %o", "--array"]
    try:
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=_SQUEUE_SECS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode:
        return None
    snapshots = f"{os.path.realpath(folder).removesuffix(_STUDY)}_array/snapshot/"
    found = set[int]()
    for line in done.stdout.splitlines():
        number, _, script = line.partition(" ")
        if snapshots in os.path.realpath(script.strip()) and number.isdigit():
            found.add(int(number))
    return found


def _search(args: argparse.Namespace, plan: SweepPlan, space: Space, folder: Path) -> int:
    from tfagents_system.launch import study_results
    from tfagents_system.launch.trials import Trials

    study = open_study(folder, args.pruner, args.parallel)
    stop = StopFlag.of_supervisor()
    view = SweepView()
    runner: TaskRunner | None = None

    def end(task: Task) -> None:
        if runner is not None:
            runner.end(task)

    trials = Trials(study, space, folder, plan.add, wanted=args.trials, parallel=args.parallel, end=end, say=view.say)

    def look(tasks: Sequence[Task]) -> None:
        if not stop.is_set():
            trials.look()
        view.show(tasks)

    trials.look()
    runner = TaskRunner(trials.tasks, plan.places, stop, look, lambda: trials.is_waiting)
    code = runner.run()
    if stop.is_set():
        trials.look(is_stopped=True)
    with LongWork("results of the study"):
        lines = study_results.write(study, space, folder)
    print("\n".join(lines), flush=True)
    if trials.refusal is not None:
        raise trials.refusal
    if trials.unstarted:
        print(
            f"error: {trials.unstarted}; correct that, and the same command goes on",
            file=sys.stderr,
            flush=True,
        )
    if stop.is_set() and (trials.left or code == EXIT_RESUMABLE):
        return EXIT_RESUMABLE
    if trials.unstarted:
        return EXIT_FAILED
    if trials.left:
        return EXIT_RESUMABLE
    return EXIT_DONE if study_results.finished(study) else EXIT_FAILED


def _space(name: str) -> Space:
    """A shipped one by its algorithm, or that of a file."""
    if name in SPACES and not Path(name).exists():
        return SPACES[name]
    if not Path(name).exists():
        raise UserError(f"--space {name} must be a JSON file, or one of {', '.join(SPACES)}")
    return read_space(Path(name))


def _refuse_in_job(name: str, space: Space) -> None:
    """Raises:
    UserError: Trials would differ in what is the same for all tasks of a job array.
    """
    values = {key: found if isinstance(found, list) else [] for key, found in space.items()}
    if faults := faults_in_job(values):
        raise UserError(*(f"--space {name}: {fault}" for fault in faults))


def _folder(of_a_task: RunPaths) -> Path:
    name = of_a_task.exp_dir.name.rpartition("_task_")[0]
    return of_a_task.exp_dir.with_name(f"{name}{_STUDY}")


def _keep_space(folder: Path, space: Space) -> None:
    """A study tries one space from its beginning to its end.

    Raises:
      UserError: It has begun with another one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path, text = folder / "space.json", as_json(space) + "\n"
    if path.exists() and path.read_text(encoding="utf-8") != text:
        raise UserError(
            f"the study in {folder} has begun with another space, {path}: give that one with --space, or choose "
            "another SAC_EXP_NAME"
        )
    write_atomically(path, text.encode())


class _ShowSpace(argparse.Action):
    """Prints a space and ends the program, as --help does."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: object, option: str | None = None
    ) -> NoReturn:
        del namespace, option
        print(as_json(SPACES[str(values)]))
        parser.exit()


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=called_as("python -m tfagents_system.launch.study"),
        description="Search for good settings with Optuna.",
        allow_abbrev=False,
    )
    parser.add_argument("vars_file", type=Path, metavar="VARS.sh")
    parser.add_argument(
        "--space", required=True, metavar="FILE", help=f"JSON of what is tried, or a name: {', '.join(SPACES)}"
    )
    parser.add_argument(
        "--show_space",
        action=_ShowSpace,
        choices=SPACES,
        metavar="NAME",
        help="print the space of that name as JSON, to edit and give with --space, and do nothing else",
    )
    parser.add_argument("--trials", type=int, default=40, help="runs altogether (default: 40)")
    parser.add_argument("--parallel", type=int, default=1, help="runs at once (default: 1)")
    parser.add_argument(
        "--pruner", choices=PRUNERS, default="median", help="who ends hopeless runs early (default: median)"
    )
    parser.add_argument("--set", action="append", default=[], dest="assignments", metavar="NAME=VALUE")
    add_edit_options(parser, fresh=False)  # Trials are compared with each other.
    parser.add_argument(
        "--slurm", action="store_true", help="trials are tasks of a job array; other options are those of submit.sh"
    )
    args, further = parser.parse_known_args(arguments)
    args.further = further
    args.is_dry = "--dry_run" in further
    if further and not args.slurm:
        parser.error(f"unrecognized arguments: {' '.join(further)}")
    own = [word for word in further if re.match(r"-a|--(array|study|from|take)(=|$)", word)]
    if own:
        parser.error(f"{' '.join(own)}: --slurm submits an array of trials: leave it out")
    for name in ("trials", "parallel"):
        if not 1 <= getattr(args, name) <= 10_000:
            parser.error(f"--{name} must be from 1 to 10000, found {getattr(args, name)}")
    return args


def open_study(folder: Path, pruner: str, parallel: int) -> optuna.Study:
    """The study in the folder."""
    import optuna

    from tfagents_system.launch.study_journal import journal_storage

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    pruners = {
        "median": lambda: optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=25),
        "hyperband": lambda: optuna.pruners.HyperbandPruner(min_resource=10, max_resource=100),
        "none": optuna.pruners.NopPruner,
    }
    return optuna.create_study(
        storage=journal_storage(folder / _JOURNAL),
        study_name=folder.name,
        direction="maximize",
        sampler=optuna.samplers.TPESampler(multivariate=True, constant_liar=parallel > 1),
        pruner=pruners[pruner](),
        load_if_exists=True,
    )


if __name__ == "__main__":
    exit_with(main)
