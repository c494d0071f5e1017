"""Values of `--set` in the place of others: objects are merged, JSON's lists and texts take the type that was there."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tfagents_system.errors import UserError, shown

PARAMS = "TrainParams"


def merge(
    base: Mapping[str, Any],
    over: Mapping[str, Any],
    where: str,
    fit: Callable[[str, Any, Any], Any] = lambda name, before, value: value,
) -> dict[str, Any]:
    """Merges `over` into `base`, key by key, as a JSON merge patch (RFC 7396): null removes a key.

    A key that is null already stays so. Neither argument is changed.

    Args:
      where: What `base` is, for messages.
      fit: Called with a key's name, its value before (None without one) and its new one, unless these are both
        mappings; returns the value.

    Raises:
      UserError: {} in the place of a mapping that has keys would change nothing.
    """
    merged = dict(base)
    for key, value in over.items():
        name, before = f"{where}.{key}", merged.get(key)
        if value is None:
            if before is not None:
                del merged[key]
        elif isinstance(value, Mapping) and (before is None or isinstance(before, Mapping)):
            if before and not value:
                gone = map(str, before) if where == PARAMS else [key]  # An attribute stays.
                raise UserError(
                    f"{name}={{}} would change nothing, objects are merged: null removes a key, as in "
                    f"{json.dumps(dict.fromkeys(gone))}"
                )
            merged[key] = merge(before or {}, value, name, fit)
        else:
            merged[key] = fit(name, before, copy.deepcopy(value))
    return merged


def overridden(name: str, before: Any, value: Any) -> Any:
    """An attribute's value in place of `before`; unlike a key, it can be None.

    Raises:
      UserError: The value is impossible.
    """
    return None if value is None else merge({name: before}, {name: value}, PARAMS, _of_kind)[name]


def _of_kind(name: str, before: Any, value: Any) -> Any:
    """A value of JSON converted to the kind of what it overrides: JSON has no tuples, sets, arrays and paths.

    Raises:
      UserError: It is of a kind that would pass for something else.
    """
    is_number_now = isinstance(before, (int, float, np.number)) and not isinstance(before, bool)
    if isinstance(value, dict) and before is not None:
        # A schedule in the place of a number, options in the place of True or False.
        if (is_number_now and "points" in value) or isinstance(before, bool):
            return value
        raise UserError(f"{name} is no dictionary but {shown(before)}: override it as a whole")
    elsewhere = ": correct it, or write the text into the params file"
    if isinstance(value, str) and isinstance(before, (bool, np.bool_)):
        raise UserError(f"{name} must be true or false, as JSON writes them, found {shown(value)}{elsewhere}")
    if isinstance(value, str) and isinstance(before, (int, float, np.number)):
        raise UserError(f"{name} must be a number, as JSON writes it (0.5, 1e-3), found {shown(value)}{elsewhere}")
    if isinstance(value, str) and isinstance(before, Path):
        return Path(value)
    if isinstance(value, list) and isinstance(before, (set, frozenset, np.ndarray)):
        raise UserError(f"{name}={shown(before)} can't become a list: change it in the params file")
    return tuple(value) if isinstance(value, list) and isinstance(before, tuple) else value
