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
    """What best.json says; None before the first evaluation, between an edit that the run takes and the next one, as a
    return on the task before the edit says nothing of the present one, and where the best policy is lost.
    """
    best, edits = read_json(paths.best_json), edits_taken(paths)
    if not best or best.get("checkpoint") is None:
        return None
    return best if best.get("edits", 0) == edits else None
