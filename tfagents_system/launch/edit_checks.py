"""Whether a run that goes on would train other files than the user has now: its start is refused, unless told how."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tfagents_system.checks.called_as import option
from tfagents_system.checks.checklist import Check
from tfagents_system.launch import resources
from tfagents_system.launch.python_path import ROOT
from tfagents_system.launch.run_settings import EDITS, KEEP, TAKE, beginnings_of_start, resolve
from tfagents_system.launch.vars_file import read_vars_file
from tfagents_system.run_files import edited_files, params_folder, run_directory
from tfagents_system.run_files.edited_files import Edits
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.settings.variables import TASK, missing_beginnings, read_variables

ARRAY = "TFAGENTS_ARRAY"  # `0-9:2,20%4`: the task ids of a job that is about to be submitted.
NEVER_KEPT = ("exp_dir", "logs_dir", "password_file", "credentials_dir")
_MOST_SHOWN = 8
_MOST_TASKS = 200  # Of an array; each takes 10 ms.
_JOB = "SLURM_JOB_ID"


class EditChecks:
    """Compares the files of runs that go on with what they began with. A folder that runs share is read once."""

    def __init__(self) -> None:
        self._digests: dict[Path, Mapping[str, str]] = {}

    def look(
        self, values: Mapping[str, Any], environ: Mapping[str, str], run: RunPaths, edits: str | None, check: Check
    ) -> None:
        """Compares those of one run, which has begun.

        Args:
          values: The variables that could be read, by field.
          environ: Of the start.
          edits: KEEP, or None: files that the run uses and that were edited are an error; see run_settings.py.
          check: Gets what was found.
        """
        params, config = values.get("params"), values.get("config")
        if params is None or config is None:
            return
        try:
            found = edited_files.find(run, params, config)  # Also where the folder is too large.
            if not params_folder.is_kept_otherwise(params):
                found = edited_files.find(run, params, config, lambda: self._digests_of(params.parent, values))
        except params_folder.TooLargeError as error:
            check.notes.append(f"{error}: it is not compared with the copy that the run has")
        except OSError as error:
            told = check.notes if edits == KEEP else check.errors
            told.append(
                f"{error.filename} can't be read ({error.strerror}), to compare it with what the run began with: make "
                f"it readable, or give {option('keep')}"
            )
            return
        frozen = (params.parent, config.parent) if resources.JOB_MB in environ else ()
        self._tell(found, environ, edits, check, frozen)

    def _digests_of(self, folder: Path, values: Mapping[str, Any]) -> Mapping[str, str]:
        if folder not in self._digests:
            left_out = [values[name] for name in NEVER_KEPT if name in values]
            files = params_folder.files_of(folder, left_out)
            self._digests[folder] = params_folder.digests(folder, files)
        return self._digests[folder]

    def _tell(
        self, found: Edits, environ: Mapping[str, str], edits: str | None, check: Check, frozen: Sequence[Path]
    ) -> None:
        """Tells it; `frozen` folders are those of a submission, which the user never sees."""
        used = ", ".join(map(str, found.used))
        if found.used and edits == KEEP:
            check.facts.append(f"edited since the run began, which goes on with its copies: {used}")
        elif found.used:
            words = f"edited since the run began with its copies of them: {used}. {_ways_on(environ)}"
            text = "\n  | ".join([words, *found.diff()])
            for folder in frozen:
                text = text.replace(f"{folder}/", "")
            check.errors.append(text)
        if found.beside and edits != KEEP:
            check.notes.append(
                f"{_some(found.beside)} beside the params since the run began, which neither import nor name it: the "
                "run goes on with its own copy of the folder"
            )


def look_at_array(environ: Mapping[str, str], vars_file: Path | None, assignments: Sequence[str], check: Check) -> None:
    """Looks at the settings of an array's tasks and at the files of those runs that have begun, before it waits in the
    queue.

    Args:
      environ: Of the check of its first task, with the ids in ARRAY; without these nothing is done.
      vars_file: Of all tasks.
      assignments: `NAME=VALUE` of all tasks.
      check: Gets what was found, once for all tasks.
    """
    edits = environ.get(EDITS)
    if ARRAY not in environ or vars_file is None:
        return
    looks = EditChecks()
    found = Check("")
    told = set(_Task(environ, vars_file, assignments).findings)
    of_settings: list[str] = []
    for number in _ids(environ[ARRAY])[:_MOST_TASKS]:
        task = _Task(read_vars_file(vars_file, {**environ, TASK: str(number)}), vars_file, assignments)
        of_settings += [finding for finding in task.findings if finding not in told]
        goes_on = task.run is not None and edits != TAKE and not run_directory.is_finished(task.run, task.overrides)
        if task.run is not None and goes_on and run_directory.has_begun(task.run):
            looks.look(task.values, environ, task.run, edits, found)
    of_settings = list(dict.fromkeys(of_settings))
    check.errors += of_settings[:_MOST_SHOWN]
    for shown, all_told in ((check.errors, found.errors), (check.notes, found.notes)):
        shown += [each for each in dict.fromkeys(all_told) if each not in shown]


class _Task:
    """What one task of an array is: its variables by field, its run, and what is wrong with its settings."""

    def __init__(self, environ: Mapping[str, str], vars_file: Path, assignments: Sequence[str]) -> None:
        resolved = resolve(environ, assignments, vars_file=vars_file, root=ROOT)
        self.overrides = resolved.overrides
        self.values, of_variables = read_variables(resolved.environ, vars_file=vars_file, root=ROOT)
        self.run = RunPaths(self.values["exp_dir"]) if "exp_dir" in self.values else None
        needed = beginnings_of_start(resolved.environ, self.run)
        missing = missing_beginnings(resolved.environ, needed, vars_file=vars_file, root=ROOT)
        self.findings = [*resolved.findings, *of_variables, *missing]


def _ids(array: str) -> list[int]:
    found = set[int]()
    for first, last, step in re.findall(r"(\d+)(?:-(\d+)(?::(\d+))?)?", array.partition("%")[0]):
        found.update(range(int(first), int(last or first) + 1, int(step or 1)))
    return sorted(found)


def _ways_on(environ: Mapping[str, str]) -> str:
    keep, take, fresh = (option(name) for name in ("keep", "take_edits", "fresh"))
    anew = f"{fresh} starts over and moves the old run aside"
    if resources.JOB_MB in environ or environ.get(_JOB):  # Jobs of submit.sh go on with the run that is there.
        anew = "another SAC_EXP_NAME begins another run"
    return f"{keep} goes on with the copies in the run directory, {take} with the files as they are now, {anew}"


def _some(differences: Sequence[str]) -> str:
    more = f" and {len(differences) - _MOST_SHOWN} more" if len(differences) > _MOST_SHOWN else ""
    return f"{', '.join(differences[:_MOST_SHOWN])}{more}"
