"""What a worker asks of its policy, however the actions are computed."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tree
from tf_agents.trajectories import time_step as ts

from tfagents_system.errors import UserError
from tfagents_system.policies.lane_steps import LaneSteps


class WorkerPolicy(abc.ABC):
    """Actions for the environments of one worker, which are numbered from 0.

    Attributes:
      inference: How actions are computed: `numpy`, `tensorflow session` or `tensorflow function`.
    """

    inference: str

    @abc.abstractmethod
    def assign(self, weights: Mapping[str, np.ndarray]) -> None:
        """Takes new weights, by name."""

    def reseed(self, seed: int) -> None:
        """Seeds the exploration noise from now on.

        Raises:
          UserError: It can't be reseeded.
        """
        raise UserError(
            f"SAC_DETERMINISTIC=1 needs a policy that workers can run in NumPy, this one runs as a {self.inference} "
            "(the log says why): use the default actors, or SAC_DETERMINISTIC=0"
        )

    def set_noise(self, noise: np.ndarray) -> bool:
        """Uses this noise, `[num_envs, ...]`, for each environment's next sample; False if unsupported."""
        del noise
        return False

    def memory(self, env: int) -> list[np.ndarray]:
        """A copy of what it remembers of the episode in an environment. Those that can be reseeded tell all of it."""
        del env
        return []

    def remember(self, env: int, memory: Sequence[np.ndarray]) -> None:
        """Remembers what `memory` returned."""
        del env, memory

    @abc.abstractmethod
    def reset(self, env: int = 0) -> None:
        """An episode begins in an environment."""

    @abc.abstractmethod
    def actions(self, time_steps: Mapping[int, ts.TimeStep], greedy: bool) -> dict[int, Any]:
        """The actions for unbatched NumPy time steps, by their environments: nests of arrays in [-1, 1].

        Args:
          time_steps: The observations and what led to them.
          greedy: The modes of the policy's distributions rather than samples.
        """

    def action(self, time_step: ts.TimeStep, greedy: bool) -> Any:
        """Like `actions`, for environment 0."""
        return self.actions({0: time_step}, greedy)[0]

    def reset_lanes(self, lanes: Sequence[int], first: int = 0) -> None:
        """Episodes begin in lanes of the vector environment whose lane 0 is environment `first`."""
        for lane in lanes:
            self.reset(first + lane)

    def batch(self, steps: LaneSteps, greedy: bool, first: int = 0) -> list[np.ndarray]:
        """The actions in all lanes of a vector environment: leaves `[N, n]` in [-1, 1].

        Args:
          steps: Of all lanes.
          greedy: As of `actions`.
          first: The environment that is lane 0.
        """
        envs = range(first, first + len(steps.step_type))
        actions = self.actions({env: steps.of_lane(env - first) for env in envs}, greedy)
        return [np.stack(leaves) for leaves in zip(*(tree.flatten(actions[env]) for env in envs), strict=True)]

    def explored(self, env: int) -> bool:
        """Whether the last action in an environment is another one than the greedy one.

        Known where actions have values; other policies say False.
        """
        del env
        return False

    def explored_lanes(self, count: int, first: int = 0) -> np.ndarray:
        """`explored` after `batch`, `[count]` bool: of all lanes of the vector environment whose lane 0 is `first`."""
        return np.array([self.explored(first + lane) for lane in range(count)], np.bool_)

    def was_greedy(self, env: int) -> bool:
        """Whether the last action in an environment is known to be the greedy one, however it was chosen."""
        del env
        return False

    def q_values(self, env: int) -> np.ndarray | None:
        """The values of all actions `[num_actions]` float32 at an environment's last observation; None if unknown."""
        del env
        return None

    def close(self) -> None:
        """Frees its resources; it can't act any more."""
        return
