"""Grids and search spaces: which settings the tasks of many runs have.

A grid file is JSON in one of two forms. An object of lists is their cartesian product, the last key varies fastest:

    {"batch_size": [128, 256], "config.horizon": [200], "SAC_SEED": [0, 1, 2]}

A list of objects has one task an entry. A search space is an object of what a search may try, or one of SPACES:

    {"critic_learning_rate": {"low": 1e-4, "high": 3e-3, "log": true}, "batch_size": [128, 256],
     "n_step": {"low": 1, "high": 5}}

A list has the values themselves; `low` and `high` are numbers, both whole for a whole number; with `log`, each factor
of ten is as likely. Keys are those of --set (see resolved.py): an attribute of TrainParams, `config.` and a key of the
JSON, or a variable.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from tfagents_system.checks.rules import TRUE_OR_FALSE, Rule, broken_keys, is_number
from tfagents_system.errors import UserError, shown
from tfagents_system.settings.values import read_json
from tfagents_system.settings.variables import VARIABLES

_NOT_IN_A_GRID = {
    "SAC_EXP_NAME": "each task has a run directory of its own, <name>_task_<id>",
    "SAC_EXP_DIR": "each task has a run directory of its own, <name>_task_<id>",
    "SAC_LOGS_DIR": "all tasks have their run directories in one folder",
    "SAC_GRID": "a grid names no other grid",
}
_MOST_TASKS = 100_000
_MOST_SEEDS = 10_000
# What a job's request follows from (cluster/submit.py).
REQUESTED = (
    *("SAC_REVERB_CPUS", "SAC_TRAIN_CPUS", "SAC_COLLECT_WORKER_CPUS", "SAC_NUM_COLLECT_WORKERS", "SAC_EXPERT_WORKERS"),
    *("SAC_EVAL_WORKERS", "SAC_TRAIN_GPUS", "SAC_WORKER_MEMORY_MB", "SAC_SAVE_DEADLINE_SECS"),
)
# A job array has a copy of the repository, and runs elsewhere.
PATHS = tuple(
    variable.name
    for variable in VARIABLES
    if variable.kind.is_path and variable.name not in ("SAC_PARAMS", "SAC_CONFIG", *_NOT_IN_A_GRID)
)


@dataclasses.dataclass(frozen=True)
class Grid:
    """The settings of each task, by task id from 0, in the order of the file."""

    tasks: Sequence[Mapping[str, Any]] = ({},)

    def __len__(self) -> int:
        return len(self.tasks)

    def settings(self, task: int) -> dict[str, Any]:
        """The settings of a task.

        Raises:
          UserError: There is no such task.
        """
        if not 0 <= task < len(self):
            raise UserError(f"there is no task {task}, ids go from 0 to {len(self) - 1}")
        return dict(self.tasks[task])

    def values(self) -> dict[str, list[Any]]:
        """Of every key the values that some task has, in the order of the file."""
        names = dict.fromkeys(name for task in self.tasks for name in task)
        return {
            name: list({json.dumps(task[name]): task[name] for task in self.tasks if name in task}.values())
            for name in names
        }

    def with_axis(self, key: str, values: Sequence[Any]) -> Grid:
        """The same for each of `values`, which vary fastest.

        Raises:
          UserError: The grid has that key already.
        """
        if key in self.values():
            raise UserError(f"{key} is in the grid already: give it once")
        return Grid([{**task, key: value} for task in self.tasks for value in values])


def parse_seeds(text: str) -> list[int]:
    """`"0-2,7"` -> `[0, 1, 2, 7]`.

    Raises:
      UserError: It is something else.
    """
    seeds: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,10})(?:-([0-9]{1,10}))?\s*", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not first <= last < 2**31 or len(seeds) + last - first >= _MOST_SEEDS:
            raise UserError(f"--seeds must be numbers and ranges such as 0-4 or 0,3,7-9, found {shown(text)}")
        seeds += range(first, last + 1)
    if len(set(seeds)) < len(seeds):
        raise UserError(f"--seeds {text} has a seed twice: give each once")
    return seeds


def read_grid(path: str) -> Grid:
    """Reads a grid file.

    Raises:
      UserError: It can't be read, or what it says is no grid; with all findings.
    """
    where = f"grid file {path}"
    content = read_json(Path(path), where)
    grid, faults = _product(content) if isinstance(content, dict) else _list(content)
    if faults:
        raise UserError(*(f"{where}: {fault}" for fault in faults))
    return grid


def _product(content: dict[str, Any]) -> tuple[Grid, list[str]]:
    findings = check_keys(content) + [
        f"{key} must be a list of at least one value, found {shown(values)}"
        for key, values in content.items()
        if not (isinstance(values, list) and values)
    ]
    findings += [
        f"{key} must have each value once, found {text} twice: remove one"
        for key, values in content.items()
        if isinstance(values, list)
        for text, count in collections.Counter(map(json.dumps, values)).items()
        if count > 1
    ]
    if not content:
        findings.append("it is empty: give at least one key with a list of values")
    count = 0 if findings else math.prod(map(len, content.values()))
    if count > _MOST_TASKS:
        findings.append(f"it has {count} tasks, at most {_MOST_TASKS} are possible: shorten the lists")
    if findings:
        return Grid(), findings
    return Grid([dict(zip(content, values, strict=True)) for values in itertools.product(*content.values())]), []


def _list(content: Any) -> tuple[Grid, list[str]]:
    if not isinstance(content, list):
        rule = 'must hold an object of lists, such as {"SAC_SEED": [0, 1]}, or a list of objects, found '
        return Grid(), [rule + shown(content)]
    findings = [] if content else ["it is an empty list: give at least one object"]
    findings += [
        f'task {task} must be an object such as {{"SAC_SEED": 0}}, found {shown(entry)}'
        for task, entry in enumerate(content)
        if not isinstance(entry, dict)
    ]
    grid = Grid([entry for entry in content if isinstance(entry, dict)])
    return grid, findings + check_keys(grid.values().keys())


def check_keys(keys: Collection[str]) -> list[str]:
    """Findings about keys that no grid can have; each task checks its settings as those of --set."""
    refused = [f"{key} can't be in a grid, {_NOT_IN_A_GRID[key]}: remove it" for key in keys if key in _NOT_IN_A_GRID]
    return refused + [
        f'"{key}" is no key of a grid: give an attribute of TrainParams, config.KEY or SAC_NAME'
        for key in keys
        if not re.match(r"[^\W\d]\w*(\.[^.]+)*$", key)
    ]


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


# Search spaces.

_NUMBER = Rule("a number", is_number)
_RANGE = {"low": _NUMBER, "high": _NUMBER, "log": TRUE_OR_FALSE}
_EXAMPLE = '{"n_step": [1, 3]}'
Space = Mapping[str, Any]  # Lists of values and objects with `low` and `high`, by the names of settings.


def _log(low: float, high: float) -> dict[str, Any]:
    return {"low": low, "high": high, "log": True}


_N_STEP = {"low": 1, "high": 5}
_CRITIC = {
    "critic_learning_rate": _log(1e-4, 3e-3),
    "batch_size": [128, 256, 512],
    "discount": [0.98, 0.99, 0.995],
}
_RATES = {"actor_learning_rate": _log(1e-4, 3e-3), "alpha_learning_rate": _log(1e-4, 3e-3)}
_ACTOR = {**_CRITIC, **_RATES, "target_update_tau": _log(2e-3, 2e-2)}
_VALUES = {
    **_CRITIC,
    "n_step": _N_STEP,
    "target_update_tau": _log(2e-3, 2e-2),
    "exploration_epsilon": _log(0.01, 0.2),
}
# What the papers vary, around their own values.
SPACES: dict[str, Space] = {
    "sac": {**_ACTOR, "n_step": _N_STEP, "updates_per_env_step": [0.5, 1.0, 2.0]},
    "redq": {**_ACTOR, "num_critics": [5, 10], "updates_per_env_step": [1.0, 5.0]},
    "droq": {**_ACTOR, "critic_dropout": _log(0.001, 0.1), "updates_per_env_step": [1.0, 5.0]},
    "tqc": {**_ACTOR, "tqc.num_dropped_quantiles": {"low": 0, "high": 5}},
    "crossq": {**_CRITIC, **_RATES},
    "xqc": {**_ACTOR, "updates_per_env_step": [1.0, 2.0]},
    "flash_sac": {**_ACTOR, "noise_hold_steps": [1, 8, 16]},
    "dqn": _VALUES,
    "iqn": {**_VALUES, "iqn.huber_kappa": _log(0.005, 1.0)},
    "sac_discrete": {**_ACTOR, "n_step": _N_STEP},
}


def read_space(name: str) -> Space:
    """A shipped space by its algorithm, or that of a file.

    Raises:
      UserError: With all findings.
    """
    if name in SPACES and not Path(name).exists():
        return SPACES[name]
    content: Space = read_json(Path(name), f"--space {name} (a JSON file, or one of {', '.join(SPACES)})", _EXAMPLE)
    findings = check_keys(content.keys()) + [fault for key, values in content.items() for fault in _faults(key, values)]
    if not content:
        findings.append("it is empty: give at least one name with a list or a range")
    if findings:
        raise UserError(*(f"--space {name}: {finding}" for finding in findings))
    return content


def corners(space: Space) -> list[dict[str, Any]]:
    """The settings with every lowest or first value, and those with every highest or last one."""
    ends = (("low", 0), ("high", -1))
    return [{name: v[k] if isinstance(v, list) else v[end] for name, v in space.items()} for end, k in ends]


def _faults(name: str, values: Any) -> list[str]:
    if isinstance(values, list) and len(values) >= 2:
        return []
    if not isinstance(values, dict):
        example = '{"low": 0.001, "high": 0.01, "log": true}'
        return [f"{name} must be a list of at least two values, or such as {example}, found {shown(values)}"]
    if findings := broken_keys(name, values, _RANGE, required=("low", "high")):
        return findings
    if values["low"] >= values["high"]:
        findings.append(f"{name} must have a `low` below its `high`, found {values['low']} and {values['high']}")
    if values.get("log") and values["low"] <= 0:
        findings.append(f"{name} must be above 0 with `log`, found {values['low']}: raise it, or leave `log` out")
    return findings
