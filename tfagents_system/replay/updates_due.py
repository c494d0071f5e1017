"""How many updates the collected experience asks for: `updates_per_env_step`."""

from __future__ import annotations

import fractions
import math


def updates_due(steps: int, updates_per_env_step: float) -> int:
    """floor(updates_per_env_step * steps), of the decimal number that was written: 0.1 * 30 is 3, as for people."""
    return math.floor(fractions.Fraction(str(updates_per_env_step)) * steps)
