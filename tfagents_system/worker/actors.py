"""What chooses the actions of an episode: a policy that explores or is greedy, or chance."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import tree
from tf_agents.trajectories import time_step as ts

from tfagents_system.envs.actions import random_actions
from tfagents_system.policies.lane_steps import LaneSteps
from tfagents_system.policies.policy_interface import WorkerPolicy


class Actor(Protocol):
    """Chooses an agent's actions for environments numbered from 0."""

    def reset(self, env: int) -> None:
        """An episode begins in an environment."""

    def action(self, time_step: ts.TimeStep) -> Any:
        """The action in environment 0."""

    def actions(self, time_steps: Mapping[int, ts.TimeStep]) -> Mapping[int, Any]:
        """The actions in several environments."""

    def was_greedy(self, env: int) -> bool:
        """Whether the last action in an environment, or lane, is known to be the greedy one."""

    def q_values(self, env: int) -> np.ndarray | None:
        """The values of all actions `[num_actions]` float32 at its last observation; None if unknown."""

    def reset_lanes(self, lanes: Sequence[int]) -> None:
        """Episodes begin in lanes of a vector environment."""

    def batch(self, steps: LaneSteps) -> list[np.ndarray]:
        """The actions in all lanes of a vector environment: leaves `[N, ...]`."""

    def explored(self, env: int) -> bool:
        """Whether the last action in an environment was another one than the greedy one; see WorkerPolicy."""

    def explored_lanes(self, count: int) -> np.ndarray:
        """`explored` of all lanes of a vector environment, `[count]` bool."""


class PolicyActor:
    """A policy's actions.

    Args:
      policy: The policy.
      greedy: The modes of its distributions rather than samples.
    """

    def __init__(self, policy: WorkerPolicy, greedy: bool) -> None:
        self.reset = policy.reset
        self.action = functools.partial(policy.action, greedy=greedy)
        self.actions = functools.partial(policy.actions, greedy=greedy)
        self.reset_lanes = policy.reset_lanes
        self.batch = functools.partial(policy.batch, greedy=greedy)
        self._policy, self._greedy = policy, greedy

    def explored(self, env: int) -> bool:
        return self._policy.explored(env)

    def explored_lanes(self, count: int) -> np.ndarray:
        return self._policy.explored_lanes(count)

    def was_greedy(self, env: int) -> bool:
        return self._greedy or self._policy.was_greedy(env)

    def q_values(self, env: int) -> np.ndarray | None:
        return self._policy.q_values(env)


class RefreshingActor:
    """A policy's samples, with a look for newer weights every so many steps.

    Args:
      policy: The policy.
      refresh: Gives it newer weights, if there are any; its state stays.
      period_steps: Steps of each environment from one look to the next.
    """

    def __init__(self, policy: WorkerPolicy, refresh: Callable[[], None], period_steps: int) -> None:
        self.reset = policy.reset
        self.reset_lanes = policy.reset_lanes
        self._policy = policy
        self._refresh = refresh
        self._period_steps = self._steps_left = period_steps

    def action(self, time_step: ts.TimeStep) -> Any:
        self.look()
        return self._policy.action(time_step, greedy=False)

    def actions(self, time_steps: Mapping[int, ts.TimeStep]) -> Mapping[int, Any]:
        self.look()
        return self._policy.actions(time_steps, greedy=False)

    def batch(self, steps: LaneSteps) -> list[np.ndarray]:
        self.look()
        return self._policy.batch(steps, greedy=False)

    def explored(self, env: int) -> bool:
        return self._policy.explored(env)

    def explored_lanes(self, count: int) -> np.ndarray:
        return self._policy.explored_lanes(count)

    def was_greedy(self, env: int) -> bool:
        return self._policy.was_greedy(env)

    def q_values(self, env: int) -> np.ndarray | None:
        return self._policy.q_values(env)

    def look(self) -> None:
        """Before each step."""
        if not self._steps_left:
            self._refresh()
            self._steps_left = self._period_steps
        self._steps_left -= 1


class GreedyActorOfLanes:
    """A policy's greedy actions in other lanes than those that collect, which keep their states.

    Args:
      policy: Of more environments than are collected in.
      first_lane: The policy's environment that is environment 0 here.
    """

    def __init__(self, policy: WorkerPolicy, first_lane: int) -> None:
        self._policy = policy
        self._first_lane = first_lane

    def reset(self, env: int) -> None:
        self._policy.reset(self._first_lane + env)

    def action(self, time_step: ts.TimeStep) -> Any:
        return self.actions({0: time_step})[0]

    def actions(self, time_steps: Mapping[int, ts.TimeStep]) -> dict[int, Any]:
        first = self._first_lane
        actions = self._policy.actions({first + env: step for env, step in time_steps.items()}, greedy=True)
        return {lane - first: action for lane, action in actions.items()}

    def was_greedy(self, env: int) -> bool:
        del env
        return True

    def q_values(self, env: int) -> np.ndarray | None:
        return self._policy.q_values(self._first_lane + env)

    def reset_lanes(self, lanes: Sequence[int]) -> None:
        self._policy.reset_lanes(lanes, self._first_lane)

    def batch(self, steps: LaneSteps) -> list[np.ndarray]:
        return self._policy.batch(steps, greedy=True, first=self._first_lane)

    def explored(self, env: int) -> bool:
        return self._policy.explored(self._first_lane + env)

    def explored_lanes(self, count: int) -> np.ndarray:
        return self._policy.explored_lanes(count, self._first_lane)


class RandomActor:
    """Actions drawn uniformly. All of them count as explored: no policy would have chosen them.

    Args:
      action_spec: Nest of the agent's specs.
      rng: Source of the actions.
    """

    def __init__(self, action_spec: Any, rng: np.random.Generator) -> None:
        self._action_spec = action_spec
        self._rng = rng

    def reset(self, env: int) -> None:
        pass

    def action(self, time_step: ts.TimeStep) -> Any:
        del time_step
        return tree.map_structure(lambda spec: random_actions(spec, self._rng), self._action_spec)

    def actions(self, time_steps: Mapping[int, ts.TimeStep]) -> dict[int, Any]:
        return {env: self.action(time_step) for env, time_step in time_steps.items()}

    def was_greedy(self, env: int) -> bool:
        del env
        return False

    def q_values(self, env: int) -> np.ndarray | None:
        del env
        return None

    def reset_lanes(self, lanes: Sequence[int]) -> None:
        pass

    def batch(self, steps: LaneSteps) -> list[np.ndarray]:
        count = len(steps.step_type)
        return [random_actions(spec, self._rng, count) for spec in tree.flatten(self._action_spec)]

    def explored(self, env: int) -> bool:
        del env
        return True

    def explored_lanes(self, count: int) -> np.ndarray:
        return np.ones(count, np.bool_)
