"""Pendulum-v1 of Gymnasium: swing up and balance. Solved within 10,000 environment steps."""

from __future__ import annotations

from typing import Any

import gymnasium

from tfagents_system.train_params_base import TrainParamsBase


class TrainParams(TrainParamsBase):
    """24 iterations of 400 steps (2 workers, an episode of 200 steps each), one update for each of them."""

    num_iter = 24
    updates_per_iter = 400
    num_train_episodes_per_iter = 1
    num_initial_episodes = 2
    buffer_size = 20_000

    num_eval_episodes = 10
    eval_period_iters = 4
    checkpoint_period_iters = 12

    def env_ctor(self, *args: Any, seed: int | None = None, **kwargs: Any) -> gymnasium.Env:
        # TrainingEnvironment passes the seed to reset(), as Gymnasium requires.
        del seed
        return gymnasium.make("Pendulum-v1", *args, **kwargs)
