"""Which episodes are collected without exploration (`greedy_episode_share`), and what chooses their actions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from tf_agents.trajectories import time_step as ts

from tfagents_system.policies.lane_steps import LaneSteps
from tfagents_system.policies.policy_interface import WorkerPolicy
from tfagents_system.worker.held_out import EpisodeShare


class GreedyEpisodes:
    """The greedy ones among the episodes under way.

    Args:
      share: Which episodes are greedy.
      number: Of the episode that begins.
    """

    def __init__(self, share: EpisodeShare, number: Callable[[], int]) -> None:
        self._share = share
        self._number = number
        self._envs: set[int] = set()

    def begin(self, env: int) -> None:
        """An episode begins in an environment."""
        if self._share.has(self._number()):
            self._envs.add(env)
        else:
            self._envs.discard(env)

    def __contains__(self, env: int) -> bool:
        """Whether the episode in an environment is greedy."""
        return env in self._envs


class SometimesGreedyActor:
    """A policy's samples, and its greedy actions in some episodes; see Actor.

    Args:
      policy: The policy.
      greedy: Which episodes are greedy.
      look: Called before each action.
    """

    def __init__(self, policy: WorkerPolicy, greedy: GreedyEpisodes, look: Callable[[], None] = lambda: None) -> None:
        self._policy = policy
        self._greedy = greedy
        self._look = look

    def reset(self, env: int) -> None:
        self._greedy.begin(env)
        self._policy.reset(env)

    def action(self, time_step: ts.TimeStep) -> Any:
        self._look()
        return self._policy.action(time_step, greedy=0 in self._greedy)

    def actions(self, time_steps: Mapping[int, ts.TimeStep]) -> dict[int, Any]:
        self._look()
        chosen: dict[int, Any] = {}
        for is_greedy in (False, True):
            some = {env: step for env, step in time_steps.items() if (env in self._greedy) == is_greedy}
            if some:
                chosen |= self._policy.actions(some, greedy=is_greedy)
        return chosen

    def explored(self, env: int) -> bool:
        return self._policy.explored(env)

    def explored_lanes(self, count: int) -> np.ndarray:
        return self._policy.explored_lanes(count)

    def was_greedy(self, env: int) -> bool:
        return env in self._greedy or self._policy.was_greedy(env)

    def q_values(self, env: int) -> np.ndarray | None:
        return self._policy.q_values(env)

    def reset_lanes(self, lanes: Sequence[int]) -> None:
        raise NotImplementedError("greedy_episode_share with a vector environment is refused before the start")

    def batch(self, steps: LaneSteps) -> list[np.ndarray]:
        raise NotImplementedError("greedy_episode_share with a vector environment is refused before the start")
