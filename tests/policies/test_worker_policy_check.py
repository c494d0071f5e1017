"""A worker compares its policy with the network once more, with the first weights that were trained."""

from __future__ import annotations

import types
from typing import Any

import pytest

from tfagents_system.worker.newest_policy import NewestPolicy


class Policy:
    """Notes what it is given.

    Args:
      other: What `checked` returns; None: itself.
    """

    def __init__(self, calls: list[tuple[str, int]], other: Policy | None = None) -> None:
        self.calls, self.other = calls, other

    def assign(self, weights: dict[str, int]) -> None:
        self.calls.append(("assign", weights["w"]))

    def checked(self, weights: dict[str, int]) -> Policy:
        self.calls.append(("check", weights["w"]))
        return self.other or self


@pytest.mark.parametrize("is_right", [True, False])
def test_once_with_the_first_trained_weights_whether_to_collect_or_to_evaluate(is_right: bool) -> None:
    calls: list[tuple[str, int]] = []
    slower = Policy([])
    policy = Policy(calls, None if is_right else slower)
    connection: Any = types.SimpleNamespace(newest=lambda table: None)
    newest: Any = NewestPolicy(connection, policy)  # type: ignore[arg-type]
    for weights, train_step in ((1, 0), (2, 0), (3, 100), (4, 100), (5, 200)):
        newest.assign({"w": weights}, train_step)
    assert calls[:4] == [("assign", 1), ("assign", 2), ("assign", 3), ("check", 3)]
    assert newest.policy is (policy if is_right else slower)
    assert (calls if is_right else slower.calls)[-2:] == [("assign", 4), ("assign", 5)]
