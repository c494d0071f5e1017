"""Environments as lanes with episodes of their own: a vector environment has several, any other a single one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import tree
from tf_agents.trajectories import time_step as ts

from tfagents_system.envs.action_history import KEY, ActionHistory
from tfagents_system.envs.actions import actions_of
from tfagents_system.envs.batch_converters import ObservationWriter
from tfagents_system.envs.batched_backends import RawStep, make_batched_backend
from tfagents_system.envs.faults import EnvironmentFault
from tfagents_system.envs.info_keys import RECORD_PREFIX
from tfagents_system.envs.observation_bounds import OutsideBounds
from tfagents_system.envs.observations import nest_converter
from tfagents_system.envs.training_environment import Potential, TrainingEnvironment, to_number

_MAX_FLOAT32 = np.finfo(np.float32).max
_LAST = ts.StepType.LAST
_NO_FAULTS: dict[int, EnvironmentFault] = {}

Infos = Sequence[tuple[Mapping[str, Any], np.ndarray | int | None]]


class BatchStep(NamedTuple):
    """What one step of all lanes has led to.

    Attributes:
      reward: `[N]` float32.
      discount: `[N]` float32: 0 where the episode has terminated.
      ended: Lanes whose episode has ended with this step.
      resting: `[N]` bool: lanes that took no step, between two episodes; None: none of them.
      began: `[N]` bool: lanes whose next episode has begun; None: none of them.
      first: Leaves `[N, ...]`: the first observations of the lanes in `began`.
      infos: Pairs of an info and the mask of the lanes that it is about; None: all. An int: the info is that of this
        lane, and its values are no arrays.
      potential, first_potential: `[N]` float32: of the observations behind the step, and of those in `first`; None
        where there is no potential.
      faults: Of lanes that have failed, whose step is none; the others have stepped.
    """

    reward: np.ndarray
    discount: np.ndarray
    ended: Sequence[int]
    resting: np.ndarray | None
    began: np.ndarray | None
    first: Sequence[np.ndarray]
    infos: Infos
    potential: np.ndarray | None = None
    first_potential: np.ndarray | None = None
    faults: Mapping[int, EnvironmentFault] = _NO_FAULTS

    def records_of(self, lane: int) -> dict[str, Any]:
        """What a lane's infos have under `record/...`."""
        records = dict[str, Any]()
        for info, lanes in self.infos:
            keys = [key for key in info if isinstance(key, str) and key.startswith(RECORD_PREFIX)]
            if isinstance(lanes, int):
                records |= {key: info[key] for key in keys if lanes == lane}
            elif lanes is None or lanes[lane]:
                masks = {key: info.get(f"_{key}") for key in keys}
                records |= {key: info[key][lane] for key, mask in masks.items() if mask is None or mask[lane]}
        return records


class BatchedEnvironment:
    """Wraps a vector environment for training, by the rules of TrainingEnvironment, in columns.

    Observations are written as flattened leaves `[N, ...]` into arrays that the caller owns: this is their only copy.
    After a step they are what the step led to: the true last observation where an episode has ended. The arrays of a
    BatchStep are valid until the next call.

    Args:
      env: What `env_ctor` returned.
      horizon: Maximum steps of an episode.
      seed: For the environment, each lane gets one of its own from it; None leaves it as it is.
      worker_id: Named in errors.
      name: Which environment of the worker; named in errors.
      action_history, action_table, potential, strict_observation_bounds: As of TrainingEnvironment.

    Attributes:
      user_env: What `env_ctor` returned.
      num_lanes: N.
      environment_action_spec, actions, outside: As of TrainingEnvironment.
      episodes_ended: Episodes completed since it was built, of all lanes.
      begins_episodes: A lane's next episode begins by itself: see BatchStep.began.

    Raises:
      UserError: See make_batched_backend.
    """

    begins_episodes = True

    def __init__(
        self,
        env: Any,
        horizon: int,
        *,
        seed: int | None = None,
        worker_id: int = 0,
        name: str = "the environment",
        action_history: int = 0,
        action_table: Sequence[Sequence[float]] | None = None,
        potential: Potential | None = None,
        strict_observation_bounds: bool = False,
    ) -> None:
        self._backend = make_batched_backend(env, seed)
        self._potential = potential
        self.user_env = env
        self.outside = OutsideBounds(f"worker {worker_id}: {name}", strict_observation_bounds)
        self.num_lanes = self._backend.num_lanes
        self.environment_action_spec = self._backend.environment_action_spec
        self._observation_spec = self._backend.observation_spec
        self.actions = actions_of(self.environment_action_spec, action_table, self._backend.own_action_spec)
        self._action_spec = tree.map_structure(lambda leaf: leaf.spec, self.actions)
        self._writer = ObservationWriter(self._observation_spec, self._backend.own_observation_spec, self.outside)
        self._history: _Histories | None = None
        self._history_leaf = -1
        if action_history:
            self._history = _Histories(self.num_lanes, action_history, self.actions)
            self._observation_spec = self._history.single.spec(self._observation_spec)
            paths = [path for path, _ in tree.flatten_with_path(self._observation_spec)]
            self._history_leaf = paths.index((KEY,))
        self._to_environment = nest_converter(lambda leaf: leaf.batch_to_environment, self.actions)
        self._first = [np.zeros((self.num_lanes, *s.shape), s.dtype) for s in tree.flatten(self._observation_spec)]
        self._is_nested = tree.is_nested(self._action_spec)
        self._horizon = horizon
        self._worker_id = worker_id
        self._name = name
        self._lengths = np.zeros(self.num_lanes, np.int64)
        self._steps = self._episodes = 0
        self.episodes_ended = 0

    def observation_spec(self) -> Any:
        """Of one lane, without batch dimension."""
        return self._observation_spec

    def action_spec(self) -> Any:
        """The agent's, of one lane."""
        return self._action_spec

    def reset(self, out: Sequence[np.ndarray], lanes: Sequence[int] = ()) -> np.ndarray | None:
        """Begins an episode in each lane; writes their first observations, and returns their potentials `[N]` if any.

        Raises:
          EnvironmentFault: It has failed.
        """
        self._steps = 0
        self._episodes += self.num_lanes
        self._lengths[:] = 0
        try:
            self._writer.write(self._backend.reset(), self._without_history(out))
            if self._history is not None:
                self._history.values[:] = 0.0
                out[self._history_leaf][:] = 0.0
            return self._potentials(out, range(self.num_lanes))
        except Exception as error:
            raise self._fault(error) from error

    def step(self, action: Sequence[np.ndarray], out: Sequence[np.ndarray], lanes: Sequence[int] = ()) -> BatchStep:
        """Steps all lanes; writes the observations that the steps have led to.

        Args:
          action: Leaves `[N, ...]`, the agent's.
          out: Leaves `[N, ...]`.

        Raises:
          EnvironmentFault: It has failed.
        """
        taken = self._to_environment(tree.unflatten_as(self._action_spec, action) if self._is_nested else action[0])
        self._steps += 1
        try:
            raw = self._backend.step(taken)
            return self._take(raw, action, out)
        except Exception as error:
            raise self._fault(error) from error

    def _take(self, raw: RawStep, action: Sequence[np.ndarray], out: Sequence[np.ndarray]) -> BatchStep:
        """Checks and converts a step, and begins episodes in lanes that the environment itself does not."""
        reward = _column("reward", raw.reward, self.num_lanes)
        self._writer.write(raw.observation, self._without_history(out))
        self._lengths += 1
        if raw.resting is not None:
            self._lengths[raw.resting] = 0
        is_last, began = raw.is_last, raw.began
        if self._history is not None:
            self._history.add(action)
            out[self._history_leaf][:] = self._history.values
        if began is not None:
            self._keep_first(began, out)
            if raw.final is not None:
                lanes = np.flatnonzero(began)
                self._writer.write_rows(self._writer.rows(raw.final, lanes), lanes, self._without_history(out))
        is_over = self._lengths >= self._horizon
        if not self._backend.begins_episodes or is_over.any():
            is_last, began = self._end_lanes(is_last | is_over, is_last, began)
        if began is not None:
            self._lengths[began] = 0
            if self._history is not None:
                self._history.values[began] = 0.0
                self._first[self._history_leaf][began] = 0.0
        ended = np.flatnonzero(is_last).tolist()
        self.episodes_ended += len(ended)
        self._episodes += len(ended)
        potential = self._potentials(out, range(self.num_lanes))
        first = None if began is None else self._potentials(self._first, np.flatnonzero(began))
        return BatchStep(reward, raw.discount, ended, raw.resting, began, self._first, _infos(raw), potential, first)

    def _potentials(self, leaves: Sequence[np.ndarray], lanes: Iterable[int]) -> np.ndarray | None:
        """`[N]` float32: of the observations `[N, ...]` of these lanes; 0 in all others."""
        if self._potential is None:
            return None
        found = np.zeros(self.num_lanes, np.float32)
        for lane in lanes:
            observation = tree.unflatten_as(self._observation_spec, [leaf[lane] for leaf in leaves])
            found[lane] = to_number("potential", self._potential(observation))
        return found

    def _end_lanes(
        self, is_over: np.ndarray, is_last: np.ndarray, began: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Begins the next episodes of lanes that are over, at the horizon too, where the environment does not.

        Returns:
          The lanes whose episodes have ended, and those whose next ones have begun.
        """
        waits = is_over & ~is_last if self._backend.begins_episodes else is_over
        if not waits.any():
            return is_over, began
        if not self._backend.resets_lanes:
            raise ValueError(
                f"lane {int(np.argmax(waits))} has reached the horizon of {self._horizon} steps, and this vector "
                "environment can't reset single lanes: give it a time limit of its own that is not above the horizon, "
                "or raise the horizon"
            )
        lanes, rows = np.flatnonzero(waits), self._backend.reset_lanes(waits)
        is_whole = len(tree.flatten(rows)[0]) == self.num_lanes
        chosen = self._writer.rows(rows, lanes if is_whole else np.arange(len(lanes)))
        self._writer.write_rows(chosen, lanes, self._without_history(self._first))
        return is_over, waits if began is None else began | waits

    def _keep_first(self, began: np.ndarray, out: Sequence[np.ndarray]) -> None:
        for first, row in zip(self._first, out, strict=True):
            first[began] = row[began]

    def _without_history(self, leaves: Sequence[np.ndarray]) -> list[np.ndarray]:
        return [leaf for k, leaf in enumerate(leaves) if k != self._history_leaf]

    def _fault(self, error: Exception) -> EnvironmentFault:
        return EnvironmentFault(self._worker_id, self._steps, max(1, self._episodes), error, self._name, self._where())

    def _where(self) -> str:
        return f"step {self._steps} of its {self.num_lanes} lanes" if self._steps else "a reset of its lanes"

    @property
    def position(self) -> str:
        """Its approximate position, for a message: `environment 0 (about step 12 of its 64 lanes)`."""
        return f"{self._name} (about step {self._steps} of its {self.num_lanes} lanes)"

    @property
    def can_reseed(self) -> bool:
        """Whether `reseed` has an effect: EnvPool takes a seed only when it is built."""
        return self._backend.can_reseed

    def reseed(self, seed: int) -> None:
        """Seeds the lanes' episodes from the next reset on."""
        self._backend.reseed(seed)

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Sets parameters in all lanes; `reset` is to be called before the next step.

        Uses `set_state(dict)` of the vector environment or else of its lanes if they have one, otherwise attributes.

        Raises:
          UserError: There is no such parameter.
        """
        if self._episodes == 0:
            self.reset([np.zeros_like(leaf) for leaf in self._first])  # Some simulators are built by the first reset.
        self._backend.set_state(state)

    def close(self) -> None:
        """Frees what the environment holds."""
        self.outside.tell_count()
        self._backend.close()


class _Histories:
    """The action histories of all lanes.

    Attributes:
      single: That of one lane, for its spec.
      values: `[N, length * dim]` float32.
    """

    def __init__(self, num_lanes: int, length: int, actions: Any) -> None:
        self.single = ActionHistory(length, actions)
        self.values = np.zeros((num_lanes, length * self.single.size), np.float32)

    def add(self, action: Sequence[np.ndarray]) -> None:
        """Adds a batch of actions, as ActionHistory.add does."""
        size = self.single.size
        self.values[:, :-size] = self.values[:, size:]
        self.values[:, -size:] = self.single.encoded(action)


def _column(name: str, values: Any, count: int) -> np.ndarray:
    """One finite number for each lane, float32."""
    column = np.asarray(values)
    if column.shape != (count,):
        raise ValueError(f"the {name} has shape {column.shape}: expected one number for each of {count} lanes")
    is_finite = np.abs(column) <= _MAX_FLOAT32
    if not is_finite.all():
        lane = int(np.argmin(is_finite))
        raise ValueError(f"lane {lane}: the {name} is {column[lane]}: it must be finite, as float32")
    return column.astype(np.float32)


def _infos(raw: RawStep) -> Infos:
    """The infos of steps, without those of resets."""
    if not raw.info:
        return []
    if raw.final_info is not None:
        return [(raw.info, ~raw.is_last), (raw.final_info, raw.is_last)]
    return [(raw.info, None if raw.resting is None else ~raw.resting)]


class SingleLanes:
    """Single environments, each a lane; methods as of BatchedEnvironment, but for what is said here.

    Args:
      envs: The environments; one may be replaced before it is reset.

    Attributes:
      num_lanes: N.
      begins_episodes: A lane's next episode begins with `reset`.
    """

    begins_episodes = False

    def __init__(self, envs: Sequence[TrainingEnvironment]) -> None:
        self._envs = envs
        self.num_lanes = len(envs)
        self._observation_spec, self._action_spec = envs[0].observation_spec(), envs[0].action_spec()
        self._is_nested = tree.is_nested(self._action_spec)
        self._is_array = not tree.is_nested(self._observation_spec)
        self._zeros, self._ones = np.zeros(self.num_lanes, np.float32), np.ones(self.num_lanes, np.float32)

    def observation_spec(self) -> Any:
        return self._observation_spec

    def action_spec(self) -> Any:
        return self._action_spec

    def reset(self, out: Sequence[np.ndarray], lanes: Sequence[int]) -> np.ndarray:
        """Begins an episode in these lanes."""
        potential = self._zeros.copy()
        for lane in lanes:
            self._write(self._envs[lane].reset().observation, out, lane)
            potential[lane] = self._envs[lane].potential
        return potential

    def step(self, action: Sequence[np.ndarray], out: Sequence[np.ndarray], lanes: Sequence[int]) -> BatchStep:
        """Steps these lanes; those that fail are among the step's `faults`."""
        reward, discount, potential = self._zeros.copy(), self._ones.copy(), self._zeros.copy()
        ended: list[int] = []
        infos, faults = [], _NO_FAULTS
        for lane in lanes:
            env, taken = self._envs[lane], [leaf[lane, ...] for leaf in action]
            try:
                time_step = env.step(tree.unflatten_as(self._action_spec, taken) if self._is_nested else taken[0])
            except EnvironmentFault as fault:
                faults = {**faults, lane: fault}
                continue
            step_type, reward[lane], discount[lane], observation = time_step
            self._write(observation, out, lane)
            potential[lane] = env.potential
            if step_type == _LAST:  # TimeStep.is_last() takes 10 us: it asks for tensors first.
                ended.append(lane)
            if env.info:
                infos.append((env.info, lane))
        return BatchStep(reward, discount, ended, None, None, (), infos, potential, None, faults)

    def _write(self, observation: Any, out: Sequence[np.ndarray], lane: int) -> None:
        if self._is_array:
            out[0][lane] = observation
            return
        for array, leaf in zip(out, tree.flatten(observation), strict=True):
            array[lane] = leaf


def lanes_of(
    envs: Sequence[TrainingEnvironment | BatchedEnvironment], before: BatchedEnvironment | SingleLanes | None = None
) -> BatchedEnvironment | SingleLanes:
    """A worker's environments as lanes: a vector environment is the only one, single ones are a lane each.

    Args:
      envs: The environments.
      before: What this has returned for them before one was replaced.
    """
    if isinstance(envs[0], BatchedEnvironment):
        return envs[0]
    return before or SingleLanes(cast(Sequence[TrainingEnvironment], envs))
