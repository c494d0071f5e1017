"""Results of the observers that a user has given."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tfagents_system.worker.rollout import Observer


def callables(observers: Sequence[Any]) -> list[Observer]:
    """Those that are called with each step: one with `take_episode` (see recording.py) may ask for episodes alone."""
    return [observer for observer in observers if callable(observer)]


def observed(observers: Sequence[Any]) -> dict[str, float]:
    """`result()` of those observers that have a name and one (PyMetrics)."""
    named = [observer for observer in observers if hasattr(observer, "name") and hasattr(observer, "result")]
    results = {str(observer.name): float(observer.result()) for observer in named}
    return {name: value for name, value in results.items() if math.isfinite(value)}
