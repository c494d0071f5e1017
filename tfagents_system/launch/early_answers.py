"""What a start is told before any check: its run is at work, or finished."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tfagents_system.checks.checklist import Check
from tfagents_system.launch.edit_checks import EditChecks
from tfagents_system.launch.python_path import ROOT
from tfagents_system.launch.run_settings import EDITS, FRESH, RESET, TAKE, RunSettings
from tfagents_system.run_files import params_folder, run_directory, run_inputs
from tfagents_system.run_files.run_lock import RunLock
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.settings.overrides import Overrides
from tfagents_system.settings.variables import read_variables, unknown_names


def is_done_already(settings: RunSettings, vars_file: Path | None) -> bool:
    """Whether the run is finished for all that this start asks for, which is then told; in doubt the checks decide.

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
    if asks_for_more or may_differ or not run_directory.has_begun(paths):
        return False
    is_finished = run_directory.is_finished(paths, settings.overrides) and _is_unchanged(paths, settings.overrides)
    edited = Check("")
    if is_finished:
        EditChecks().look(values, environ, paths, environ.get(EDITS), edited)
    if not is_finished or edited.errors or edited.notes:
        return False
    tell_finished(values["exp_name"], paths)
    return True


def tell_finished(name: str, paths: RunPaths) -> None:
    """Says that a run is finished, and how it goes on."""
    why = run_directory.why_early(paths)
    num_iter = run_directory.read_run_json(paths)["num_iter"]
    print(
        f"{name} is finished ({why or f'{num_iter} iterations'}, "
        f"{paths.exp_dir}): nothing to do. Choose another SAC_EXP_NAME for a new run, or go on with this one with "
        f"--set {_what_goes_on(why)}"
    )


def _what_goes_on(why_early: str | None) -> str:
    """Settings with which a run that ended goes on."""
    if why_early and why_early.endswith("(stop_when)"):
        return "stop_when=null, or another condition"
    ends = ((f"{name}=", f"{name}=N") for name in ("num_env_steps", "max_hours"))
    return next((more for begin, more in ends if (why_early or "").startswith(begin)), "num_iter=N")


def _is_unchanged(paths: RunPaths, overrides: Overrides) -> bool:
    """Whether settings and the run's own copies are those with which it has finished."""
    if overrides.params != Overrides.read(paths.overrides).params:
        return False
    kept: Mapping[str, str] = run_inputs.kept_digests(paths) or {}
    return (
        run_inputs.are_what_it_began_with(paths, paths.params, paths.config) == (True, True)
        and params_folder.digests(paths.params_folder, kept) == kept
    )
