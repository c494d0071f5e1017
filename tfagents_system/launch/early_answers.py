"""What a start is told before any check: its run is at work, or finished."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tfagents_system.errors import in_callers_terms
from tfagents_system.launch.python_path import ROOT
from tfagents_system.report.status import finished_in_words
from tfagents_system.run_files import run_directory
from tfagents_system.run_files.run_lock import RunLock
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.settings.variables import read_variables


def refuse_at_work(environ: Mapping[str, str], vars_file: Path | None) -> None:
    """Raises:
    UserError: The run is at work.
    """
    values, _ = read_variables(environ, vars_file=vars_file, root=ROOT)
    if "exp_dir" in values and "server" not in values:
        RunLock(RunPaths(values["exp_dir"])).refuse_at_work()


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
