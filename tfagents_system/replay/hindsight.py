"""Hindsight: goals that an episode has achieved in the place of the one that it was after (HER, arXiv 1707.01495).

Observations are dictionaries with the keys of Gymnasium-Robotics, `observation`, `achieved_goal` and `desired_goal`.
Nothing of it is stored: a step gets another goal when it is drawn, and the reward that it would have had with it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal, Protocol

import numpy as np

from tfagents_system.envs.goals import ACHIEVED, DESIRED
from tfagents_system.replay.ring import Ring
from tfagents_system.replay.samples import Transitions

Strategy = Literal["future", "final", "episode"]


class GoalFunctions(Protocol):
    """Of the user's environment (envs/goals.py); goals are `[N, ...]`."""

    def rewards(self, achieved: np.ndarray, desired: np.ndarray) -> np.ndarray:
        """`[N]` float32: of steps that have achieved these goals, where those were desired."""

    def terminated(self, achieved: np.ndarray, desired: np.ndarray) -> np.ndarray | None:
        """`[N]` bool: whether such a step ends its episode; None where the environment does not say."""


@dataclasses.dataclass(frozen=True)
class Hindsight:
    """Which of the drawn steps get another goal, and which.

    Attributes:
      share: Of each minibatch, rounded to whole samples: its first ones.
      strategy: Which of the goals that the step's episode has achieved, as far as the ring holds it: `future`, one
        after the step; `final`, the last one; `episode`, any behind its first observation. All are equally likely.
    """

    share: float
    strategy: Strategy = "future"

    def count(self, batch_size: int) -> int:
        """How many samples of a minibatch."""
        return round(self.share * batch_size)


class Relabelled:
    """The drawn steps that get another goal.

    Args:
      ring: Its lock is held, and its layout has `episode`.
      rng: Draws the goals.
      rows: Places `[K * B]` of the steps.
      shape: (K, B).
      hindsight: How.
      functions: Of the environment.
    """

    def __init__(
        self,
        ring: Ring,
        rng: np.random.Generator,
        rows: np.ndarray,
        shape: tuple[int, int],
        hindsight: Hindsight,
        functions: GoalFunctions,
    ) -> None:
        self._ring, self._functions = ring, functions
        self._count = hindsight.count(shape[1])
        self._which = np.arange(rows.size).reshape(shape)[:, : self._count].reshape(-1)
        self._rows = rows[self._which]
        names = [column.name for column in ring.layout.observation]
        self._achieved = ring.observation[names.index(f"observation/{ACHIEVED}")]
        self._desired_leaf = names.index(f"observation/{DESIRED}")
        self._goals = self._achieved.take(_goal_rows(ring, rng, self._rows, hindsight.strategy), axis=0)

    def judge(self, reward: Sequence[np.ndarray], discount: Sequence[np.ndarray]) -> None:
        """Replaces the rewards and discounts of these steps by those that they have with their new goals.

        Args:
          reward, discount: n arrays `[K * B]` float32: of the k-th step behind each.
        """
        steps, ring = len(reward), self._ring
        left = ring.steps_left[self._rows]
        # Behind the segment's end is another one's: the last step stands for those, and nobody reads what it gives.
        behind = [(self._rows + np.minimum(k, left)) % ring.num_rows for k in range(1, steps + 1)]
        achieved = self._achieved.take(np.concatenate(behind), axis=0)
        desired = np.tile(self._goals, (steps,) + (1,) * (self._goals.ndim - 1))
        rewards = self._functions.rewards(achieved, desired).reshape(steps, -1)
        terminated = self._functions.terminated(achieved, desired)
        for k in range(steps):
            reward[k][self._which] = rewards[k]
            if terminated is not None:
                ends = terminated.reshape(steps, -1)[k]
                discount[k][self._which] = self._discounts(discount[k][self._which], ends, behind[k], k)

    def _discounts(self, recorded: np.ndarray, ends: np.ndarray, behind: np.ndarray, k: int) -> np.ndarray:
        """0 where the new goal ends the episode, or where it was over for another reason than the goal it had."""
        over = np.flatnonzero((recorded == 0) & ~ends)
        if len(over):
            ring = self._ring
            own = ring.observation[self._desired_leaf][(behind[over] - 1) % ring.num_rows]
            was_reached = self._functions.terminated(self._achieved[behind[over]], own)
            assert was_reached is not None
            recorded[over[was_reached]] = 1.0
        return np.where(ends, np.float32(0), recorded)

    def replace_goals(self, drawn: Transitions) -> None:
        """Writes the new goals into both observations."""
        for observation in (drawn.observation, drawn.next_observation):
            leaf = observation[self._desired_leaf]
            leaf[:, : self._count] = self._goals.reshape(len(leaf), self._count, *leaf.shape[2:])


def _goal_rows(ring: Ring, rng: np.random.Generator, rows: np.ndarray, strategy: Strategy) -> np.ndarray:
    """Rows whose achieved goals are to be desired, of rows `[N]` at which transitions start."""
    episodes = ring.episodes
    located = episodes.find(rows, ring.held)
    if strategy == "future":
        goal = rng.integers(located.place + 1, located.last + 1)
    elif strategy == "final":
        goal = located.last
    else:
        goal = rng.integers(located.first + 1, located.last + 1)
    return episodes.rows(located, goal)
