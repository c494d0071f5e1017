"""The rows of `TrainParams.action_table`, which make n actions of a Box."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tfagents_system.errors import UserError

_MOST_NAMED = 5


def check_table(table: Sequence[Sequence[float]], spec: Any, most: int) -> np.ndarray:
    """The rows as the environment takes them, `[n, numbers of an action]` of its dtype.

    Args:
      table: Rows in the environment's units.
      spec: The environment's own bounds of its only action, of one dimension.
      most: Rows at most.

    Raises:
      UserError: Rows are of the wrong length, outside the bounds, not finite or there twice, or too many.
    """
    size = int(spec.shape[0])
    findings = [] if 2 <= len(table) <= most else [f"it has {len(table):,} rows: it must have 2 to {most:,}"]
    low, high = (np.broadcast_to(bound, (size,)) for bound in (spec.minimum, spec.maximum))
    seen: dict[bytes, int] = {}
    faults = []
    for number, row in enumerate(table):
        fault = _fault(row, low, high)
        if not fault:
            taken = np.asarray(row, spec.dtype) + np.zeros((), spec.dtype)  # -0.0 is 0.0.
            first = seen.setdefault(taken.tobytes(), number)
            fault = f"is row {first} again" if first != number else ""
        if fault:
            faults.append(f"row {number} {fault}")
    findings += faults[:_MOST_NAMED]
    if len(faults) > _MOST_NAMED:
        findings.append(f"and {len(faults) - _MOST_NAMED} rows more")
    if findings:
        raise UserError(*(f"TrainParams.action_table: {finding}" for finding in findings))
    return np.array(table, spec.dtype)


def _fault(row: Any, low: np.ndarray, high: np.ndarray) -> str:
    """What is wrong with a row by itself; empty if nothing is."""
    size = len(low)
    try:
        numbers = np.asarray(row, np.float64)
    except (TypeError, ValueError):
        return f"is {row!r}: it must have {size} numbers"
    if numbers.shape != (size,):
        found = f"has {len(numbers)} numbers" if numbers.ndim == 1 else f"is {row!r}"
        return f"{found}: the environment's action has {size}"
    if not np.isfinite(numbers).all():
        return f"is {list(row)}: its numbers must be finite"
    # Compared as the environment takes it: 0.1 of 64 bits is below that of 32.
    taken = numbers.astype(low.dtype)
    outside = np.flatnonzero((taken < low) | (taken > high))
    if not len(outside):
        return ""
    k = int(outside[0])
    return f"has {numbers[k]:g} in place {k}: the environment's bounds there are [{low[k]:g}, {high[k]:g}]"
