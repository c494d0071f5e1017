"""PyEnvironments of TF-Agents and vector environments behind the interface of `Backend`.

Lanes of a vector environment have episodes of their own. They differ in when a lane that has ended begins its next
one. Gymnasium calls it the autoreset mode:

    SAME_STEP   with the step that ends the episode: it returns the next one's first observation, `info` the last one
    NEXT_STEP   with the step after it, which ignores the lane's action; EnvPool does so, too
    DISABLED    by `reset(options={"reset_mask": ...})`, which is called here after each step that ends episodes

Lanes of PyEnvironments are reset here, too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tree
from tf_agents.environments import gym_wrapper, py_environment, tf_environment, wrappers
from tf_agents.trajectories import time_step as ts

from tfagents_system.envs import gym_driver
from tfagents_system.envs.gym_driver import (
    TRUNCATED,
    Backend,
    GymBackend,
    StepResult,
    gym_layers,
    render_gym,
    space_nest,
)
from tfagents_system.envs.specs import spaces_of_array_specs
from tfagents_system.errors import UserError

SAME_STEP, NEXT_STEP, DISABLED = "SameStep", "NextStep", "Disabled"
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


# Several lanes.


class LanesStep(NamedTuple):
    """One step of all lanes, with observations as the library returns them.

    Attributes:
      observation: A batch of all lanes: the first ones of episodes that have begun, else the next ones.
      reward: `[N]`.
      discount: `[N]` float32.
      is_last: `[N]` bool: the lane's episode has ended with this step.
      infos: Of StepNews: without those of resets.
      began: `[N]` bool: lanes whose next episode has begun by itself; None: none of them.
      resting: `[N]` bool: those of them that made no step, since their last episode had ended before; None: none.
      last: The last observations of the others.
    """

    observation: Any
    reward: np.ndarray
    discount: np.ndarray
    is_last: np.ndarray
    infos: Sequence[tuple[Mapping[str, Any], np.ndarray | None]] = ()
    began: np.ndarray | None = None
    resting: np.ndarray | None = None
    last: Mapping[int, Any] = {}


class VectorBackend(Backend):
    """A vector environment of Gymnasium 1.x, of EnvPool, or of a simulator that looks like one.

    Raises:
      UserError: Its autoreset mode can't be told, or SAC can't use its spaces.
    """

    is_vector = True

    def __init__(self, env: Any, seed: int | None) -> None:
        self.user_env = env
        self.num_lanes = int(env.num_envs)
        self._mode = _autoreset_mode(env)
        self.begins_episodes = self._mode != DISABLED
        self.observation_spaces = space_nest(env.single_observation_space)
        self.action_spaces = space_nest(env.single_action_space)
        inner = list(self.layers())[-1]
        self._lanes = getattr(inner, "envs", None)  # Of Gymnasium's SyncVectorEnv.
        modules = {cls.__module__ for cls in type(inner).__mro__}
        is_envpool = any(module.partition(".")[0] == "envpool" for module in modules)
        is_of_gymnasium = bool(modules & {f"gymnasium.vector.{kind}_vector_env" for kind in ("sync", "async")})
        self.can_reseed = not is_envpool  # EnvPool takes a seed when it is built, and warns of any other.
        # In the other modes a class may ignore the mask, and reset all lanes.
        self.can_reset_lanes = self._mode == DISABLED or is_envpool or is_of_gymnasium
        self._ended = np.zeros(self.num_lanes, bool)  # With the last step.
        self._seed_for_reset: int | None = None
        if seed is not None:
            self.reseed(seed)

    def reseed(self, seed: int) -> None:
        self._seed_for_reset = seed if self.can_reseed else None
        for layer in self.layers():
            gym_driver.seed_action_space(layer, seed)

    def reset(self) -> Any:
        seeded = {} if self._seed_for_reset is None else {"seed": self._seed_for_reset}
        self._seed_for_reset = None
        self._ended = np.zeros(self.num_lanes, bool)
        return self.user_env.reset(**seeded)[0]

    def reset_lanes(self, mask: np.ndarray) -> dict[int, Any]:
        observation, _ = self.user_env.reset(options={"reset_mask": mask})
        lanes = np.flatnonzero(mask).tolist()
        has_all = len(tree.flatten(observation)[0]) == self.num_lanes  # EnvPool returns those of these lanes.
        rows = lanes if has_all else range(len(lanes))
        return {lane: _of_lane(observation, row) for lane, row in zip(lanes, rows, strict=True)}

    def step(self, action: Any) -> LanesStep:
        observation, reward, terminated, truncated, info = self.user_env.step(action)
        is_last = np.logical_or(np.asarray(terminated), np.asarray(truncated))
        discount = np.subtract(1.0, np.asarray(terminated), dtype=np.float32)
        infos: list[tuple[Mapping[str, Any], np.ndarray | None]] = [(info, None)] if info else []
        began = resting = None
        last: dict[int, Any] = {}
        if self._mode == NEXT_STEP and self._ended.any():
            began = resting = self._ended
            infos = [(info, ~resting)] if info else []
        elif self._mode == SAME_STEP and is_last.any():
            if (final := info.get("final_obs")) is None:
                raise KeyError(
                    "a lane has ended, and info has no final_obs: its last observation is lost. Return it there, or "
                    "use another autoreset mode"
                )
            began = is_last
            last = {lane: _of_lane(final, lane) for lane in np.flatnonzero(is_last).tolist()}
            if (final_info := info.get("final_info")) is not None:  # Else `info` has what it says of all lanes.
                infos = [(info, ~is_last), (final_info, is_last)]
        self._ended = is_last
        return LanesStep(observation, np.asarray(reward), discount, is_last, infos, began, resting, last)

    def set_state(self, state: Mapping[str, Any]) -> None:
        layers = list(self.layers())
        has_own = any(map(gym_driver.has_own_set_state, layers))
        if self._lanes is not None and not has_own:
            for lane in self._lanes:
                gym_driver.set_state(gym_layers(lane), state)
        elif hasattr(self.user_env, "set_attr") and not has_own:
            _set_in_processes(self.user_env, state)
        else:
            gym_driver.set_state(layers, state)

    def render(self) -> Any:
        if self._lanes is not None:
            return render_gym(self._lanes[0])
        pictures = self.user_env.render()
        return None if pictures is None else pictures[0]


def _of_lane(batch: Any, lane: int) -> Any:
    """One lane's observation, of a batch or of an array of objects with an observation for each lane."""
    if isinstance(batch, np.ndarray) and batch.dtype == object:
        return batch[lane]
    return tree.map_structure(lambda leaf: np.asarray(leaf)[lane], batch)


def _autoreset_mode(env: Any) -> str:
    metadata = getattr(env, "metadata", None)
    mode = metadata.get("autoreset_mode") if isinstance(metadata, Mapping) else None
    mode = getattr(mode, "value", mode)
    if mode not in (SAME_STEP, NEXT_STEP, DISABLED):
        raise UserError(
            f"env_ctor returned the vector environment {env!r}, whose autoreset mode can't be told "
            f'(metadata["autoreset_mode"] is {mode!r}): set it to a gymnasium.vector.AutoresetMode, as the vector '
            "environments of Gymnasium 1.x do, or return a single environment"
        )
    return str(mode)


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
