"""Whether a deterministic run that goes on still gives the weights of an uninterrupted one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tfagents_system.run_files.run_directory import has_begun, read_run_json
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.settings.variables import as_text, variable_name

# Variables on which the weights of a deterministic run depend, and how.
_DETERMINE_WEIGHTS = {
    "num_collect_workers": "who collects what",
    "envs_per_worker": "who collects what",
    "train_cpus": "the order in which updates are summed up",
}


def not_repeated(paths: RunPaths | None, values: Mapping[str, Any]) -> list[str]:
    """Notes on a deterministic run that goes on with another number of environments, or of the trainer's CPUs.

    Args:
      paths: The run that goes on, if there is one.
      values: The variables that could be read, by field.
    """
    if paths is None or not (values.get("deterministic") and has_begun(paths)):
        return []
    before = read_run_json(paths).get("settings", {})
    return [
        f"{variable_name(name)}={as_text(values[name])} (was {as_text(before[name])}) changes {what} in a run with "
        "SAC_DETERMINISTIC=1: its weights will not be those of an uninterrupted run. For these, set it back"
        for name, what in _DETERMINE_WEIGHTS.items()
        if before.get("deterministic") and None not in (before.get(name), values.get(name))
        if before[name] != values[name]
    ]
