"""best.json: which policy checkpoint of a run is the best one, and what its evaluation was like."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tfagents_system.run_files.heartbeat import read_json
from tfagents_system.run_files.run_paths import RunPaths


def read_best(paths: RunPaths) -> Mapping[str, Any] | None:
    """What best.json says; None before the first evaluation."""
    return read_json(paths.best_json) or None
