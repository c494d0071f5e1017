"""What a value of the user's must be: a rule in words, and whether a value keeps it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

Rule = tuple[str, Callable[[Any], bool]]


def is_kept(rule: Rule, value: Any) -> bool:
    """Whether a value keeps a rule; one that can't even be asked does not."""
    try:
        return bool(rule[1](value))
    except Exception:  # Such as of an array where one number is wanted.
        return False


def is_number(value: Any) -> bool:
    """Whether it is one finite number, of Python or NumPy."""
    is_real = isinstance(value, int | float) or type(value).__module__ == "numpy"
    try:
        return is_real and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # An integer beyond every float.
        return False


def is_integer(value: Any) -> bool:
    """Whether it is one integer, of Python or NumPy."""
    is_numpy_integer = type(value).__module__ == "numpy" and getattr(value, "dtype", None) is not None
    if is_numpy_integer:
        return getattr(value, "ndim", 1) == 0 and value.dtype.kind in "iu"
    return isinstance(value, int) and not isinstance(value, bool)


def integer_from(low: int) -> Rule:
    """The rule of integers that are at least `low`."""
    return f"an integer of at least {low}", lambda value: is_integer(value) and value >= low


def or_none(rule: Rule, none: str = "None") -> Rule:
    """A rule that None keeps as well; `none` is how that is told."""
    return f"{rule[0]}, or {none}", lambda value: value is None or rule[1](value)
