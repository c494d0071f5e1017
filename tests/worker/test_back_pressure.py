"""`min_updates_per_env_step`: when a worker waits, by hand-computed numbers."""

from types import SimpleNamespace
from typing import Any

import pytest

from tfagents_system.transport.tables import Progress
from tfagents_system.worker.newest_policy import BackPressure


def params(least: float | None, asynchronous: bool = True) -> Any:
    return SimpleNamespace(
        min_updates_per_env_step=least,
        updates_per_env_step=2.0,
        asynchronous=asynchronous,
        env_steps_per_iter=None,
        updates_per_iter=10,
    )


def progress(updates: int, policy_steps: int) -> Progress:
    return Progress(1, updates // 10, updates, -1, paced_updates=updates, paced_steps=policy_steps)


@pytest.mark.parametrize(
    ("updates", "policy_steps", "is_held"),
    [(0, 20, False), (0, 21, True), (10, 40, False), (10, 41, True), (100, 41, False)],
)
def test_a_worker_waits_while_there_are_fewer_updates_than_the_ratio(updates, policy_steps, is_held) -> None:
    pressure = BackPressure(params(0.5))
    assert pressure.holds(progress(updates, policy_steps), steps=1000) == is_held


def test_steps_since_the_newest_progress_count() -> None:
    pressure = BackPressure(params(0.5))
    assert [pressure.holds(progress(10, 30), steps) for steps in (500, 510, 511)] == [False, False, True]
    assert not pressure.holds(progress(20, 41), 511), "steps that the trainer has counted do not count twice"


def test_nobody_waits_without_it_in_lock_step_or_before_the_first_word() -> None:
    assert not BackPressure(params(None)).holds(progress(0, 999), 0)
    assert not BackPressure(params(0.5, asynchronous=False)).holds(progress(0, 999), 0)
    assert not BackPressure(params(0.5)).holds(None, 0)


def test_a_trainer_that_waits_for_lost_steps_gets_new_ones() -> None:
    now = [0.0]
    pressure = BackPressure(params(0.5), clock=lambda: now[0])
    found = []
    for now[0] in (0.0, 599.0, 600.0, 601.0, 1200.0):
        found.append(pressure.holds(progress(0, 999), 0))
    assert found == [True, True, False, True, False]


def test_workers_never_wait_for_updates_that_the_trainer_may_not_do() -> None:
    """As long as the least is at most the most: what holds the workers lets the trainer finish its iteration."""
    settings = params(2.0)
    pressure = BackPressure(settings)
    for updates in range(0, 100, 10):
        for counted in range(100):
            if pressure.holds(progress(updates, counted), 0):
                assert counted * settings.updates_per_env_step >= updates + settings.updates_per_iter
