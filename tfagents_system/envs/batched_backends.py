"""One interface to vector environments of Gymnasium and EnvPool, and to batched ones of TF-Agents.

They differ in when a lane that has ended begins its next episode. Gymnasium calls it the autoreset mode:

    SAME_STEP   with the step that ends the episode: it returns the next one's first observation, `info` the last one
    NEXT_STEP   with the step after it, which ignores the lane's action; EnvPool and TF-Agents do so, too
    DISABLED    by `reset(options={"reset_mask": ...})`, which is called here after each step that ends episodes
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tree
from tf_agents.environments import py_environment
from tf_agents.trajectories import time_step as ts

from tfagents_system.envs import gym_driver, specs
from tfagents_system.envs.backends import Backend, PyBackend
from tfagents_system.envs.gym_driver import TRUNCATED, StepResult
from tfagents_system.envs.layers import gym_layers
from tfagents_system.envs.spaces import space_nest
from tfagents_system.errors import UserError

SAME_STEP, NEXT_STEP, DISABLED = "SameStep", "NextStep", "Disabled"
_MODES = (SAME_STEP, NEXT_STEP, DISABLED)
_FIRST, _LAST = int(ts.StepType.FIRST), int(ts.StepType.LAST)
_FINAL_OBSERVATIONS = ("final_obs", "final_observation")
_FINAL_INFO = "final_info"


@dataclasses.dataclass
class RawStep:
    """One step of all lanes, with observations as the library returns them.

    Attributes:
      observation: A batch of all lanes: the first ones of episodes that this step has begun, else the next ones.
      reward: `[N]`.
      discount: `[N]` float32.
      is_last: `[N]` bool: the lane's episode has ended with this step.
      info: What the environment says beside, by key: arrays `[N]`, with a mask under `_key` where not all have it.
      resting: `[N]` bool: lanes without a step, since their last episode has ended; None: all have stepped.
      began: `[N]` bool: those whose next episode has begun: `observation` has its first observation.
      final: Of the lanes in `is_last` that began another one at once: a batch with their last observations.
      final_info: Their infos of the step that ended the episode; None: `info` has them.
    """

    observation: Any
    reward: np.ndarray
    discount: np.ndarray
    is_last: np.ndarray
    info: Mapping[str, Any]
    resting: np.ndarray | None = None
    began: np.ndarray | None = None
    final: Any = None
    final_info: Mapping[str, Any] | None = None


class BatchedBackend(abc.ABC):
    """A vector environment of any library.

    Attributes:
      user_env: What `env_ctor` returned.
      num_lanes: N.
      begins_episodes: Whether a lane that has ended begins its next episode without `reset_lanes`.
      can_reseed: Whether `reseed` has an effect.
      resets_lanes: Whether `reset_lanes` works; else a lane's episode ends where the environment says so.
      observation_spec, environment_action_spec, own_action_spec, own_observation_spec: Of one lane, as in Backend.
    """

    user_env: Any
    num_lanes: int
    begins_episodes: bool
    can_reseed: bool = True
    resets_lanes: bool
    observation_spec: Any
    environment_action_spec: Any
    own_action_spec: Any
    own_observation_spec: Any

    @abc.abstractmethod
    def reseed(self, seed: int) -> None:
        """From the next reset on, behaves as if built with this seed; each lane has one of its own."""

    @abc.abstractmethod
    def reset(self) -> Any:
        """Begins an episode in each lane; returns a batch of their first observations."""

    @abc.abstractmethod
    def step(self, actions: Any) -> RawStep:
        """Takes a batch of actions in the environment's units."""

    @abc.abstractmethod
    def reset_lanes(self, mask: np.ndarray) -> Any:
        """Begins an episode in the lanes of a mask; returns a batch of all lanes, or of these, in their order."""

    @abc.abstractmethod
    def set_state(self, state: Mapping[str, Any]) -> None:
        """Sets parameters in all lanes, as Backend.set_state does."""

    @abc.abstractmethod
    def render(self) -> Any:
        """A picture of lane 0."""

    @abc.abstractmethod
    def layers(self) -> Iterator[Any]:
        """The environment and those it wraps, outermost first."""

    def close(self) -> None:
        """Frees what the environment holds."""
        close = getattr(self.user_env, "close", None)
        if callable(close):
            close()


def make_batched_backend(env: Any, seed: int | None) -> BatchedBackend:
    """Wraps what `env_ctor` returned, where `is_batched`.

    Args:
      env: The environment.
      seed: Seeds it once, before its first episodes; None leaves it as it is.

    Raises:
      UserError: Its lanes differ in their spaces, its autoreset mode can't be told, or SAC can't use its spaces.
    """
    if isinstance(env, py_environment.PyEnvironment):
        return PyBatchBackend(env, seed)
    return VectorBackend(env, seed)


class VectorBackend(BatchedBackend):
    """A vector environment of Gymnasium 1.x, of EnvPool, or of a simulator that looks like one."""

    def __init__(self, env: Any, seed: int | None) -> None:
        self.user_env = env
        self.num_lanes = int(env.num_envs)
        self._mode = _autoreset_mode(env)
        self.begins_episodes = self._mode != DISABLED
        _check_same_spaces(env)
        observation_space, action_space = env.single_observation_space, env.single_action_space
        self.observation_spec = specs.observation_spec_of_space(observation_space)
        self.environment_action_spec = specs.action_spec_of_space(action_space)
        self.own_observation_spec, self.own_action_spec = map(space_nest, (observation_space, action_space))
        inner = list(self.layers())[-1]
        self._lanes = getattr(inner, "envs", None)  # Of Gymnasium's SyncVectorEnv.
        self.can_reseed = not _is_envpool(inner)  # EnvPool takes it when it is built, and warns of any other.
        # In the other modes a class may ignore the mask, and reset all lanes.
        self.resets_lanes = self._mode == DISABLED or _is_envpool(inner) or _is_of_gymnasium(inner)
        self._ended = np.zeros(self.num_lanes, bool)
        self._seed_for_reset: int | None = None
        if seed is not None:
            self.reseed(seed)

    def reseed(self, seed: int) -> None:
        self._seed_for_reset = seed if self.can_reseed else None
        for layer in self.layers():
            gym_driver.seed_action_space(layer, seed)

    def reset(self) -> Any:
        seed, self._seed_for_reset = self._seed_for_reset, None
        observation, _ = self.user_env.reset() if seed is None else self.user_env.reset(seed=seed)
        self._ended[:] = False
        return observation

    def reset_lanes(self, mask: np.ndarray) -> Any:
        self._ended = self._ended & ~mask
        return self.user_env.reset(options={"reset_mask": mask})[0]

    def step(self, actions: Any) -> RawStep:
        observation, reward, terminated, truncated, info = self.user_env.step(actions)
        terminated, truncated = np.asarray(terminated), np.asarray(truncated)
        step = RawStep(
            observation,
            np.asarray(reward),
            np.subtract(1.0, terminated, dtype=np.float32),
            np.logical_or(terminated, truncated),
            info or {},
        )
        if self._mode == NEXT_STEP and self._ended.any():
            step.resting = step.began = self._ended
        self._ended = step.is_last
        if self._mode == SAME_STEP and step.is_last.any():
            step.began = step.is_last
            step.final = next((info[key] for key in _FINAL_OBSERVATIONS if key in info), None)
            step.final_info = info.get(_FINAL_INFO)
            if step.final is None:
                raise KeyError(
                    "a lane has ended, and info has no final_obs: its last observation is lost. Return it there, or "
                    "use another autoreset mode"
                )
        return step

    def set_state(self, state: Mapping[str, Any]) -> None:
        layers = list(self.layers())
        if gym_driver.has_own_set_state(layers):
            gym_driver.set_state(layers, state)
        elif self._lanes is not None:
            for lane in self._lanes:
                gym_driver.set_state(gym_layers(lane), state)
        elif hasattr(self.user_env, "set_attr"):
            _set_in_processes(self.user_env, state)
        else:
            gym_driver.set_state(layers, state)

    def render(self) -> Any:
        if self._lanes is not None:
            from tfagents_system.envs import rendering

            return rendering.render_gym(self._lanes[0])
        pictures = self.user_env.render()
        return None if pictures is None else pictures[0]

    def layers(self) -> Iterator[Any]:
        return gym_layers(self.user_env)


def _autoreset_mode(env: Any) -> str:
    metadata = getattr(env, "metadata", None)
    mode = metadata.get("autoreset_mode") if isinstance(metadata, Mapping) else None
    mode = getattr(mode, "value", mode)
    if mode not in _MODES:
        raise UserError(
            f"env_ctor returned the vector environment {env!r}, whose autoreset mode can't be told "
            f'(metadata["autoreset_mode"] is {mode!r}): set it to a gymnasium.vector.AutoresetMode, as the vector '
            "environments of Gymnasium 1.x do, or return a single environment"
        )
    return str(mode)


def _check_same_spaces(env: Any) -> None:
    """Raises:
    UserError: The lanes' bounds, shapes or number are not those of the single space.
    """
    for what in ("observation", "action"):
        single, batch = getattr(env, f"single_{what}_space"), getattr(env, f"{what}_space", None)
        if batch is None:
            continue
        try:
            pairs = list(zip(tree.flatten(space_nest(single)), tree.flatten(space_nest(batch)), strict=True))
        except ValueError:
            pairs = []
        if not pairs or not all(_is_batch_of(one, many, env.num_envs) for one, many in pairs):
            raise UserError(
                f"the lanes of the vector environment {env!r} differ in their {what} spaces ({batch} is not "
                f"{env.num_envs} times {single}): build all lanes with the same space"
            )


def _is_batch_of(one: Any, many: Any, count: int) -> bool:
    if not hasattr(one, "low") or not hasattr(many, "low"):
        return True  # Discrete ones have no bounds, and what can't be used is refused with its own words.
    if tuple(many.shape) != (count, *one.shape):
        return tuple(many.shape) == tuple(one.shape)  # Some give the single space for both.
    return bool(np.all(many.low == one.low) and np.all(many.high == one.high))


def _is_envpool(env: Any) -> bool:
    return any(cls.__module__.partition(".")[0] == "envpool" for cls in type(env).__mro__)


def _is_of_gymnasium(env: Any) -> bool:
    """Whether it is Gymnasium's SyncVectorEnv or AsyncVectorEnv, or made from one."""
    names = ("gymnasium.vector.sync_vector_env", "gymnasium.vector.async_vector_env")
    return any(cls.__module__ in names for cls in type(env).__mro__)


def _set_in_processes(env: Any, state: Mapping[str, Any]) -> None:
    """As gym_driver.set_state, in lanes that run in processes of their own.

    What they don't have is not asked for: an error ends the process of AsyncVectorEnv's lane.
    """
    # MuJoCo's environments have an unrelated set_state(qpos, qvel).
    if all(env.call("has_wrapper_attr", "set_state")) and not any(env.call("has_wrapper_attr", "do_simulation")):
        env.call("set_state", dict(state))
        return
    for name, value in state.items():
        if not all(env.call("has_wrapper_attr", name)):
            raise UserError(
                f"the lanes of {env!r} have no parameter {name!r} that can be set: give them such an attribute, or a "
                "set_state(self, state) that takes a dictionary"
            )
        env.set_attr(name, value)


class PyBatchBackend(BatchedBackend):
    """A batched PyEnvironment of TF-Agents.

    Lanes of BatchedPyEnvironment and ParallelPyEnvironment are reset here; those of others begin anew by themselves,
    with the step after the one that ended their episode.
    """

    def __init__(self, env: py_environment.PyEnvironment, seed: int | None) -> None:
        self.user_env = env
        if not env.batch_size:
            raise UserError(f"the batched environment {env!r} has the batch size {env.batch_size}: give it a lane")
        self.num_lanes = int(env.batch_size)
        self.own_observation_spec, self.own_action_spec = map(
            specs.plain_nest, (env.observation_spec(), env.action_spec())
        )
        self.observation_spec = specs.observation_spec_of_array_specs(self.own_observation_spec)
        self.environment_action_spec = specs.action_spec_of_array_specs(self.own_action_spec)
        self._ended = np.zeros(self.num_lanes, bool)
        self._discount = np.ones(self.num_lanes, np.float32)
        self._lanes = [] if getattr(env, "_flatten", False) else list(getattr(env, "envs", []))
        self.resets_lanes = bool(self._lanes)
        self.begins_episodes = not self.resets_lanes
        if seed is not None:
            self.reseed(seed)

    def reseed(self, seed: int) -> None:
        seeds = [seed + lane for lane in range(self.num_lanes)]
        for env, own in zip(self._lanes, seeds, strict=False):
            if _is_here(env):
                PyBackend(env, own)

        if self._lanes and _is_here(self._lanes[0]):
            return
        with contextlib.suppress(NotImplementedError, AttributeError):  # It got its seed from `env_ctor`.
            self.user_env.seed(seeds)

    def reset(self) -> Any:
        self._ended[:] = False
        self._discount[:] = 1.0
        return self.user_env.reset().observation

    def reset_lanes(self, mask: np.ndarray) -> Any:
        self._ended = self._ended & ~mask
        self._discount[mask] = 1.0
        first = [self._lanes[lane].reset().observation for lane in np.flatnonzero(mask)]
        return tree.map_structure(lambda *leaves: np.stack(leaves), *first)

    def step(self, actions: Any) -> RawStep:
        time_step = self.user_env.step(actions)
        step_type = np.asarray(time_step.step_type)
        before, began = self._ended, step_type == _FIRST
        if (began & ~before).any():
            raise RuntimeError("step() returned the FIRST time step of another episode: the last one has no end")
        is_last = (step_type == _LAST) & ~before
        resting = before & (began | (step_type == _LAST))
        if (before & ~resting).any():
            raise RuntimeError("step() returned a time step after an episode's last one that is not FIRST")
        discount = np.array(np.asarray(time_step.discount), np.float32)
        for lane in np.flatnonzero(is_last & (discount == 0.0)):
            if self._is_truncated(lane):
                discount[lane] = self._discount[lane]  # GymWrapper returns 0 at every end of an episode.
        self._discount = np.where(began, np.float32(1.0), discount)
        self._ended = (step_type == _LAST) | (before & ~began)
        is_any = bool(before.any())
        return RawStep(
            time_step.observation,
            np.asarray(time_step.reward),
            discount,
            is_last,
            {},
            resting=resting if is_any else None,
            began=began if is_any else None,
        )

    def _is_truncated(self, lane: int) -> bool:
        if lane >= len(self._lanes):
            return False
        env = self._lanes[lane]
        try:
            info = env.get_info() if _is_here(env) else env.call("get_info")()
        except Exception:  # NotImplementedError; a process that an environment runs in raises another one for it.
            return False
        return isinstance(info, Mapping) and bool(info.get(TRUNCATED, False))

    def set_state(self, state: Mapping[str, Any]) -> None:
        if not self._lanes:
            gym_driver.set_state(self.layers(), state)
        for env in self._lanes:
            if _is_here(env):
                PyBackend(env, None).set_state(state)
            else:
                env.call("set_state", dict(state))()

    def render(self) -> Any:
        return self.user_env.render("rgb_array")[0]

    def layers(self) -> Iterator[Any]:
        yield self.user_env


def _is_here(env: Any) -> bool:
    """Whether a lane runs in this process, rather than in one of ParallelPyEnvironment's."""
    return isinstance(env, py_environment.PyEnvironment)


class FirstLaneBackend(Backend):
    """Lane 0. All other lanes get its actions; a reset is one of all lanes.

    Args:
      env: What `env_ctor` returned.
      seed: Seeds it once, before its first episode; None leaves it as it is.
    """

    def __init__(self, env: Any, seed: int | None) -> None:
        self._lanes = make_batched_backend(env, seed)
        self.user_env = env
        self.observation_spec = self._lanes.observation_spec
        self.environment_action_spec = self._lanes.environment_action_spec
        self.own_action_spec = self._lanes.own_action_spec
        self.own_observation_spec = self._lanes.own_observation_spec

    def reseed(self, seed: int) -> None:
        self._lanes.reseed(seed)

    def reset(self) -> Any:
        return _of_lane_0(self._lanes.reset())

    def step(self, action: Any) -> StepResult:
        count = self._lanes.num_lanes
        step = self._lanes.step(tree.map_structure(lambda leaf: np.repeat(np.asarray(leaf)[None], count, 0), action))
        is_over = bool(step.is_last[0])
        observation, info = step.observation, step.info
        if is_over and step.final is not None:
            observation = step.final
            info = step.info if step.final_info is None else step.final_info
        elif not is_over and not self._lanes.begins_episodes and step.is_last.any():
            self._lanes.reset_lanes(step.is_last)
        return _of_lane_0(observation), step.reward[0], float(step.discount[0]), is_over, _info_of_lane_0(info)

    def set_state(self, state: Mapping[str, Any]) -> None:
        self._lanes.set_state(state)

    def render(self) -> Any:
        return self._lanes.render()

    def layers(self) -> Iterator[Any]:
        return self._lanes.layers()


def _of_lane_0(batch: Any) -> Any:
    if isinstance(batch, np.ndarray) and batch.dtype == object:
        return batch[0]
    return tree.map_structure(lambda leaf: np.asarray(leaf)[0], batch)


def _info_of_lane_0(info: Mapping[str, Any]) -> dict[str, Any]:
    """Its entries; those of others are marked by a mask under `_key`."""
    found = {}
    for key, values in info.items():
        mask = info.get(f"_{key}")
        if not (isinstance(values, np.ndarray) or hasattr(values, "__array__")):
            continue  # Words, dictionaries.
        if (values := np.asarray(values)).ndim and (mask is None or np.asarray(mask)[0]):
            found[key] = values[0]
    return found
