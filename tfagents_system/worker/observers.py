"""Results of the observers that a user has given."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tfagents_system.worker.rollout import Observer


def observed(observers: Sequence[Observer]) -> dict[str, float]:
    """`result()` of those observers that have a name and one (PyMetrics)."""
    named = [observer for observer in observers if hasattr(observer, "name") and hasattr(observer, "result")]
    results = {str(observer.name): float(observer.result()) for observer in named}
    return {name: value for name, value in results.items() if math.isfinite(value)}
