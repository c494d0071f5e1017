"""The settings of a run as reports and trackers tell them to others."""

from __future__ import annotations

from typing import Any

from tfagents_system.machine.files import read_json
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.settings.resolved import FIXED
from tfagents_system.settings.variables import VARIABLES, as_text


def told_settings(paths: RunPaths) -> dict[str, Any]:
    """`params`, `config`, and of `variables` those with `is_for_others`, as texts in the order of VARIABLES.

    Empty where the run has none.
    """
    run = read_json(paths.run_json) or {}
    if "attributes" not in run:
        return {}
    values = {**run["start"]["variables"], **{name: run[name] for name in FIXED}}
    told = {
        variable.name: as_text(values[variable.field])
        for variable in VARIABLES
        if variable.kind.is_for_others and values.get(variable.field) is not None
    }
    return {"params": run["attributes"], "config": run["config"], "variables": told}
