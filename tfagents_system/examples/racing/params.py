"""A car learns to race from 19 rays to the edge of the road, on tracks that it has not seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from tfagents_system.examples.racing.driver import Expert
from tfagents_system.examples.racing.environment import RacingEnvironment, RacingSettings
from tfagents_system.examples.racing.track import HELD_OUT
from tfagents_system.examples.racing.trajectory_reward import with_trajectory_reward
from tfagents_system.train_params_base import EnvArgsKwargs, TrainParamsBase


class TrainParams(TrainParamsBase):
    """400 iterations of 1000 steps, 5.5 hours of the car's own time, with an update for every fourth step."""

    learning_rate: Any = 3e-4  # Or a schedule.
    discount = 0.99
    updates_per_env_step = 0.25
    normalize_observations = True

    num_iter = 400
    env_steps_per_iter = 1000
    num_initial_episodes = 5
    buffer_size = 400_000

    keep_best_episodes = 5

    num_eval_episodes = 5
    eval_period_iters = 10
    checkpoint_period_iters = 10

    _environments: tuple[RacingEnvironment, ...] = ()

    def env_ctor(
        self, *args: Any, seed: int | None = None, render_mode: str | None = None, **kwargs: Any
    ) -> gymnasium.Env:
        del seed  # TrainingEnvironment passes it to reset(), as Gymnasium requires.
        racing = RacingSettings.of(self.env_config)
        env = RacingEnvironment(racing, *args, **{**kwargs, "render_mode": render_mode})
        self._environments += (env,)
        return with_trajectory_reward(env, self.env_config)

    def eval_env_args_kwargs(self, id: int = 0, collect_env: Any = None) -> EnvArgsKwargs:
        del id, collect_env
        return (), {"split": HELD_OUT}

    def expert_policy_ctor(self) -> Callable[[Any], np.ndarray] | None:
        return Expert(lambda: self._environments)
