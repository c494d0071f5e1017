"""Which steps make an n-step sample, and its return; mini-races. Pure functions of arrays.

A mini-race is a transition with a time t of its own, drawn with it: the episode counts as over T steps after its
beginning, wherever that was. Networks see t / T beside the observation, so with gamma = 1 a value is the sum of the
rewards of the T - t steps to come. It comes from Linesight, whose names `experience` and `mini_race` have.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np


@dataclasses.dataclass(frozen=True)
class MiniRaces:
    """How mini-races are drawn.

    Attributes:
      steps: T.
      oversampling: (a, b): the times 1 to a - 2b are twice as likely as those behind them, and 0 is 2b + 1 times as
        likely, see `draw_times`. Linesight's oversample_long_term_steps and oversample_maximum_term_steps.
    """

    steps: int
    oversampling: tuple[int, int] = (40, 5)


@dataclasses.dataclass(frozen=True)
class Experience:
    """What follows N steps, up to n more of them each.

    Attributes:
      n_steps: n of each, `[N]`, or one number for all.
      rewards: As many arrays `[N]` float32 as n may be: rewards[j] = sum_{k<=j} gamma^k (prod_{l<k} d_l) r_k, r and d
        the environment's rewards and discounts. From n on they stay the same.
      discounts: Likewise: gamma^j prod_{k<=j} d_k, 0 from the step on that terminates the episode. Linesight's
        gammas[j] are gamma * discounts[j]; n' >= its terminal_actions is discounts[n' - 1] = 0.
      gamma: The agent's discount.
      potential, next_potential: Phi(s) and Phi(s') `[N]` float32, s' the observation behind the n steps; None: rewards
        are not shaped.
    """

    n_steps: np.ndarray | int
    rewards: Sequence[np.ndarray]
    discounts: Sequence[np.ndarray]
    gamma: float
    potential: np.ndarray | None = None
    next_potential: np.ndarray | None = None

    def transition(self) -> tuple[np.ndarray, np.ndarray]:
        """Its n-step returns (Sutton and Barto, section 7.1): reward and discount `[N]`, without time."""
        return self._shaped(self.rewards[-1], self.discounts[-1])

    def _shaped(self, reward: np.ndarray, discount: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """R + g Phi(s') - Phi(s), g = gamma * discount (Ng, Harada and Russell, 1999)."""
        if self.potential is None or self.next_potential is None:
            return reward, discount
        return reward + np.float32(self.gamma) * discount * self.next_potential - self.potential, discount


def experience(
    reward: Sequence[np.ndarray],
    discount: Sequence[np.ndarray],
    steps_left: np.ndarray | None,
    gamma: float,
    explored: Sequence[np.ndarray] | None = None,
) -> Experience:
    """Sums up the rewards of n = min(n_step, steps_left, first k >= 1 with explored[k]) steps.

    Args:
      reward, discount: n_step arrays `[N]` float32: of the k-th step. Those behind a segment may be anything.
      steps_left: `[N]`: steps to the end of the segment, which ends with its episode at the latest. Where that
        terminated, the discount is 0; where a time limit, a stop or the bound of a segment's length cut it, the value
        of the observation after the last step counts. None: one step at least, and n_step is 1.
      gamma: The agent's discount.
      explored: n_step arrays `[N]`: whether the k-th action is another one than the greedy one. What comes after such
        an action is not what the policy would have got. None: it does not matter.
    """
    most = len(reward)
    n_steps: np.ndarray | int = 1 if steps_left is None else np.minimum(most, steps_left)
    for k in range(1, most if explored is not None else 0):
        assert explored is not None
        n_steps = np.where(explored[k], np.minimum(n_steps, k), n_steps)
    rewards, discounts = [reward[0]], [discount[0]]
    for k in range(1, most):
        is_inside = k < n_steps
        before = np.where(is_inside, np.float32(gamma) * discounts[k - 1], discounts[k - 1])
        # Not a product with is_inside: rows behind a segment hold any number, NaN too.
        rewards.append(rewards[k - 1] + np.where(is_inside, before * reward[k], np.float32(0)))
        discounts.append(np.where(is_inside, before * discount[k], before))
    return Experience(n_steps, rewards, discounts, gamma)


def mini_race(ahead: Experience, t: np.ndarray, num_steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Transitions that are over at time T, as Linesight's buffer_collate_function makes them.

    n' = n - max(0, t + n - T). It is terminal where the episode terminates within n' steps, or where t + n >= T:
    g = 0, else g = gammas[n' - 1]. The reward is rewards[n' - 1] + g Phi(s') - Phi(s).

    Args:
      ahead: The experience, n below T.
      t: `[N]` integers from 0 to T - 1: the times at which it begins.
      num_steps: T.

    Returns:
      Reward and discount `[N]` float32; g is gamma * discount.
    """
    ends = t + ahead.n_steps
    within = ahead.n_steps - np.maximum(0, ends - num_steps)
    place = (within - 1, np.arange(len(t)))
    rewards, discounts = (np.stack(steps)[place] for steps in (ahead.rewards, ahead.discounts))
    return ahead._shaped(rewards, np.where(ends >= num_steps, np.float32(0), discounts))


def draw_times(rng: np.random.Generator, count: int, races: MiniRaces) -> np.ndarray:
    """`[count]` integers from 0 to T - 1: t = max(0, |u| - b), u uniform in {-(a - b), ..., T + b - 1}."""
    a, b = races.oversampling
    return np.maximum(0, np.abs(rng.integers(b - a, races.steps + b, size=count)) - b)
