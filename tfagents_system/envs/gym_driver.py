"""Drives gym and Gymnasium environments of any version and hides their differences, as those of their wrappers.

Below are the kinds of their spaces, and environments with goals.

Runs under SAC_ENV_PYTHON as well: standard library and NumPy only, Python 3.9, NumPy 1 or 2.
"""

from __future__ import annotations

import abc
import inspect
import numbers
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from tfagents_system.envs.faults import EnvironmentDiedError, describe_error
from tfagents_system.errors import UserError

SEED_LIMIT = 2**31  # Some environments keep their seed in a signed 32-bit integer.

# Keys of an environment's info that training uses.
TRUNCATED = "TimeLimit.truncated"
LOG_PREFIX = "log/"  # Numbers under such keys are averaged over an episode.
RECORD_PREFIX = "record/"  # What is under such keys is kept of each step where episodes are recorded.
SUCCESS_KEYS = ("is_success", "success")

# In the options of a device's reset(): the episode is of an evaluation, and which of its episodes it is.
EVALUATION, EVALUATION_EPISODE = "evaluation", "episode"

# Spaces that observations may have.
_KNOWN = ("Box", "Dict", "Tuple", "Discrete", "MultiDiscrete", "MultiBinary")

# Environments with goals, by the convention of Gymnasium-Robotics: three keys, and rewards as a function of goals.
OBSERVATION, ACHIEVED, DESIRED = "observation", "achieved_goal", "desired_goal"
REWARD, TERMINATED = "compute_reward", "compute_terminated"
FUNCTIONS = (REWARD, TERMINATED)
WITHOUT_INFO = (
    "It gets no info: put what it needs beside goals, as an effort, into achieved_goal, with 0 in desired_goal"
)

# Which of n actions are legal: a part of the observation (RLlib, PettingZoo), or of info (Gymnasium's Taxi-v3).
ACTION_MASK = "action_mask"

# (observation, reward, discount, is the episode over, info)
StepResult = tuple[Any, Any, float, bool, Any]


# Layers: an environment and those it wraps, outermost first.


def gym_layers(env: Any) -> Iterator[Any]:
    """Those of a gym or Gymnasium environment."""
    while env is not None:
        yield env
        # Not getattr: gym's wrappers forward attributes that they lack.
        inner = getattr(env, "__dict__", {}).get("env")
        env = inner if hasattr(inner, "step") and hasattr(inner, "reset") else None


def layers_within(env: Any) -> Iterator[Any]:
    """An environment of any library and those it wraps, outermost first; of several lanes the first one."""
    seen = set[int]()
    while env is not None and id(env) not in seen:
        yield env
        seen.add(id(env))
        inside = getattr(env, "__dict__", {})
        lanes = [inside.get(name) for name in ("envs", "_envs")]
        inner = [inside.get(name) for name in ("env", "_env", "_gym_env")]
        inner += [several[0] for several in lanes if isinstance(several, (list, tuple)) and several]
        env = next((layer for layer in inner if hasattr(layer, "reset") and hasattr(layer, "step")), None)


def time_limit_of(env: Any) -> int | None:
    """Most steps of an episode by a time limit of gym, Gymnasium, EnvPool, TF-Agents or rtgym; None without one."""
    for layer in layers_within(env):
        spec = getattr(layer, "spec", None)
        limits = [getattr(of, "max_episode_steps", None) for of in (spec, getattr(spec, "config", None))]
        limits += [getattr(layer, name, None) for name in ("_max_episode_steps", "ep_max_length")]
        if type(layer).__module__.partition(".")[0] == "tf_agents":
            limits.append(getattr(layer, "_duration", None))  # Of wrappers.TimeLimit.
        if known := [int(limit) for limit in limits if isinstance(limit, int) and limit > 0]:
            return min(known)
    return None


def name_of(env: Any) -> str:
    """`Pendulum-v1` where it is registered, else the class of the innermost environment."""
    layers = [*layers_within(env)]
    names = (getattr(getattr(layer, "spec", None), "id", None) for layer in layers)
    return next((name for name in names if isinstance(name, str)), type(layers[-1]).__name__)


def device_layer(layers: Iterable[Any]) -> Any:
    """The innermost layer that acts in real time: rtgym's, or one with `real_time = True`; None without one.

    The innermost, because wrappers may forward the attribute of what they wrap.
    """
    devices = [
        layer
        for layer in layers
        if getattr(layer, "real_time", False) is True or type(layer).__module__.partition(".")[0] == "rtgym"
    ]
    return devices[-1] if devices else None


def set_evaluation_episode(layers: Iterable[Any], number: int) -> None:
    """Tells the outermost layer that has `set_evaluation_episode(number)` which of an evaluation's episodes the next
    reset begins, from 0.
    """
    for layer in layers:
        if callable(method := getattr(layer, "set_evaluation_episode", None)):
            method(number)
            return


class Backend(abc.ABC):
    """An environment of any library behind one interface: a single one, or one with several lanes.

    Attributes:
      user_env: What `env_ctor` returned.
      observation_spaces, action_spaces: Nests of the environment's own spaces, with its shapes and bounds, of one lane.
      is_vector: `reset` and `step` are about all lanes.
      num_lanes: Episodes at the same time.
      begins_episodes: A lane that has ended begins its next episode without `reset_lanes`.
      can_reset_lanes: `reset_lanes` works; else a lane's episode ends where the environment says so.
      can_reseed: `reseed` has an effect.
    """

    user_env: Any
    observation_spaces: Any
    action_spaces: Any
    is_vector = False
    num_lanes = 1
    begins_episodes = False
    can_reset_lanes = True
    can_reseed = True

    @abc.abstractmethod
    def reseed(self, seed: int) -> None:
        """From the next reset on, behaves as if built with this seed; each lane has one of its own from it."""

    @abc.abstractmethod
    def reset(self) -> Any:
        """Begins an episode, of a vector environment one in each lane; returns the first observation, or a batch."""

    def reset_lanes(self, mask: np.ndarray) -> dict[int, Any]:
        """Begins an episode in the lanes of a mask; returns the first observation of each."""
        raise NotImplementedError

    @abc.abstractmethod
    def step(self, action: Any) -> Any:
        """Takes the environment's own action; returns a StepResult. Of a vector environment a batch, and a LanesStep.

        A time limit ends an episode with the discount that it had, a termination with 0.
        """

    @abc.abstractmethod
    def render(self) -> Any:
        """A picture of the current state, as the environment returns it."""

    def layers(self) -> Iterator[Any]:
        """The environment and those it wraps, outermost first."""
        return gym_layers(self.user_env)

    def close(self) -> None:
        """Frees what the environment holds."""
        close = getattr(self.user_env, "close", None)
        if callable(close):
            close()

    def set_state(self, state: Mapping[str, Any]) -> None:
        """See the function."""
        set_state(self.layers(), state)


class GymBackend(Backend):
    """gym 0.21 to 0.26, Gymnasium, and classes that look like them: 4-tuples, 5-tuples, with or without info at reset.

    Args:
      env: The environment.
      seed: Seeds the environment and its action space once, before its first episode; None leaves it as it is.

    Raises:
      UserError: It lacks methods of such an environment.
    """

    def __init__(self, env: Any, seed: int | None = None) -> None:
        missing = [name for name in ("action_space", "observation_space") if callable(getattr(env, name, print))]
        missing += [name for name in ("reset", "step") if not hasattr(env, name)]
        if missing:
            raise UserError(
                f"env_ctor returned {env!r}, which has no {', '.join(missing)}: return a "
                "TF-Agents PyEnvironment, or a Gymnasium or gym environment (docs/reference/environments.md)"
            )
        self.user_env = env
        self.observation_spaces, self.action_spaces = map(space_nest, (env.observation_space, env.action_space))
        self._seed_for_reset = None if seed is None else _seed_gym(env, seed)
        self.can_reseed = seed is None or self._seed_for_reset is not None or hasattr(env, "seed")
        self._no_action: np.ndarray | None = None  # A mask, where observations get masks.
        methods = [getattr(layer, "action_masks", None) for layer in self.layers()]  # As MaskablePPO has it.
        self._masks = next(filter(callable, methods), None)
        is_choice = space_kind(self.action_spaces) == "Discrete" and mask_of(self.observation_spaces) is None
        if is_choice and (self._masks is not None or any(hasattr(layer, ACTION_MASK) for layer in self.layers())):
            self._no_action = np.zeros(int(self.action_spaces.n), np.uint8)
            mask = PlainSpace("Box", self._no_action.shape, np.uint8, 0, 1)
            self.observation_spaces = {**_as_parts(self.observation_spaces), ACTION_MASK: mask}

    def reseed(self, seed: int) -> None:
        self._seed_for_reset = _seed_gym(self.user_env, seed)

    def reset(self) -> Any:
        seeded = {} if self._seed_for_reset is None else {"seed": self._seed_for_reset}
        self._seed_for_reset = None
        result = self.user_env.reset(**seeded)
        observation, info = result if has_info(self.user_env, result) else (result, {})
        return observation if self._no_action is None else self._with_mask(observation, info)

    def _with_mask(self, observation: Any, info: Any, is_over: bool = False) -> Any:
        """The observation with the mask of `action_masks()` or of info; at an episode's end it may lack one."""
        at_end = self._no_action if is_over else None
        mask = (info or {}).get(ACTION_MASK, at_end) if self._masks is None else self._masks()
        if mask is None:
            raise ValueError(f"info has no {ACTION_MASK}, which that attribute of the environment promises: rename it")
        return {**_as_parts(observation), ACTION_MASK: mask}

    def step(self, action: Any) -> StepResult:
        result = self.user_env.step(action)
        if len(result) == 5:
            observation, reward, terminated, truncated, info = result
            is_over = bool(terminated or truncated)
            if self._no_action is not None:
                observation = self._with_mask(observation, info, is_over)
            return observation, reward, 0.0 if terminated else 1.0, is_over, info
        if len(result) != 4:
            raise ValueError(
                f"step() returned {len(result)} values: expected observation, reward, terminated, truncated and info"
            )
        observation, reward, done, info = result
        terminated = done and not (info and info.get(TRUNCATED, False))
        if self._no_action is not None:
            observation = self._with_mask(observation, info, bool(done))
        return observation, reward, 0.0 if terminated else 1.0, bool(done), info

    def render(self) -> Any:
        return render_gym(self.user_env)


def mask_of(observation: Any) -> Any:
    """The mask of actions in an observation, or in its spec; None where it has none."""
    return observation.get(ACTION_MASK) if isinstance(observation, Mapping) else None


def _as_parts(observation: Any) -> Mapping[str, Any]:
    """The observation as a dictionary, which can have another part."""
    return observation if isinstance(observation, Mapping) else {OBSERVATION: observation}


def render_gym(env: Any) -> Any:
    """The picture of a gym environment (`render(mode)`) or of a Gymnasium one (`render()`)."""
    innermost = list(gym_layers(env))[-1]
    takes_mode = "mode" in inspect.signature(innermost.render).parameters
    return env.render(mode="rgb_array") if takes_mode else env.render()


def has_info(env: Any, result: Any) -> bool:
    """Whether `reset` returned (observation, info) rather than an observation that is a pair itself."""
    if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Mapping)):
        return False
    space = env.observation_space
    if space_kind(space) != "Tuple" or is_gymnasium(env):
        return True
    return len(space.spaces) != 2 or isinstance(result[0], (tuple, list))


def is_vector_env(env: Any) -> bool:
    """Whether it is several environments in one, as Gymnasium's and EnvPool's vector environments are."""
    return hasattr(env, "num_envs") and hasattr(env, "single_action_space")


def set_state(layers: Iterable[Any], state: Mapping[str, Any]) -> None:
    """Sets parameters with an environment's own `set_state(dict)`, otherwise as attributes.

    Args:
      layers: The environment and those it wraps, outermost first.
      state: Values by name.

    Raises:
      UserError: The attribute does not exist or holds no number.
    """
    layers = list(layers)
    for layer in filter(has_own_set_state, layers):
        layer.set_state(dict(state))
        return
    for name, value in state.items():
        _set_attribute(layers, name, value)


def _set_attribute(layers: list[Any], name: str, value: Any) -> None:
    for layer in layers:
        if name in _parameters_of(layer):
            setattr(layer, name, value)
            return
    known = sorted({known for layer in layers for known in _parameters_of(layer)})
    raise UserError(
        f"{type(layers[-1]).__name__} has no parameter {name!r} that can be set: "
        f"it knows {', '.join(known) or 'none'}; or give it a set_state(self, state) that takes a dictionary"
    )


def is_gymnasium(env: Any) -> bool:
    """Whether a class of the Gymnasium package is among its bases."""
    return any(cls.__module__.partition(".")[0] == "gymnasium" for cls in type(env).__mro__)


def is_py_environment(env: Any) -> bool:
    """Whether it is a TF-Agents PyEnvironment; TF-Agents need not be installed."""
    return any(cls.__module__ == "tf_agents.environments.py_environment" for cls in type(env).__mro__)


def seed_action_space(layer: Any, seed: int) -> None:
    """Seeds the action space that a layer itself has."""
    seed_space = getattr(getattr(layer, "__dict__", {}).get("action_space"), "seed", None)
    if callable(seed_space):
        seed_space(seed)


def _parameters_of(layer: Any) -> list[str]:
    """Public numeric attributes of one layer itself, which a curriculum may set."""
    names = set(getattr(layer, "__dict__", {}))
    for cls in type(layer).__mro__:
        read_only = {name for name, value in vars(cls).items() if isinstance(value, property) and value.fset is None}
        names |= set(vars(cls)) - read_only
    return sorted(name for name in names if not name.startswith("_") and _holds_number(layer, name))


def _holds_number(layer: Any, name: str) -> bool:
    try:
        value = getattr(layer, name)
    except Exception:  # A user's property may raise anything.
        return False
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    return is_number or (isinstance(value, np.ndarray) and value.ndim == 0 and value.dtype.kind in "iuf")


def has_own_set_state(layer: Any) -> bool:
    """Whether a class defines `set_state(state)` and is not just a forwarding wrapper of TF-Agents.

    MuJoCo's environments have an unrelated `set_state(qpos, qvel)`.
    """
    owner = next((cls for cls in type(layer).__mro__ if "set_state" in vars(cls)), None)
    if owner is None or owner.__module__.startswith("tf_agents."):
        return False
    try:
        inspect.signature(layer.set_state).bind({})
    except TypeError:
        return False
    return True


def seed_episode(env: Any, seed: int) -> None:
    """What is random in the next episode follows from the seed, of 32 bits, so that it can be repeated."""
    env.reseed(seed % SEED_LIMIT)
    seed_generators(seed)


def seed_generators(seed: int) -> None:
    """Seeds Python's and NumPy's own, from which a user's environment may take numbers."""
    random.seed(seed)
    np.random.seed(seed)


def _seed_gym(env: Any, seed: int) -> int | None:
    """Seeds by `env.seed` and the action space; returns the seed for the first reset if `reset` takes one."""
    layers = list(gym_layers(env))
    for layer in layers:
        seed_action_space(layer, seed)
    # A wrapper's reset(**kwargs) takes the arguments of the layer below it.
    takes_seed = next((takes for layer in layers if (takes := _takes_seed(layer.reset)) is not None), False)
    owner = next((cls for cls in type(layers[-1]).__mro__ if "seed" in vars(cls)), None)
    has_own_seed = owner is not None and owner.__module__ not in ("gym.core", "gymnasium.core")
    if callable(getattr(env, "seed", None)) and (has_own_seed or not takes_seed):
        env.seed(seed)
    return seed if takes_seed else None


def _takes_seed(function: Callable[..., Any]) -> bool | None:
    """Whether `function` has an argument `seed`; None if it takes arguments of any name."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # Of a compiled class.
        return False
    if "seed" in parameters:
        return True
    return None if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()) else False


def one_number(value: Any) -> float | None:
    """A number, also as an array, a tensor or a list of one, as a fraction or a truth value; None: it is none."""
    try:
        (value,) = value if isinstance(value, (list, tuple)) else (value,)
        return float(value.item() if hasattr(value, "item") else value)
    except Exception:  # Whatever the user's own class raises: no episode ends for that.
        return None


def recorded(value: Any) -> np.ndarray | None:
    """What an episode's record has of a value under `record/...`, as a copy; None if it is no numbers and no texts."""
    try:
        array = np.array(value)
    except Exception:  # Such as of a ragged list, or whatever the user's own class raises: no episode ends for that.
        return None
    return array if array.dtype.kind in "biufU" else None


# Spaces, whichever library they are from.


class PlainSpace:
    """A space of one array, without its library: in another process, or of an ArraySpec.

    Args:
      kind: `Box`, ...
      shape, dtype, low, high: Of a Box; the others have no bounds.
      **choices: `n`, or `nvec`, and `start`.
    """

    def __init__(
        self, kind: str, shape: Any = (), dtype: Any = None, low: Any = -np.inf, high: Any = np.inf, **choices: Any
    ) -> None:
        self.kind, self.shape, self.dtype, self.low, self.high = kind, tuple(shape), dtype, low, high
        vars(self).update(choices)


def plain_space(name: str, space: Any) -> PlainSpace:
    """A leaf of `space_nest` without its library.

    Raises:
      UserError: It is of no known kind, or has no numbers.
    """
    kind, dtype = space_kind(space), getattr(space, "dtype", None)
    if kind not in _KNOWN:
        raise UserError(no_fixed_shape(name, space))
    if kind in ("Discrete", "MultiDiscrete"):
        key = "n" if kind == "Discrete" else "nvec"
        choices = {key: np.asarray(getattr(space, key)), "start": np.asarray(getattr(space, "start", 0))}
        return PlainSpace(kind, getattr(space, "shape", ()), dtype, **choices)
    if kind == "MultiBinary":
        return PlainSpace(kind, space.shape, dtype)
    dtype = box_dtype(space)
    if dtype.kind not in "fiub":
        raise UserError(f"the {name} space has dtype {dtype}: use float32 or an integer type")
    low, high = (np.broadcast_to(np.asarray(bound, dtype), space.shape) for bound in (space.low, space.high))
    return PlainSpace(kind, space.shape, dtype, low, high)


def space_kind(space: Any) -> str:
    """`Box`, `Dict`, ...: the same for the spaces of gym, of Gymnasium and for classes that only look like them."""
    if isinstance(space, PlainSpace):
        return space.kind
    for cls in type(space).__mro__:
        if cls.__name__ in _KNOWN:
            return cls.__name__
    return "Box" if all(hasattr(space, name) for name in ("low", "high", "shape")) else type(space).__name__


def no_fixed_shape(name: str, space: Any) -> str:
    """The error message for a space of unknown kind."""
    kinds = f"{', '.join(_KNOWN[:-1])} or {_KNOWN[-1]}"
    return f"{name} has the space {space}, which has no fixed shape: use {kinds}, padded to one length in a wrapper"


def space_nest(space: Any) -> Any:
    """The nest of a space's parts that are arrays, each a space itself.

    Raises:
      UserError: A key is not a string.
    """
    kind = space_kind(space)
    if kind == "Dict":
        return {text_key(key): space_nest(part) for key, part in space.spaces.items()}
    if kind == "Tuple":
        return tuple(map(space_nest, space.spaces))
    return space


def leaf_name(*path: Any) -> str:
    """`observation/camera`. TensorFlow allows few characters in names."""
    return "/".join([path[0], *(re.sub(r"[^A-Za-z0-9_.-]", "_", str(part)) for part in path[1:])])


def box_dtype(space: Any) -> np.dtype:
    """The dtype of a Box, or of a class that looks like one."""
    return np.dtype(getattr(space, "dtype", None) or np.asarray(space.low).dtype)


def one_hot_sizes(space: Any) -> np.ndarray:
    """Number of values of each element of a Discrete or MultiDiscrete space."""
    return np.asarray(space.nvec if hasattr(space, "nvec") else [space.n], np.int64).reshape(-1)


def text_key(key: Any) -> str:
    """The key of a dictionary of spaces.

    Raises:
      UserError: It is not a string.
    """
    if not isinstance(key, str):
        raise UserError(f"a dictionary of spaces has the key {key!r}: keys must be strings")
    return key


# Goals.


def functions_of(layers: Iterable[Any]) -> dict[str, Callable[..., Any]]:
    """Those of FUNCTIONS that an environment has, by name; each of the outermost layer that has one."""
    layers = list(layers)
    methods = {name: [getattr(layer, name, None) for layer in layers] for name in FUNCTIONS}
    return {name: next(filter(callable, found)) for name, found in methods.items() if any(map(callable, found))}


class GoalFunctions:
    """`compute_reward` and `compute_terminated` of an environment, for many steps in one call.

    Both are called with goals `[N, ...]` as the run stores them (float32 where the space has floats), and an empty
    dictionary as `info`. They must depend on nothing else: they are called in a process of which no worker knows.

    Args:
      layers: The environment and those that it wraps, outermost first.

    Attributes:
      has_reward, has_terminated: Whether the environment has them.
    """

    def __init__(self, layers: Iterable[Any]) -> None:
        self._functions = functions_of(layers)
        self.has_reward, self.has_terminated = (name in self._functions for name in FUNCTIONS)

    def rewards(self, achieved: np.ndarray, desired: np.ndarray) -> np.ndarray:
        """`[N]` float32: of steps that have achieved these goals, where those were desired.

        Raises:
          UserError: The call raises, or does not return a finite number for each.
        """
        rewards = self._call(REWARD, achieved, desired)
        not_finite = "" if np.isfinite(rewards).all() else "numbers that are not finite"
        if wrong := f"shape {rewards.shape}" if rewards.shape != (len(achieved),) else not_finite:
            raise UserError(
                f"{REWARD} of the environment must return a finite number for each of {len(achieved)} goals, found "
                f"{wrong}: compute it for arrays of goals, such as -(np.linalg.norm(achieved_goal - desired_goal, "
                "axis=-1) > 0.05)"
            )
        return rewards.astype(np.float32)

    def terminated(self, achieved: np.ndarray, desired: np.ndarray) -> np.ndarray | None:
        """`[N]` bool: whether such a step ends its episode; None where the environment does not say. Errors likewise.

        One truth value for all of them is taken for each: environments that never end an episode return it.
        """
        if not self.has_terminated:
            return None
        ends = self._call(TERMINATED, achieved, desired)
        no_truth = "" if np.isin(ends, (0, 1)).all() else "None, or other numbers than 0 and 1"
        if wrong := f"shape {ends.shape}" if ends.shape not in ((), (len(achieved),)) else no_truth:
            raise UserError(
                f"{TERMINATED} of the environment must return a truth value for each of {len(achieved)} goals, found "
                f"{wrong}: compute it for arrays of goals, along their last axis"
            )
        return np.broadcast_to(ends.astype(bool), (len(achieved),))

    def _call(self, name: str, achieved: np.ndarray, desired: np.ndarray) -> np.ndarray:
        if name not in self._functions:
            raise UserError(f"the environment has no {name}(achieved_goal, desired_goal, info): give it one")
        try:
            return np.asarray(self._functions[name](achieved, desired, {}), np.float64)
        except EnvironmentDiedError:
            raise  # Another start of this process has another one.
        except Exception as error:
            what = f"{name} of the environment failed for {len(achieved)} goals, info {{}}: {describe_error(error)}"
            raise UserError(f"{what}. {WITHOUT_INFO}") from error
