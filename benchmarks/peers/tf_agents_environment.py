"""HalfCheetah-v5 for TF-Agents' own examples, which load MuJoCo's environments of gym 0.23 by `suite_mujoco.load`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gym
import numpy as np
from tf_agents.environments import py_environment, suite_gym

from benchmarks.half_cheetah import environment


class GymHalfCheetah(gym.Env):
    """The Gymnasium environment behind gym's interface, without its time limit: TF-Agents adds its own.

    Args:
      on_return: Takes the return of each episode when the next one begins, or at its last step.
      horizon: Steps of an episode.
      **options: See `environment.make`.
    """

    def __init__(self, on_return: Callable[[float], None], horizon: int, **options: Any) -> None:
        self._env = environment.make(horizon=horizon, **options)
        self._on_return = on_return
        self._return = 0.0
        low, high = self._env.action_space.low, self._env.action_space.high  # type: ignore[attr-defined]
        self.action_space = gym.spaces.Box(low, high, dtype=np.float32)
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, self._env.observation_space.shape, np.float32)

    def reset(self, **kwargs: Any) -> Any:
        self._return = 0.0
        observation, _ = self._env.reset(**kwargs)
        return observation

    def step(self, action: Any) -> tuple[Any, float, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self._env.step(action)
        self._return += float(reward)
        if terminated or truncated:
            self._on_return(self._return)
        return observation, float(reward), terminated, info


def loader(
    on_return: Callable[[float], None], horizon: int, **options: Any
) -> Callable[..., py_environment.PyEnvironment]:
    """A function in place of `suite_mujoco.load`; the time limit keeps the discount, as with it."""

    def load(environment_name: str, *args: Any, **kwargs: Any) -> py_environment.PyEnvironment:
        del environment_name, args, kwargs
        return suite_gym.wrap_env(
            GymHalfCheetah(on_return, horizon, **options),
            max_episode_steps=horizon,
            spec_dtype_map={gym.spaces.Box: np.float32},
        )

    return load
