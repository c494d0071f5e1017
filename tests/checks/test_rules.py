"""Rules of values, and what is said of values that break them."""

from __future__ import annotations

from tfagents_system.checks.rules import broken, shares_such_as


def test_a_misspelt_part_of_an_agent_is_told_with_the_one_that_is_meant() -> None:
    (finding,) = broken(shares_such_as('{"actor": 0.5}'), "x", {"critic": 0.5})
    assert finding.endswith(''', found {'critic': 0.5}, "critics" is meant by "critic"''')
