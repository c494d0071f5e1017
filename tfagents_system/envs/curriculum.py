"""The curriculum: environment parameters whose values depend on the iteration.

    "curriculum": {"mass": {"iters": [0, 20000, 30000], "range": [0.0, 10.0], "apply_to_eval": false}}

`values = np.linspace(min, max, len(iters))`; each is due in the first iteration that reaches its entry in `iters`.
workers.py calls `set_state({name: value})` of a worker's environment before its first episode from then on.
"""

from __future__ import annotations

import bisect
import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from tfagents_system.checks.rules import (
    TRUE_OR_FALSE,
    Rule,
    broken,
    broken_keys,
    integer_from,
    is_kept,
    is_number,
    near_misses,
)
from tfagents_system.errors import UserError, shown

APPLY_TO_EVAL = "apply_to_eval"
_ITERATION = integer_from(0)
_GUIDE = "docs/how_to/iterations.md"

Values = dict[str, int | float]  # by parameter


@dataclasses.dataclass(frozen=True)
class _Parameter:
    iters: list[int]
    values: list[int | float]
    apply_to_eval: bool


class Curriculum:
    """The values of parameters in each iteration. Build it with `from_config`.

    Attributes:
      iteration: The one that is collected; -1 before the first.
      names: The varied parameters.
    """

    def __init__(self, parameters: Mapping[str, _Parameter]) -> None:
        self._parameters = parameters
        self.names = list(parameters)
        self.iteration = -1

    @classmethod
    def from_config(cls, env_config: Mapping[str, Any]) -> Curriculum:
        """Reads the key `curriculum` of the configuration; without it there are no parameters.

        Raises:
          UserError: See `check_curriculum`.
        """
        findings = check_curriculum(env_config)
        if findings:
            raise UserError(*findings)
        section = dict(env_config.get("curriculum") or {})
        default = section.pop(APPLY_TO_EVAL, False)
        return cls(
            {
                name: _Parameter(list(entry["iters"]), _values(entry), entry.get(APPLY_TO_EVAL, default))
                for name, entry in section.items()
            }
        )

    @property
    def values(self) -> Values:
        """Those of the iteration that is collected; parameters whose first value is not due yet are left out."""
        return self.values_at(self.iteration, is_eval=False)

    def apply_to_eval(self, name: str) -> bool:
        """Whether the parameter is also set in the evaluation environment."""
        return self._parameters[name].apply_to_eval

    def values_at(self, iteration: int, *, is_eval: bool) -> Values:
        """Latest due values up to an iteration; `is_eval`: only of the parameters that evaluations have."""
        counts = {name: bisect.bisect_right(p.iters, iteration) for name, p in self._parameters.items()}
        return {
            name: p.values[counts[name] - 1]
            for name, p in self._parameters.items()
            if counts[name] and (p.apply_to_eval or not is_eval)
        }

    def after(self, iterations: int) -> dict[str, list[int]]:
        """By parameter, the entries of `iters` that a run of so many iterations never reaches; without empty ones."""
        late = {name: [entry for entry in p.iters if entry >= iterations] for name, p in self._parameters.items()}
        return {name: entries for name, entries in late.items() if entries}

    def end_values(self) -> list[tuple[str, int | float]]:
        """Each parameter's name with its first and with its last value, whenever they are due."""
        ends = [(name, value) for name, p in self._parameters.items() for value in (p.values[0], p.values[-1])]
        return list(dict.fromkeys(ends))


class EvaluatedTask:
    """The task on which policies are evaluated and played: a policy's iteration decides its stage.

    Args:
      env_config: Contains the curriculum.
      num_iter: Iterations of the run.
    """

    def __init__(self, env_config: Mapping[str, Any], num_iter: int) -> None:
        self._curriculum = Curriculum.from_config(env_config)
        self._last_iteration = num_iter - 1  # Nothing becomes due after it.

    def stage(self, iteration: int) -> Values:
        """The curriculum's values in evaluations of a policy trained for `iteration` iterations."""
        return self._curriculum.values_at(min(iteration, self._last_iteration), is_eval=True)

    def is_last_stage(self, iteration: int) -> bool:
        """Whether nothing more becomes due in evaluations."""
        return self.stage(iteration) == self.stage(self._last_iteration)

    def in_words(self, iteration: int) -> str:
        """`iteration 120: wind=0.3 (only in training: mass=2)`; empty without a curriculum."""
        if not self._curriculum.names:
            return ""
        stage = self.stage(iteration)
        values = self._curriculum.values_at(min(iteration, self._last_iteration), is_eval=False)
        only_trained = {name: value for name, value in values.items() if name not in stage}
        more = f" (only in training: {values_in_words(only_trained)})" if only_trained else ""
        return f"iteration {iteration}: {values_in_words(stage) or 'nothing set'}{more}"


def values_in_words(values: Mapping[str, float]) -> str:
    """`wind=0.3, mass=2`."""
    return ", ".join(f"{name}={value:g}" for name, value in values.items())


def _are_iterations(value: Any) -> bool:
    # Of several values in the same iteration the last one counts.
    ascend = all(earlier <= later for earlier, later in zip(value, value[1:], strict=False))
    return isinstance(value, list) and bool(value) and ascend and all(is_kept(_ITERATION, entry) for entry in value)


def _are_bounds(value: Any) -> bool:
    low, high = value
    return is_number(low) and is_number(high) and math.isfinite(float(high) - float(low))


_KEYS = {
    "iters": Rule("a list of iterations such as [0, 100, 200], integers from 0 that increase", _are_iterations),
    "range": Rule("two numbers [first value, last value] such as [1.0, 2.0]", _are_bounds),
    APPLY_TO_EVAL: TRUE_OR_FALSE,
}


def check_curriculum(env_config: Mapping[str, Any]) -> list[str]:
    """Mistakes in the key `curriculum`: one finding each. A parameter may have further keys, such as a comment."""
    if "curriculum" not in env_config:
        return []
    section = env_config["curriculum"]
    if not isinstance(section, dict):
        return [f'"curriculum" must be an object of parameters, found {shown(section)}: remove it, or see {_GUIDE}']
    names = [name for name in section if name != APPLY_TO_EVAL]
    findings = broken(TRUE_OR_FALSE, f"curriculum.{APPLY_TO_EVAL}", section.get(APPLY_TO_EVAL, False))
    if not names:
        findings.append(
            '"curriculum" is empty: name a parameter such as {"mass": {"iters": [0, 100], "range": [1, 2]}}'
        )
    for name in names:
        where, entry = f"curriculum.{name}", section[name]
        if isinstance(entry, dict):
            lists = {key for key in entry if isinstance(entry[key], list) and "range" not in entry}  # One is meant.
            known = lists | _KEYS.keys() | {wrong for wrong, _ in near_misses(entry, _KEYS, 0.75)}
            meant = {key: value for key, value in entry.items() if key in known}
            findings += broken_keys(where, meant, _KEYS, required=("iters", "range"))
        else:
            findings.append(f'{where} must be an object with "iters" and "range", found {shown(entry)}')
    return findings


def _values(entry: Mapping[str, Any]) -> list[int | float]:
    low, high = entry["range"]
    values = [float(value) for value in np.linspace(low, high, len(entry["iters"]))]
    if isinstance(low, int) and isinstance(high, int) and all(value.is_integer() for value in values):
        return [int(value) for value in values]
    return list(values)
