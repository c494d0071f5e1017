"""A worker that waits hears of the trainer at once, and asks the server rarely."""

import dataclasses
from types import SimpleNamespace

import pytest

from tfagents_system.transport import tables
from tfagents_system.worker import newest_policy
from tfagents_system.worker.newest_policy import ProgressReader


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


def test_what_news_have_overtaken_on_the_way_is_passed_over_and_a_trainer_that_goes_back_is_followed(clock):
    connection = Connection()
    connection.news_items = [version(5).to_wire()]
    connection.newest_item = version(4).to_wire()  # Asked for before, over a slow line.
    reader = reader_of(connection)
    assert [reader.get(0.0).iteration for _ in range(2)] == [5, 5] and connection.looks == 1
    back = dataclasses.replace(version(3), session=2)
    connection.news_items = [back.to_wire()]
    assert reader.get(0.0) == back


def test_a_late_answer_of_before_a_restart_of_the_trainer_is_passed_over(clock):
    connection = Connection()
    restarted = dataclasses.replace(version(5), session=2)
    connection.news_items = [restarted.to_wire()]
    connection.newest_item = version(9).to_wire()  # Of session 1; asked for before the restart.
    reader = reader_of(connection)
    assert [reader.get(0.0) for _ in range(2)] == [restarted, restarted] and connection.looks == 1


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
