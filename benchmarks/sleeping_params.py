"""An environment that sleeps instead of computing, as a robot or a simulator on another machine, for many workers."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np

from tfagents_system.train_params_base import TrainParamsBase


class Sleeping(gymnasium.Env):
    """Steps of `step_ms`, without CPU time; where `lengths` are given, an episode ends after a number between them."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (28,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (8,), np.float32)

    def __init__(self, step_ms: float, lengths: Sequence[int] | None = None) -> None:
        self._step_secs = step_ms / 1000.0
        self._lengths = lengths
        self._due = 0.0
        self._left = math.inf

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._due = time.perf_counter()
        if self._lengths is not None:
            self._left = int(self.np_random.integers(self._lengths[0], self._lengths[1], endpoint=True))
        return self.np_random.standard_normal(28).astype(np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._due += self._step_secs  # As a clocked device: what the worker computes meanwhile is not lost.
        now = time.perf_counter()
        if self._due > now:
            time.sleep(self._due - now)
        else:
            self._due = now
        self._left -= 1
        return self.np_random.standard_normal(28).astype(np.float32), 0.0, self._left <= 0, False, {}


class TrainParams(TrainParamsBase):
    """Few updates, so that the workers are what is measured.

    Keys: `horizon`, `step_ms`; optional are `lengths` (shortest and longest episode) and `attributes` of TrainParams.
    """

    num_iter = 100_000
    num_steps_per_iter = 10
    n_train_episodes_per_iter = 1
    n_buffer_init_episodes = 1
    buffer_size = 1_000_000
    n_eval_episodes = 1
    eval_period_itrs = 100_000
    checkpoint_period_itrs = 100_000

    def __init__(self, env_config: Mapping[str, Any], compute_config: Mapping[str, Any] | None = None) -> None:
        super().__init__(env_config, compute_config)
        for name, value in env_config.get("attributes", {}).items():
            setattr(self, name, value)

    def env_ctor(self, *args: Any, seed: int | None = None, **kwargs: Any) -> gymnasium.Env:
        return Sleeping(self.env_config["step_ms"], self.env_config.get("lengths"))
