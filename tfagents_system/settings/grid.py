"""Grid files: which settings each task of a job array or a sweep has.

    python tfagents_system/settings/grid.py FILE                 says what can't differ between tasks of one job array

A grid file is JSON in one of two forms. An object of lists is their cartesian product, the last key varies fastest:

    {"train_batch_size": [128, 256], "config.horizon": [200], "SAC_SEED": [0, 1, 2]}

A list of objects has one task an entry. Keys are those of --set (see overrides.py): an attribute of TrainParams,
`config.` and a key of the JSON, or a variable. How --set writes and reads values is here as well. Standard library
only, Python 3.6, since login nodes have no more.
"""

import collections
import json
import math
import os
import re
import sys
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

_EXIT_BAD_INPUT = 2
_PYTHON_CONSTANTS = {"True": "true", "False": "false", "None": "null"}
_NOT_IN_A_GRID = {
    "SAC_EXP_NAME": "each task has a run directory of its own, <name>_task_<id>",
    "SAC_EXP_DIR": "each task has a run directory of its own, <name>_task_<id>",
    "SAC_LOGS_DIR": "all tasks have their run directories in one folder",
    "SAC_GRID": "a grid names no other grid",
}
_MOST_TASKS = 1000000
# What a job's request follows from (launch/slurm/request.sh).
REQUESTED = (
    *("SAC_REVERB_CPUS", "SAC_TRAIN_CPUS", "SAC_COLLECT_WORKER_CPUS", "SAC_NUM_COLLECT_WORKERS", "SAC_EXPERT_WORKERS"),
    *("SAC_EVAL_WORKERS", "SAC_TRAIN_GPUS", "SAC_WORKER_MEMORY_MB", "SAC_SAVE_DEADLINE_SECS"),
)
# Paths. A job looks for the relative ones in the folder of the submission.
SOUGHT = ("SAC_AGENT_FROM", "SAC_REPLAY_FROM", "SAC_EXPERT_POLICY", "SAC_ENV_PYTHON")


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
        self, axes: Sequence[Tuple[str, Sequence[Any]]] = (), entries: Optional[Sequence[Dict[str, Any]]] = None
    ) -> None:
        self._axes = list(axes)
        self._entries = entries

    def __len__(self) -> int:
        count = 1 if self._entries is None else len(self._entries)
        for _, values in self._axes:
            count *= len(values)
        return count

    def settings(self, task: int) -> Dict[str, Any]:
        """The settings of a task, in the order of the file.

        Raises:
          GridError: There is no such task.
        """
        if not 0 <= task < len(self):
            raise GridError(["there is no task {}, ids go from 0 to {}".format(task, len(self) - 1)])
        chosen = []
        for key, values in reversed(self._axes):
            task, index = divmod(task, len(values))
            chosen.append((key, values[index]))
        entry = [] if self._entries is None else list(self._entries[task].items())
        return dict(entry + chosen[::-1])

    def names(self) -> List[str]:
        """Every key that some task has, in the order of the file."""
        return list(self.values())

    def values(self) -> Dict[str, List[Any]]:
        """Of every key the values that some task has, in the order of the file."""
        found = collections.OrderedDict()  # type: Dict[str, List[Any]]
        for name, value in (pair for entry in self._entries or () for pair in entry.items()):
            found.setdefault(name, []).append(value)
        for name, values in self._axes:
            found.setdefault(name, []).extend(values)
        return found

    def with_axis(self, key: str, values: Sequence[Any]) -> "Grid":
        """The same for each of `values`, which vary fastest.

        Raises:
          GridError: The grid has that key already.
        """
        if key in self.names():
            raise GridError(["{} is in the grid already: give it once".format(key)])
        return Grid(self._axes + [(key, list(values))], self._entries)


def read_grid(path: str) -> Grid:
    """Reads a grid file.

    Raises:
      GridError: It can't be read, or what it says is no grid; with all findings.
    """
    where = "grid file {}".format(path)
    twice = []  # type: List[str]
    try:
        with open(path, encoding="utf-8-sig") as file:
            content = _load(file.read(), twice)
    except OSError as error:
        raise GridError(["{} cannot be read ({}): give the path of a JSON file".format(where, error.strerror)])
    except (ValueError, OverflowError, RecursionError) as error:
        raise GridError(["{} is not valid JSON ({}): correct it".format(where, error)])
    findings = ['{} has the key "{}" twice in one object: remove one'.format(where, key) for key in twice]
    if isinstance(content, dict):
        grid, found = _product(content)
    else:
        grid, found = _list(content)
    findings += ["{}: {}".format(where, finding) for finding in found]
    if findings:
        raise GridError(findings)
    return grid


def _product(content: Dict[str, Any]) -> Tuple[Grid, List[str]]:
    findings = _check_keys(content)
    axes, count = [], 1
    for key, values in content.items():
        if not isinstance(values, list):
            findings.append("{} must be a list of values, found {}: write [{}]".format(key, *[_shown(values)] * 2))
            continue
        if not values:
            findings.append("{} is an empty list, there would be no task: give it a value, or remove it".format(key))
        known = set()  # type: set
        for text in map(_canonical, values):
            if text in known:
                findings.append("{} has {} twice, two tasks would be the same: remove one".format(key, text))
            known.add(text)
        findings += _check_values(key, values)
        axes.append((key, values))
        count *= len(values)
    if not content:
        findings.append("it is empty: give at least one key with a list of values")
    if count > _MOST_TASKS:
        findings.append("it has {} tasks, at most {} are possible: shorten the lists".format(count, _MOST_TASKS))
    return Grid(axes), findings


def _list(content: Any) -> Tuple[Grid, List[str]]:
    if not isinstance(content, list):
        rule = 'must hold an object of lists, such as {"SAC_SEED": [0, 1]}, or a list of objects, found '
        return Grid(), [rule + _shown(content)]
    findings = [] if content else ["it is an empty list: give at least one object"]
    first_with = {}  # type: Dict[str, int]
    for task, entry in enumerate(content):
        if not isinstance(entry, dict):
            findings.append('task {} must be an object such as {{"SAC_SEED": 0}}, found {}'.format(task, _shown(entry)))
            continue
        text = _canonical(entry)
        if text in first_with:
            findings.append("tasks {} and {} are the same: remove one".format(first_with[text], task))
        first_with.setdefault(text, task)
    entries = [entry for entry in content if isinstance(entry, dict)]
    for entry in entries:
        for key, value in entry.items():
            findings += _check_values(key, [value])
    grid = Grid(entries=entries)
    return grid, findings + _check_keys(grid.names())


def _check_keys(keys: Any) -> List[str]:
    """Findings about keys that need no params and configuration; overrides.py checks the rest."""
    findings = []
    for key in keys:
        if key in _NOT_IN_A_GRID:
            findings.append("{} can't be in a grid, {}: remove it".format(key, _NOT_IN_A_GRID[key]))
        elif not re.match(r"[^\W\d]\w*(\.[^.]+)*$", key):
            findings.append(
                '"{}" is no key of a grid: give an attribute of TrainParams, config.KEY or SAC_NAME'.format(key)
            )
    return findings


def _check_values(key: str, values: Sequence[Any]) -> List[str]:
    if not key.startswith("SAC_"):
        return []
    wrong = [value for value in values if not isinstance(value, (str, int, float))]
    return ['{} must be text or a number, found {}: correct it ("" is none)'.format(key, _shown(v)) for v in wrong]


def faults_in_job(values: Mapping[str, Sequence[Any]]) -> List[str]:
    """What of these values by key the tasks of one job array can't have, which would be submitted from this folder."""
    findings = []
    for name, given in values.items():
        texts = ",".join(map(str, given)).split(",") if name == "SAC_REPLAY_FROM" else map(str, given)
        relative = [text.strip() for text in texts if text.strip() and text.strip()[0] not in "/~"]
        if name in REQUESTED or name in ("SAC_PARAMS", "SAC_CONFIG"):
            rule = "{} {} a job array, whose tasks have one request and one copy of files: {}"
            words = ("can't differ in", "submit each value under another SAC_EXP_NAME, with a vars file that has it")
            if len(set(map(_canonical, given))) == 1:
                words = ("belongs in the vars file of", "move it into the vars file")
            findings.append(rule.format(name, *words))
        elif name in SOUGHT:
            rule = "{}={} is not in {}, where a job array would look for it: write the whole path"
            findings += [rule.format(name, text, os.getcwd()) for text in relative if not _is_there(text)]
    return findings


def _is_there(path: str) -> bool:
    """Whether a file, a folder or the run of RUN@CHECKPOINT is there."""
    return os.path.exists(path) or os.path.isdir(path.rpartition("@")[0])


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _shown(value: Any) -> str:
    text = _canonical(value)
    return text if len(text) <= 80 else text[:80] + "..."


def in_words(settings: Mapping[str, Any]) -> str:
    """`train_batch_size=256 config.horizon=200 SAC_SEED=3`, as --set takes them."""
    return " ".join(assignment(name, value) for name, value in settings.items())


def differing(settings: Sequence[Mapping[str, Any]]) -> List[Dict[str, Any]]:
    """Of each run's settings those that not all runs share; of a single run all."""
    texts = [{name: _canonical(value) for name, value in each.items()} for each in settings]
    shared = set.intersection(*(set(each.items()) for each in texts)) if len(texts) > 1 else set()
    return [
        {name: value for name, value in each.items() if (name, texts[k][name]) not in shared}
        for k, each in enumerate(settings)
    ]


def by_name(params: Mapping[str, Any], config: Mapping[str, Any], variables: Mapping[str, Any]) -> Dict[str, Any]:
    """What an overrides.json holds, in the form of --set: a name for each key of the JSON and of dictionaries."""
    leaves = [*leaves_of(params), *leaves_of({"config": config} if config else {})]
    return dict([(".".join(path), value) for path, value in leaves], **variables)


def leaves_of(content: Mapping[str, Any], path: Tuple[str, ...] = ()) -> Iterator[Tuple[Tuple[str, ...], Any]]:
    """(keys, value) of everything that is not an object; an empty object is a value."""
    for key, value in content.items():
        if isinstance(value, dict) and value:
            yield from leaves_of(value, path + (key,))
        else:
            yield path + (key,), value


def assignment(name: str, value: Any) -> str:
    """The text of --set that overrides `name` with `value`: as JSON, where it would not be read as the text it is."""
    if name.startswith("SAC_"):
        return "{}={}".format(name, variable_text(value))
    is_plain = isinstance(value, str) and _is_read_as_it_is(value)
    return "{}={}".format(name, value if is_plain else json.dumps(value))


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
    twice = []  # type: List[str]
    try:
        value = _load(text, twice)
    except RecursionError:
        raise ValueError("its brackets are too deep")
    except OverflowError as error:
        raise ValueError("{}: give a smaller one".format(error))
    except ValueError as error:
        as_text = "and the text {} as {}".format(text, json.dumps(text))
        if text in _PYTHON_CONSTANTS:
            raise ValueError("JSON writes {}, {}".format(_PYTHON_CONSTANTS[text], as_text))
        if text[:1] == "(":
            raise ValueError("a list is written as [256, 256], {}".format(as_text))
        if text[:1] in ("[", "{", '"'):
            raise ValueError("it is not valid JSON ({}): correct it".format(error))
        if _is_number_of_python(text):
            raise ValueError("JSON writes numbers as in 0.5, 1e-3 and 12, {}".format(as_text))
        return text
    if twice:
        raise ValueError('it has the key "{}" twice in one object: remove one'.format('", "'.join(twice)))
    return value


def _is_number_of_python(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _load(text: str, twice: List[str]) -> Any:
    """Parses JSON as the standard has it; adds the keys that an object has twice to `twice`.

    Raises:
      ValueError: It is not JSON.
      OverflowError: A number in it is beyond all floats.
      RecursionError: Its brackets are too deep.
    """
    return json.loads(
        text, object_pairs_hook=noting_twice(twice), parse_constant=_refuse_constant, parse_float=_finite_float
    )


def noting_twice(twice: List[str]) -> Callable[[List[Tuple[str, Any]]], Dict[str, Any]]:
    """An `object_pairs_hook` that adds the keys which an object has twice to `twice`."""

    def as_dict(pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
        counts = collections.Counter(key for key, _ in pairs)
        twice.extend(key for key, count in counts.items() if count > 1)
        return dict(pairs)

    return as_dict


def _refuse_constant(name: str) -> Any:
    raise ValueError("{} is no number of JSON".format(name))


def _finite_float(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise OverflowError("{} is larger than numbers can be".format(text))
    return number


def main() -> int:
    """Returns 2 where the file is no grid, or none for a job array."""
    try:
        faults = faults_in_job(read_grid(sys.argv[1]).values())
        findings = ["grid file {}: {}".format(sys.argv[1], fault) for fault in faults]
    except GridError as error:
        findings = list(error.findings)
    for finding in findings:
        print("error: " + finding, file=sys.stderr)
    return _EXIT_BAD_INPUT if findings else 0


if __name__ == "__main__":
    sys.exit(main())
