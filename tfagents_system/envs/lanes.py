"""What environments of workers have in common: episodes in lanes, one of a single environment, N of a vector one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tree

from tfagents_system.envs.action_history import KEY, ActionHistory
from tfagents_system.envs.actions import actions_of
from tfagents_system.envs.faults import EnvironmentFault
from tfagents_system.envs.info_keys import RECORD_PREFIX
from tfagents_system.envs.observation_bounds import OutsideBounds
from tfagents_system.envs.observations import ObservationWriter

Potential = Callable[[Any], float]  # From an observation.
Infos = Sequence[tuple[Mapping[str, Any], np.ndarray | int | None]]  # Of a step, see StepNews.

MAX_FLOAT32 = float(np.finfo(np.float32).max)


@dataclasses.dataclass
class StepColumns:
    """Steps of N lanes, in rows: row t has the observations before step t, and what the step gave.

    Attributes:
      observation: Leaves `[rows + 1, N, ...]` of the flattened nest.
      reward: `[rows, N]` float32.
      discount: `[rows, N]` float32: 0 where the episode has terminated.
      potential: `[rows + 1, N]` float32: TrainParams.potential of the observations; None without one.
      row: Steps taken so far: where the next one is written.
    """

    observation: list[np.ndarray]
    reward: np.ndarray
    discount: np.ndarray
    potential: np.ndarray | None = None
    row: int = 0

    @classmethod
    def of_specs(cls, specs: Sequence[Any], num_lanes: int, rows: int, *, has_potential: bool = False) -> StepColumns:
        """Zeros, for so many steps.

        Args:
          specs: Of the flattened observation of one lane: whatever has `shape` and `dtype`.
          num_lanes: N.
          rows: Steps.
          has_potential: Whether there are potentials.
        """
        observation = [np.zeros((rows + 1, num_lanes, *spec.shape), spec.dtype) for spec in specs]
        reward, discount = np.zeros((2, rows, num_lanes), np.float32)
        return cls(
            observation, reward, discount, np.zeros((rows + 1, num_lanes), np.float32) if has_potential else None
        )


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


NO_NEWS = StepNews()


class LaneEnvironment:
    """Wraps what `env_ctor` returned for training.

    Observations are nests of float32 or integer arrays. Actions are nests of float32 vectors in [-1, 1], scaled to the
    environment's own bounds, or of numbers of actions (see actions.py). Episodes end after `horizon` steps at the
    latest, and a time limit, this one or the environment's, keeps the discount; only a termination sets it to 0.

    Args:
      backend: The environment.
      num_lanes: N.
      horizon: Maximum steps of an episode.
      worker_id: Named in errors.
      name: Which environment of the worker; named in errors.
      action_history: Last actions that its observations hold, see ActionHistory.
      action_table: Of TrainParams: rows in the environment's units that are the agent's actions.
      potential: Of TrainParams; what it raises is a fault of the environment. None: observations have no potential.
      strict_observation_bounds: Of TrainParams.
      default_action: From the nest of LeafActions to the agent's action that histories begin with; None: zeros.

    Attributes:
      user_env: What `env_ctor` returned.
      num_lanes: N.
      outside: Its observations beyond their bounds.
      environment_action_spec: Nest of BoundedArraySpecs with the environment's own bounds.
      actions: Nest of LeafActions: what the agent's actions are in the environment.
      episodes_ended: Episodes completed since it was built, of all lanes.
    """

    def __init__(
        self,
        backend: Any,
        num_lanes: int,
        horizon: int,
        *,
        worker_id: int = 0,
        name: str = "the environment",
        action_history: int = 0,
        action_table: Sequence[Sequence[float]] | None = None,
        potential: Potential | None = None,
        strict_observation_bounds: bool = False,
        default_action: Callable[[Any], Any] = lambda actions: None,
    ) -> None:
        self._backend = backend
        self.user_env = backend.user_env
        self.num_lanes = num_lanes
        self.outside = OutsideBounds(f"worker {worker_id}: {name}", strict_observation_bounds)
        self.environment_action_spec = backend.environment_action_spec
        self.actions = actions_of(self.environment_action_spec, action_table, backend.own_action_spec)
        self._action_spec = tree.map_structure(lambda leaf: leaf.spec, self.actions)
        self._has_nested_actions = tree.is_nested(self._action_spec)
        self._observation_spec = backend.observation_spec
        self._writer = ObservationWriter(self._observation_spec, backend.own_observation_spec, self.outside)
        self._history: ActionHistory | None = None
        self._history_leaf = -1
        if action_history:
            default = default_action(self.actions)
            self._history = ActionHistory(action_history, self.actions, default, num_lanes)
            self._observation_spec = self._history.spec(self._observation_spec)
            paths = [path for path, _ in tree.flatten_with_path(self._observation_spec)]
            self._history_leaf = paths.index((KEY,))
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

    def new_columns(self, rows: int = 1) -> StepColumns:
        """For so many steps."""
        specs = tree.flatten(self._observation_spec)
        return StepColumns.of_specs(specs, self.num_lanes, rows, has_potential=self._potential is not None)

    def _nest(self, leaves: Sequence[Any]) -> Any:
        """The agent's action of these leaves."""
        return tree.unflatten_as(self._action_spec, leaves) if self._has_nested_actions else leaves[0]

    def _without_history(self, leaves: list[np.ndarray]) -> list[np.ndarray]:
        """The leaves that the environment itself gives."""
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
        self.outside.tell_count()
        self._backend.close()


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
