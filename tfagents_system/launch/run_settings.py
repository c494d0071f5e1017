"""Combines the settings of one start: --set, the grid file of a job array, and what the run directory keeps.

All of it happens here, once, before anything else reads the environment. TensorFlow and users' files are not needed.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from tfagents_system.errors import UserError, shown
from tfagents_system.run_files import run_directory
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.settings.grid import read_grid
from tfagents_system.settings.resolved import FIXED, Overrides, Setting, Settings, parse_assignments
from tfagents_system.settings.values import as_text
from tfagents_system.settings.variables import (
    COUNTS,
    GRID,
    SEED,
    TASK,
    RunVariables,
    counts_of_start,
    has_automatic_workers,
    read_variables,
    task_of,
    variable_name,
)

# Tells a start what to do with files that were edited since the run began.
EDITS, KEEP, FRESH = "TFAGENTS_EDITS", "keep", "fresh"


@dataclasses.dataclass(frozen=True)
class RunSettings:
    """What a start is given, and what its run directory says, brought together.

    Attributes:
      environ: The environment with all overridden variables.
      values: The variables that can be read, by field.
      faults: Of the others, and of all together.
      overrides: How the run differs from what its files say; findings: what is wrong with them.
      notes: What of a begun run stays as it is.
    """

    environ: dict[str, str]
    values: dict[str, Any]
    faults: tuple[str, ...]
    overrides: Overrides
    findings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def resolve(
    environ: Mapping[str, str],
    assignments: Sequence[str],
    *,
    vars_file: Path | None,
    root: Path,
    edits: str | None = None,
) -> RunSettings:
    """Combines what is given now with what the run began with.

    Args:
      environ: After the vars file was sourced.
      assignments: Texts `NAME=VALUE` of --set.
      vars_file: Its folder is one of those in which a relative SAC_GRID is looked for.
      edits: KEEP or FRESH, where a person asks for it: what EDITS says in the resolved environment.
    """
    settings, findings = parse_assignments(assignments)
    # --set may name the grid, or remove it. That is of this start: what the run keeps are the settings from there.
    environ = {**environ, **{setting.name: str(setting.value) for setting in settings if setting.name == GRID}}
    of_task: list[Setting] = []
    try:
        of_task = _grid_settings(environ, vars_file, root)
    except UserError as error:
        findings += error.findings
    settings = [setting for setting in settings if setting.name != GRID] + of_task
    overrides, faults_of_settings = Overrides.from_settings(settings, environ)
    findings += faults_of_settings
    values, _ = read_variables({**environ, **overrides.variables}, vars_file=vars_file, root=root)
    run = RunPaths(values["exp_dir"]) if "exp_dir" in values else None
    joins, began = "server" in values, None
    try:
        if (edits := _edits_of_start(edits or environ.get(EDITS), run, environ)) is not None:
            environ = {**environ, EDITS: edits}
        before = None if edits == FRESH else run
        if before is not None and not joins and run_directory.has_begun(before):
            began = Settings.read(before.run_json).variables
            findings += run_directory.faults_of_task(before, of_task, environ)
        overrides, faults_of_settings = run_directory.overrides_of_run(before, overrides, joins=joins)
        findings += faults_of_settings
    except UserError as error:
        findings += error.findings
    resolved = {**environ, **overrides.variables}
    resolved |= _counts(values, resolved, began)
    seed, task = resolved.get(SEED, "").strip() or "0", task_of(resolved)
    has_own_seed = SEED in overrides.variables or resolved.get(GRID, "").strip()
    if not has_own_seed and seed.isdecimal() and task.isdecimal():  # Tasks without a grid differ in their seed alone.
        resolved[SEED] = str(int(seed) + int(task))
    notes = _keep_fixed(
        resolved, overrides, began, {setting.name for setting in settings if setting not in of_task}, findings
    )
    values, faults = read_variables(resolved, vars_file=vars_file, root=root)
    return RunSettings(resolved, values, tuple(faults), overrides, tuple(findings), notes)


def add_edit_options(parser: argparse.ArgumentParser, *, fresh: bool = True) -> None:
    """Adds --keep and --fresh: what becomes of a run whose files were edited; the answer is `edits`."""
    group = parser.add_mutually_exclusive_group()
    words = {KEEP: "continue with the run's own copies of files edited since"}
    words |= {FRESH: "start over; the existing run is moved aside"} if fresh else {}
    for edits, told in words.items():
        group.add_argument(f"--{edits}", action="store_const", dest="edits", const=edits, help=told)


def _is_again(environ: Mapping[str, str]) -> bool:
    """Whether SLURM has requeued this: nobody is there to answer, and an edit must not end it."""
    return int(environ.get("SLURM_RESTART_COUNT") or 0) > 0


def _edits_of_start(edits: str | None, run: RunPaths | None, environ: Mapping[str, str]) -> str | None:
    """What this start does about edits where `edits` is asked for.

    Jobs that are requeued and tasks never compare files, and a job begins a run anew (`--fresh`) once.
    """
    if edits == FRESH and _is_again(environ):
        job = environ.get("SLURM_JOB_ID")
        jobs = run_directory.read_run_json(run).get("jobs", []) if run is not None else [job]
        return KEEP if job in jobs else FRESH
    return KEEP if edits is None and (_is_again(environ) or task_of(environ)) else edits


def _counts(values: Mapping[str, Any], given: Mapping[str, str], began: RunVariables | None) -> dict[str, str]:
    """Numbers of CPUs and workers where they are `auto`; a run that continues keeps its number of workers."""
    if all(given.get(name, "").strip() not in ("", "auto") for name in COUNTS.values()):
        return {}
    if began is not None and has_automatic_workers(given):
        share = values.get("share_cpus", False) or began.num_collect_workers > values.get("num_collect_workers", 0)
        values = {**values, "num_collect_workers": began.num_collect_workers, "share_cpus": share}
    return counts_of_start(values)


def _keep_fixed(
    environ: dict[str, str],
    overrides: Overrides,
    began: RunVariables | None,
    explicit: Collection[str],
    findings: list[str],
) -> tuple[str, ...]:
    """Puts the variables that a begun run keeps in the place of those that are given; returns a note on each.

    Where --set gives one (`explicit`), that is a finding.
    """
    notes = []
    for field in FIXED if began is not None else ():
        name, text = variable_name(field), as_text(getattr(began, field))
        if (given := environ.get(name, "").strip()) not in ("", text):
            if name in explicit:
                findings.append(
                    f"--set {name}={given}: this run began with {name}={text}, which stays: leave it out, start over "
                    "with --fresh, or choose another SAC_EXP_NAME"
                )
            else:
                notes.append(f"this run began with {name}={text}, which stays; {name}={given} is ignored")
        environ[name] = text
        if name in overrides.variables:
            overrides.variables[name] = text
    return tuple(notes)


def _grid_settings(environ: Mapping[str, str], vars_file: Path | None, root: Path) -> list[Setting]:
    """The settings of SLURM_ARRAY_TASK_ID in SAC_GRID; none without a grid.

    Raises:
      UserError: There is no such file or task.
    """
    if not environ.get(GRID, "").strip():
        return []
    values, findings = read_variables(environ, vars_file=vars_file, root=root)
    if "grid" not in values:
        raise UserError(*(finding for finding in findings if finding.startswith(GRID)))
    path, task = values["grid"], task_of(environ)
    if not task.isdecimal():
        raise UserError(
            f"{GRID}={path} needs the task's number in {TASK}, found {shown(task)}: submit an array "
            "(./submit.sh --array), or train the whole grid here (sac sweep)"
        )
    try:
        settings = read_grid(str(path)).settings(int(task))
    except UserError as error:
        raise UserError(*(f"{GRID}={path}, {TASK}={task}: {finding}" for finding in error.findings)) from None
    return [Setting(name, value, f"task {task} of {path}") for name, value in settings.items()]
