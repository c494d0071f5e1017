"""BatchedEnvironment: a vector environment of Gymnasium or EnvPool, or a batched PyEnvironment of TF-Agents.

Its lanes have episodes of their own. They differ in when a lane that has ended begins its next one. Gymnasium calls it
the autoreset mode:

    SAME_STEP   with the step that ends the episode: it returns the next one's first observation, `info` the last one
    NEXT_STEP   with the step after it, which ignores the lane's action; EnvPool does so, too
    DISABLED    by `reset(options={"reset_mask": ...})`, which is called here after each step that ends episodes

Lanes of PyEnvironments are reset here, too.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tree
from tf_agents.environments import py_environment
from tf_agents.trajectories import time_step as ts

from tfagents_system.envs import gym_driver
from tfagents_system.envs.backends import Backend, PyBackend, make_backend
from tfagents_system.envs.faults import EnvironmentFault
from tfagents_system.envs.gym_driver import TRUNCATED, StepResult, gym_layers, space_nest
from tfagents_system.envs.specs import spaces_of_array_specs
from tfagents_system.envs.training_environment import MAX_FLOAT32, Infos, LaneEnvironment, StepColumns, StepNews
from tfagents_system.errors import UserError

SAME_STEP, NEXT_STEP, DISABLED = "SameStep", "NextStep", "Disabled"
_MODES = (SAME_STEP, NEXT_STEP, DISABLED)
_FIRST, _LAST = int(ts.StepType.FIRST), int(ts.StepType.LAST)


class BatchedEnvironment(LaneEnvironment):
    """Wraps a vector environment: all of its lanes step together.

    Args:
      env: What `env_ctor` returned.
      horizon: Maximum steps of an episode.
      seed: For the environment, each lane gets one of its own from it; None leaves it as it is.
      **settings: As of LaneEnvironment.

    Attributes:
      begins_episodes: A lane's next episode begins by itself: see StepNews.began.
      can_reseed: `reseed` has an effect: EnvPool takes a seed only when it is built.

    Raises:
      UserError: See VectorBackend and PyLanesBackend.
    """

    begins_episodes = True
    _backend: LanesBackend

    def __init__(self, env: Any, horizon: int, *, seed: int | None = None, **settings: Any) -> None:
        backend = make_backend(env, seed)
        assert isinstance(backend, LanesBackend)
        super().__init__(backend, backend.num_lanes, horizon, **settings)
        self.can_reseed = backend.can_reseed
        self._first = [leaf[0] for leaf in self.new_columns().observation]
        self._lengths = np.zeros(self.num_lanes, np.int64)

    def reset(self, columns: StepColumns, lanes: Sequence[int] = ()) -> None:
        """Begins an episode in each lane; writes their first observations as the newest ones.

        Raises:
          EnvironmentFault: It has failed.
        """
        self._steps = 0
        self._episodes += self.num_lanes
        self._lengths[:] = 0
        newest = [leaf[columns.row] for leaf in columns.observation]
        try:
            self._writer.write(self._backend.reset_all(), self._own_leaves(newest))
            if self._history is not None:
                self._history.clear()
                newest[self._history_leaf][:] = self._history.values
            if columns.potential is not None:
                columns.potential[columns.row] = self._potentials(newest, range(self.num_lanes))
        except Exception as error:
            raise self._fault(error) from error

    def step(self, action: Sequence[np.ndarray], columns: StepColumns, lanes: Sequence[int] = ()) -> StepNews:
        """Steps all lanes; writes the step as the next one.

        Observations are what the step has led to: the true last one where an episode has ended.

        Args:
          action: Leaves `[N, ...]`, the agent's.
          columns: Get observations, rewards and discounts: this is their only copy.

        Returns:
          The news, whose arrays are valid until the next call.

        Raises:
          EnvironmentFault: It has failed.
        """
        taken = self._to_environment(action)
        self._steps += 1
        try:
            return self._take(self._backend.step_all(taken), action, columns)
        except Exception as error:
            raise self._fault(error) from error

    def _take(self, step: LanesStep, action: Sequence[np.ndarray], columns: StepColumns) -> StepNews:
        """Checks and converts a step, and begins episodes in lanes that the environment itself does not."""
        row, out = columns.row, [leaf[columns.row + 1] for leaf in columns.observation]
        columns.reward[row] = _column("reward", step.reward, self.num_lanes)
        columns.discount[row] = step.discount
        self._writer.write(step.observation, self._own_leaves(out))
        self._lengths += 1
        if step.resting is not None:
            self._lengths[step.resting] = 0
        if self._history is not None:
            self._history.add(action)
            out[self._history_leaf][:] = self._history.values
        began = step.began
        if began is not None:
            for first, observation in zip(self._first, out, strict=True):
                first[:] = observation
            for lane, observation in step.last.items():
                self._write_lane(lane, observation, out)
        is_over = step.is_last | (self._lengths >= self._horizon)
        waits = is_over & ~step.is_last if self._backend.begins_episodes else is_over
        if waits.any():
            self._reset_lanes(waits)
            began = waits if began is None else began | waits
        first_potential = None
        if began is not None:
            self._lengths[began] = 0
            if self._history is not None:
                self._history.clear(began)
                self._first[self._history_leaf][began] = self._history.values[began]
            if columns.potential is not None:
                first_potential = self._potentials(self._first, np.flatnonzero(began))
        if columns.potential is not None:
            columns.potential[row + 1] = self._potentials(out, range(self.num_lanes))
        ended = np.flatnonzero(is_over).tolist()
        self.episodes_ended += len(ended)
        self._episodes += len(ended)
        return StepNews(ended, step.infos(), began, self._first, first_potential)

    def _reset_lanes(self, waits: np.ndarray) -> None:
        """Begins the next episodes of lanes that are over, where the environment does not."""
        if not self._backend.can_reset_lanes:
            raise ValueError(
                f"lane {int(np.argmax(waits))} has reached the horizon of {self._horizon} steps, and this vector "
                "environment can't reset single lanes: give it a time limit of its own that is not above the horizon, "
                "or raise the horizon"
            )
        for lane, observation in self._backend.reset_lanes(waits).items():
            self._write_lane(lane, observation, self._first)

    def _write_lane(self, lane: int, observation: Any, out: list[np.ndarray]) -> None:
        """Writes the environment's observation of one lane into leaves `[N, ...]`."""
        try:
            self._writer.write(observation, self._own_leaves([leaf[lane, ...] for leaf in out]))
        except (ValueError, TypeError) as error:
            raise type(error)(f"lane {lane}: {error}") from None

    def _potentials(self, leaves: Sequence[np.ndarray], lanes: Iterable[int]) -> np.ndarray:
        """`[N]` float32: of the observations `[N, ...]` of these lanes; 0 in all others."""
        potentials = np.zeros(self.num_lanes, np.float32)
        for lane in lanes:
            potentials[lane] = self._potential_of([leaf[lane] for leaf in leaves])
        return potentials

    def _fault(self, error: Exception) -> EnvironmentFault:
        where = f"step {self._steps} of its {self.num_lanes} lanes" if self._steps else "a reset of its lanes"
        return EnvironmentFault(self._worker_id, self._steps, max(1, self._episodes), error, self._name, where)

    @property
    def position(self) -> str:
        """Its approximate position, for a message: `environment 0 (about step 12 of its 64 lanes)`."""
        return f"{self._name} (about step {self._steps} of its {self.num_lanes} lanes)"

    def reseed(self, seed: int) -> None:
        """Seeds the lanes' episodes from the next reset on."""
        self._backend.reseed(seed)

    def _begin_episodes(self) -> None:
        self.reset(self.new_columns())


def _column(name: str, values: Any, count: int) -> np.ndarray:
    """One finite number for each lane, float32."""
    column = np.asarray(values)
    if column.shape != (count,):
        raise ValueError(f"the {name} has shape {column.shape}: expected one number for each of {count} lanes")
    is_finite = np.abs(column) <= MAX_FLOAT32
    if not is_finite.all():
        lane = int(np.argmin(is_finite))
        raise ValueError(f"lane {lane}: the {name} is {column[lane]}: it must be finite, as float32")
    return column.astype(np.float32)


# The libraries' vector environments.


@dataclasses.dataclass
class LanesStep:
    """One step of all lanes, with observations as the library returns them.

    Attributes:
      observation: A batch of all lanes: the first ones of episodes that have begun, else the next ones.
      reward: `[N]`.
      discount: `[N]` float32.
      is_last: `[N]` bool: the lane's episode has ended with this step.
      info: What the environment says beside, by key: arrays `[N]`, with a mask under `_key` where not all have it.
      began: `[N]` bool: lanes whose next episode has begun by itself; None: none of them.
      last: The last observations of lanes that began the next episode at once; the others in `began` made no step.
      last_info: The infos of those lanes' last steps; None: `info` has them.
    """

    observation: Any
    reward: np.ndarray
    discount: np.ndarray
    is_last: np.ndarray
    info: Mapping[str, Any]
    began: np.ndarray | None = None
    last: Mapping[int, Any] = dataclasses.field(default_factory=dict)
    last_info: Mapping[str, Any] | None = None

    @property
    def resting(self) -> np.ndarray | None:
        """`[N]` bool: lanes that made no step, since their last episode had ended; None: all made one."""
        return None if self.last else self.began

    def infos(self) -> Infos:
        """The infos of steps, without those of resets."""
        if not self.info:
            return ()
        if self.last_info is not None:
            return [(self.info, ~self.is_last), (self.last_info, self.is_last)]
        return [(self.info, None if self.resting is None else ~self.resting)]


class LanesBackend(Backend):
    """A vector environment of any library. As a Backend it is lane 0, and all other lanes get the same actions.

    Attributes:
      num_lanes: N.
      begins_episodes: A lane that has ended begins its next episode without `reset_lanes`.
      can_reset_lanes: `reset_lanes` works; else a lane's episode ends where the environment says so.
      can_reseed: `reseed` has an effect.
    """

    num_lanes: int
    begins_episodes = False
    can_reset_lanes = True
    can_reseed = True

    @abc.abstractmethod
    def reset_all(self) -> Any:
        """Begins an episode in each lane; returns a batch of their first observations."""

    @abc.abstractmethod
    def step_all(self, actions: Any) -> LanesStep:
        """Takes a batch of actions in the environment's units."""

    @abc.abstractmethod
    def reset_lanes(self, mask: np.ndarray) -> dict[int, Any]:
        """Begins an episode in the lanes of a mask; returns the first observation of each."""

    def reset(self) -> Any:
        return _of_lane(self.reset_all(), 0)

    def step(self, action: Any) -> StepResult:
        step = self.step_all(tree.map_structure(lambda leaf: np.stack([leaf] * self.num_lanes), action))
        is_over = bool(step.is_last[0])
        if not is_over and not self.begins_episodes and step.is_last.any():
            self.reset_lanes(step.is_last)
        info = step.last_info if is_over and step.last_info is not None else step.info
        observation = step.last[0] if 0 in step.last else _of_lane(step.observation, 0)
        return observation, step.reward[0], float(step.discount[0]), is_over, _info_of_lane_0(info)


def _of_lane(batch: Any, lane: int) -> Any:
    """One lane's observation, of a batch or of an array of objects with an observation for each lane."""
    if isinstance(batch, np.ndarray) and batch.dtype == object:
        return batch[lane]
    return tree.map_structure(lambda leaf: np.asarray(leaf)[lane], batch)


def _info_of_lane_0(info: Mapping[str, Any]) -> dict[str, Any]:
    """Its entries; those of others are marked by a mask under `_key`."""
    entries = {}
    for key, values in info.items():
        mask = info.get(f"_{key}")
        if not hasattr(values, "__array__"):
            continue  # Words, dictionaries.
        if (values := np.asarray(values)).ndim and (mask is None or np.asarray(mask)[0]):
            entries[key] = values[0]
    return entries


class VectorBackend(LanesBackend):
    """A vector environment of Gymnasium 1.x, of EnvPool, or of a simulator that looks like one.

    Raises:
      UserError: Its autoreset mode can't be told, its lanes differ in their bounds, or SAC can't use its spaces.
    """

    def __init__(self, env: Any, seed: int | None) -> None:
        self.user_env = env
        self.num_lanes = int(env.num_envs)
        self._mode = _autoreset_mode(env)
        _check_same_lanes(env)
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

    def reset_all(self) -> Any:
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

    def step_all(self, actions: Any) -> LanesStep:
        observation, reward, terminated, truncated, info = self.user_env.step(actions)
        is_last = np.logical_or(np.asarray(terminated), np.asarray(truncated))
        discount = np.subtract(1.0, np.asarray(terminated), dtype=np.float32)
        step = LanesStep(observation, np.asarray(reward), discount, is_last, info or {})
        if self._mode == NEXT_STEP and self._ended.any():
            step.began = self._ended
        self._ended = is_last
        if self._mode == SAME_STEP and is_last.any():
            last = info.get("final_obs")
            if last is None:
                raise KeyError(
                    "a lane has ended, and info has no final_obs: its last observation is lost. Return it there, or "
                    "use another autoreset mode"
                )
            step.began = is_last
            step.last = {lane: _of_lane(last, lane) for lane in np.flatnonzero(is_last).tolist()}
            step.last_info = info.get("final_info")
        return step

    def set_state(self, state: Mapping[str, Any]) -> None:
        layers = list(self.layers())
        if any(map(gym_driver.has_own_set_state, layers)):
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


def _check_same_lanes(env: Any) -> None:
    for kind in ("observation", "action"):
        single, batch = (getattr(env, f"{name}{kind}_space", None) for name in ("single_", ""))
        leaves = [[] if space is None else tree.flatten(space_nest(space)) for space in (single, batch)]
        for (one, several), side in itertools.product(zip(*leaves, strict=False), ("low", "high")):
            bound, bounds = getattr(one, side, None), getattr(several, side, 0.0)
            if bound is not None and np.ndim(bounds) > np.ndim(bound) and (bounds != bound).any():
                raise UserError(
                    f"the lanes of the vector environment {env!r} differ in their {kind} spaces ({batch} is not "
                    f"{env.num_envs} times {single}): build all lanes with the same space"
                )


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


class PyLanesBackend(LanesBackend):
    """TF-Agents' BatchedPyEnvironment, or ParallelPyEnvironment with a process for each lane.

    Raises:
      UserError: Its lanes can't be reset one by one, or SAC can't use its spaces.
    """

    def __init__(self, env: py_environment.PyEnvironment, seed: int | None) -> None:
        self.user_env = env
        # With `_flatten`, lanes in processes take and return flattened nests.
        self._lanes = [] if getattr(env, "_flatten", False) else list(getattr(env, "envs", []))
        if not self._lanes:
            raise UserError(
                f"the batched environment {env!r} has no lanes in its `envs` that can be reset one by one: return a "
                "BatchedPyEnvironment, a ParallelPyEnvironment (flatten=False), or a vector environment of Gymnasium"
            )
        self.num_lanes = len(self._lanes)
        self.observation_spaces = spaces_of_array_specs(env.observation_spec())
        self.action_spaces = spaces_of_array_specs(env.action_spec())
        self._discount = np.ones(self.num_lanes, np.float32)  # Of the last step.
        if seed is not None:
            self.reseed(seed)

    def reseed(self, seed: int) -> None:
        for number, lane in enumerate(self._lanes):
            if _is_here(lane):
                PyBackend(lane, seed + number)
            else:
                with contextlib.suppress(Exception):  # It got its seed from `env_ctor`, or needs none.
                    lane.call("seed", seed + number)()

    def reset_all(self) -> Any:
        self._discount[:] = 1.0
        return self.user_env.reset().observation

    def reset_lanes(self, mask: np.ndarray) -> dict[int, Any]:
        self._discount[mask] = 1.0
        return {lane: self._lanes[lane].reset().observation for lane in np.flatnonzero(mask).tolist()}

    def step_all(self, actions: Any) -> LanesStep:
        time_step = self.user_env.step(actions)
        step_type = np.asarray(time_step.step_type)
        if (step_type == _FIRST).any():
            raise RuntimeError("step() returned the FIRST time step of another episode: the last one has no end")
        is_last = step_type == _LAST
        discount = np.array(time_step.discount, np.float32)
        for lane in np.flatnonzero(is_last & (discount == 0.0)):
            if self._is_truncated(lane):
                discount[lane] = self._discount[lane]  # GymWrapper returns 0 at every end of an episode.
        self._discount = discount.copy()
        return LanesStep(time_step.observation, np.asarray(time_step.reward), discount, is_last, {})

    def _is_truncated(self, lane: int) -> bool:
        env = self._lanes[lane]
        try:
            info = env.get_info() if _is_here(env) else env.call("get_info")()
        except Exception:  # NotImplementedError; a process that an environment runs in raises another one for it.
            return False
        return isinstance(info, Mapping) and bool(info.get(TRUNCATED, False))

    def set_state(self, state: Mapping[str, Any]) -> None:
        for lane in self._lanes:
            if _is_here(lane):
                PyBackend(lane, None).set_state(state)
            else:
                lane.call("set_state", dict(state))()

    def render(self) -> Any:
        return self.user_env.render("rgb_array")[0]

    def layers(self) -> Iterator[Any]:
        yield self.user_env


def _is_here(lane: Any) -> bool:
    """Whether a lane runs in this process, rather than in one of ParallelPyEnvironment's."""
    return isinstance(lane, py_environment.PyEnvironment)
