"""PyBullet's Minitaur learns to walk: the settings of TF-Agents' SAC tutorial, and a curriculum of its body."""

from __future__ import annotations

from typing import Any

from tfagents_system.examples.minitaur.environment import MinitaurEnvironment
from tfagents_system.train_params_base import TrainParamsBase


class TrainParams(TrainParamsBase):
    """1,000,000 updates. An iteration has 1000, and each worker simulates an episode of 1000 steps meanwhile."""

    learning_rate = 3e-4

    num_iter = 1000
    updates_per_iter = 1000
    num_initial_episodes = 10

    num_eval_episodes = 20
    eval_period_iters = 10
    checkpoint_period_iters = 10

    def env_ctor(self, *args: Any, seed: int | None = None, **kwargs: Any) -> MinitaurEnvironment:
        return MinitaurEnvironment(*args, **kwargs | {"seed": seed})
