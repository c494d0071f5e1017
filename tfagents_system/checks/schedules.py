"""Numbers that change during a run: by environment steps, train steps or iterations.

    {"points": [[0, 1.0], [50_000, 1.0], [300_000, 0.1]], "interpolation": "exponential", "by": "env_steps"}

A hyperparameter with `Schedulable` in its type takes such a dictionary in the place of a number. It needs nothing but
Python 3.9: processes of users' environments load TrainParams, too.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Union

from tfagents_system.checks.rules import Rule, is_kept, is_number, number_above, number_in
from tfagents_system.checks.spelling import SIMILARITY_OF_KEYS, near_misses
from tfagents_system.errors import shown

INTERPOLATIONS = ("linear", "exponential", "step")
UNITS = ("env_steps", "train_steps", "iterations")


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

    def to_json(self) -> dict[str, Any]:
        """As it can be given again, complete."""
        return {"points": [list(point) for point in self.points], "interpolation": self.interpolation, "by": self.by}


def is_schedule(given: Any) -> bool:
    """Whether an attribute's value is a schedule, right or not, and no number."""
    return isinstance(given, Mapping)


def schedulable(rule: Rule) -> Rule:
    """The rule for a number that satisfies `rule`, or a schedule whose points all do."""
    return Rule(
        f"{rule.words}, or a schedule",
        lambda value: not schedule_findings("", value, rule) if is_schedule(value) else rule.holds(value),
        lambda where, value: schedule_findings(where, value, rule) if is_schedule(value) else [],
    )


def initial_value(given: float | Mapping[str, Any]) -> float:
    """The number that an attribute is, or that its schedule begins with."""
    return Schedule.of(given).values[0]


Schedulable = Union[float, Mapping[str, Any]]  # noqa: UP007  (Python 3.9)
"""A number, or the dictionary of a `Schedule`. `Schedule.of` reads both."""
SchedulableFraction = Annotated[Schedulable, schedulable(number_in(0, 1))]
SchedulablePositive = Annotated[Schedulable, schedulable(number_above(0))]


def schedule_findings(where: str, given: Mapping[str, Any], rule: Rule) -> list[str]:
    """What is wrong with a schedule, one sentence each.

    Args:
      where: The attribute's name.
      given: Its value.
      rule: What each value must be.
    """
    known = [field.name for field in dataclasses.fields(Schedule)]
    meant = dict(near_misses((key for key in given if isinstance(key, str)), known, SIMILARITY_OF_KEYS))
    findings = [
        f"{where}[{shown(key)}] is not known: "
        + (f'"{meant[key]}" is meant' if key in meant else f"a schedule has {', '.join(known)}")
        for key in given
        if key not in known
    ]
    for key, words in (("interpolation", INTERPOLATIONS), ("by", UNITS)):
        if key in given and given[key] not in words:
            findings.append(
                f'{where}["{key}"] must be {_one_of(words)}, found {shown(given[key])}{_near(given[key], words)}'
            )
    if "points" in given:
        return findings + _point_findings(where, given["points"], given.get("interpolation"), rule)
    if "points" not in meant.values():
        findings.append(f'{where} has no "points": add them, as in {{"points": [[0, 1.0], [50000, 0.1]]}}')
    return findings


def _point_findings(where: str, points: Any, interpolation: Any, rule: Rule) -> list[str]:
    if not (_is_list(points) and points and all(map(_is_point, points))):
        return [
            f'{where}["points"] must be pairs of a position of at least 0 and a value, such as '
            f"[[0, 1.0], [50000, 0.1]], found {shown(points)}"
        ]
    findings = [
        f'{where}["points"] must have ascending positions, found {earlier[0]:g} before {later[0]:g}: sort them'
        for earlier, later in zip(points[:-1], points[1:])  # noqa: B905  (Python 3.9)
        if earlier[0] >= later[0]
    ]
    findings += [
        f'{where}["points"] must have values that are {rule.words}, found {shown(value)} at {position:g}'
        for position, value in points
        if not is_kept(rule, value)
    ]
    if interpolation == "exponential" and any(value <= 0 for _, value in points if is_number(value)):
        findings.append(
            f'{where}["interpolation"]="exponential" needs values above 0, it multiplies by the same factor in each '
            'step: raise them, or set it to "linear"'
        )
    return findings


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def _is_point(point: Any) -> bool:
    return _is_list(point) and len(point) == 2 and is_number(point[0]) and point[0] >= 0


def _one_of(words: Sequence[str]) -> str:
    return " or ".join(f'"{word}"' for word in words)


def _near(value: Any, words: Sequence[str]) -> str:
    meant = near_misses([value], words, SIMILARITY_OF_KEYS) if isinstance(value, str) else []
    return f': "{meant[0][1]}" is meant' if meant else ""
