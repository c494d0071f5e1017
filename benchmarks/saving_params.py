"""A run that trains at full rate on a ring of many steps, for `benchmarks.saving`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np

from tfagents_system.train_params_base import TrainParamsBase


class Sleeping(gymnasium.Env):
    """Steps of `step_ms`, without CPU time."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (28,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (8,), np.float32)

    def __init__(self, step_ms: float) -> None:
        self._step_secs = step_ms / 1000.0
        self._due = 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._due = time.perf_counter()
        return self.np_random.standard_normal(28).astype(np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        # As a clocked device: what the worker computes meanwhile is not lost.
        self._due = max(self._due + self._step_secs, time.perf_counter())
        time.sleep(max(0.0, self._due - time.perf_counter()))
        return self.np_random.standard_normal(28).astype(np.float32), 0.0, False, False, {}


class TrainParams(TrainParamsBase):
    """Networks and batches of the default size.

    Keys: `horizon`, `step_ms`, `episodes` that the ring has room for, `updates` of an iteration.
    """

    num_iter = 100_000
    num_train_episodes_per_iter = 1
    num_eval_episodes = 1
    eval_period_iters = 100_000
    checkpoint_period_iters = 5

    def __init__(self, env_config: Mapping[str, Any], compute_config: Mapping[str, Any] | None = None) -> None:
        super().__init__(env_config, compute_config)
        self.updates_per_iter = int(env_config["updates"])
        self.num_initial_episodes = int(env_config["episodes"])
        self.buffer_size = self.num_initial_episodes * self.horizon

    def env_ctor(self, *args: Any, seed: int | None = None, **kwargs: Any) -> gymnasium.Env:
        return Sleeping(self.env_config["step_ms"])
