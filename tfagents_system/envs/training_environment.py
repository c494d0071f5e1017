"""TrainingEnvironment: a single environment, the usual kind that workers step; and what it shares with vector ones.

A worker has N lanes with an episode each: N single environments (`SingleLanes`), or those of one vector environment
(batched_environment.py). Both write their steps into columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tree
from tf_agents.environments import py_environment
from tf_agents.trajectories import time_step as ts

from tfagents_system.envs.actions import ActionHistory, actions_of, is_finite
from tfagents_system.envs.backends import Backend, make_backend
from tfagents_system.envs.devices import Device, device_of
from tfagents_system.envs.faults import EnvironmentFault
from tfagents_system.envs.gym_driver import RECORD_PREFIX, GoalFunctions, set_evaluation_episode
from tfagents_system.envs.history import ACTION_HISTORY, leaf_names
from tfagents_system.envs.observations import ObservationWriter
from tfagents_system.envs.specs import action_spec_of, observation_spec_of
from tfagents_system.errors import UserError

Potential = Callable[[Any], float]  # From an observation.
Infos = Sequence[tuple[Mapping[str, Any], np.ndarray | int | None]]  # Of a step, see StepNews.

MAX_FLOAT32 = float(np.finfo(np.float32).max)
_FIRST, _MID, _LAST = ts.StepType.FIRST, ts.StepType.MID, ts.StepType.LAST
_NO_REWARD, _KEPT = np.float32(0.0), np.float32(1.0)


class StepColumns:
    """Steps of N lanes, in rows: row t has the observations before step t, and what the step gave.

    Args:
      specs: Of the flattened observation of one lane: whatever has `shape` and `dtype`.
      num_lanes: N.
      rows: Steps.
      has_potential: Whether there are potentials.

    Attributes:
      observation: Leaves `[rows + 1, N, ...]` of the flattened nest.
      reward: `[rows, N]` float32.
      discount: `[rows, N]` float32: 0 where the episode has terminated.
      potential: `[rows + 1, N]` float32: TrainParams.potential of the observations; None without one.
      row: Steps taken so far: where the next one is written.
    """

    def __init__(self, specs: Sequence[Any], num_lanes: int, rows: int, *, has_potential: bool = False) -> None:
        self.observation = [np.zeros((rows + 1, num_lanes, *spec.shape), spec.dtype) for spec in specs]
        self.reward, self.discount = np.zeros((2, rows, num_lanes), np.float32)
        self.potential = np.zeros((rows + 1, num_lanes), np.float32) if has_potential else None
        self.row = 0


class StepNews(NamedTuple):
    """What a step of all lanes has brought beside its columns.

    Attributes:
      ended: Lanes whose episode has ended with this step.
      infos: Pairs of an info and the mask of the lanes that it is about; None: all. An int: the info is that of this
        lane, and its values are no arrays.
      began: `[N]` bool: lanes whose next episode has begun; None: none of them.
      first: Leaves `[N, ...]`: the first observations of the lanes in `began`.
      first_potential: Theirs, `[N]` float32; None without potentials.
      faults: Of lanes that have failed, whose step is none; the others have stepped.
    """

    ended: Sequence[int] = ()
    infos: Infos = ()
    began: np.ndarray | None = None
    first: Sequence[np.ndarray] = ()
    first_potential: np.ndarray | None = None
    faults: Mapping[int, EnvironmentFault] = {}

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


_NO_NEWS = StepNews()


class LaneEnvironment:
    """Wraps what `env_ctor` returned for training.

    Observations are nests of float32 or integer arrays. Actions are nests of float32 vectors in [-1, 1], scaled to the
    environment's own bounds, or of numbers of actions (see actions.py). Episodes end after `horizon` steps at the
    latest, and a time limit, this one or the environment's, keeps the discount; only a termination sets it to 0.

    Args:
      backend: The environment.
      num_lanes: N.
      horizon: Maximum steps of an episode.
      device: Of an environment that acts in real time.
      worker_id: Named in errors.
      name: Which environment of the worker; named in errors.
      action_history: Last actions that its observations hold, see ActionHistory.
      action_table: Of TrainParams: rows in the environment's units that are the agent's actions.
      potential: Of TrainParams; what it raises is a fault of the environment. None: observations have no potential.
      strict_observation_bounds: Of TrainParams.

    Attributes:
      user_env: What `env_ctor` returned.
      num_lanes: N.
      environment_action_spec: Nest of BoundedArraySpecs with the environment's own bounds.
      actions: Nest of LeafActions: what the agent's actions are in the environment.
      episodes_ended: Episodes completed since it was built, of all lanes.
    """

    def __init__(
        self,
        backend: Backend,
        num_lanes: int,
        horizon: int,
        device: Device | None = None,
        *,
        worker_id: int = 0,
        name: str = "the environment",
        action_history: int = 0,
        action_table: Sequence[Sequence[float]] | None = None,
        potential: Potential | None = None,
        strict_observation_bounds: bool = False,
    ) -> None:
        self._backend = backend
        self.user_env = backend.user_env
        self.num_lanes = num_lanes
        self.environment_action_spec = action_spec_of(backend.action_spaces)
        self.actions = actions_of(self.environment_action_spec, action_table, backend.action_spaces)
        self._leaf_actions = tree.flatten(self.actions)
        self._action_spec = tree.map_structure(lambda leaf: leaf.spec, self.actions)
        self._has_nested_actions = tree.is_nested(self._action_spec)
        self._observation_spec = observation_spec_of(backend.observation_spaces)
        full_name = f"worker {worker_id}: {name}"
        self._writer = ObservationWriter(
            self._observation_spec, backend.observation_spaces, full_name, is_strict=strict_observation_bounds
        )
        self._history: ActionHistory | None = None
        if action_history:
            default = None if device is None else device.default_action(self.actions)
            self._history = ActionHistory(action_history, self.actions, default, num_lanes)
            self._observation_spec = self._history.spec(self._observation_spec)
            self._history_leaf = leaf_names(self._observation_spec).index(ACTION_HISTORY)
        self._potential = potential
        self._horizon = horizon
        self._worker_id = worker_id
        self._name = name
        self._steps = self._episodes = 0
        self.episodes_ended = 0

    def observation_spec(self) -> Any:
        """Of one lane, without batch dimension."""
        return self._observation_spec

    def action_spec(self) -> Any:
        """The agent's, of one lane."""
        return self._action_spec

    @property
    def outside(self) -> str:
        """Its first observation beyond its bounds, in words; empty where there was none."""
        return self._writer.outside

    def new_columns(self, rows: int = 1) -> StepColumns:
        """For so many steps."""
        specs = tree.flatten(self._observation_spec)
        return StepColumns(specs, self.num_lanes, rows, has_potential=self._potential is not None)

    def _to_environment(self, leaves: Sequence[Any]) -> Any:
        """The environment's action, from the leaves of the agent's."""
        if not self._has_nested_actions:
            return self._leaf_actions[0].to_environment(leaves[0])
        taken = [actions.to_environment(leaf) for actions, leaf in zip(self._leaf_actions, leaves, strict=True)]
        return tree.unflatten_as(self._action_spec, taken)

    def _own_leaves(self, leaves: list[np.ndarray]) -> list[np.ndarray]:
        """The leaves that the environment itself gives: without the action history."""
        return leaves if self._history is None else [leaf for k, leaf in enumerate(leaves) if k != self._history_leaf]

    def _potential_of(self, leaves: Sequence[np.ndarray]) -> float:
        """That of one lane's observation, `[...]` each."""
        assert self._potential is not None
        return to_number("potential", self._potential(tree.unflatten_as(self._observation_spec, leaves)))

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Sets parameters of the environment, in all lanes; new episodes are to begin before the next step.

        Uses `set_state(dict)` of the environment, or of a vector environment's lanes, otherwise attributes.

        Raises:
          UserError: The environment has no such parameter; the message names those it has.
        """
        if self._episodes == 0:
            self._begin_episodes()  # Some simulators are built by the first reset: before it, nothing can be set.
        self._backend.set_state(state)

    def _begin_episodes(self) -> None:
        """Resets all lanes."""
        raise NotImplementedError

    def close(self) -> None:
        """Frees what the environment holds."""
        self._backend.close()


class TrainingEnvironment(LaneEnvironment, py_environment.PyEnvironment):
    """Wraps a single environment, which is one lane; of a vector environment the first lane.

    As a PyEnvironment its observations are copies, and a step behind an episode's last one begins the next.

    Args:
      env: What `env_ctor` returned.
      horizon: Maximum steps of an episode.
      seed: For the environment and its action space; None leaves them as they are.
      **settings: As of LaneEnvironment.

    Attributes:
      info: The info of the last step; empty after a reset.
      device: Of an environment that acts in real time; None of any other.
      evaluation_episode: Which of an evaluation's episodes the next one is, of which the environment is told if it has
        `set_evaluation_episode(number)`; None: it is of no evaluation.

    Raises:
      UserError: It is not an environment, or SAC can't be trained on it.
    """

    def __init__(self, env: Any, horizon: int, *, seed: int | None = None, **settings: Any) -> None:
        py_environment.PyEnvironment.__init__(self, handle_auto_reset=False)
        backend = make_backend(env, seed)
        self.device = device_of(backend.layers())
        if self.device is not None:
            self.device.limit_steps(horizon)
        LaneEnvironment.__init__(self, backend, 1, horizon, self.device, **settings)
        self.info: Mapping[str, Any] = {}
        self.evaluation_episode: int | None = None
        self._is_over = True

    def reset_lane(self, columns: StepColumns, lane: int = 0) -> None:
        """Begins an episode; writes its first observation as the newest one of a lane.

        Raises:
          EnvironmentFault: It has failed.
        """
        self._steps = 0
        self._episodes += 1
        if self._history is not None:
            self._history.clear()
        try:
            if self.evaluation_episode is not None:
                set_evaluation_episode(self._backend.layers(), self.evaluation_episode)
            self._write(self._backend.reset(), columns, columns.row, lane)
        except Exception as error:
            raise self._fault(error) from error
        self.info = {}
        self._is_over = False

    def step_lane(self, action: Sequence[np.ndarray], columns: StepColumns, lane: int = 0) -> bool:
        """Takes the agent's action; writes the step as the next one of a lane.

        Args:
          action: Leaves `[...]`.
          columns: Get the observation that the step leads to, its reward and discount.
          lane: Of the columns.

        Returns:
          Whether the episode has ended.

        Raises:
          EnvironmentFault: It has failed.
          FloatingPointError: The action is not finite.
        """
        taken = self._to_environment(action)
        if self._history is not None:
            self._history.add(action)
        self._steps += 1
        row = columns.row
        try:
            observation, reward, discount, is_over, info = self._backend.step(taken)
            self._write(observation, columns, row + 1, lane)
            columns.reward[row, lane] = to_number("reward", reward)
            if discount != 0.0 and discount != 1.0:
                _check_discount(discount)
            columns.discount[row, lane] = discount
        except Exception as error:
            raise self._fault(error) from error
        self.info = info or {}
        if is_over or self._steps >= self._horizon:
            self._is_over = True
            self.episodes_ended += 1
            return True
        return False

    def _write(self, observation: Any, columns: StepColumns, row: int, lane: int) -> None:
        leaves = [leaf[row, lane, ...] for leaf in columns.observation]
        if self._history is None:
            self._writer.write(observation, leaves)
        else:
            self._writer.write(observation, self._own_leaves(leaves))
            leaves[self._history_leaf][...] = self._history.values[0]
        if columns.potential is not None and self._potential is not None:
            columns.potential[row, lane] = self._potential_of(leaves)

    def _reset(self) -> ts.TimeStep:
        columns = self.new_columns()
        self.reset_lane(columns)
        return ts.TimeStep(_FIRST, _NO_REWARD, _KEPT, self._observation_of(columns, 0))

    def _step(self, action: Any) -> ts.TimeStep:
        if self._is_over:
            return self._reset()
        columns = self.new_columns()
        is_last = self.step_lane(tree.flatten_up_to(self._action_spec, action), columns)
        step_type, observation = _LAST if is_last else _MID, self._observation_of(columns, 1)
        return ts.TimeStep(step_type, columns.reward[0, 0], columns.discount[0, 0], observation)

    def _observation_of(self, columns: StepColumns, row: int) -> Any:
        return tree.unflatten_as(self._observation_spec, [leaf[row, 0, ...] for leaf in columns.observation])

    def step_in_environment_units(self, action: Any) -> ts.TimeStep:
        """Like `step`, with an action within the environment's own bounds, as policies on disk return it.

        Raises:
          UserError: The action is not finite.
        """
        if not all(map(is_finite, tree.flatten(action))):
            raise UserError(
                f"the policy's action is not finite ({action}) at {self.position}: its training has diverged, play an "
                "earlier checkpoint or another policy"
            )
        own_action = tree.map_structure_up_to(self.actions, lambda own, leaf: own.to_agent(leaf), self.actions, action)
        return self.step(own_action)

    def in_environment_units(self, action: Any) -> Any:
        """An agent's action as the environment takes it."""
        return self._to_environment(tree.flatten_up_to(self._action_spec, action))

    def _fault(self, error: Exception) -> EnvironmentFault:
        self._is_over = True
        return EnvironmentFault(self._worker_id, self._steps, self._episodes, error, self._name)

    @property
    def position(self) -> str:
        """Its approximate position, for a message: `environment 0 (about step 12 of episode 3)`."""
        return f"{self._name} (about step {self._steps} of episode {self._episodes})"

    def reseed(self, seed: int) -> None:
        """Seeds the next episode and those after it."""
        self._backend.reseed(seed)
        self._is_over = True

    def set_state(self, state: Mapping[str, Any]) -> None:
        """See LaneEnvironment; the next step starts a new episode."""
        super().set_state(state)
        self._is_over = True

    def _begin_episodes(self) -> None:
        self.reset()

    @property
    def goal_functions(self) -> GoalFunctions:
        """Rewards as a function of goals, as far as the environment has it."""
        return GoalFunctions(self._backend.layers())

    def render_frame(self) -> np.ndarray:
        """A picture of the current state, `[H, W, 3]` uint8.

        Raises:
          UserError: The environment returns none.
        """
        from tfagents_system.envs import rendering

        return rendering.frame_of(self._backend.render, self.user_env)

    @property
    def frames_per_second(self) -> float:
        """Frames per second of a video of it."""
        from tfagents_system.envs import rendering

        return rendering.frames_per_second(list(self._backend.layers()))


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

    def observation_spec(self) -> Any:
        return self._envs[0].observation_spec()

    def action_spec(self) -> Any:
        return self._envs[0].action_spec()

    def reset(self, columns: StepColumns, lanes: Sequence[int]) -> None:
        """Begins an episode in these lanes."""
        for lane in lanes:
            self._envs[lane].reset_lane(columns, lane)

    def step(self, action: Sequence[np.ndarray], columns: StepColumns, lanes: Sequence[int]) -> StepNews:
        """Steps these lanes; those that fail are among the `faults`."""
        ended: list[int] = []
        infos: list[tuple[Mapping[str, Any], int]] = []
        faults: dict[int, EnvironmentFault] = {}
        for lane in lanes:
            env = self._envs[lane]
            try:
                if env.step_lane([leaf[lane, ...] for leaf in action], columns, lane):
                    ended.append(lane)
                if env.info:
                    infos.append((env.info, lane))
            except EnvironmentFault as fault:
                faults[lane] = fault
        return StepNews(ended, infos, faults=faults) if ended or infos or faults else _NO_NEWS


def to_number(name: str, value: Any) -> float:
    """A number that is finite as float32.

    Raises:
      TypeError, ValueError: It is none.
    """
    try:
        number = float(value)
    except TypeError:
        raise TypeError(f"the {name} is {value!r}: it must be a number") from None
    if not abs(number) <= MAX_FLOAT32:
        raise ValueError(f"the {name} is {number}: it must be finite, as float32")
    return number


def _check_discount(value: Any) -> None:
    discount = to_number("discount", value)
    if not 0.0 <= discount <= 1.0:
        raise ValueError(f"the discount is {discount}: it must be from 0 to 1")
