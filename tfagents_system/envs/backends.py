"""One interface to gym, Gymnasium and TF-Agents environments, which hides their differences."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tf_agents.environments import gym_wrapper, py_environment, tf_environment, wrappers
from tf_agents.trajectories import time_step as ts

from tfagents_system.envs import gym_driver
from tfagents_system.envs.gym_driver import TRUNCATED, GymDriver, StepResult, gym_layers, space_nest
from tfagents_system.envs.specs import spaces_of_array_specs
from tfagents_system.errors import UserError

_FIRST, _LAST = int(ts.StepType.FIRST), int(ts.StepType.LAST)
_NOTHING: dict[str, Any] = {}


class Backend(abc.ABC):
    """An environment of any library.

    Attributes:
      user_env: What `env_ctor` returned.
      observation_spaces, action_spaces: Nests of the environment's own spaces, with its shapes and bounds.
    """

    user_env: Any
    observation_spaces: Any
    action_spaces: Any

    @abc.abstractmethod
    def reseed(self, seed: int) -> None:
        """See GymDriver; so for `reset` and `step`."""

    @abc.abstractmethod
    def reset(self) -> Any: ...

    @abc.abstractmethod
    def step(self, action: Any) -> StepResult: ...

    @abc.abstractmethod
    def render(self) -> Any:
        """A picture of the current state, as the environment returns it."""

    @abc.abstractmethod
    def layers(self) -> Iterator[Any]:
        """The environment and those it wraps, outermost first."""

    def close(self) -> None:
        """Frees what the environment holds."""
        close = getattr(self.user_env, "close", None)
        if callable(close):
            close()

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Sets parameters with the environment's own `set_state(dict)`, otherwise as attributes.

        Raises:
          UserError: The attribute does not exist or holds no number.
        """
        gym_driver.set_state(self.layers(), state)


def make_backend(env: Any, seed: int | None) -> Backend:
    """Wraps what `env_ctor` returned; of several environments in one the first lane.

    Args:
      env: A PyEnvironment, a gym or Gymnasium environment, or an object with the methods of the latter.
      seed: Seeds the environment once, before its first episode; None leaves it as it is.

    Raises:
      UserError: It is none of these, or SAC can't use its spaces.
    """
    if isinstance(env, tf_environment.TFEnvironment):
        raise UserError(f"env_ctor returned the TFEnvironment {env!r}: return the PyEnvironment inside it")
    if is_batched(env):
        from tfagents_system.envs.batched_environment import PyLanesBackend, VectorBackend

        is_py = isinstance(env, py_environment.PyEnvironment)
        return PyLanesBackend(env, seed) if is_py else VectorBackend(env, seed)
    if isinstance(env, py_environment.PyEnvironment):
        return PyBackend(env, seed)
    gym_driver.check_is_gym(env)
    return GymBackend(env, seed)


def is_batched(env: Any) -> bool:
    """Whether `env_ctor` has returned several environments in one."""
    if isinstance(env, py_environment.PyEnvironment):
        return bool(env.batched)
    return gym_driver.is_vector_env(env)


def _action_spaces(env: py_environment.PyEnvironment) -> Any:
    """Those of the environment; a GymWrapper's own spec says that the numbers of any Discrete begin with 0."""
    inner = env
    while isinstance(inner, wrappers.PyEnvironmentBaseWrapper):
        inner = inner.wrapped_env()
    if isinstance(inner, gym_wrapper.GymWrapper) and env.action_spec() == inner.action_spec():
        return space_nest(inner.gym.action_space)
    return spaces_of_array_specs(env.action_spec())


class GymBackend(GymDriver, Backend):
    """gym, Gymnasium, and classes that look like them: driven by GymDriver."""

    def __init__(self, env: Any, seed: int | None) -> None:
        self.user_env = env
        self.observation_spaces, self.action_spaces = map(space_nest, (env.observation_space, env.action_space))
        super().__init__(env, seed)

    def render(self) -> Any:
        from tfagents_system.envs import rendering

        return rendering.render_gym(self.user_env)

    def layers(self) -> Iterator[Any]:
        return gym_layers(self.user_env)


class PyBackend(Backend):
    """A TF-Agents PyEnvironment; wrappers of gym environments report the time limit in their info."""

    def __init__(self, env: py_environment.PyEnvironment, seed: int | None) -> None:
        self.user_env = env
        self.observation_spaces = spaces_of_array_specs(env.observation_spec())
        self.action_spaces = _action_spaces(env)
        self._get_info: Callable[[], Any] | None = env.get_info
        self._discount = 1.0
        if seed is not None:
            self.reseed(seed)

    def reseed(self, seed: int) -> None:
        try:
            self.user_env.seed(seed)
        except (NotImplementedError, AttributeError):
            pass  # It got its seed from `env_ctor`, or needs none.
        for layer in self.layers():
            gym_driver.seed_action_space(layer, seed)

    def reset(self) -> Any:
        self._discount = 1.0
        return self.user_env.reset().observation

    def step(self, action: Any) -> StepResult:
        time_step = self.user_env.step(action)
        step_type = int(
            time_step.step_type
        )  # TimeStep.is_first() and is_last() take 30 us: they check for tensors first.
        if step_type == _FIRST:
            raise RuntimeError("step() returned the FIRST time step of another episode: the last one has no end")
        info = self._info()
        is_last, discount = step_type == _LAST, float(time_step.discount)
        if is_last and info.get(TRUNCATED, False):
            discount = self._discount  # GymWrapper returns 0 at every end of an episode.
        self._discount = discount
        return time_step.observation, time_step.reward, discount, is_last, info

    def _info(self) -> Mapping[str, Any]:
        if self._get_info is None:
            return _NOTHING
        try:
            info = self._get_info()
        except NotImplementedError:
            self._get_info = None
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
