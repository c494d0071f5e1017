"""Periods in iterations and in environment steps, by hand-computed numbers."""

from types import SimpleNamespace
from typing import Any

import pytest

from tfagents_system.trainer.iteration_plan import IterationPlan
from tfagents_system.trainer.state import Period, TrainerState, parts_of


def due(period: Period, ends: list[int]) -> list[int]:
    """Iterations after which it is due, if the run has these numbers of steps at their ends; 0: before the first."""
    state = TrainerState()
    plan = IterationPlan(state, lambda: 0, 100, 1)
    found = [0] if period.is_due(state) else []
    for state.env_steps in ends:
        plan.end()
        found += [state.iteration] if period.is_due(state) else []
    return found


@pytest.mark.parametrize(
    ("period", "found"),
    [
        (Period(3, None), [0, 3, 6]),
        (Period(1, None), [0, 1, 2, 3, 4, 5, 6]),
        (Period(3, 100), [0, 2, 4, 5]),
        (Period(1, 1000), [0]),
    ],
)
def test_it_is_due_whenever_a_multiple_is_reached(period: Period, found: list[int]) -> None:
    assert due(period, [99, 100, 199, 350, 420, 420]) == found


@pytest.mark.parametrize("period", [Period(10, None), Period(10, 10_000)])
def test_it_is_due_before_the_first_iteration_of_an_agent_that_follows_another_one(period: Period) -> None:
    assert period.is_due(TrainerState(env_steps=100_500, end_env_steps=100_500))


def test_kinds_are_read_from_their_attributes() -> None:
    values = {"eval_period_iters": 3, "eval_period_env_steps": None}
    values |= {"checkpoint_period_iters": 1, "checkpoint_period_env_steps": 70}
    params: Any = SimpleNamespace(**values)
    assert Period.of(params, "eval") == (3, None) and Period.of(params, "checkpoint") == (1, 70)


@pytest.mark.parametrize(
    ("train_step", "count", "period", "ends"),
    [
        (0, 100, None, [100]),
        (0, 0, 10, []),
        (0, 100, 40, [40, 80, 100]),
        (130, 100, 40, [30, 70, 100]),
        (100, 3, 1, [1, 2, 3]),
        (50, 50, 100, [50]),
        (10, 50, 1000, [50]),
    ],
)
def test_updates_are_parted_at_the_multiples_of_a_period(
    train_step: int, count: int, period: int | None, ends: list[int]
) -> None:
    parts = list(parts_of(train_step, count, period))
    assert [part.stop for part in parts] == ends
    assert [part.start for part in parts] == [0, *ends][: len(ends)]
