"""Rules of values, and what is said of values that break them."""

from __future__ import annotations

from typing import Any

import pytest

from tfagents_system.checks.rules import broken, numbers_such_as, or_none, shares_such_as

REWARDS = or_none(numbers_such_as({"step": 0, "terminated": 1}))


@pytest.mark.parametrize(
    ("value", "meant"),
    [
        ({"steps": 0}, ', "step" is meant by "steps"'),
        ({"step": 0, "termnated": 1}, ', "terminated" is meant by "termnated"'),
        ({"step": 0}, ""),
        ({"step": 0, "x": 1, 5: 2}, ""),
        ("steps", ""),
    ],
)
def test_a_misspelt_key_is_told_with_the_one_that_is_meant(value: Any, meant: str) -> None:
    (finding,) = broken(REWARDS, "prior_rewards", value)
    rule = 'prior_rewards must be a number, or numbers such as {"step": 0, "terminated": 1}, or None'
    assert finding == f"{rule}, found {value!r}{meant}"


def test_so_it_is_with_parts_of_an_agent() -> None:
    (finding,) = broken(shares_such_as('{"actor": 0.5}'), "x", {"critic": 0.5})
    assert finding.endswith(''', found {'critic': 0.5}, "critics" is meant by "critic"''')
