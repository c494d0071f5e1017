"""Checks everything that a run needs before any of its processes starts, then prepares its run directory.

    python -m tfagents_system.launch.prepare --vars_file VARS.sh [--set NAME=VALUE]... [--check]

All findings are reported together, with exit code 2. A finished run says so and ends with 0. --check reports all that
was looked at, and writes nothing. The program of a start, start.py, also supervises the run that is prepared.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import hashlib
import io
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from tfagents_system.checks.called_as import called_as
from tfagents_system.checks.checklist import Checklist
from tfagents_system.envs.faults import SHOW_TRACES
from tfagents_system.errors import EXIT_BAD_INPUT, EXIT_DONE, UserError, exit_with, in_callers_terms
from tfagents_system.launch import forks
from tfagents_system.launch.cpus import CpuPlan
from tfagents_system.launch.preparation import Preparation
from tfagents_system.launch.python_path import ROOT
from tfagents_system.launch.role_process import RoleStarter, wait_for_orphans
from tfagents_system.launch.run_settings import (
    CARRIER,
    EDITS,
    FRESH,
    KEEP,
    SUBMITTED_AGAIN,
    RunSettings,
    add_edit_options,
    edits_of_start,
    file_of,
    job_of,
    resolve,
    run_of_start,
)
from tfagents_system.launch.supervisor import supervise
from tfagents_system.machine.claims import Claims
from tfagents_system.machine.files import write_atomically
from tfagents_system.machine.signals import STOP_SIGNALS, StopFlag
from tfagents_system.report.status import finished_in_words
from tfagents_system.run_files import run_directory, run_inputs
from tfagents_system.run_files.run_lock import RunLock
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.settings.resolved import Settings
from tfagents_system.settings.variable_values import TAKES
from tfagents_system.settings.variables import RunVariables

# Checks whose findings say what of other runs this one begins with.
_BEGINS_WITH = ("another run", "prior data")
# From its end on the run directory says what these do.
_OF_THIS_START = (CARRIER, EDITS, SUBMITTED_AGAIN)
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
    preparation = Preparation(environ, vars_file, settings)
    was_done = list[str]()

    def end() -> list[str]:
        preparation.close()
        return was_done

    if preparation.paths is not None:
        forks.show_marks({"SAC_EXP_DIR": str(preparation.paths.exp_dir)})
    with contextlib.closing(preparation), forks.before_early_end(end):
        preparation.run(in_fork=in_fork)
        lock = _write_run(preparation, quiet_plan, was_done)
        return None if lock is None else (preparation.variables(), lock)


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
        uses_copies = run_directory.has_begun(paths)
        changes = run_directory.changes(paths, preparation.overrides, variables)
        overrides = dataclasses.replace(preparation.overrides, defaults=inspection.defaults)
        settings = Settings(variables, overrides, inspection.attributes, inspection.config)
        run_directory.write_inputs(paths, settings, preparation.files(), job=job_of(preparation.environ))
        write_atomically(paths.specs, inspection.specs)
        if run_directory.is_finished(paths):
            tell_finished(variables.exp_name, paths)
            return None
        used = (paths.params, paths.config) if uses_copies else (variables.params, variables.config)
        print(f"{variables.exp_name}: params {used[0]}, config {used[1]}, run directory {paths.exp_dir}")
        if changes:
            print(f"changed for this run from now on: {changes}")
        if words := preparation.overrides.in_words():
            print(f"settings: {words}")
        _tell_beginning(preparation.checks)
        if not quiet_plan:
            print(preparation.plan.table())
        unless_handed_over.pop_all()
    return lock


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
    if preparation.edits == FRESH and (paths.run_json.exists() or run_inputs.strays(paths)):
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
        try:
            preparation.moved_aside = run_inputs.move_aside(paths)
            was_done.append(f"what was in {paths.exp_dir} is in {preparation.moved_aside} now")
            print(was_done[-1])
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        lock.acquire()  # Of the new directory; another start that takes it first sees that it is another one.


def tell_finished(name: str, paths: RunPaths) -> None:
    """Says that a run is finished, and how it goes on."""
    why = run_directory.why_early(paths)
    words = finished_in_words(name, why, run_directory.read_run_json(paths)["attributes"]["num_iter"])
    print(
        in_callers_terms(
            f"{words} ({paths.exp_dir}). Nothing is to be done: choose another SAC_EXP_NAME for a new run, or go on "
            f"with this one with --set {what_goes_on(why)}"
        )
    )


def what_goes_on(why_early: str | None) -> str:
    """Settings with which a run that ended goes on."""
    if why_early and why_early.endswith("(stop_when)"):
        return "stop_when=null, or stop_when.KEY=VALUE (null removes a key)"
    ends = ((f"{name}=", f"{name}=N") for name in ("num_env_steps", "max_hours"))
    return next((more for begin, more in ends if (why_early or "").startswith(begin)), "num_iter=N")


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
    parser.add_argument("--from", dest="source", metavar="RUN", help="another run that this one begins with: SAC_FROM")
    parser.add_argument("--take", choices=TAKES, help="what of it is taken: SAC_TAKE")
    args = parser.parse_args()
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"  # TensorFlow's own messages would hide what the user must read.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # Names may hold any bytes.
    if args.check:
        os.environ[SHOW_TRACES] = "1"
    os.environ.update({"SAC_FROM": args.source} if args.source else {})
    os.environ.update({"SAC_TAKE": args.take} if args.take else {})
    run = run_of_start(os.environ, args.assignments, vars_file=args.vars_file, root=ROOT)
    if (edits := edits_of_start(args.edits, run, os.environ)) is not None:
        if edits == KEEP and args.edits == FRESH:
            print("note: the job was requeued: what --fresh asked for was done by an earlier start")
        os.environ[EDITS] = edits
    claims = Claims()
    if run is not None and not args.check:
        RunLock(run).refuse_at_work()
        if not claims.take(f"start/{hashlib.sha256(os.path.realpath(run.exp_dir).encode()).hexdigest()}"):
            raise UserError(
                f"another start of the run in {run.exp_dir} is in its checks: wait until it runs, or choose another "
                "SAC_EXP_NAME"
            )
    settings = resolve(os.environ, args.assignments, vars_file=args.vars_file, root=ROOT)
    os.environ.update(settings.environ)
    if args.check:
        return check(os.environ, args.vars_file, in_fork=in_fork, settings=settings)
    prepared = prepare_and_hold(os.environ, args.vars_file, starts, in_fork=in_fork, settings=settings)
    if prepared is None:
        return EXIT_DONE
    variables, lock = prepared
    claims.release_all()
    if not starts:
        lock.release()
        return EXIT_DONE
    stop = StopFlag.of_supervisor()
    for name in _OF_THIS_START:
        os.environ.pop(name, None)
    return supervise(variables, stop, RoleStarter(), lock)


if __name__ == "__main__":
    forks.end_early_on_signals()
    exit_with(main)
