"""best.json: which policy checkpoint of a run is the best one, and what its evaluation was like."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tfagents_system.run_files.heartbeat import read_json
from tfagents_system.run_files.run_paths import RunPaths


def edits_taken(paths: RunPaths) -> int:
    """How often the run has taken edited files (`--take_edits`), or gone on after an edit in its directory."""
    return len((read_json(paths.run_json) or {}).get("edits", []))


def read_best(paths: RunPaths) -> Mapping[str, Any] | None:
    """What best.json says; None before the first evaluation, and from an edit that the run takes to the next one."""
    best = read_json(paths.best_json)
    return best if best and best.get("edits", 0) == edits_taken(paths) else None
