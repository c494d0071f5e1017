"""Values of settings as JSON: how files and --set write and read them, and how they are merged into others.

Environments' own processes import this: it needs nothing but Python 3.9 and NumPy.
"""

from __future__ import annotations

import collections
import copy
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tfagents_system.errors import UserError, shown

PARAMS = "TrainParams"
# What Python takes for a number, JSON not always.
_IS_NUMBER = re.compile(r"[+-]?(\d[\d_]*\.?[\d_]*|\.\d+)(e[+-]?\d+)?$|[+-]?(inf|infinity|nan)$", re.IGNORECASE)


# Reading.


def read_json(path: Path, where: str, example: str = "") -> Any:
    """Reads a JSON file.

    Args:
      where: Names it in messages.
      example: Of the object that it must hold; empty: it may hold anything.

    Raises:
      UserError: It is missing, or is not UTF-8; see also `parse_json`.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")  # Some editors write a byte order mark.
    except OSError as error:
        raise UserError(f"{where} cannot be read ({error.strerror}): give the path of a JSON file") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{where} is not UTF-8 text ({error}): save it as UTF-8") from None
    return parse_json(text, where, example)


def parse_json(text: str, where: str, example: str = "") -> Any:
    """Reads the text of a JSON file; `where` and `example`: as of `read_json`.

    Raises:
      UserError: It is not JSON, has a key twice, or is no object where it must be one.
    """
    if example and not text.strip():
        raise UserError(f"{where} is empty: it must hold a JSON object such as {example}")
    try:
        content = _load(text)
    except (ValueError, RecursionError) as error:
        why = str(error)
        if isinstance(error, json.JSONDecodeError):
            why = f"{error.msg} (line {error.lineno}, column {error.colno})"
        raise UserError(
            f"{where} is not valid JSON: {why}: correct it; JSON has double quotes, true, false and null, no "
            "comments, and no comma behind the last entry"
        ) from None
    if example and not isinstance(content, dict):
        raise UserError(f"{where} must hold a JSON object such as {example}, found {shown(content)}")
    return content


def _load(text: str) -> Any:
    """Parses JSON as the standard has it; also refuses a key that is twice in one object."""
    return json.loads(text, object_pairs_hook=_as_dict, parse_constant=_finite_number, parse_float=_finite_number)


def _as_dict(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    twice = [key for key, count in collections.Counter(key for key, _ in pairs).items() if count > 1]
    if twice:
        raise ValueError(f"it has the key {json.dumps(twice[0])} twice in one object, only the last would count")
    return dict(pairs)


def _finite_number(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text} is no finite number")
    return number


def parse_value(text: str) -> Any:
    """A value of --set: JSON, else text.

    Raises:
      ValueError: It is not JSON but looks like Python, and would mean something else as a text.
    """
    try:
        return _load(text)
    except (ValueError, RecursionError) as error:
        if text in ("True", "False", "None") or text[:1] in ("(", "[", "{", '"') or _IS_NUMBER.match(text):
            raise ValueError(
                f"it is not valid JSON ({error}), which has true, false, null, 0.5, 1e-3 and [256, 256]: correct it, "
                f"or give the text as {json.dumps(text[:80])}"
            ) from None
        return text


# Writing, as --set takes them.


def in_words(settings: Mapping[str, Any]) -> str:
    """`batch_size=256 config.horizon=200 SAC_SEED=3`."""
    return " ".join(assignment(name, value) for name, value in settings.items())


def assignment(name: str, value: Any) -> str:
    """The text of --set that overrides `name` with `value`: as JSON, where it would not be read as the text it is."""
    if name.startswith("SAC_"):
        return f"{name}={as_text(value)}"
    return f"{name}={value if isinstance(value, str) and _is_read_as_it_is(value) else json.dumps(value)}"


def as_text(value: Any) -> str:
    """A variable's value as the environment has it."""
    if isinstance(value, (str, Path)):
        return str(value)
    return json.dumps(int(value) if isinstance(value, bool) else value)


def _is_read_as_it_is(text: str) -> bool:
    try:
        return bool(parse_value(text) == text)
    except ValueError:
        return False


def by_name(params: Mapping[str, Any], config: Mapping[str, Any], variables: Mapping[str, Any]) -> dict[str, Any]:
    """What `Overrides` holds, in the form of --set: a name for each key of the JSON and of dictionaries."""
    leaves = [*leaves_of(params), *leaves_of({"config": config} if config else {})]
    return {**{".".join(path): value for path, value in leaves}, **variables}


def leaves_of(content: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """(keys, value) of everything that is not an object; an empty object is a value."""
    for key, value in content.items():
        if isinstance(value, dict) and value:
            yield from leaves_of(value, (*path, key))
        else:
            yield (*path, key), value


def differing(settings: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Of each run's settings those that not all runs share; of a single run all."""
    texts = [{name: json.dumps(value, sort_keys=True) for name, value in run.items()} for run in settings]
    shared = set.intersection(*(set(run.items()) for run in texts)) if len(texts) > 1 else set()
    return [
        {name: value for name, value in run.items() if (name, texts[k][name]) not in shared}
        for k, run in enumerate(settings)
    ]


# Merging.


def merge(
    base: Mapping[str, Any],
    over: Mapping[str, Any],
    where: str = "",
    fit: Callable[[str, Any, Any], Any] = lambda name, before, value: value,
) -> dict[str, Any]:
    """Merges `over` into `base`, key by key, as a JSON merge patch (RFC 7396): null removes a key. But {} removes all.

    A key that is null already stays so. Neither argument is changed.

    Args:
      where: What `base` is, for `fit`.
      fit: Called with a key's name, its value before (None without one) and its new one, unless these are merged;
        returns the value.
    """
    merged = dict(base)
    for key, value in over.items():
        name, before = f"{where}.{key}", merged.get(key)
        if value is None:
            if before is not None:
                del merged[key]
        elif isinstance(value, Mapping) and value and (before is None or isinstance(before, Mapping)):
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
    """A value of JSON converted to the kind of what it overrides: JSON has no tuples, sets, arrays and paths."""
    import numpy as np  # `sac status`, which reads settings, answers without it.

    is_bool = isinstance(before, (bool, np.bool_))
    is_number = isinstance(before, (int, float, np.number)) and not is_bool
    if isinstance(value, dict) and not (before is None or isinstance(before, Mapping)):
        # A schedule in the place of a number, options in the place of True or False.
        if (is_number and "points" in value) or is_bool:
            return value
        raise UserError(f"{name} is no dictionary but {shown(before)}: override it as a whole")
    if isinstance(value, str) and (is_bool or is_number):
        wanted = "true or false" if is_bool else "a number"
        raise UserError(f"{name} must be {wanted}, as JSON writes it, found {shown(value)}: correct it")
    if isinstance(value, list) and isinstance(before, (set, frozenset, np.ndarray)):
        raise UserError(f"{name}={shown(before)} can't become a list: change it in the params file")
    if isinstance(value, str) and isinstance(before, Path):
        return Path(value)
    return tuple(value) if isinstance(value, list) and isinstance(before, tuple) else value
