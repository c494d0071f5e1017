"""What a start is told before any check: its run is at work, or finished."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tfagents_system.checks.checklist import Check
from tfagents_system.errors import in_callers_terms
from tfagents_system.launch.edit_checks import EditChecks
from tfagents_system.launch.python_path import ROOT
from tfagents_system.launch.run_settings import EDITS, FRESH, RESET, TAKE, RunSettings
from tfagents_system.report.status import finished_in_words
from tfagents_system.run_files import params_folder, run_directory, run_inputs
from tfagents_system.run_files.run_lock import RunLock
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.settings.variables import read_variables, unknown_names


def is_done_already(settings: RunSettings, vars_file: Path | None) -> bool:
    """Whether the run is finished and this start is like the one that it has finished with, which is then told.

    All else, and all that is in doubt, is for the checks.

    Raises:
      UserError: The run is at work.
    """
    environ = settings.environ
    values, findings = read_variables(environ, vars_file=vars_file, root=ROOT)
    if "exp_dir" not in values or "server" in values:
        return False
    paths = RunPaths(values["exp_dir"])
    RunLock(paths).refuse_at_work()
    asks_for_more = environ.get(EDITS) in (FRESH, TAKE) or RESET in environ
    # A params file may read variables of its own.
    may_differ = [*findings, *settings.findings, *unknown_names(name for name in environ if name.startswith("SAC_"))]
    if asks_for_more or may_differ or not run_directory.is_finished(paths):
        return False
    try:
        if not _has_same_inputs(paths, settings, values):
            return False
    except OSError:  # A copy is missing.
        return False
    tell_finished(values["exp_name"], paths)
    return True


def _has_same_inputs(paths: RunPaths, settings: RunSettings, values: Mapping[str, Any]) -> bool:
    """Whether settings, the user's files and the run's copies of them are those of the newest start.

    Raises:
      OSError: A copy can't be read.
    """
    kept: Mapping[str, str] = run_inputs.kept_digests(paths) or {}
    if not kept and not params_folder.is_kept_otherwise(values["params"]):
        return False  # There is nothing with which the files beside the params could be compared.
    are_copies = (
        run_directory.had_settings(paths, settings.overrides)
        and run_inputs.are_what_it_began_with(paths, paths.params, paths.config) == (True, True)
        and params_folder.digests(paths.params_folder, kept) == kept
    )
    if not are_copies or any(map(_reads_variables, [paths.params, *(paths.params_folder / name for name in kept)])):
        return False
    edited = Check("")
    EditChecks().look(values, settings.environ, paths, settings.environ.get(EDITS), edited)
    return not (edited.errors or edited.notes)


def _reads_variables(file: Path) -> bool:
    """Whether Python code may read variables of the environment: then nothing tells whether it is as it was."""
    return file.suffix == ".py" and re.search(rb"environ|getenv", file.read_bytes()) is not None


def tell_finished(name: str, paths: RunPaths) -> None:
    """Says that a run is finished, and how it goes on."""
    why = run_directory.why_early(paths)
    num_iter = run_directory.read_run_json(paths)["num_iter"]
    words = (
        f"{finished_in_words(name, why, num_iter)} ({paths.exp_dir}). Nothing is to be done: choose another "
        f"SAC_EXP_NAME for a new run, or go on with this one with --set {what_goes_on(why)}"
    )
    print(in_callers_terms(words))


def what_goes_on(why_early: str | None) -> str:
    """Settings with which a run that ended goes on."""
    if why_early and why_early.endswith("(stop_when)"):
        return "stop_when=null, or stop_when.KEY=VALUE (null removes a key)"
    ends = ((f"{name}=", f"{name}=N") for name in ("num_env_steps", "max_hours"))
    return next((more for begin, more in ends if (why_early or "").startswith(begin)), "num_iter=N")
