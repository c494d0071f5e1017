"""A worker that waits hears of the trainer at once, and asks the server rarely; when it waits for updates."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest

from tfagents_system.transport import tables
from tfagents_system.worker import newest_policy
from tfagents_system.worker.newest_policy import BackPressure, ProgressReader


class Connection:
    """News and the newest item, whose reads are counted."""

    def __init__(self):
        self.news_items, self.newest_item, self.looks = [], None, 0

    def news(self, wait_secs):
        return self.news_items.pop(0) if self.news_items else None

    def newest(self):
        self.looks += 1
        return self.newest_item


def reader_of(connection, straggler_secs=120.0):
    news, newest = SimpleNamespace(get=connection.news), SimpleNamespace(get=connection.newest)
    return ProgressReader(news, newest, straggler_secs)


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(newest_policy.time, "monotonic", lambda: now[0])
    return now


def version(iteration):
    return tables.Progress(session=1, iteration=iteration, train_step=0, eval_iteration=-1)


def wait(reader, clock, secs):
    for _ in range(round(secs / 0.2)):
        clock[0] += 0.2
        reader.get(0.2)


@pytest.mark.parametrize(
    "late", [version(4), dataclasses.replace(version(9), session=0)], ids=["older", "earlier trainer"]
)
def test_what_news_have_overtaken_on_the_way_is_passed_over_and_a_trainer_that_goes_back_is_followed(clock, late):
    connection = Connection()
    connection.news_items = [version(5).to_wire()]
    connection.newest_item = late.to_wire()  # Asked for before, over a slow line.
    reader = reader_of(connection)
    assert [reader.get(0.0).iteration for _ in range(2)] == [5, 5] and connection.looks == 1
    back = dataclasses.replace(version(3), session=2)
    connection.news_items = [back.to_wire()]
    assert reader.get(0.0) == back


def test_a_long_wait_costs_ever_fewer_questions(clock):
    connection = Connection()
    connection.newest_item = version(0).to_wire()
    reader = reader_of(connection)
    assert reader.get(0.0) == version(0)
    wait(reader, clock, 60.0)
    assert connection.looks == 5, "at once, then after 2, 4, 8, 16 and 30 s"
    wait(reader, clock, 300.0)
    assert connection.looks == 5 + 10


def test_news_are_taken_without_a_question(clock):
    connection = Connection()
    reader = reader_of(connection)
    assert reader.get(0.0) is None and connection.looks == 1
    connection.news_items.append(version(7).to_wire())
    assert reader.get(0.2) == reader.newest == version(7)
    assert connection.looks == 1


def test_news_that_got_lost_are_found_soon_after_a_start_and_within_half_a_minute_later(clock):
    connection = Connection()
    reader = reader_of(connection)
    reader.get(0.0)
    connection.newest_item = version(1).to_wire()
    wait(reader, clock, 4.2)
    assert reader.newest == version(1)
    wait(reader, clock, 200.0)
    connection.newest_item = version(2).to_wire()
    lost_at = clock[0]
    while reader.newest != version(2):
        wait(reader, clock, 0.2)
        assert clock[0] - lost_at < 30.5
    before = connection.looks
    wait(reader, clock, 2.2)
    assert connection.looks == before + 1, "what was lost once may be lost again"


@pytest.mark.parametrize(("straggler_secs", "most_secs"), [(120.0, 30.0), (40.0, 10.0), (4.0, 1.0)])
def test_news_that_got_lost_are_found_well_before_the_worker_is_left_out(clock, straggler_secs, most_secs):
    connection = Connection()
    reader = reader_of(connection, straggler_secs)
    wait(reader, clock, 200.0)
    connection.newest_item, lost_at = version(2).to_wire(), clock[0]
    while reader.newest != version(2):
        wait(reader, clock, 0.2)
        assert clock[0] - lost_at < most_secs + 0.5


# `min_updates_per_env_step`: when a worker waits, by hand-computed numbers.


def pressure_params(least: float | None, asynchronous: bool = True) -> Any:
    return SimpleNamespace(
        min_updates_per_env_step=least,
        updates_per_env_step=2.0,
        asynchronous=asynchronous,
        env_steps_per_iter=None,
        updates_per_iter=10,
    )


def progress(updates: int, policy_steps: int) -> tables.Progress:
    return tables.Progress(1, updates // 10, updates, -1, paced_updates=updates, paced_steps=policy_steps)


@pytest.mark.parametrize(
    ("updates", "policy_steps", "is_held"),
    [(0, 20, False), (0, 21, True), (10, 40, False), (10, 41, True), (100, 41, False)],
)
def test_a_worker_waits_while_there_are_fewer_updates_than_the_ratio(updates, policy_steps, is_held) -> None:
    pressure = BackPressure(pressure_params(0.5))
    assert pressure.holds(progress(updates, policy_steps), steps=1000) == is_held


def test_steps_since_the_newest_progress_count() -> None:
    pressure = BackPressure(pressure_params(0.5))
    assert [pressure.holds(progress(10, 30), steps) for steps in (500, 510, 511)] == [False, False, True]
    assert not pressure.holds(progress(20, 41), 511), "steps that the trainer has counted do not count twice"


def test_nobody_waits_without_it_in_lock_step_or_before_the_first_word() -> None:
    assert not BackPressure(pressure_params(None)).holds(progress(0, 999), 0)
    assert not BackPressure(pressure_params(0.5, asynchronous=False)).holds(progress(0, 999), 0)
    assert not BackPressure(pressure_params(0.5)).holds(None, 0)


def test_a_trainer_that_waits_for_lost_steps_gets_new_ones() -> None:
    now = [0.0]
    pressure = BackPressure(pressure_params(0.5), clock=lambda: now[0])
    found = []
    for now[0] in (0.0, 599.0, 600.0, 601.0, 1200.0):
        found.append(pressure.holds(progress(0, 999), 0))
    assert found == [True, True, False, True, False]


def test_workers_never_wait_for_updates_that_the_trainer_may_not_do() -> None:
    """As long as the least is at most the most: what holds the workers lets the trainer finish its iteration."""
    settings = pressure_params(2.0)
    pressure = BackPressure(settings)
    for updates in range(0, 100, 10):
        for counted in range(100):
            if pressure.holds(progress(updates, counted), 0):
                assert counted * settings.updates_per_env_step >= updates + settings.updates_per_iter
