"""Any Gymnasium environment, trained in a given precision, for the learning curves."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import gymnasium

from tfagents_system.agents import matmul_precision
from tfagents_system.train_params_base import TrainParamsBase


class TrainParams(TrainParamsBase):
    """Keys of the configuration: `environment`, `learning_rate`, `iterations`, `updates_per_iteration`, `precision`.

    `bfloat16` is used on every CPU, also where it is the slower one: what counts is what is learned, not how fast.
    """

    n_train_episodes_per_iter = 1
    n_buffer_init_episodes = 2
    n_episodes_in_buffer = 200
    n_eval_episodes = 10
    checkpoint_period_itrs = 1_000_000

    def __init__(self, env_config: Mapping[str, Any], compute_config: Mapping[str, Any] | None = None) -> None:
        super().__init__(env_config, compute_config)
        rate = float(env_config["learning_rate"])
        self.actor_learning_rate = self.critic_learning_rate = self.alpha_learning_rate = rate
        self.num_iter = int(env_config["iterations"])
        self.num_steps_per_iter = int(env_config["updates_per_iteration"])
        self.eval_period_itrs = max(1, self.num_iter // 8)
        self.matmul_precision = env_config["precision"]
        if self.matmul_precision == "bfloat16":
            matmul_precision.bfloat16_speedup = lambda: math.inf

    def env_ctor(self, *args: Any, seed: int | None = None, **kwargs: Any) -> gymnasium.Env:
        del seed
        return gymnasium.make(self.env_config["environment"], *args, **kwargs)
