"""Grid files: which settings each task of a job array or a sweep has.

    python -m tfagents_system.grid FILE                 prints the table: task id, settings
    python -m tfagents_system.grid FILE --count         prints how many tasks there are

A grid file is JSON in one of two forms. An object of lists is their cartesian product, the last key varies fastest:

    {"train_batch_size": [128, 256], "config.horizon": [200], "SAC_SEED": [0, 1, 2]}

A list of objects has one task an entry. Keys are those of --set (see overrides.py): an attribute of TrainParams,
`config.` and a key of the JSON, or a variable. Needs nothing but Python's own library, 3.6 or later, since login nodes
have no more; `python3 tfagents_system/grid.py FILE` is the same.
"""

import argparse
import collections
import json
import re
import sys
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

_EXIT_BAD_INPUT = 2
_NOT_IN_A_GRID = {
    "SAC_EXP_NAME": "each task has a run directory of its own, <name>_task_<id>",
    "SAC_EXP_DIR": "each task has a run directory of its own, <name>_task_<id>",
    "SAC_GRID": "a grid names no other grid",
}
_MOST_TASKS = 1000000


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
        found = collections.OrderedDict()  # type: collections.OrderedDict[str, None]
        for entry in self._entries or ():
            found.update((key, None) for key in entry)
        found.update((key, None) for key, _ in self._axes)
        return list(found)

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

    def as_dict(pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
        counts = collections.Counter(key for key, _ in pairs)
        twice.extend(key for key, count in counts.items() if count > 1)
        return collections.OrderedDict(pairs)

    try:
        with open(path, encoding="utf-8-sig") as file:
            content = json.load(file, object_pairs_hook=as_dict)
    except OSError as error:
        raise GridError(["{} cannot be read ({}): give the path of a JSON file".format(where, error.strerror)])
    except (ValueError, RecursionError) as error:
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
    grid = Grid(entries=entries)
    return grid, findings + _check_keys(grid.names())


def _check_keys(keys: Any) -> List[str]:
    """What can be said of keys without params and configuration, which overrides.py looks at."""
    findings = []
    for key in keys:
        if key in _NOT_IN_A_GRID:
            findings.append("{} can't be in a grid, {}: remove it".format(key, _NOT_IN_A_GRID[key]))
        elif not re.match(r"(SAC_[A-Z0-9_]+|config(\.[^.]+)+|[^\W\d]\w*)$", key):
            findings.append(
                '"{}" is no key of a grid: give an attribute of TrainParams, config.KEY or SAC_NAME'.format(key)
            )
    return findings


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _shown(value: Any) -> str:
    text = _canonical(value)
    return text if len(text) <= 80 else text[:80] + "..."


def in_words(settings: Mapping[str, Any]) -> str:
    """`train_batch_size=256 config.horizon=200 SAC_SEED=3`, as --set takes them."""
    return " ".join(assignment(name, value) for name, value in settings.items())


def assignment(name: str, value: Any) -> str:
    """The text of --set that overrides `name` with `value`."""
    return "{}={}".format(name, _as_text(name, value))


def _as_text(name: str, value: Any) -> str:
    """A value as --set takes it: JSON; text as it is where that is no JSON, and a variable's in any case."""
    if isinstance(value, str):
        try:
            json.loads(value)
        except ValueError:
            return value
        if name.startswith("SAC_"):
            return value
    return json.dumps(value)


def _table(grid: Grid) -> str:
    width = max(len("task"), len(str(len(grid) - 1)))
    lines = ["{:>{}}  settings".format("task", width)]
    lines += ["{:>{}}  {}".format(task, width, in_words(grid.settings(task))) for task in range(len(grid))]
    return "\n".join(lines)


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Prints the table or the number of tasks; returns 2 where the file is no grid."""
    parser = argparse.ArgumentParser(
        prog="python -m tfagents_system.grid", description="Shows which settings each task of a grid file has."
    )
    parser.add_argument("file", help="JSON: an object of lists, or a list of objects")
    parser.add_argument("--count", action="store_true", help="print the number of tasks")
    args = parser.parse_args(argv)
    try:
        grid = read_grid(args.file)
    except GridError as error:
        for finding in error.findings:
            print("error: " + finding, file=sys.stderr)
        return _EXIT_BAD_INPUT
    print(len(grid) if args.count else _table(grid))
    return 0


if __name__ == "__main__":
    sys.exit(main())
