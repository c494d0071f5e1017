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
_PYTHON_CONSTANTS = {"True": "true", "False": "false", "None": "null"}


# Reading.


def read_json(path: Path, where: str) -> Any:
    """Reads a JSON file; `where` names it in messages.

    Raises:
      UserError: See `read_text` and `parse_json`.
    """
    return parse_json(read_text(path, where), where)


def read_text(path: Path, where: str) -> str:
    """Reads a text file; `where` names it in messages.

    Raises:
      UserError: It is missing, or is not UTF-8.
    """
    try:
        return path.read_bytes().decode("utf-8-sig")  # Some editors write a byte order mark.
    except OSError as error:
        raise UserError(f"{where} cannot be read ({error.strerror}): give the path of a JSON file") from None
    except UnicodeDecodeError as error:
        raise UserError(
            f"{where} is not UTF-8 text (byte {error.object[error.start]:#04x} at {error.start}): save it as UTF-8"
        ) from None


def parse_json(text: str, where: str) -> Any:
    """Reads the text of a JSON file.

    Raises:
      UserError: It is not JSON, or has a key twice.
    """
    twice: list[str] = []
    try:
        content = _load(text, twice)
    except json.JSONDecodeError as error:
        line = text.split("\n")[error.lineno - 1].strip()
        raise UserError(
            f"{where} is not valid JSON: {error.msg} (line {error.lineno}, column {error.colno}: {shown(line)})"
            f"{_json_remedy(text, error)}"
        ) from None
    except (ValueError, OverflowError, RecursionError) as error:
        raise UserError(f"{where} cannot be read as JSON ({error}): correct it") from None
    if twice:
        same = f"{where} has the key {{}} twice in one object, only the last would count: remove one"
        raise UserError(*(same.format(json.dumps(key)) for key in twice))
    return content


def parse_object(text: str, where: str, example: str) -> dict[str, Any]:
    """Reads the text of a JSON file that must hold an object, such as `example`.

    Raises:
      UserError: See `parse_json`; also where it is something else.
    """
    if not text.strip():
        raise UserError(f"{where} is empty: it must hold a JSON object such as {example}")
    return as_object(parse_json(text, where), where, example)


def as_object(content: Any, where: str, example: str) -> dict[str, Any]:
    """The content of a JSON file, which must be an object.

    Raises:
      UserError: It is something else.
    """
    if not isinstance(content, dict):
        raise UserError(f"{where} must hold a JSON object such as {example}, found {shown(content)}")
    return content


def _json_remedy(text: str, error: json.JSONDecodeError) -> str:
    """The usual cause of an error, to append to its message."""
    before, here = text[: error.pos].rstrip(), text[error.pos :].lstrip()
    if before.endswith(",") and here[:1] in ("}", "]"):
        return ": remove the comma before it"
    if here.startswith("'"):
        return ": JSON has double quotes only"
    if here.startswith(("//", "#", "/*")):
        return ": JSON has no comments, remove it"
    if re.match(r"(True|False|None)\b", here):
        return ": JSON writes true, false and null"
    return ": correct it"


def _load(text: str, twice: list[str]) -> Any:
    """Parses JSON as the standard has it; adds the keys that an object has twice to `twice`.

    Raises:
      ValueError: It is not JSON.
      OverflowError: A number in it is beyond all floats.
      RecursionError: Its brackets are too deep.
    """

    def as_dict(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        counts = collections.Counter(key for key, _ in pairs)
        twice.extend(key for key, count in counts.items() if count > 1)
        return dict(pairs)

    return json.loads(text, object_pairs_hook=as_dict, parse_constant=_refuse_constant, parse_float=_finite_float)


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


def _finite_float(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise OverflowError(f"{text} is larger than numbers can be")
    return number


def parse_value(text: str) -> Any:
    """A value of --set: JSON, else text.

    Raises:
      ValueError: It is not JSON but looks like Python, and would mean something else as a text; or something in it
        would be lost: a number beyond all floats, a key twice.
    """
    twice: list[str] = []
    try:
        value = _load(text, twice)
    except RecursionError:
        raise ValueError("its brackets are too deep") from None
    except OverflowError as error:
        raise ValueError(f"{error}: give a smaller one") from None
    except ValueError as error:
        if text in _PYTHON_CONSTANTS:
            rule = f"JSON writes {_PYTHON_CONSTANTS[text]}"
        elif text[:1] == "(":
            rule = "a list is written as [256, 256]"
        elif text[:1] in ("[", "{", '"'):
            raise ValueError(f"it is not valid JSON ({error}): correct it") from None
        elif _is_number_of_python(text):
            rule = "JSON writes numbers as in 0.5, 1e-3 and 12"
        else:
            return text
        raise ValueError(f"{rule}, and the text {text} as {json.dumps(text)}") from None
    if twice:
        raise ValueError(f'it has the key "{twice[0]}" twice in one object: remove one')
    return value


def _is_number_of_python(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


# Writing, as --set takes them.


def in_words(settings: Mapping[str, Any]) -> str:
    """`batch_size=256 config.horizon=200 SAC_SEED=3`."""
    return " ".join(assignment(name, value) for name, value in settings.items())


def assignment(name: str, value: Any) -> str:
    """The text of --set that overrides `name` with `value`: as JSON, where it would not be read as the text it is."""
    if name.startswith("SAC_"):
        return f"{name}={variable_text(value)}"
    return f"{name}={value if isinstance(value, str) and _is_read_as_it_is(value) else json.dumps(value)}"


def variable_text(value: Any) -> str:
    """A variable's value as the environment has it."""
    if isinstance(value, str):
        return value
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
    import numpy as np  # `sac status`, which reads settings, answers without it.

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
