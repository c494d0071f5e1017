"""TrainingEnvironment wraps what `env_ctor` returned for training, and writes its steps into columns.

It has N lanes with an episode each. A single environment is one lane; a worker steps several of these as `SingleLanes`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tree
from tf_agents.environments import py_environment
from tf_agents.trajectories import time_step as ts

from tfagents_system.envs import rendering
from tfagents_system.envs.actions import ActionHistory, actions_of, is_finite, mask_leaf
from tfagents_system.envs.backends import make_backend
from tfagents_system.envs.faults import EnvironmentFault
from tfagents_system.envs.gym_driver import ACTION_MASK, RECORD_PREFIX, GoalFunctions, set_evaluation_episode
from tfagents_system.envs.history import ACTION_HISTORY, leaf_names
from tfagents_system.envs.observations import ObservationWriter
from tfagents_system.envs.real_time import device_of
from tfagents_system.envs.specs import Bounds, action_spec_of, observation_spec_of
from tfagents_system.envs.vector_driver import LanesStep
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

    def info_of(self, lane: int, prefix: str = "") -> dict[str, Any]:
        """A lane's own entries of the infos under this prefix."""
        entries = dict[str, Any]()
        for info, lanes in self.infos:
            of_prefix = {key: values for key, values in info.items() if str(key).startswith(prefix)}
            if isinstance(lanes, int):
                entries |= of_prefix if lanes == lane else {}
            elif lanes is None or lanes[lane]:
                for key, values in of_prefix.items():
                    mask = info.get(f"_{key}")
                    is_list = isinstance(values, list | tuple) and lane < len(values)
                    # Not of words and dictionaries, and of what only other lanes have said.
                    is_told = is_list or (hasattr(values, "__array__") and np.ndim(values))
                    if is_told and (mask is None or np.asarray(mask)[lane]):
                        entries[key] = values[lane] if is_list else np.asarray(values)[lane]
        return entries

    def records_of(self, lane: int) -> dict[str, Any]:
        """What a lane's infos have under `record/...`."""
        return self.info_of(lane, RECORD_PREFIX)


_NO_NEWS = StepNews()


class TrainingEnvironment(py_environment.PyEnvironment):
    """An environment as workers step it: single or with several lanes.

    Observations are nests of float32 or integer arrays. Actions are nests of float32 vectors in [-1, 1], scaled to the
    environment's own bounds, or of numbers of actions (see actions.py). Episodes end after `horizon` steps at the
    latest, and a time limit, this one or the environment's, keeps the discount; only a termination sets it to 0.

    As a PyEnvironment it is its first lane, and all others get the same actions: observations are copies, and a step
    behind an episode's last one begins the next.

    Args:
      env: What `env_ctor` returned.
      horizon: Maximum steps of an episode.
      seed: For the environment and its action space, each lane gets one of its own from it; None leaves them.
      worker_id: Named in errors.
      name: Which environment of the worker; named in errors.
      action_history: Last actions that its observations hold, see ActionHistory.
      action_bounds: Of TrainParams: they replace those of the environment's Boxes of floats.
      action_table: Of TrainParams: rows in the environment's units that are the agent's actions.
      potential: Of TrainParams; what it raises is a fault of the environment. None: observations have no potential.
      strict_observation_bounds: Of TrainParams.

    Attributes:
      user_env: What `env_ctor` returned.
      is_vector: It steps all of its lanes together: `reset_lanes` and `step_lanes`.
      num_lanes: N.
      can_reseed: `reseed` has an effect: EnvPool takes a seed only when it is built.
      device: Of an environment that acts in real time; None of any other.
      environment_action_spec: Nest of BoundedArraySpecs with the environment's own bounds, or `action_bounds`.
      actions: Nest of LeafActions: what the agent's actions are in the environment.
      info: The info of the (first lane's) last step; empty after a reset.
      legal: `[N, n]`: which of n actions may be taken next, by `action_mask`; None where observations have none.
      episodes_ended: Episodes completed since it was built, of all lanes.
      evaluation_episode: Which of an evaluation's episodes the next one is, of which a single environment is told if it
        has `set_evaluation_episode(number)`; None: it is of no evaluation.
      begins_episodes: Of a vector environment's lanes: the next episode begins by itself, see StepNews.began.

    Raises:
      UserError: It is not an environment, or SAC can't be trained on it.
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
        action_bounds: Bounds | None = None,
        action_table: Sequence[Sequence[float]] | None = None,
        potential: Potential | None = None,
        strict_observation_bounds: bool = False,
    ) -> None:
        super().__init__(handle_auto_reset=False)
        backend = self._backend = make_backend(env, seed)
        self.user_env, self.is_vector, self.num_lanes = backend.user_env, backend.is_vector, backend.num_lanes
        self.can_reseed = backend.can_reseed
        self.device = None if self.is_vector else device_of(backend.layers())
        if self.device is not None:
            self.device.limit_steps(horizon)
        self.environment_action_spec = action_spec_of(backend.action_spaces, action_bounds)
        self.actions = actions_of(self.environment_action_spec, action_table, backend.action_spaces)
        self._leaf_actions = tree.flatten(self.actions)
        self._action_spec = tree.map_structure(lambda leaf: leaf.spec, self.actions)
        self._has_nested_actions = tree.is_nested(self._action_spec)
        self._observation_spec = observation_spec_of(backend.observation_spaces)
        self._writer = ObservationWriter(
            self._observation_spec,
            backend.observation_spaces,
            f"worker {worker_id}: {name}",
            is_strict=strict_observation_bounds,
        )
        self._history: ActionHistory | None = None
        if action_history:
            default = None if self.device is None else self.device.default_action(self.actions)
            self._history = ActionHistory(action_history, self.actions, default, self.num_lanes)
            self._observation_spec = self._history.spec(self._observation_spec)
            self._history_leaf = leaf_names(self._observation_spec).index(ACTION_HISTORY)
        self._mask_leaf = mask_leaf(self._observation_spec, self._action_spec)
        self.legal: np.ndarray | None = None
        self._potential = potential
        self._horizon = horizon
        self._worker_id = worker_id
        self._name = name
        self._steps = self._episodes = 0
        self._is_over = True  # Of the PyEnvironment: a step begins an episode.
        self._lengths = np.zeros(self.num_lanes, np.int64)  # Steps of the lanes' episodes, of a vector environment.
        self._first = [leaf[0] for leaf in self.new_columns().observation] if self.is_vector else []
        self.info: Mapping[str, Any] = {}
        self.episodes_ended = 0
        self.evaluation_episode: int | None = None

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

    @property
    def goal_functions(self) -> GoalFunctions:
        """Rewards as a function of goals, as far as the environment has it."""
        return GoalFunctions(self._backend.layers())

    @property
    def position(self) -> str:
        """Its approximate position, for a message: `environment 0 (about step 12 of episode 3)`."""
        where = f"its {self.num_lanes} lanes" if self.is_vector else f"episode {self._episodes}"
        return f"{self._name} (about step {self._steps} of {where})"

    def new_columns(self, rows: int = 1) -> StepColumns:
        """For so many steps."""
        specs = tree.flatten(self._observation_spec)
        return StepColumns(specs, self.num_lanes, rows, has_potential=self._potential is not None)

    def reseed(self, seed: int) -> None:
        """Seeds the next episode and those after it."""
        self._backend.reseed(seed)
        self._is_over = True

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Sets parameters of the environment, in all lanes; new episodes are to begin before the next step.

        Uses `set_state(dict)` of the environment, or of a vector environment's lanes, otherwise attributes.

        Raises:
          UserError: The environment has no such parameter; the message names those it has.
        """
        if self._episodes == 0:
            self.reset()  # Some simulators are built by the first reset: before it, nothing can be set.
        self._backend.set_state(state)
        self._is_over = True

    def render_frame(self) -> np.ndarray:
        """A picture of the current state, `[H, W, 3]` uint8.

        Raises:
          UserError: The environment returns none.
        """
        return rendering.frame_of(self._backend.render, self.user_env)

    @property
    def frames_per_second(self) -> float:
        """Frames per second of a video of it."""
        return rendering.frames_per_second(list(self._backend.layers()))

    def close(self) -> None:
        """Frees what the environment holds."""
        self._backend.close()

    # Its lanes.

    def reset_lanes(self, columns: StepColumns, lanes: Any = 0) -> None:
        """Begins an episode, of a vector environment one in each lane; writes what it observes as the newest one.

        Args:
          columns: Get the observations.
          lanes: Of the columns: the lane of a single environment. A vector environment has all of them.

        Raises:
          EnvironmentFault: It has failed.
        """
        self._steps = 0
        self._episodes += self.num_lanes
        self._lengths[:] = 0
        self.info = {}
        if self._history is not None:
            self._history.clear()
        index = slice(None) if self.is_vector else lanes
        leaves = [leaf[columns.row, index, ...] for leaf in columns.observation]
        try:
            if self.evaluation_episode is not None and not self.is_vector:
                set_evaluation_episode(self._backend.layers(), self.evaluation_episode)
            self._write(self._backend.reset(), leaves)
            if self._mask_leaf is not None:
                self._keep_mask(leaves)
            if columns.potential is not None:
                columns.potential[columns.row, index] = self._potentials(leaves)
        except Exception as error:
            raise self._fault(error) from error
        self._is_over = False

    def step_lane(self, action: Sequence[np.ndarray], columns: StepColumns, lane: int = 0) -> bool:
        """Takes the agent's action in a single environment; writes the step as the next one of a lane.

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
            leaves = [leaf[row + 1, lane, ...] for leaf in columns.observation]
            self._write(observation, leaves)
            columns.reward[row, lane] = to_number("reward", reward)
            if discount != 0.0 and discount != 1.0:
                _check_discount(discount)
            columns.discount[row, lane] = discount
            if self._mask_leaf is not None:
                self._keep_mask(leaves, is_over or self._steps >= self._horizon)
            if columns.potential is not None:
                columns.potential[row + 1, lane] = self._potentials(leaves)
        except Exception as error:
            raise self._fault(error) from error
        self.info = info or {}
        if is_over or self._steps >= self._horizon:
            self._is_over = True
            self.episodes_ended += 1
            return True
        return False

    def step_lanes(self, action: Sequence[np.ndarray], columns: StepColumns, lanes: Sequence[int] = ()) -> StepNews:
        """Steps all lanes of a vector environment; writes the step as the next one.

        Observations are what the step has led to: the true last one where an episode has ended.

        Args:
          action: Leaves `[N, ...]`, the agent's.
          columns: Get observations, rewards and discounts: this is their only copy.

        Returns:
          The news, whose arrays are valid until the next call.

        Raises:
          EnvironmentFault, FloatingPointError: See `step_lane`.
        """
        taken = self._to_environment(action)
        self._steps += 1
        try:
            return self._take(self._backend.step(taken), action, columns)
        except Exception as error:
            raise self._fault(error) from error

    def _take(self, step: LanesStep, action: Sequence[np.ndarray], columns: StepColumns) -> StepNews:
        """Checks and converts a step, and begins episodes in lanes that the environment itself does not."""
        row, out = columns.row, [leaf[columns.row + 1] for leaf in columns.observation]
        columns.reward[row] = _column("reward", step.reward, self.num_lanes)
        columns.discount[row] = step.discount
        if self._history is not None:
            self._history.add(action)
        self._write(step.observation, out)
        self._lengths += 1
        if step.resting is not None:
            self._lengths[step.resting] = 0
        began = step.began
        if began is not None:
            for first, observation in zip(self._first, out, strict=True):
                first[:] = observation
            for lane, observation in step.last.items():
                self._write_lane(lane, observation, out)
        is_over = step.is_last | (self._lengths >= self._horizon)
        waits = is_over & ~step.is_last if self._backend.begins_episodes else is_over
        if waits.any():
            self._begin_episodes(waits)
            began = waits if began is None else began | waits
        if self._mask_leaf is not None:
            self._keep_mask(out, is_over, began)
        first_potential = None
        if began is not None:
            self._lengths[began] = 0
            if self._history is not None:
                self._history.clear(began)
                self._first[self._history_leaf][began] = self._history.values[began]
            if columns.potential is not None:
                first_potential = self._potentials(self._first, np.flatnonzero(began))
        if columns.potential is not None:
            columns.potential[row + 1] = self._potentials(out)
        ended = np.flatnonzero(is_over).tolist()
        self.episodes_ended += len(ended)
        self._episodes += len(ended)
        return StepNews(ended, step.infos, began, self._first, first_potential)

    def _begin_episodes(self, waits: np.ndarray) -> None:
        """Begins the next episodes of lanes that are over, where the environment does not."""
        if not self._backend.can_reset_lanes:
            raise ValueError(
                f"lane {int(np.argmax(waits))} has reached the horizon of {self._horizon} steps, and this vector "
                "environment can't reset single lanes: give it a time limit of its own that is not above the horizon, "
                "or raise the horizon"
            )
        for lane, observation in self._backend.reset_lanes(waits).items():
            self._write_lane(lane, observation, self._first)

    def _write(self, observation: Any, leaves: list[np.ndarray]) -> None:
        """Writes the environment's observation, or a batch of all lanes, and the last actions."""
        self._writer.write(observation, self._own_leaves(leaves))
        if self._history is not None:
            leaves[self._history_leaf][...] = self._history.values

    def _write_lane(self, lane: int, observation: Any, out: Sequence[np.ndarray]) -> None:
        """Writes the environment's observation of one lane into leaves `[N, ...]`."""
        try:
            self._writer.write(observation, self._own_leaves([leaf[lane, ...] for leaf in out]))
        except ValueError as error:
            raise ValueError(f"lane {lane}: {error}") from None

    def _keep_mask(self, leaves: Sequence[np.ndarray], is_over: Any = False, began: np.ndarray | None = None) -> None:
        """Which actions may be taken next. There must be one, but for where an episode is over.

        Args:
          leaves: `[...]` of a single environment, `[N, ...]` of lanes; of those that `began` an episode in `_first`.
        """
        assert self._mask_leaf is not None
        self.legal = np.array(leaves[self._mask_leaf], bool, ndmin=2)
        is_stuck = ~self.legal.any(axis=1) & ~np.asarray(is_over)
        if began is not None:
            self.legal[began] = self._first[self._mask_leaf][began]
            is_stuck |= ~self.legal.any(axis=1) & began
        if is_stuck.any():
            where = f"lane {int(is_stuck.argmax())}: " if self.is_vector else ""
            raise ValueError(
                f"{where}{ACTION_MASK} of observation or info has no legal action: end an episode that can't continue"
            )

    def _own_leaves(self, leaves: list[np.ndarray]) -> list[np.ndarray]:
        """The leaves that the environment itself gives: without the action history."""
        return leaves if self._history is None else [leaf for k, leaf in enumerate(leaves) if k != self._history_leaf]

    def _potentials(self, leaves: Sequence[np.ndarray], lanes: Iterable[int] | None = None) -> Any:
        """That of an observation; of a batch `[N]` float32, 0 in other lanes than these."""
        assert self._potential is not None
        if not self.is_vector:
            return to_number("potential", self._potential(tree.unflatten_as(self._observation_spec, leaves)))
        potentials = np.zeros(self.num_lanes, np.float32)
        for lane in range(self.num_lanes) if lanes is None else lanes:
            observation = tree.unflatten_as(self._observation_spec, [leaf[lane] for leaf in leaves])
            potentials[lane] = to_number("potential", self._potential(observation))
        return potentials

    def _to_environment(self, leaves: Sequence[Any]) -> Any:
        """The environment's action, from the leaves of the agent's."""
        if not self._has_nested_actions:
            return self._leaf_actions[0].to_environment(leaves[0])
        taken = [actions.to_environment(leaf) for actions, leaf in zip(self._leaf_actions, leaves, strict=True)]
        return tree.unflatten_as(self._action_spec, taken)

    def _fault(self, error: Exception) -> EnvironmentFault:
        self._is_over = True
        where = ""
        if self.is_vector:
            where = f"step {self._steps} of its {self.num_lanes} lanes" if self._steps else "a reset of its lanes"
        return EnvironmentFault(self._worker_id, self._steps, self._episodes, error, self._name, where)

    # The PyEnvironment.

    def _reset(self) -> ts.TimeStep:
        columns = self.new_columns()
        self.reset_lanes(columns)
        return ts.TimeStep(_FIRST, _NO_REWARD, _KEPT, self._observation_of(columns, 0))

    def _step(self, action: Any) -> ts.TimeStep:
        if self._is_over:
            return self._reset()
        columns, leaves = self.new_columns(), tree.flatten_up_to(self._action_spec, action)
        if self.is_vector:
            lanes = [np.stack([leaf] * self.num_lanes) for leaf in leaves]
            if self.legal is not None:  # What the first lane does need not be legal in the others.
                lanes[0] = np.where(self.legal[:, lanes[0][0]], lanes[0], self.legal.argmax(axis=1)).astype(np.int32)
            news = self.step_lanes(lanes, columns)
            self.info, self._is_over = news.info_of(0), 0 in news.ended
        else:
            self.step_lane(leaves, columns)
        step_type, observation = _LAST if self._is_over else _MID, self._observation_of(columns, 1)
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


class SingleLanes:
    """Single environments, each a lane; methods as of a vector environment, but for what is said here.

    Args:
      envs: The environments; one may be replaced before it is reset.

    Attributes:
      num_lanes: N.
      begins_episodes: A lane's next episode begins with `reset_lanes`.
    """

    begins_episodes = False

    def __init__(self, envs: Sequence[TrainingEnvironment]) -> None:
        self._envs = envs
        self.num_lanes = len(envs)
        self.observation_spec, self.action_spec = envs[0].observation_spec, envs[0].action_spec

    def reset_lanes(self, columns: StepColumns, lanes: Sequence[int]) -> None:
        """Begins an episode in these lanes."""
        for lane in lanes:
            self._envs[lane].reset_lanes(columns, lane)

    def step_lanes(self, action: Sequence[np.ndarray], columns: StepColumns, lanes: Sequence[int]) -> StepNews:
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


def lanes_of(envs: Sequence[TrainingEnvironment]) -> TrainingEnvironment | SingleLanes:
    """A worker's environments as lanes: a vector environment is the only one, single ones are a lane each."""
    return envs[0] if envs[0].is_vector else SingleLanes(envs)


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
        raise ValueError(f"the {name} is {number}, not finite as float32: correct what computes it")
    return number


def _check_discount(value: Any) -> None:
    discount = to_number("discount", value)
    if not 0.0 <= discount <= 1.0:
        raise ValueError(f"the discount is {discount}, not from 0 to 1: correct what computes it")


def _column(name: str, values: Any, count: int) -> np.ndarray:
    """One finite number for each lane, float32."""
    column = np.asarray(values)
    if column.shape != (count,):
        raise ValueError(f"the {name} has shape {column.shape}: expected one number for each of {count} lanes")
    is_finite = np.abs(column) <= MAX_FLOAT32
    if not is_finite.all():
        lane = int(np.argmin(is_finite))
        raise ValueError(f"lane {lane}: the {name} is {column[lane]}, not finite: correct what computes it")
    return column.astype(np.float32)
