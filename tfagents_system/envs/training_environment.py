"""TrainingEnvironment: a single environment, the usual kind that workers use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tree
from tf_agents.environments import py_environment
from tf_agents.trajectories import time_step as ts

from tfagents_system.envs.actions import is_finite
from tfagents_system.envs.backends import make_backend
from tfagents_system.envs.devices import device_of
from tfagents_system.envs.faults import EnvironmentFault
from tfagents_system.envs.goals import GoalFunctions
from tfagents_system.envs.lanes import NO_NEWS, LaneEnvironment, StepColumns, StepNews, to_number
from tfagents_system.envs.layers import set_evaluation_episode
from tfagents_system.envs.observations import nest_converter
from tfagents_system.errors import UserError

_FIRST, _MID, _LAST = ts.StepType.FIRST, ts.StepType.MID, ts.StepType.LAST
_NO_REWARD, _KEPT = np.float32(0.0), np.float32(1.0)


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
        device = self.device = device_of(backend.layers())
        if device is not None:
            device.limit_steps(horizon)
            settings["default_action"] = device.default_action
        LaneEnvironment.__init__(self, backend, 1, horizon, **settings)
        self.info: Mapping[str, Any] = {}
        self._to_environment = nest_converter(lambda leaf: leaf.to_environment, self.actions)
        self._as_taken = nest_converter(lambda leaf: leaf.as_taken, self.actions)
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
        taken = self._to_environment(self._nest(action))
        if self._history is not None:
            self._history.add(action)
        return self._advance(taken, columns, lane)

    def _advance(self, action: Any, columns: StepColumns, lane: int) -> bool:
        """As `step_lane`, with the environment's own action."""
        self._steps += 1
        row = columns.row
        try:
            observation, reward, discount, is_over, info = self._backend.step(action)
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
        self._writer.write(observation, self._without_history(leaves))
        if self._history is not None:
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
        self.step_lane(tree.flatten_up_to(self._action_spec, action), columns)
        return self._time_step(columns)

    def _time_step(self, columns: StepColumns) -> ts.TimeStep:
        step_type = _LAST if self._is_over else _MID
        return ts.TimeStep(step_type, columns.reward[0, 0], columns.discount[0, 0], self._observation_of(columns, 1))

    def _observation_of(self, columns: StepColumns, row: int) -> Any:
        return tree.unflatten_as(self._observation_spec, [leaf[row, 0, ...] for leaf in columns.observation])

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
            taken = zip(tree.flatten(self.actions), tree.flatten(action), strict=True)
            self._history.add([leaf.to_agent(value) for leaf, value in taken])
        columns = self.new_columns()
        self._advance(self._as_taken(action), columns, 0)
        self._current_time_step = self._time_step(columns)
        return self._current_time_step

    def in_environment_units(self, action: Any) -> Any:
        """An agent's action as the environment takes it."""
        return self._to_environment(action)

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
        news = NO_NEWS
        for lane in lanes:
            env = self._envs[lane]
            try:
                has_ended = env.step_lane([leaf[lane, ...] for leaf in action], columns, lane)
            except EnvironmentFault as fault:
                news = news._replace(faults={**news.faults, lane: fault})
                continue
            if has_ended:
                news = news._replace(ended=[*news.ended, lane])
            if env.info:
                news = news._replace(infos=[*news.infos, (env.info, lane)])
        return news


def _check_discount(value: Any) -> None:
    discount = to_number("discount", value)
    if not 0.0 <= discount <= 1.0:
        raise ValueError(f"the discount is {discount}: it must be from 0 to 1")
