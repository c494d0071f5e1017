"""HalfCheetah-v5 in lock-step, for `benchmarks.whole_system`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium

from benchmarks.half_cheetah import environment
from tfagents_system.train_params_base import TrainParamsBase


class TrainParams(TrainParamsBase):
    """Keys of the configuration: `horizon`, `step_ms`, `busy`, `random_episodes`, `matmul_precision`,
    `updates_per_iteration`, `steps_per_iteration` (an update for each; null: an episode of each worker).

    The run is ended from outside, so nothing is evaluated, saved or drawn while it is measured.
    """

    learning_rate = 3e-4
    num_iter = 100_000
    buffer_size = 400_000
    num_eval_episodes = 1
    eval_period_iters = 100_000
    checkpoint_period_iters = 100_000
    log_period_iters = 1

    def __init__(self, env_config: Mapping[str, Any], compute_config: Mapping[str, Any] | None = None) -> None:
        super().__init__(env_config, compute_config)
        self.matmul_precision = env_config["matmul_precision"]
        if env_config["steps_per_iteration"] is None:
            self.num_train_episodes_per_iter = 1
            self.updates_per_iter = int(env_config["updates_per_iteration"])
        else:
            self.updates_per_env_step = 1.0
            self.env_steps_per_iter = int(env_config["steps_per_iteration"])
        self.num_initial_episodes = int(env_config["random_episodes"])

    def env_ctor(self, *args: Any, seed: int | None = None, **kwargs: Any) -> gymnasium.Env:
        del args, seed
        return environment.make(horizon=self.horizon, **kwargs)

    def collect_env_args_kwargs(self, id: int = 0) -> tuple[tuple[Any, ...], dict[str, Any]]:
        del id
        return (), {"step_ms": self.env_config["step_ms"], "busy": self.env_config["busy"]}
