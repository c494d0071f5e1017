"""Grid files: which settings each task of a job array or a sweep has.

A grid file is JSON in one of two forms. An object of lists is their cartesian product, the last key varies fastest:

    {"batch_size": [128, 256], "config.horizon": [200], "SAC_SEED": [0, 1, 2]}

A list of objects has one task an entry. Keys are those of --set (see overrides.py): an attribute of TrainParams,
`config.` and a key of the JSON, or a variable. How --set writes and reads values is here as well.
"""

from __future__ import annotations

import collections
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

_PYTHON_CONSTANTS = {"True": "true", "False": "false", "None": "null"}
_NOT_IN_A_GRID = {
    "SAC_EXP_NAME": "each task has a run directory of its own, <name>_task_<id>",
    "SAC_EXP_DIR": "each task has a run directory of its own, <name>_task_<id>",
    "SAC_LOGS_DIR": "all tasks have their run directories in one folder",
    "SAC_GRID": "a grid names no other grid",
}
_MOST_TASKS = 1_000_000
_MOST_SEEDS = 10_000
# What a job's request follows from (cluster/submit.py).
REQUESTED = (
    *("SAC_REVERB_CPUS", "SAC_TRAIN_CPUS", "SAC_COLLECT_WORKER_CPUS", "SAC_NUM_COLLECT_WORKERS", "SAC_EXPERT_WORKERS"),
    *("SAC_EVAL_WORKERS", "SAC_TRAIN_GPUS", "SAC_WORKER_MEMORY_MB", "SAC_SAVE_DEADLINE_SECS"),
)
# Paths; a job array has a copy of the repository, and runs elsewhere.
PATHS = (
    *("SAC_FROM", "SAC_EXPERT_POLICY", "SAC_ENV_PYTHON"),
    *("SAC_REPLAY_DIR", "SAC_CREDENTIALS_DIR", "SAC_PASSWORD_FILE"),
)


class GridError(ValueError):
    """A grid file that must be changed.

    Args:
      findings: One sentence each: the rule, the value found, and the remedy.
    """

    def __init__(self, findings: Sequence[str]) -> None:
        super().__init__("\n".join(findings))
        self.findings = tuple(findings)


class Grid:
    """Settings by task id, from 0.

    Args:
      axes: Keys with their values, whose product is taken.
      entries: Or the settings of each task themselves.
    """

    def __init__(
        self, axes: Sequence[tuple[str, Sequence[Any]]] = (), entries: Sequence[dict[str, Any]] | None = None
    ) -> None:
        self._axes = list(axes)
        self._entries = entries

    def __len__(self) -> int:
        count = 1 if self._entries is None else len(self._entries)
        return count * math.prod(len(values) for _, values in self._axes)

    def settings(self, task: int) -> dict[str, Any]:
        """The settings of a task, in the order of the file.

        Raises:
          GridError: There is no such task.
        """
        if not 0 <= task < len(self):
            raise GridError([f"there is no task {task}, ids go from 0 to {len(self) - 1}"])
        chosen = []
        for key, values in reversed(self._axes):
            task, index = divmod(task, len(values))
            chosen.append((key, values[index]))
        entry = [] if self._entries is None else list(self._entries[task].items())
        return dict(entry + chosen[::-1])

    def names(self) -> list[str]:
        """Every key that some task has, in the order of the file."""
        return list(self.values())

    def values(self) -> dict[str, list[Any]]:
        """Of every key the values that some task has, in the order of the file."""
        values_by_name: dict[str, list[Any]] = {}
        for name, value in (pair for entry in self._entries or () for pair in entry.items()):
            values_by_name.setdefault(name, []).append(value)
        for name, values in self._axes:
            values_by_name.setdefault(name, []).extend(values)
        return values_by_name

    def with_axis(self, key: str, values: Sequence[Any]) -> Grid:
        """The same for each of `values`, which vary fastest.

        Raises:
          GridError: The grid has that key already.
        """
        if key in self.names():
            raise GridError([f"{key} is in the grid already: give it once"])
        return Grid([*self._axes, (key, list(values))], self._entries)


def parse_seeds(text: str) -> list[int]:
    """`"0-2,7"` -> `[0, 1, 2, 7]`.

    Raises:
      GridError: It is something else.
    """
    seeds: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,10})(?:-([0-9]{1,10}))?\s*", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not first <= last < 2**31 or len(seeds) + last - first >= _MOST_SEEDS:
            raise GridError([f"--seeds must be numbers and ranges such as 0-4 or 0,3,7-9, found {_shown(text)}"])
        seeds += range(first, last + 1)
    if len(set(seeds)) < len(seeds):
        raise GridError([f"--seeds {text} has a seed twice: give each once"])
    return seeds


def read_grid(path: str) -> Grid:
    """Reads a grid file.

    Raises:
      GridError: It can't be read, or what it says is no grid; with all findings.
    """
    where = f"grid file {path}"
    twice: list[str] = []
    try:
        with open(path, encoding="utf-8-sig") as file:
            content = _load(file.read(), twice)
    except OSError as error:
        raise GridError([f"{where} cannot be read ({error.strerror}): give the path of a JSON file"]) from None
    except (ValueError, OverflowError, RecursionError) as error:
        raise GridError([f"{where} is not valid JSON ({error}): correct it"]) from None
    findings = [f'{where} has the key "{key}" twice in one object: remove one' for key in twice]
    grid, faults = _product(content) if isinstance(content, dict) else _list(content)
    findings += [f"{where}: {fault}" for fault in faults]
    if findings:
        raise GridError(findings)
    return grid


def _product(content: dict[str, Any]) -> tuple[Grid, list[str]]:
    findings = check_keys(content)
    axes = []
    for key, values in content.items():
        if not isinstance(values, list):
            findings.append(f"{key} must be a list of values, found {_shown(values)}: write [{_shown(values)}]")
            continue
        if not values:
            findings.append(f"{key} is an empty list, there would be no task: give it a value, or remove it")
        counts = collections.Counter(map(_canonical, values))
        findings += [
            f"{key} has {text} twice, two tasks would be the same: remove one"
            for text, count in counts.items()
            if count > 1
        ]
        findings += _check_values(key, values)
        axes.append((key, values))
    if not content:
        findings.append("it is empty: give at least one key with a list of values")
    count = math.prod(len(values) for _, values in axes)
    if count > _MOST_TASKS:
        findings.append(f"it has {count} tasks, at most {_MOST_TASKS} are possible: shorten the lists")
    return Grid(axes), findings


def _list(content: Any) -> tuple[Grid, list[str]]:
    if not isinstance(content, list):
        rule = 'must hold an object of lists, such as {"SAC_SEED": [0, 1]}, or a list of objects, found '
        return Grid(), [rule + _shown(content)]
    findings = [] if content else ["it is an empty list: give at least one object"]
    for task, entry in enumerate(content):
        if not isinstance(entry, dict):
            findings.append(f'task {task} must be an object such as {{"SAC_SEED": 0}}, found {_shown(entry)}')
    entries = [entry for entry in content if isinstance(entry, dict)]
    for entry in entries:
        for key, value in entry.items():
            findings += _check_values(key, [value])
    grid = Grid(entries=entries)
    return grid, findings + check_keys(grid.names())


def check_keys(keys: Iterable[str]) -> list[str]:
    """Findings about keys that need no params and configuration; overrides.py checks the rest."""
    findings = []
    for key in keys:
        if key in _NOT_IN_A_GRID:
            findings.append(f"{key} can't be in a grid, {_NOT_IN_A_GRID[key]}: remove it")
        elif not re.match(r"[^\W\d]\w*(\.[^.]+)*$", key):
            findings.append(f'"{key}" is no key of a grid: give an attribute of TrainParams, config.KEY or SAC_NAME')
    return findings


def _check_values(key: str, values: Sequence[Any]) -> list[str]:
    if not key.startswith("SAC_"):
        return []
    wrong = [value for value in values if not isinstance(value, (str, int, float))]
    return [f'{key} must be text or a number, found {_shown(value)}: correct it ("" is none)' for value in wrong]


def faults_in_job(values: Mapping[str, Sequence[Any]]) -> list[str]:
    """What of these values by key the tasks of one job array can't have."""
    findings = []
    for name, given in values.items():
        if name in REQUESTED or name in ("SAC_PARAMS", "SAC_CONFIG"):
            findings.append(
                f"{name} can't be in a job array's grid, whose tasks have one request and one copy of files: set it in "
                "the vars file, and submit each value under another SAC_EXP_NAME"
            )
        elif name in PATHS:
            findings += [
                f"{name}={text} must be absolute in a job array, which runs in another folder: write the whole path"
                for text in (part.strip() for value in given for part in str(value).split(","))
                if text and text[0] not in "/~"
            ]
    return findings


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _shown(value: Any) -> str:
    text = _canonical(value)
    return text if len(text) <= 80 else text[:80] + "..."


def in_words(settings: Mapping[str, Any]) -> str:
    """`batch_size=256 config.horizon=200 SAC_SEED=3`, as --set takes them."""
    return " ".join(assignment(name, value) for name, value in settings.items())


def differing(settings: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Of each run's settings those that not all runs share; of a single run all."""
    texts = [{name: _canonical(value) for name, value in run.items()} for run in settings]
    shared = set.intersection(*(set(run.items()) for run in texts)) if len(texts) > 1 else set()
    return [
        {name: value for name, value in run.items() if (name, texts[k][name]) not in shared}
        for k, run in enumerate(settings)
    ]


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


def assignment(name: str, value: Any) -> str:
    """The text of --set that overrides `name` with `value`: as JSON, where it would not be read as the text it is."""
    if name.startswith("SAC_"):
        return f"{name}={variable_text(value)}"
    is_plain = isinstance(value, str) and _is_read_as_it_is(value)
    return f"{name}={value if is_plain else json.dumps(value)}"


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


def _load(text: str, twice: list[str]) -> Any:
    """Parses JSON as the standard has it; adds the keys that an object has twice to `twice`.

    Raises:
      ValueError: It is not JSON.
      OverflowError: A number in it is beyond all floats.
      RecursionError: Its brackets are too deep.
    """
    return json.loads(
        text, object_pairs_hook=noting_twice(twice), parse_constant=_refuse_constant, parse_float=_finite_float
    )


def noting_twice(twice: list[str]) -> Callable[[list[tuple[str, Any]]], dict[str, Any]]:
    """An `object_pairs_hook` that adds the keys which an object has twice to `twice`."""

    def as_dict(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        counts = collections.Counter(key for key, _ in pairs)
        twice.extend(key for key, count in counts.items() if count > 1)
        return dict(pairs)

    return as_dict


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


def _finite_float(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise OverflowError(f"{text} is larger than numbers can be")
    return number
