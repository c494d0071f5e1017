"""Whether a run that goes on would train other files than the user has now: its start is refused, unless told how."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tfagents_system.checks.called_as import option
from tfagents_system.checks.checklist import Check
from tfagents_system.launch import resources
from tfagents_system.launch.run_settings import KEEP
from tfagents_system.run_files import edited_files, params_folder
from tfagents_system.run_files.edited_files import Edits
from tfagents_system.run_files.run_paths import RunPaths

NEVER_KEPT = ("exp_dir", "logs_dir", "password_file", "credentials_dir")
_MOST_SHOWN = 8
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


def _ways_on(environ: Mapping[str, str]) -> str:
    keep, take, fresh = (option(name) for name in ("keep", "take_edits", "fresh"))
    anew = f"{fresh} starts over and moves the old run aside"
    if resources.JOB_MB in environ or environ.get(_JOB):  # Jobs of submit.sh go on with the run that is there.
        anew = "another SAC_EXP_NAME begins another run"
    return f"{keep} goes on with the copies in the run directory, {take} with the files as they are now, {anew}"


def _some(differences: Sequence[str]) -> str:
    more = f" and {len(differences) - _MOST_SHOWN} more" if len(differences) > _MOST_SHOWN else ""
    return f"{', '.join(differences[:_MOST_SHOWN])}{more}"
