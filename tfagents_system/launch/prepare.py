"""Checks everything that a run needs before any of its processes starts, then prepares its run directory.

    python -m tfagents_system.launch.prepare --vars_file VARS.sh [--set NAME=VALUE]... [--check]

All findings are reported together, with exit code 2. A finished run says so and ends with 0. --check reports all that
was looked at, and writes nothing. The program of a start, start.py, also supervises the run that is prepared.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tfagents_system.checks.called_as import called_as
from tfagents_system.checks.checklist import Checklist
from tfagents_system.envs.faults import SHOW_TRACES
from tfagents_system.errors import EXIT_BAD_INPUT, EXIT_DONE, UserError, exit_with
from tfagents_system.launch import forks
from tfagents_system.launch.cpus import CpuPlan
from tfagents_system.launch.early_answers import refuse_at_work, tell_finished
from tfagents_system.launch.orphans import wait_for_orphans
from tfagents_system.launch.preparation import Preparation
from tfagents_system.launch.python_path import ROOT
from tfagents_system.launch.reset_checks import finish_interrupted, reset_in_words
from tfagents_system.launch.role_process import RoleStarter
from tfagents_system.launch.run_settings import (
    CARRIER,
    CATCH_UP,
    EDITS,
    FRESH,
    RESET,
    SUBMITTED_AGAIN,
    TAKE,
    RunSettings,
    add_edit_options,
    asked_once,
    edits_of_start,
    file_of,
    has_done_its_part,
    is_again,
    jobs_of,
    resolve,
    run_of_start,
)
from tfagents_system.launch.supervisor import supervise
from tfagents_system.machine.files import write_atomically
from tfagents_system.machine.signals import STOP_SIGNALS, StopFlag
from tfagents_system.run_files import experience_folders, install_inputs, run_directory, task_edits
from tfagents_system.run_files.heartbeat import read_json
from tfagents_system.run_files.resets import AGENT
from tfagents_system.run_files.run_lock import RunLock
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.settings.early_end import depends_on_files, settings_of_end
from tfagents_system.settings.variables import RunVariables

# Checks whose findings say what of other runs this one begins with.
_BEGINS_WITH = ("agent's start", "replay sources", "prior data")
# From its end on the run directory says what these do.
_OF_THIS_START = (CARRIER, EDITS, RESET, CATCH_UP, SUBMITTED_AGAIN)
_ENDING = (*STOP_SIGNALS, signal.SIGHUP)  # The last one: of a terminal that is closed.


def prepare(
    environ: Mapping[str, str],
    vars_file: Path | None,
    *,
    in_fork: bool = False,
    settings: RunSettings | None = None,
) -> bool:
    """Checks and prepares a run; False if it is finished already. For the arguments see `prepare_and_hold`."""
    prepared = prepare_and_hold(environ, vars_file, in_fork=in_fork, settings=settings)
    if prepared is not None:
        prepared[1].release()
    return prepared is not None


def prepare_and_hold(
    environ: Mapping[str, str],
    vars_file: Path | None,
    quiet_plan: bool = False,
    *,
    in_fork: bool,
    settings: RunSettings | None = None,
) -> tuple[RunVariables, RunLock] | None:
    """Checks and prepares a run.

    Args:
      quiet_plan: The supervisor comes next and prints the CPU plan that it claims.
      in_fork: A user's own code runs in a fork, else in this process.
      settings: What is overridden; by default what the environment says.

    Returns:
      Its variables, and the lock of its directory: until that is released, no other start writes there. None if the run
      is finished already.

    Raises:
      UserError: With all findings.
    """
    if settings is None:
        finish_interrupted(run_of_start(environ, (), vars_file=vars_file, root=ROOT))
    preparation = Preparation(environ, vars_file, settings)
    run_json, was_done = _run_json(preparation.paths), list[str]()

    def end() -> list[str]:
        preparation.close()
        return [*was_done, *_done_once(preparation.paths, run_json)]

    if preparation.paths is not None:
        forks.show_marks({"SAC_EXP_DIR": str(preparation.paths.exp_dir)})
    with contextlib.closing(preparation), forks.before_early_end(end):
        preparation.run(in_fork=in_fork)
        lock = _write_run(preparation, quiet_plan, was_done)
        return None if lock is None else (preparation.variables(), lock)


def _run_json(paths: RunPaths | None) -> Mapping[str, Any]:
    """What run.json says, or will say once what this start has begun is completed."""
    return {} if paths is None else read_json(install_inputs.newest_run_json(paths)) or {}


def _done_once(paths: RunPaths | None, before: Mapping[str, Any]) -> list[str]:
    """What a start has done for good since run.json said `before`, so that another one is not to ask for it again."""
    run = _run_json(paths)
    # A list may be as long as before: an edit that was undone is taken off.
    edits, resets = ([each for each in run.get(k, []) if each not in before.get(k, [])] for k in ("edits", "resets"))
    taken = ["the run has the edited files now: go on without --take_edits"] * any(each["before"] for each in edits)
    return taken + ["the reset is done: go on without --reset_training"] * bool(resets)


def _write_run(preparation: Preparation, quiet_plan: bool, was_done: list[str]) -> RunLock | None:
    """Takes the run directory and writes it; returns its lock, or None where the run is finished."""
    variables, inspection = preparation.variables(), preparation.inspection
    assert preparation.plan is not None and inspection.num_iter is not None and inspection.specs is not None
    _tell_notes(preparation.checks, preparation.plan)
    paths = RunPaths(variables.exp_dir)
    wait_for_orphans(paths, variables.save_deadline_secs)
    with contextlib.ExitStack() as unless_handed_over:
        lock = unless_handed_over.enter_context(RunLock(paths))
        _begin_in(paths, lock, preparation, was_done)
        uses_copies = run_directory.has_begun(paths) and preparation.edits != TAKE
        changes, reset = run_directory.changes(paths, preparation.overrides, variables), preparation.reset
        ends_for = settings_of_end(inspection.attributes)
        if preparation.edits == TAKE and reset is None and _takes_in_vain(paths, preparation, ends_for):
            tell_finished(variables.exp_name, paths)
            return None
        run_directory.write_inputs(
            paths,
            variables,
            inspection.num_iter,
            dataclasses.replace(preparation.overrides, defaults=inspection.defaults),
            inputs=preparation.files(),
            take_edits=preparation.edits == TAKE,
            ends_for=ends_for,
            reset=reset,
            jobs=jobs_of(preparation.environ),
        )
        run_directory.write_resolved(paths, variables, inspection.attributes, inspection.config)
        write_atomically(paths.specs, inspection.specs)
        if (seed := preparation.seed) != variables.seed:
            print(f"note: this run began with SAC_SEED={seed}, which stays; SAC_SEED={variables.seed} is ignored")
        if run_directory.is_finished(paths):
            tell_finished(variables.exp_name, paths)
            return None
        used = (paths.params, paths.config) if uses_copies else (variables.params, variables.config)
        print(f"{variables.exp_name}: params {used[0]}, config {used[1]}, run directory {paths.exp_dir}")
        if reset is not None:
            before = paths.exp_dir / reset.before
            print(f"reset: {reset_in_words(preparation.environ)}. What was there before is in {before}")
        if changes:
            print(f"changed for this run from now on: {changes}")
        if words := preparation.overrides.in_words():
            print(f"settings: {words}")
        _tell_beginning(preparation.checks)
        if not quiet_plan:
            print(preparation.plan.table())
        unless_handed_over.pop_all()
    return lock


def _takes_in_vain(paths: RunPaths, preparation: Preparation, ends_for: str) -> bool:
    """Whether the run is finished with edited files, too: what was best with the others would be given up for them."""
    if not run_directory.has_ended_with(paths, preparation.inspection.num_iter, ends_for):
        return False
    if task_edits.is_other_task(paths, preparation.files(), preparation.overrides, run_directory.MAY_CHANGE):
        why = run_directory.why_early(paths)
        if why is not None and depends_on_files(why):
            return False
        print("note: the edited files are not taken: nothing would be trained or evaluated with them")
    return True


def _begin_in(paths: RunPaths, lock: RunLock, preparation: Preparation, was_done: list[str]) -> None:
    """For the holder of the lock: the directory is as it was for the checks, and with --fresh a new one.

    Raises:
      UserError: Another start has prepared it meanwhile.
    """
    if file_of(paths) != preparation.run_json:
        raise UserError(
            f"another start has prepared the run directory {paths.exp_dir} while this one was checked: start again, or "
            "choose another SAC_EXP_NAME"
        )
    if preparation.edits == FRESH and (paths.run_json.exists() or experience_folders.strays(paths)):
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
        try:
            was_done.append(f"what was in {paths.exp_dir} is in {install_inputs.move_aside(paths)} now")
            print(was_done[-1])
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        lock.acquire()  # Of the new directory; another start that takes it first sees that it is another one.


def _tell_notes(checks: Checklist, plan: CpuPlan) -> None:
    for note in checks.notes:
        if note not in plan.notes:  # Those are printed below the plan.
            print(f"note: {note}")


def _tell_beginning(checks: Checklist) -> None:
    """Prints what of other runs this one begins with."""
    for name in _BEGINS_WITH:
        for fact in checks[name].facts:
            print(f"{name}: {fact}")


def check(
    environ: Mapping[str, str],
    vars_file: Path | None,
    *,
    in_fork: bool = False,
    settings: RunSettings | None = None,
) -> int:
    """Makes the checks of a start, prints what was looked at and found, and returns the exit code; writes nothing.

    Args:
      environ, vars_file, in_fork, settings: As of `prepare_and_hold`.
    """
    preparation = Preparation(environ, vars_file, settings)
    with contextlib.closing(preparation), forks.before_early_end(preparation.close):
        preparation.run(in_fork=in_fork, starts=False)
    print(preparation.checks.report())
    return EXIT_BAD_INPUT if preparation.checks.errors else EXIT_DONE


def main(*, starts: bool = False, in_fork: bool = True) -> int:
    """The program; returns its exit code.

    Args:
      starts: The run is started and supervised once it is prepared.
      in_fork: As of `prepare_and_hold`.
    """
    parser = argparse.ArgumentParser(prog=called_as("run_script.sh"), description="Check and prepare a run.")
    parser.add_argument("--vars_file", type=Path, default=None, help="the sourced vars file, for messages and paths")
    parser.add_argument("--check", action="store_true", help="only check, and report all that was looked at")
    parser.add_argument(
        "--set", action="append", default=[], dest="assignments", metavar="NAME=VALUE", help="see overrides.py"
    )
    add_edit_options(parser)
    parser.add_argument("--reset_training", action="store_const", const=AGENT, help="see run_script.sh")
    parser.add_argument("--catch_up", action="store_true", help="with --reset_training: kept steps count for the ratio")
    args = parser.parse_args()
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"  # TensorFlow's own messages would hide what the user must read.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # Names may hold any bytes.
    if args.check:
        os.environ[SHOW_TRACES] = "1"
    if not args.check:
        finish_interrupted(run_of_start(os.environ, args.assignments, vars_file=args.vars_file, root=ROOT))
    if is_again(os.environ):
        _leave_out_what_was_done(args)
    if args.edits is not None:
        os.environ[EDITS] = args.edits
    _tell_of_reset(parser, args)
    settings = resolve(os.environ, args.assignments, vars_file=args.vars_file, root=ROOT)
    os.environ.update(settings.environ)
    if args.check:
        return check(os.environ, args.vars_file, in_fork=in_fork, settings=settings)
    refuse_at_work(os.environ, args.vars_file)
    prepared = prepare_and_hold(os.environ, args.vars_file, starts, in_fork=in_fork, settings=settings)
    if prepared is None:
        return EXIT_DONE
    variables, lock = prepared
    if not starts:
        lock.release()
        return EXIT_DONE
    stop = StopFlag.of_supervisor()
    for name in _OF_THIS_START:
        os.environ.pop(name, None)
    return supervise(variables, stop, RoleStarter(), lock)


def _leave_out_what_was_done(args: argparse.Namespace) -> None:
    """A job that goes on asks for the same again; what it asks for once may be done already."""
    run = run_of_start(os.environ, args.assignments, vars_file=args.vars_file, root=ROOT)
    asked = asked_once(args.edits, args.reset_training, args.catch_up)
    if has_done_its_part(run, os.environ, asked):
        if asked:
            print(
                "note: the job was requeued: what --fresh, --take_edits or --reset_training asked for was done by an "
                "earlier start"
            )
        args.reset_training, args.catch_up = None, False
    args.edits = edits_of_start(args.edits, run, os.environ, asked)


def _tell_of_reset(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Puts what is to be reset into the environment, for all that this start does."""
    if args.reset_training and args.edits == FRESH:
        parser.error(
            "--reset_training keeps the run's experience, and --fresh starts over without it: give one of them"
        )
    if args.catch_up and not args.reset_training:
        parser.error("--catch_up is for --reset_training, whose new agent may catch up on the steps that are kept")
    if args.reset_training:
        os.environ[RESET] = args.reset_training
    if args.catch_up:
        os.environ[CATCH_UP] = "1"


if __name__ == "__main__":
    forks.end_early_on_signals()
    exit_with(main)
