"""Searches for good settings: trials chosen by Optuna, each a run like all others, hopeless ones ended early.

    python -m tfagents_system.launch.study VARS.sh --space sac|FILE [--trials 40] [--parallel 2] [--set NAME=VALUE]...

The study lies in <name>_study beside its runs <name>_task_<trial>. The same command goes on with what is unfinished,
also after everything was killed. Several of them, on one machine or many, share a study. Exit codes: 0 all trials are
over, 1 none of them has succeeded, 2 bad input: nothing was started, 75 stopped and saved.
"""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tfagents_system.checks.called_as import called_as
from tfagents_system.errors import EXIT_DONE, EXIT_FAILED, EXIT_RESUMABLE, UserError, exit_with
from tfagents_system.launch.sweep_plan import SweepPlan
from tfagents_system.launch.sweep_tasks import Task, TaskRunner
from tfagents_system.launch.sweep_view import SweepView
from tfagents_system.machine.files import write_atomically
from tfagents_system.machine.signals import StopFlag
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.settings.search_spaces import SPACES, Space, as_json, corners, read_space

if TYPE_CHECKING:
    import optuna

PRUNERS = ("median", "hyperband", "none")
_CORNERS = 10**6  # Task numbers of settings that are checked and never run.


def main(arguments: Sequence[str] | None = None) -> int:
    """The program; returns its exit code."""
    args = _parse(arguments)
    if importlib.util.find_spec("optuna") is None:
        raise UserError("the package optuna is not installed: install the extra (pip install '.[tuning]')")
    vars_file = args.vars_file.absolute()
    space = _space(args.space)
    checked = {_CORNERS + k: settings for k, settings in enumerate(corners(space))}
    args.parallel = min(args.parallel, args.trials)
    plan = SweepPlan(vars_file, checked, args.assignments, args.parallel, is_open=True)
    plan.raise_findings()
    folder = _folder(plan.tasks[0].paths)
    _keep_space(folder, space)
    return _search(args, plan, space, folder)


def _search(args: argparse.Namespace, plan: SweepPlan, space: Space, folder: Path) -> int:
    import optuna

    from tfagents_system.launch import study_results
    from tfagents_system.launch.trials import Trials

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = _open(folder, args.pruner, args.parallel)
    stop = StopFlag.of_supervisor()
    with SweepView() as view:
        runner: TaskRunner | None = None

        def end(task: Task) -> None:
            if runner is not None:
                runner.end(task)

        trials = Trials(
            study, space, folder, plan.add, wanted=args.trials, parallel=args.parallel, end=end, say=view.say
        )

        def look(tasks: Sequence[Task]) -> None:
            if not stop.is_set():
                trials.look()
            view.show(tasks)

        trials.look()
        runner = TaskRunner(trials.tasks, plan.places, stop, look, lambda: trials.is_waiting)
        code = runner.run()
        if stop.is_set():
            trials.look(is_stopped=True)
    for line in study_results.write(study, space, folder):
        print(line, flush=True)
    if trials.refusal is not None:
        raise trials.refusal
    if trials.left or (code == EXIT_RESUMABLE and stop.is_set()):
        return EXIT_RESUMABLE
    return EXIT_DONE if study_results.finished(study) else EXIT_FAILED


def _space(name: str) -> Space:
    """A shipped one by its algorithm, or that of a file."""
    if name in SPACES and not Path(name).exists():
        return SPACES[name]
    if not Path(name).exists():
        raise UserError(f"--space {name} must be a JSON file, or one of {', '.join(SPACES)}")
    return read_space(Path(name))


def _folder(of_a_task: RunPaths) -> Path:
    name = of_a_task.exp_dir.name.rpartition("_task_")[0]
    return of_a_task.exp_dir.with_name(f"{name}_study")


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


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=called_as("python -m tfagents_system.launch.study"), description="Search for good settings with Optuna."
    )
    parser.add_argument("vars_file", type=Path, metavar="VARS.sh")
    parser.add_argument(
        "--space", required=True, metavar="FILE", help=f"JSON of what is tried, or a name: {', '.join(SPACES)}"
    )
    parser.add_argument("--trials", type=int, default=40, help="runs altogether (default: 40)")
    parser.add_argument("--parallel", type=int, default=1, help="runs at once (default: 1)")
    parser.add_argument(
        "--pruner", choices=PRUNERS, default="median", help="who ends hopeless runs early (default: median)"
    )
    parser.add_argument("--set", action="append", default=[], dest="assignments", metavar="NAME=VALUE")
    args = parser.parse_args(arguments)
    for name in ("trials", "parallel"):
        if not 1 <= getattr(args, name) <= 10_000:
            parser.error(f"--{name} must be from 1 to 10000, found {getattr(args, name)}")
    return args


def _open(folder: Path, pruner: str, parallel: int) -> optuna.Study:
    """The study in the folder; a journal file suits network file systems, too."""
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    pruners = {
        "median": lambda: optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=25),
        "hyperband": lambda: optuna.pruners.HyperbandPruner(min_resource=10, max_resource=100),
        "none": optuna.pruners.NopPruner,
    }
    return optuna.create_study(
        storage=JournalStorage(JournalFileBackend(str(folder / "journal.log"))),
        study_name=folder.name,
        direction="maximize",
        sampler=optuna.samplers.TPESampler(multivariate=True, constant_liar=parallel > 1),
        pruner=pruners[pruner](),
        load_if_exists=True,
    )


if __name__ == "__main__":
    exit_with(main)
