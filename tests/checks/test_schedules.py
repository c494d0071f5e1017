"""Schedules: values computed by hand, and everything that can be wrong with one, told at once."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tfagents_system.checks.rules import broken, integer_from, is_kept, number_in, or_none
from tfagents_system.checks.schedules import Schedule, schedulable
from tfagents_system.errors import UserError
from tfagents_system.settings import values

POINTS = [[0, 1.0], [50_000, 1.0], [300_000, 0.01]]
EPSILON = schedulable(number_in(0, 1))


def at(given: Any, env_steps: int, train_steps: int = 0, iteration: int = 0) -> float:
    return Schedule.of(given).value(env_steps, train_steps, iteration)


def test_a_number_is_the_same_everywhere() -> None:
    assert [at(0.25, steps, steps, steps) for steps in (0, 1, 10**12)] == [0.25] * 3


@pytest.mark.parametrize(
    ("interpolation", "halfway", "late"),
    [
        ("linear", 0.505, 0.01 + 0.99 / 10),  # (1 + 0.01) / 2
        ("exponential", 0.1, 0.01 * 10 ** (2 / 10)),  # sqrt(1 * 0.01); 0.01^(9/10)
        ("step", 1.0, 1.0),
    ],
)
def test_between_points_as_the_interpolation_says(interpolation: str, halfway: float, late: float) -> None:
    given = {"points": POINTS, "interpolation": interpolation}
    assert [at(given, steps) for steps in (0, 25_000, 50_000)] == [1.0] * 3
    assert at(given, 175_000) == pytest.approx(halfway, rel=1e-12)
    assert at(given, 275_000) == pytest.approx(late, rel=1e-12)
    assert [at(given, steps) for steps in (300_000, 10**9)] == [0.01, 0.01], "the last value stays, exactly"


@pytest.mark.parametrize(("by", "value"), [("env_steps", 0.9), ("train_steps", 0.8), ("iterations", 0.3)])
def test_positions_are_counted_in_its_unit(by: str, value: float) -> None:
    assert at({"points": [[0, 1.0], [100, 0.0]], "by": by}, 10, 20, 70) == pytest.approx(value)


def test_linear_and_env_steps_are_meant_where_nothing_is_said() -> None:
    assert Schedule.of({"points": [[0, 1]]}) == Schedule(((0.0, 1.0),), "linear", "env_steps")
    given = Schedule.of({"points": POINTS, "by": "iterations"})
    assert Schedule.of(dataclasses.asdict(given)) == given


def test_everything_wrong_is_told_at_once() -> None:
    given = {
        "points": [[0, 1.0], [100, 2.0], [200, 0.0]],
        "interpolatoin": "linear",
        "interpolation": "exponential",
        "by": "env_step",
        "colour": 3,
    }
    assert broken(EPSILON, "TrainParams.epsilon", given) == [
        "TrainParams.epsilon.interpolatoin is not known: interpolation is meant",
        "TrainParams.epsilon.by must be one of 'env_steps', 'train_steps', 'iterations', found 'env_step': "
        "'env_steps' is meant",
        "TrainParams.epsilon.colour is not known: there are points, interpolation, by",
        "TrainParams.epsilon.points must have values that are a number in [0, 1], found 2.0 at 100",
        'TrainParams.epsilon.interpolation="exponential" needs values above 0, it multiplies by the same factor in '
        'each step: raise them, or set it to "linear"',
    ]


@pytest.mark.parametrize(
    "points", [None, [], [0, 1.0], [[0, 1, 2]], [[-1, 1.0]], [[float("nan"), 1.0]], [[5, 1.0], [5, 0.0]]]
)
def test_points_of_another_form_are_refused(points: Any) -> None:
    (finding,) = broken(EPSILON, "x", {"points": points})
    assert finding.startswith("x.points must be pairs of a position, from 0 on and ascending, and a value")


@pytest.mark.parametrize("value", [[0, "1"], [0, None], [0, 1.5]])
def test_values_obey_the_rule_of_the_number(value: Any) -> None:
    assert "must have values that are a number in [0, 1]" in broken(EPSILON, "x", {"points": [value]})[0]


def test_a_plain_number_is_refused_in_the_words_of_the_rule() -> None:
    assert broken(EPSILON, "x", 2) == ["x must be a number in [0, 1], or a schedule, found 2"]
    assert [is_kept(EPSILON, value) for value in (0, 1.0, True, "0.5", None, [0, 1])] == [True, True] + [False] * 4
    allowed = or_none(schedulable(integer_from(1)))
    assert (
        is_kept(allowed, None)
        and "must have values that are an integer" in broken(allowed, "x", {"points": [[0, 0.5]]})[0]
    )


def test_set_puts_a_schedule_in_the_place_of_a_number_and_changes_its_parts() -> None:
    given = {"points": POINTS, "by": "iterations"}
    assert values.overridden("rate", 1e-3, given) == given
    assert values.overridden("rate", given, {"by": "env_steps"}) == {"points": POINTS, "by": "env_steps"}
    assert values.overridden("rate", given, 0.1) == 0.1 and values.overridden("window", None, given) == given
    assert values.overridden("recurrent", False, {"lstm_units": 8}) == {"lstm_units": 8}, "options switch it on"
    for before, value in ((1e-3, {"by": "env_steps"}), ("text", given)):
        with pytest.raises(UserError, match="is no dictionary but"):
            values.overridden("rate", before, value)
