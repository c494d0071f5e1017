"""Where in the run schedules are while an iteration's updates go on."""

from __future__ import annotations

import types
from typing import Any

import numpy as np
import pytest

from tfagents_system.run_files.heartbeat import TimeShares
from tfagents_system.trainer.learner import Learner
from tfagents_system.trainer.trainer import Trainer

UPDATES_OF_A_BLOCK = 10


class Counting(Learner):
    """Without an agent; keeps the train steps that schedules were at."""

    train_step = 200

    def __init__(self, asynchronous: bool, state: Any) -> None:
        self.state, self.positions = state, list[int]()
        self.scheduled: Any = types.SimpleNamespace(
            assign=lambda env_steps, train_steps, iteration: self.positions.append(train_steps)
        )
        self._role: Any = types.SimpleNamespace(params=types.SimpleNamespace(asynchronous=asynchronous))

    def update(self, arrays: list[np.ndarray]) -> dict[str, float]:
        self.train_step += len(arrays[0])
        return {}

    def read_policy(self, session: int) -> list[np.ndarray]:
        return []


class Plan:
    """An iteration of three blocks."""

    total, is_offline, done = 3 * UPDATES_OF_A_BLOCK, False, 0

    @property
    def is_complete(self) -> bool:
        return self.done >= self.total

    def take(self, block: Any) -> int:
        self.done += UPDATES_OF_A_BLOCK
        return UPDATES_OF_A_BLOCK


def positions(asynchronous: bool, period: int | None) -> list[int]:
    trainer: Any = Trainer.__new__(Trainer)
    state = trainer._state = types.SimpleNamespace(iteration=2, env_steps=70, iteration_start=200)
    learner, trainer._plan = Counting(asynchronous, state), Plan()
    trainer._learner = learner
    trainer._shares, trainer._session = TimeShares(), 1
    trainer._minibatches = types.SimpleNamespace(request=lambda iteration: None)
    block = types.SimpleNamespace(arrays=[np.zeros(UPDATES_OF_A_BLOCK)], held_out=0)
    trainer._next_block = lambda iteration, first: block
    row = types.SimpleNamespace(begin=lambda *_: None, add_losses=lambda *_: None)
    trainer._log = types.SimpleNamespace(training_row=row, beat=lambda *_: None, tell_callbacks=lambda *_: None)
    trainer._reports = types.SimpleNamespace(take=lambda: None)
    trainer._publish_period = period
    trainer._publisher = types.SimpleNamespace(publish_within=lambda *_: None)
    trainer._progress = trainer._save_if_due = lambda: None
    trainer._do_updates()
    return learner.positions


@pytest.mark.parametrize("period", [None, 5])
def test_where_asynchronous_they_never_go_back(period: int | None) -> None:
    found = positions(True, period)
    assert found == ([200, 210, 220] if period is None else [200, 205, 210, 210, 215, 220, 220])


def test_in_lock_step_all_blocks_have_the_values_of_the_iterations_start() -> None:
    assert positions(False, None) == [200] * 3
