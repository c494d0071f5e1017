"""Shares of a role's time: each second counts once, and what is counted is at most the whole."""

import pytest

from tfagents_system.run_files.time_shares import TimeShares


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def test_counting_begins_at_once_where_nothing_comes_first():
    clock = Clock()
    shares = TimeShares(after_first=None, clock=clock)
    with shares.spend("collecting"):
        clock.now = 6.0
    clock.now = 8.0
    assert shares.shares() == {"collecting": pytest.approx(0.75)} and shares.counted_secs == 8.0


def test_seconds_that_are_taken_out_count_for_another_activity_only():
    clock = Clock()
    shares = TimeShares(after_first=None, clock=clock)
    with shares.spend("collecting"):
        clock.now = 8.0
        shares.take_out("simulator", 5.0)
        shares.take_out("policy", 1.0)
        assert shares.shares() == pytest.approx({"simulator": 0.625, "policy": 0.125, "collecting": 0.25})
    with shares.spend("evaluating"):
        clock.now = 16.0
    assert shares.shares() == pytest.approx(
        {"simulator": 0.3125, "policy": 0.0625, "collecting": 0.125, "evaluating": 0.5}
    )
    assert sum(shares.shares().values()) == pytest.approx(1.0)


def test_a_block_under_way_counts_so_far():
    clock = Clock()
    shares = TimeShares(after_first=None, clock=clock)
    with shares.spend("waiting"), shares.spend("of no account inside"):
        clock.now = 3.0
        assert shares.shares() == {"waiting": pytest.approx(1.0)}


def test_time_before_counting_begins_is_not_taken_out_either():
    clock = Clock()
    shares = TimeShares(after_first="updates", clock=clock)
    with shares.spend("updates"):
        clock.now = 4.0
        shares.take_out("logging", 1.0)
    assert shares.shares() == {}
    with shares.spend("updates"):
        clock.now = 8.0
    assert shares.shares() == {"updates": pytest.approx(1.0)}
