"""TrainingEnvironment: the only kind of environment that workers use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tree
from tf_agents.environments import py_environment
from tf_agents.trajectories import time_step as ts

from tfagents_system.envs.action_history import ActionHistory
from tfagents_system.envs.actions import actions_of, is_finite
from tfagents_system.envs.backends import make_backend
from tfagents_system.envs.devices import device_of
from tfagents_system.envs.faults import EnvironmentFault
from tfagents_system.envs.goals import GoalFunctions
from tfagents_system.envs.layers import set_evaluation_episode
from tfagents_system.envs.observation_bounds import OutsideBounds
from tfagents_system.envs.observations import nest_converter, observation_converter
from tfagents_system.errors import UserError

Potential = Callable[[Any], float]  # From an observation.

_FIRST, _MID, _LAST = ts.StepType.FIRST, ts.StepType.MID, ts.StepType.LAST
_MAX_FLOAT32 = float(np.finfo(np.float32).max)
_NO_REWARD, _KEPT = np.float32(0.0), np.float32(1.0)
_DISCOUNTS = {0.0: np.float32(0.0), 1.0: _KEPT}


class TrainingEnvironment(py_environment.PyEnvironment):
    """Wraps any environment for training.

    Observations are nests of float32 or integer arrays, each step's its own copy. Actions are nests of float32 vectors
    in [-1, 1], scaled to the environment's own bounds, or of numbers of actions (see actions.py). Episodes end after
    `horizon` steps at the latest, and a time limit, this one or the environment's, keeps the discount; only a
    termination sets it to 0.

    Args:
      env: What `env_ctor` returned.
      horizon: Maximum steps of an episode.
      seed: For the environment and its action space; None leaves them as they are.
      worker_id: Named in errors.
      name: Which environment of the worker; named in errors.
      action_history: Last actions that its observations hold, see ActionHistory.
      action_table: Of TrainParams: rows in the environment's units that are the agent's actions.
      potential: Of TrainParams; what it raises is a fault of the environment. None: observations have no potential.
      strict_observation_bounds: Of TrainParams.

    Attributes:
      user_env: What `env_ctor` returned.
      outside: Its observations beyond their bounds.
      environment_action_spec: Nest of BoundedArraySpecs with the environment's own bounds.
      actions: Nest of LeafActions: what the agent's actions are in the environment.
      info: The info of the last step; empty after a reset.
      potential: Of the newest observation; 0 where there is none.
      device: Of an environment that acts in real time; None of any other.
      episodes_ended: Episodes completed since it was built.
      evaluation_episode: Which of an evaluation's episodes the next one is, of which the environment is told if it has
        `set_evaluation_episode(number)`; None: it is of no evaluation.

    Raises:
      UserError: It is not an environment, or SAC can't be trained on it.
    """

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
        super().__init__(handle_auto_reset=False)
        self._backend = make_backend(env, seed)
        self.user_env = env
        self.outside = OutsideBounds(f"worker {worker_id}: {name}", strict_observation_bounds)
        self.environment_action_spec = self._backend.environment_action_spec
        self.info: Mapping[str, Any] = {}
        self.potential = 0.0
        self._potential_of = potential
        self._observation_spec = self._backend.observation_spec
        self.actions = actions_of(self.environment_action_spec, action_table, self._backend.own_action_spec)
        self._action_spec = tree.map_structure(lambda leaf: leaf.spec, self.actions)
        self._convert_observation = observation_converter(
            self._observation_spec, self._backend.own_observation_spec, self.outside
        )
        self.device = device_of(self._backend.layers())
        if self.device is not None:
            self.device.limit_steps(horizon)
        self._history: ActionHistory | None = None
        if action_history:
            default = self.device and self.device.default_action(self.actions)
            self._remember_actions(ActionHistory(action_history, self.actions, default))
        self._to_environment = nest_converter(lambda leaf: leaf.to_environment, self.actions)
        self._as_taken = nest_converter(lambda leaf: leaf.as_taken, self.actions)
        self._horizon = horizon
        self._worker_id = worker_id
        self._name = name
        self._steps = 0
        self._episodes = 0
        self.episodes_ended = 0
        self.evaluation_episode: int | None = None
        self._is_over = True

    def _remember_actions(self, history: ActionHistory) -> None:
        convert = self._convert_observation
        self._history = history
        self._observation_spec = history.spec(self._observation_spec)
        self._convert_observation = lambda raw: history.joined(convert(raw))

    def observation_spec(self) -> Any:
        return self._observation_spec

    def action_spec(self) -> Any:
        return self._action_spec

    def _reset(self) -> ts.TimeStep:
        self._steps = 0
        self._episodes += 1
        if self._history is not None:
            self._history.clear()
        try:
            if self.evaluation_episode is not None:
                set_evaluation_episode(self._backend.layers(), self.evaluation_episode)
            observation = self._convert_observation(self._backend.reset())
            if self._potential_of is not None:
                self.potential = float(to_number("potential", self._potential_of(observation)))
        except Exception as error:
            raise self._fault(error) from error
        self.info = {}
        self._is_over = False
        return ts.TimeStep(_FIRST, _NO_REWARD, _KEPT, observation)

    def _step(self, action: Any) -> ts.TimeStep:
        if self._is_over:
            return self._reset()
        taken = self._to_environment(action)
        if self._history is not None:
            self._history.add(action)
        return self._advance(taken)

    def step_in_environment_units(self, action: Any) -> ts.TimeStep:
        """Like `step`, with an action within the environment's own bounds, as policies on disk return it.

        Raises:
          UserError: The action is not finite.
        """
        if self._is_over:
            return self.reset()
        if not all(map(is_finite, tree.flatten(action))):
            raise UserError(
                f"the policy's action is not finite ({action}) at {self.position}: its training has diverged, play an "
                "earlier checkpoint or another policy"
            )
        if self._history is not None:
            self._history.add(tree.map_structure(lambda leaf, own: leaf.to_agent(own), self.actions, action))
        self._current_time_step = self._advance(self._as_taken(action))
        return self._current_time_step

    def in_environment_units(self, action: Any) -> Any:
        """An agent's action as the environment takes it."""
        return self._to_environment(action)

    def _advance(self, action: Any) -> ts.TimeStep:
        self._steps += 1
        try:
            raw_observation, raw_reward, raw_discount, is_over, info = self._backend.step(action)
            observation = self._convert_observation(raw_observation)
            reward = to_number("reward", raw_reward)
            discount = _DISCOUNTS.get(raw_discount)
            if discount is None:
                discount = _to_discount(raw_discount)
            if self._potential_of is not None:
                self.potential = float(to_number("potential", self._potential_of(observation)))
        except Exception as error:
            raise self._fault(error) from error
        self.info = info if info else {}
        if is_over or self._steps >= self._horizon:
            self._is_over = True
            self.episodes_ended += 1
        return ts.TimeStep(_LAST if self._is_over else _MID, reward, discount, observation)

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
        """Sets parameters of the environment; the next step starts a new episode.

        Uses the environment's own `set_state(dict)` if it has one, otherwise attributes.

        Raises:
          UserError: The environment has no such parameter; the message names those it has.
        """
        if self._episodes == 0:
            self.reset()  # Some simulators are built by the first reset: before it, nothing can be set.
        self._backend.set_state(state)
        self._is_over = True

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

        try:
            picture = self._backend.render()
        except UserError:
            raise
        except Exception as error:
            raise rendering.explain(error, self.user_env) from error
        return rendering.as_frame(picture, self.user_env)

    @property
    def frames_per_second(self) -> float:
        """Frames per second of a video of it."""
        from tfagents_system.envs import rendering

        return rendering.frames_per_second(list(self._backend.layers()))

    def close(self) -> None:
        self.outside.tell_count()
        self._backend.close()


def to_number(name: str, value: Any) -> np.float32:
    """A finite number as float32.

    Raises:
      TypeError, ValueError: It is none.
    """
    try:
        number = float(value)
    except TypeError:
        raise TypeError(f"the {name} is {value!r}: it must be a number") from None
    if not abs(number) <= _MAX_FLOAT32:
        raise ValueError(f"the {name} is {number}: it must be finite, as float32")
    return np.float32(number)


def _to_discount(value: Any) -> np.float32:
    discount = to_number("discount", value)
    if not 0.0 <= discount <= 1.0:
        raise ValueError(f"the discount is {discount}: it must be from 0 to 1")
    return discount
