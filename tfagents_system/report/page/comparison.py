"""Several runs together: their interquartile means, and the settings in which they differ."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tfagents_system.errors import UserError
from tfagents_system.report.compare import curve_of, group_runs, table_of
from tfagents_system.report.curves import RETURN, read_runs
from tfagents_system.report.page.points import short


def comparison_of(folders: Sequence[Path], patterns: Sequence[str]) -> dict[str, Any]:
    """Groups with curve and table as `sac compare` has them; `problems` where there are none.

    Returns:
      `groups`: name, members (places in `folders`) and the curve of each; `table`: a row each.
    """
    try:
        runs = read_runs(folders, RETURN)
    except UserError as error:
        return {"problems": error.findings, "groups": [], "table": [], "metric": RETURN}
    groups = group_runs(runs, patterns)
    places = {id(run): k for k, run in enumerate(runs)}
    told = []
    for group in groups:
        curve: dict[str, Any] = {}
        if group.begun:
            found = curve_of(group)
            curve = {name: short(getattr(found, name)) for name in ("steps", "iqm", "low", "high", "counts")}
        told.append({"name": group.name, "runs": [places[id(run)] for run in group.runs], "curve": curve})
    return {"problems": [], "groups": told, "table": table_of(groups, RETURN), "metric": RETURN}
