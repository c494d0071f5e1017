"""Environments of any library behind the interface of `Backend`; PyEnvironments of TF-Agents are driven here."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from tf_agents.environments import gym_wrapper, py_environment, tf_environment, wrappers
from tf_agents.trajectories import time_step as ts

from tfagents_system.envs import gym_driver
from tfagents_system.envs.gym_driver import TRUNCATED, Backend, GymBackend, StepResult, gym_layers, space_nest
from tfagents_system.envs.specs import spaces_of_array_specs
from tfagents_system.envs.vector_driver import LanesStep, VectorBackend
from tfagents_system.errors import UserError

_FIRST, _LAST = int(ts.StepType.FIRST), int(ts.StepType.LAST)
_NOTHING: dict[str, Any] = {}


def make_backend(env: Any, seed: int | None) -> Backend:
    """Wraps what `env_ctor` returned.

    Args:
      env: A PyEnvironment, a gym or Gymnasium environment, a vector environment, an object with the methods of one of
        these, or a Backend, which is its own.
      seed: Seeds the environment once, before its first episode; None leaves it as it is.

    Raises:
      UserError: It is none of these, or SAC can't use its spaces.
    """
    if isinstance(env, Backend):
        if seed is not None:
            env.reseed(seed)
        return env
    if isinstance(env, tf_environment.TFEnvironment):
        raise UserError(f"env_ctor returned the TFEnvironment {env!r}: return the PyEnvironment inside it")
    if isinstance(env, py_environment.PyEnvironment):
        return PyLanesBackend(env, seed) if env.batched else PyBackend(env, seed)
    return VectorBackend(env, seed) if gym_driver.is_vector_env(env) else GymBackend(env, seed)


class PyBackend(Backend):
    """A TF-Agents PyEnvironment; wrappers of gym environments report the time limit in their info."""

    def __init__(self, env: py_environment.PyEnvironment, seed: int | None) -> None:
        self.user_env = env
        self.observation_spaces = spaces_of_array_specs(env.observation_spec())
        self.action_spaces = _action_spaces(env)
        self._discount = 1.0
        if seed is not None:
            self.reseed(seed)

    def reseed(self, seed: int) -> None:
        # Without a method for it, it got its seed from `env_ctor`, or needs none.
        with contextlib.suppress(NotImplementedError, AttributeError):
            self.user_env.seed(seed)
        for layer in self.layers():
            gym_driver.seed_action_space(layer, seed)

    def reset(self) -> Any:
        self._discount = 1.0
        return self.user_env.reset().observation

    def step(self, action: Any) -> StepResult:
        time_step = self.user_env.step(action)
        # TimeStep.is_first() and is_last() take 30 us: they check for tensors first.
        step_type = int(time_step.step_type)
        if step_type == _FIRST:
            raise RuntimeError("step() returned the FIRST time step of another episode: return a LAST one before it")
        info = self.info()
        is_last, discount = step_type == _LAST, float(time_step.discount)
        if is_last and info.get(TRUNCATED, False):
            discount = self._discount  # GymWrapper returns 0 at every end of an episode.
        self._discount = discount
        return time_step.observation, time_step.reward, discount, is_last, info

    def info(self) -> Mapping[str, Any]:
        """Of the last step; empty where the environment has none."""
        try:
            info = self.user_env.get_info()
        except NotImplementedError:
            return _NOTHING
        return info if isinstance(info, Mapping) else _NOTHING

    def render(self) -> Any:
        return self.user_env.render("rgb_array")

    def layers(self) -> Iterator[Any]:
        env = self.user_env
        while env is not None:
            yield env
            if isinstance(env, gym_wrapper.GymWrapper):
                yield from gym_layers(env.gym)
                return
            env = env.wrapped_env() if isinstance(env, wrappers.PyEnvironmentBaseWrapper) else None


def _action_spaces(env: py_environment.PyEnvironment) -> Any:
    """Those of the environment; a GymWrapper's own spec says that the numbers of any Discrete begin with 0."""
    inner = env
    while isinstance(inner, wrappers.PyEnvironmentBaseWrapper):
        inner = inner.wrapped_env()
    if isinstance(inner, gym_wrapper.GymWrapper) and env.action_spec() == inner.action_spec():
        return space_nest(inner.gym.action_space)
    return spaces_of_array_specs(env.action_spec())


class PyLanesBackend(Backend):
    """TF-Agents' BatchedPyEnvironment.

    ParallelPyEnvironment, whose lanes have a process each, is refused: it forks a process that runs TensorFlow, and
    waits for ever for a lane that hangs.

    Raises:
      UserError: Its lanes are not here, or SAC can't use its spaces.
    """

    is_vector = True

    def __init__(self, env: py_environment.PyEnvironment, seed: int | None) -> None:
        lanes = list(getattr(env, "envs", []))
        if not lanes or not all(isinstance(lane, py_environment.PyEnvironment) for lane in lanes):
            raise UserError(
                f"the batched environment {env!r} has no lanes of this process in its `envs`: return a "
                "BatchedPyEnvironment, a vector environment of Gymnasium, or a single environment with a larger "
                "SAC_NUM_COLLECT_WORKERS"
            )
        self.user_env = env
        self._lanes = [PyBackend(lane, None) for lane in lanes]
        self.num_lanes = len(lanes)
        self.observation_spaces = spaces_of_array_specs(env.observation_spec())
        self.action_spaces = spaces_of_array_specs(env.action_spec())
        self._discount = np.ones(self.num_lanes, np.float32)  # Of the last step.
        if seed is not None:
            self.reseed(seed)

    def reseed(self, seed: int) -> None:
        for number, lane in enumerate(self._lanes):
            lane.reseed(seed + number)

    def reset(self) -> Any:
        self._discount[:] = 1.0
        return self.user_env.reset().observation

    def reset_lanes(self, mask: np.ndarray) -> dict[int, Any]:
        self._discount[mask] = 1.0
        return {lane: self._lanes[lane].reset() for lane in np.flatnonzero(mask).tolist()}

    def step(self, action: Any) -> LanesStep:
        time_step = self.user_env.step(action)
        step_type = np.asarray(time_step.step_type)
        if (step_type == _FIRST).any():
            raise RuntimeError("step() returned the FIRST time step of another episode: return a LAST one before it")
        is_last = step_type == _LAST
        discount = np.array(time_step.discount, np.float32)
        for lane in np.flatnonzero(is_last & (discount == 0.0)):
            if self._lanes[lane].info().get(TRUNCATED, False):
                discount[lane] = self._discount[lane]  # GymWrapper returns 0 at every end of an episode.
        self._discount = discount.copy()
        return LanesStep(time_step.observation, np.asarray(time_step.reward), discount, is_last)

    def set_state(self, state: Mapping[str, Any]) -> None:
        for lane in self._lanes:
            lane.set_state(state)

    def render(self) -> Any:
        return self.user_env.render("rgb_array")[0]

    def layers(self) -> Iterator[Any]:
        yield self.user_env
