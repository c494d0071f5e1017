"""The settings of a run as reports and trackers tell them to others."""

from __future__ import annotations

from typing import Any

from tfagents_system.machine.files import read_json
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.settings.variable_table import VARIABLES


def told_settings(paths: RunPaths) -> dict[str, Any]:
    """The content of resolved.json: `params`, `config`, and the `variables` in which nobody puts a key.

    Of variables only those with `is_for_others`, in the order of VARIABLES; resolved.json itself has all of them and
    is for its owner alone. Empty where the run has none.
    """
    resolved = read_json(paths.resolved) or {}
    if "variables" not in resolved:
        return resolved
    given = resolved["variables"] or {}
    told = {each.name: given[each.name] for each in VARIABLES if each.name in given and each.is_for_others}
    return {**resolved, "variables": told}
