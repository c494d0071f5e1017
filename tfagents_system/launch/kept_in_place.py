"""Whether a start can begin in a run directory: nothing that it needs may be in what it moves away from there."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tfagents_system.envs.reward_places import named_in
from tfagents_system.errors import UserError
from tfagents_system.run_files import experience_folders, resets
from tfagents_system.run_files.agent_start import split
from tfagents_system.run_files.resets import Reset
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.settings.load_params import load_env_config
from tfagents_system.settings.overrides import Overrides
from tfagents_system.settings.variable_table import VARIABLES
from tfagents_system.settings.variables import BEGINNINGS

# Of variables that name what exists; those of kind `path` may name what is made.
_KINDS = ("file", "file or folder", "files or folders", "agent", "program")
_OTHERS = ("SAC_CREDENTIALS_DIR", "SAC_PASSWORD_FILE")


def fault_of_directory(
    paths: RunPaths,
    values: Mapping[str, Any],
    vars_file: Path | None,
    overrides: Overrides,
    *,
    moves_aside: bool,
    reset: Reset | None = None,
) -> str | None:
    """Why a start can't begin in a run directory; None if it can.

    Args:
      paths: The directory.
      values: The variables that could be read, by field.
      vars_file: If there is one.
      overrides: Of the start.
      moves_aside: As with `--fresh`.
      reset: What is reset of the run, which goes on.
    """
    places = [*([vars_file] if vars_file else []), Path.cwd()]
    if reset is not None:
        return resets.why_not_reset(paths, reset, [*_files(values, begins=False), *places])
    if moves_aside:
        return experience_folders.why_not_moved(paths, [*needed_files(values, overrides), *places])
    return experience_folders.fault_of(paths, [*_files(values, begins=True), *places])


def needed_files(values: Mapping[str, Any], overrides: Overrides) -> list[Path]:
    """The user's files and folders that a new run needs where they are; of a run's checkpoint RUN@CHECKPOINT."""
    return [*_files(values, begins=True), *_reward_file(values, overrides)]


def _files(values: Mapping[str, Any], *, begins: bool) -> Iterator[Path]:
    """Files and folders that the variables name.

    Args:
      begins: With those that a run begins with; of one that goes on, a new agent's are copied first.
    """
    for variable in VARIABLES:
        value = values.get(variable.field)
        if value is None or not (variable.kind in _KINDS or variable.name in _OTHERS):
            continue
        if variable.name not in BEGINNINGS:
            yield value
        elif begins:  # Of the run directory itself others say that it is the run's own.
            found = value if isinstance(value, tuple) else [value]
            yield from (path for path in found if split(str(path))[0] != values["exp_dir"])


def _reward_file(values: Mapping[str, Any], overrides: Overrides) -> list[Path]:
    """That of a recorded trajectory. What is wrong with the JSON, others say."""
    with contextlib.suppress(UserError, KeyError, OSError, RuntimeError):
        found = named_in(overrides.merged(load_env_config(values["config"])), values["params"].parent)
        return [found] if found is not None else []
    return []
