"""Which episodes of an evaluation are whose."""

import types

import pytest

from tfagents_system.machine.claims import SlotCounts
from tfagents_system.worker.worker import EvalWorker

SLOTS = SlotCounts(local=2, planned=2, most=8, evaluators=3)  # 2, 3 and 4; those behind them have joined.


def episodes_of(worker_id: int, num_episodes: int) -> list[int]:
    worker = EvalWorker.__new__(EvalWorker)
    worker._id = worker_id
    worker._params = types.SimpleNamespace(num_eval_episodes=num_episodes)  # type: ignore[assignment]
    worker._role = types.SimpleNamespace(slots=SLOTS)  # type: ignore[assignment]
    return list(worker._eval_episodes())


@pytest.mark.parametrize(
    ("num_episodes", "episodes"),
    [
        (1, [[0], [], [], [1]]),
        (2, [[0], [1], [], [2]]),
        (3, [[0], [1], [2], [3]]),
        (7, [[0, 3, 6], [1, 4], [2, 5], [7, 8, 9]]),
    ],
)
def test_the_runs_own_have_their_share_alone_and_one_that_joins_the_largest(
    num_episodes: int, episodes: list[list[int]]
) -> None:
    assert [episodes_of(worker_id, num_episodes) for worker_id in range(2, 6)] == episodes
