"""How many updates the experience asks for."""

import pytest

from tfagents_system.replay.updates_due import updates_due


@pytest.mark.parametrize(
    ("steps", "ratio", "updates"), [(7, 1, 7), (30, 0.1, 3), (29, 0.1, 2), (100, 0.29, 29), (3, 20.0, 60), (0, 1.0, 0)]
)
def test_updates_due_are_those_of_the_decimal_number(steps, ratio, updates):
    assert updates_due(steps, ratio) == updates
