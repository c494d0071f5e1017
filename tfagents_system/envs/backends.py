"""One way to drive gym, Gymnasium and TF-Agents environments: what differs between them ends here."""

from __future__ import annotations

import abc
import inspect
import numbers
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import tree
from tf_agents.environments import gym_wrapper, py_environment, tf_environment, wrappers
from tf_agents.trajectories import time_step as ts

from tfagents_system.envs import specs
from tfagents_system.envs.layers import gym_layers
from tfagents_system.errors import UserError

_TRUNCATED = "TimeLimit.truncated"
_FIRST, _LAST = int(ts.StepType.FIRST), int(ts.StepType.LAST)
_NOTHING: dict[str, Any] = {}

# (observation, reward, discount, is the episode over, info)
StepResult = tuple[Any, Any, float, bool, Any]


class Shape:
    """A shape as a leaf of a nest (a tuple would be a nest itself)."""

    def __init__(self, sizes: Any) -> None:
        self.sizes = tuple(int(size) for size in sizes)


class Backend(abc.ABC):
    """An environment of any library.

    Attributes:
      user_env: What `env_ctor` returned.
      observation_spec: Nest of ArraySpecs: what observations are converted to.
      environment_action_spec: Nest of BoundedArraySpecs of the environment's own bounds, each of one dimension.
      action_shapes: Nest of Shapes: what the environment itself wants.
      observation_space: The space where there is one; None for a PyEnvironment.
    """

    user_env: Any
    observation_spec: Any
    environment_action_spec: Any
    action_shapes: Any
    observation_space: Any = None

    @abc.abstractmethod
    def reset(self) -> Any:
        """Starts an episode; returns its first observation."""

    @abc.abstractmethod
    def step(self, action: Any) -> StepResult:
        """Takes the environment's own action.

        A time limit ends the episode with the discount of the steps before it, a termination with 0.
        """

    @abc.abstractmethod
    def render(self) -> Any:
        """A picture of the current state, as the environment gives it."""

    @abc.abstractmethod
    def layers(self) -> Iterator[Any]:
        """The environment and what it wraps, outermost first."""

    def close(self) -> None:
        """Frees what the environment holds."""
        close = getattr(self.user_env, "close", None)
        if callable(close):
            close()

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Sets parameters: by the environment's own `set_state(dict)`, else as attributes.

        Raises:
          UserError: There is no such attribute, or none that holds a number.
        """
        for layer in self.layers():
            if _has_own_set_state(layer):
                layer.set_state(dict(state))
                return
        for name, value in state.items():
            self._set_attribute(name, value)

    def _set_attribute(self, name: str, value: Any) -> None:
        layers = list(self.layers())
        for layer in layers:
            if name in _parameters_of(layer):
                setattr(layer, name, value)
                return
        known = sorted({known for layer in layers for known in _parameters_of(layer)})
        raise UserError(
            f"{type(layers[-1]).__name__} has no parameter {name!r} that can be set: "
            f"it knows {', '.join(known) or 'none'}; or give it a set_state(self, state) that takes a dictionary"
        )


def make_backend(env: Any, seed: int | None) -> Backend:
    """Wraps what `env_ctor` returned.

    Args:
      env: A PyEnvironment, a gym or Gymnasium environment, or an object with the methods of the latter.
      seed: Seeds the environment once, before its first episode; None leaves it as it is.

    Raises:
      UserError: It is none of these, or its spaces can't be used for SAC.
    """
    if isinstance(env, tf_environment.TFEnvironment):
        raise UserError(f"env_ctor returned the TFEnvironment {env!r}: return the PyEnvironment inside it")
    if isinstance(env, py_environment.PyEnvironment):
        return PyBackend(env, seed)
    missing = [name for name in ("action_space", "observation_space", "reset", "step") if not hasattr(env, name)]
    if missing:
        raise UserError(
            f"env_ctor returned {env!r}, which has no {', '.join(missing)}: "
            "return a TF-Agents PyEnvironment, or a Gymnasium or gym environment"
        )
    if hasattr(env, "num_envs") and hasattr(env, "single_action_space"):
        raise UserError(
            f"env_ctor returned the vector environment {env!r}: return a single one, workers run in parallel"
        )
    return GymBackend(env, seed)


class GymBackend(Backend):
    """gym 0.23, Gymnasium, and classes that look like them: 4-tuples and 5-tuples, with or without info at reset."""

    def __init__(self, env: Any, seed: int | None) -> None:
        self.user_env = env
        self.observation_space = env.observation_space
        self.observation_spec = specs.observation_spec_of_space(env.observation_space)
        self.environment_action_spec = specs.action_spec_of_space(env.action_space)
        self.action_shapes = _action_shapes(env.action_space)
        self._seed_for_reset = _seed_gym(env, seed) if seed is not None else None

    def reset(self) -> Any:
        if self._seed_for_reset is None:
            result = self.user_env.reset()
        else:
            result = self.user_env.reset(seed=self._seed_for_reset)
            self._seed_for_reset = None
        return result[0] if self._has_info(result) else result

    def _has_info(self, result: Any) -> bool:
        """Whether `reset` returned (observation, info) rather than an observation that is a pair itself."""
        if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Mapping)):
            return False
        if specs.space_kind(self.observation_space) != "Tuple" or is_gymnasium(self.user_env):
            return True
        return len(self.observation_space.spaces) != 2 or isinstance(result[0], tuple | list)

    def step(self, action: Any) -> StepResult:
        result = self.user_env.step(action)
        if len(result) == 5:
            observation, reward, terminated, truncated, info = result
            return observation, reward, 0.0 if terminated else 1.0, bool(terminated or truncated), info
        if len(result) != 4:
            raise ValueError(
                f"step() returned {len(result)} values: expected observation, reward, terminated, truncated and info"
            )
        observation, reward, done, info = result
        terminated = done and not (info and info.get(_TRUNCATED, False))
        return observation, reward, 0.0 if terminated else 1.0, bool(done), info

    def render(self) -> Any:
        from tfagents_system.envs import rendering

        return rendering.render_gym(self.user_env)

    def layers(self) -> Iterator[Any]:
        return gym_layers(self.user_env)


class PyBackend(Backend):
    """A TF-Agents PyEnvironment; those around a gym environment tell of its time limit in their info."""

    def __init__(self, env: py_environment.PyEnvironment, seed: int | None) -> None:
        if env.batched:
            raise UserError(f"env_ctor returned the batched environment {env!r}: return a single one")
        self.user_env = env
        self.observation_spec = specs.observation_spec_of_array_specs(env.observation_spec())
        own_action_spec = specs.plain_nest(env.action_spec())
        self.environment_action_spec = specs.action_spec_of_array_specs(own_action_spec)
        self.action_shapes = tree.map_structure(lambda spec: Shape(spec.shape), own_action_spec)
        self._get_info: Callable[[], Any] | None = env.get_info
        self._discount = 1.0
        if seed is not None:
            self._seed(seed)

    def _seed(self, seed: int) -> None:
        try:
            self.user_env.seed(seed)
        except (NotImplementedError, AttributeError):
            pass  # It has taken the seed of `env_ctor`, or has no use for one.
        for layer in self.layers():
            _seed_action_space(layer, seed)

    def reset(self) -> Any:
        self._discount = 1.0
        return self.user_env.reset().observation

    def step(self, action: Any) -> StepResult:
        time_step = self.user_env.step(action)
        step_type = int(
            time_step.step_type
        )  # TimeStep.is_first() and is_last() take 30 us: they ask for tensors first.
        if step_type == _FIRST:
            raise RuntimeError("step() returned the FIRST time step of another episode: the last one has no end")
        info = self._info()
        is_last, discount = step_type == _LAST, float(time_step.discount)
        if is_last and info.get(_TRUNCATED, False):
            discount = self._discount  # GymWrapper gives 0 at any end of an episode.
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


def is_gymnasium(env: Any) -> bool:
    """Whether a class of the Gymnasium package is among its bases."""
    return any(cls.__module__.partition(".")[0] == "gymnasium" for cls in type(env).__mro__)


def _parameters_of(layer: Any) -> list[str]:
    """Public attributes of one layer itself that hold a number: what a curriculum may set."""
    names = set(getattr(layer, "__dict__", {}))
    for cls in type(layer).__mro__:
        read_only = {name for name, value in vars(cls).items() if isinstance(value, property) and value.fset is None}
        names |= set(vars(cls)) - read_only
    return sorted(name for name in names if not name.startswith("_") and _holds_number(layer, name))


def _holds_number(layer: Any, name: str) -> bool:
    try:
        value = getattr(layer, name)
    except Exception:  # A property of the user's may raise anything.
        return False
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    return is_number or (isinstance(value, np.ndarray) and value.ndim == 0 and value.dtype.kind in "iuf")


def _has_own_set_state(layer: Any) -> bool:
    """Whether a class that is not a mere forwarder defines `set_state(state)`.

    MuJoCo's environments have a `set_state(qpos, qvel)`, which is another thing.
    """
    forwarders = (py_environment.PyEnvironment, wrappers.PyEnvironmentBaseWrapper, gym_wrapper.GymWrapper)
    owner = next((cls for cls in type(layer).__mro__ if "set_state" in vars(cls)), None)
    if owner is None or owner in forwarders:
        return False
    try:
        inspect.signature(layer.set_state).bind({})
    except TypeError:
        return False
    return True


def _seed_gym(env: Any, seed: int) -> int | None:
    """Seeds by `env.seed` and the action space; returns the seed for the first reset if `reset` takes one."""
    layers = list(gym_layers(env))
    for layer in layers:
        _seed_action_space(layer, seed)
    # A wrapper's reset(**kwargs) takes what the layer below it takes.
    takes_seed = next((takes for layer in layers if (takes := _takes_seed(layer.reset)) is not None), False)
    owner = next((cls for cls in type(layers[-1]).__mro__ if "seed" in vars(cls)), None)
    has_own_seed = owner is not None and owner.__module__ not in ("gym.core", "gymnasium.core")
    if callable(getattr(env, "seed", None)) and (has_own_seed or not takes_seed):
        env.seed(seed)
    return seed if takes_seed else None


def _seed_action_space(layer: Any, seed: int) -> None:
    seed_space = getattr(getattr(layer, "__dict__", {}).get("action_space"), "seed", None)
    if callable(seed_space):
        seed_space(seed)


def _takes_seed(function: Callable[..., Any]) -> bool | None:
    """Whether `function` has an argument `seed`; None where it takes arguments of any name."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # Of a compiled class.
        return False
    if "seed" in parameters:
        return True
    return None if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()) else False


def _action_shapes(space: Any) -> Any:
    kind = specs.space_kind(space)
    if kind == "Dict":
        return {str(key): _action_shapes(sub) for key, sub in space.spaces.items()}
    if kind == "Tuple":
        return tuple(_action_shapes(sub) for sub in space.spaces)
    return Shape(space.shape)
