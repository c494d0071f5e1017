"""What chooses the actions of an episode: a policy that explores or is greedy, or chance."""

from __future__ import annotations

import fractions
import math
import random
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import tree

from tfagents_system.envs.actions import mask_leaf, random_actions, random_legal
from tfagents_system.policies.worker_policy import LaneSteps, WorkerPolicy


class Actor(Protocol):
    """Chooses an agent's actions in lanes, which are numbered from 0.

    Attributes:
      explored, was_greedy, q_values: Of each lane's last action, as of WorkerPolicy.
    """

    @property
    def explored(self) -> np.ndarray: ...

    @property
    def was_greedy(self) -> np.ndarray: ...

    @property
    def q_values(self) -> np.ndarray | None: ...

    def reset(self, lanes: Sequence[int]) -> None:
        """Episodes begin in these lanes."""

    def act(self, steps: LaneSteps) -> list[np.ndarray]:
        """The actions: leaves `[N, ...]`."""


class EpisodeShare:
    """A share of a worker's episodes, chosen at random by their numbers: greedy ones, or held-out ones.

    Of each 1 / share episodes in a row one is chosen: not every so many-th, which might always be in the same one of
    several environments.

    Args:
      share: Of the episodes, in [0, 1].
      seed: Decides which; the same seed and number decide in the same way.
      first: The first episode that may be chosen.
    """

    def __init__(self, share: float, seed: int, first: int = 0) -> None:
        self._share = fractions.Fraction(str(share))  # As it was written: 0.1 makes groups of 10.
        self._seed = seed
        self._first = first

    def has(self, number: int) -> bool:
        """Whether the episode of this number, from 0, is chosen."""
        if not self._share:
            return False
        group = math.floor(self._share * number)
        first, behind = (math.ceil(bound / self._share) for bound in (group, group + 1))
        return number == random.Random(f"{self._seed} {group}").randrange(max(self._first, first), behind)


class PolicyActor:
    """A policy's actions.

    Args:
      policy: The policy.
      greedy: The modes of its distributions rather than samples: always, or in those episodes for which the function is
        true when they begin.
      refresh: Gives the policy newer weights, if there are any; its memory stays.
      period_steps: Steps of each lane from one call of `refresh` to the next; None: it is not called.
    """

    def __init__(
        self,
        policy: WorkerPolicy,
        greedy: bool | Callable[[], bool] = False,
        refresh: Callable[[], None] = lambda: None,
        period_steps: int | None = None,
    ) -> None:
        self._policy, self._greedy = policy, greedy
        self._refresh, self._period_steps, self._steps_left = refresh, period_steps, period_steps
        self._greedy_lanes = np.zeros(1 if isinstance(greedy, bool) else policy.num_lanes, np.bool_)

    @property
    def explored(self) -> np.ndarray:
        return self._policy.explored

    @property
    def was_greedy(self) -> np.ndarray:
        return self._policy.was_greedy

    @property
    def q_values(self) -> np.ndarray | None:
        return self._policy.q_values

    def reset(self, lanes: Sequence[int]) -> None:
        if not isinstance(self._greedy, bool):
            for lane in lanes:
                self._greedy_lanes[lane] = self._greedy()
        self._policy.reset(lanes)

    def act(self, steps: LaneSteps) -> list[np.ndarray]:
        if self._period_steps is not None:
            if not self._steps_left:
                self._refresh()
                self._steps_left = self._period_steps
            self._steps_left -= 1
        if isinstance(self._greedy, bool):
            return self._policy.act(steps, self._greedy)
        greedy = self._greedy_lanes
        return self._policy.act(steps, bool(greedy[0]) if greedy.all() or not greedy.any() else greedy)


class RandomActor:
    """Actions drawn uniformly, of the legal ones. All of them count as explored: no policy would have chosen them.

    Args:
      action_spec: Nest of the agent's specs.
      rng: Source of the actions.
    """

    q_values = None

    def __init__(self, action_spec: Any, rng: np.random.Generator) -> None:
        self._spec, self._specs = action_spec, tree.flatten(action_spec)
        self._rng = rng
        self.explored = self.was_greedy = np.zeros(0, np.bool_)

    def reset(self, lanes: Sequence[int]) -> None:
        pass

    def act(self, steps: LaneSteps) -> list[np.ndarray]:
        num_lanes = len(steps.step_type)
        self.explored, self.was_greedy = np.ones(num_lanes, np.bool_), np.zeros(num_lanes, np.bool_)
        if (leaf := mask_leaf(steps.spec, self._spec)) is not None:
            return [random_legal(steps.observation[leaf], self._rng)]
        return [random_actions(spec, self._rng, num_lanes) for spec in self._specs]
