"""HalfCheetah-v5 of Gymnasium (MuJoCo), with the hyperparameters of the SAC paper, which are the defaults."""

from __future__ import annotations

from typing import Any

import gymnasium

from tfagents_system.train_params_base import TrainParamsBase


class TrainParams(TrainParamsBase):
    """1,000,000 environment steps and one update for each of them.

    An iteration is an episode of 1000 steps in each of 2 workers. With another SAC_NUM_COLLECT_WORKERS=N,
    updates_per_iter = N * 1000 and num_iter = 1000 / N keep these numbers.
    """

    learning_rate = 3e-4

    num_iter = 500
    updates_per_iter = 2000
    num_train_episodes_per_iter = 1
    num_initial_episodes = 10

    num_eval_episodes = 10
    eval_period_iters = 10
    checkpoint_period_iters = 10

    def env_ctor(self, *args: Any, seed: int | None = None, **kwargs: Any) -> gymnasium.Env:
        # TrainingEnvironment passes the seed to reset(), as Gymnasium requires.
        del seed
        return gymnasium.make("HalfCheetah-v5", *args, **kwargs)
