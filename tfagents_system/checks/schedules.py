"""Numbers that change during a run: by environment steps, train steps or iterations.

    {"points": [[0, 1.0], [50_000, 1.0], [300_000, 0.1]], "interpolation": "exponential", "by": "env_steps"}

A hyperparameter with `Schedulable` in its type takes such a dictionary in the place of a number. It needs nothing but
Python 3.9: processes of users' environments load TrainParams, too.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, Union

from tfagents_system.checks import rules
from tfagents_system.checks.rules import REQUIRED, Option, Rule, is_kept, is_number, number_above, number_in, one_of
from tfagents_system.errors import shown


@dataclasses.dataclass(frozen=True)
class Schedule:
    """A number as a function of the position in the run.

    Attributes:
      points: (position, value), positions in ascending order. Before the first point the value is the first one, behind
        the last point the last one.
      interpolation: Between two points (p, v) and (q, w), at the fraction f = (position - p) / (q - p):
        `linear` is v + f (w - v), `exponential` is v (w / v)^f, `step` is v until q.
      by: The unit of positions: `env_steps` of the whole run, random ones included, `train_steps`, or `iterations`.
    """

    points: tuple[tuple[float, float], ...]
    interpolation: str = "linear"
    by: str = "env_steps"

    @classmethod
    def of(cls, given: float | Mapping[str, Any]) -> Schedule:
        """That of an attribute whose value is right; a number alone is the same everywhere."""
        if not isinstance(given, Mapping):
            return cls(((0.0, float(given)),))
        points = tuple((float(position), float(value)) for position, value in given["points"])
        return cls(points, **{key: given[key] for key in ("interpolation", "by") if key in given})

    def value(self, env_steps: int, train_steps: int, iteration: int) -> float:
        """The value at a position in the run.

        Args:
          env_steps: Environment steps of the run so far, random ones included.
          train_steps: Updates so far.
          iteration: Iterations so far.
        """
        here = {"env_steps": env_steps, "train_steps": train_steps, "iterations": iteration}[self.by]
        behind = bisect.bisect_right([position for position, _ in self.points], here)
        before, after = self.points[max(behind - 1, 0)], self.points[min(behind, len(self.points) - 1)]
        if before[0] >= after[0] or behind == 0 or self.interpolation == "step":
            return before[1]
        fraction = (here - before[0]) / (after[0] - before[0])
        if self.interpolation == "exponential":
            return before[1] * (after[1] / before[1]) ** fraction
        return before[1] + fraction * (after[1] - before[1])

    @property
    def values(self) -> tuple[float, ...]:
        """Those of the points; all others are between them."""
        return tuple(value for _, value in self.points)


def is_schedule(given: Any) -> bool:
    """Whether an attribute's value is a schedule, right or not, and no number."""
    return isinstance(given, Mapping)


def schedulable(rule: Rule) -> Rule:
    """The rule for a number that satisfies `rule`, or a schedule whose points all do."""
    return Rule(
        f"{rule.words}, or a schedule",
        lambda value: not _findings("", value, rule) if is_schedule(value) else rule.holds(value),
        lambda where, value: _findings(where, value, rule) if is_schedule(value) else [],
    )


def initial_value(given: float | Mapping[str, Any]) -> float:
    """The number that an attribute is, or that its schedule begins with."""
    return Schedule.of(given).values[0]


Schedulable = Union[float, Mapping[str, Any]]  # noqa: UP007  (Python 3.9)
"""A number, or the dictionary of a `Schedule`. `Schedule.of` reads both."""
SchedulableFraction = Annotated[Schedulable, schedulable(number_in(0, 1))]
SchedulablePositive = Annotated[Schedulable, schedulable(number_above(0))]


def _are_points(value: Any) -> bool:
    points = [(position, number) for position, number in value]
    positions = [position for position, _ in points]
    ascend = all(earlier < later for earlier, later in zip(positions[:-1], positions[1:]))  # noqa: B905  (Python 3.9)
    return bool(points) and all(map(is_number, positions)) and positions[0] >= 0 and ascend


_POINTS = Rule(
    "pairs of a position, from 0 on and ascending, and a value, such as [[0, 1.0], [50000, 0.1]]", _are_points
)
_SCHEDULE = rules.options(
    points=Option(REQUIRED, _POINTS),
    interpolation=Option("linear", one_of(("linear", "exponential", "step"))),
    by=Option("env_steps", one_of(("env_steps", "train_steps", "iterations"))),
)


def _findings(where: str, schedule: Mapping[str, Any], rule: Rule) -> list[str]:
    """What is wrong with a schedule, whose values must satisfy `rule`, one sentence each."""
    assert _SCHEDULE.details is not None
    findings = _SCHEDULE.details(where, schedule)
    if not is_kept(_POINTS, schedule.get("points")):
        return findings
    findings += [
        f"{where}.points must have values that are {rule.words}, found {shown(value)} at {position:g}"
        for position, value in schedule["points"]
        if not is_kept(rule, value)
    ]
    if schedule.get("interpolation") == "exponential" and any(is_number(v) and v <= 0 for _, v in schedule["points"]):
        findings.append(
            f'{where}.interpolation="exponential" needs values above 0, it multiplies by the same factor in each '
            'step: raise them, or set it to "linear"'
        )
    return findings
