"""Rewards of several steps as those of one transition."""

from __future__ import annotations

import numpy as np

from tfagents_system.replay.ring import Ring


def n_step_returns(
    ring: Ring, rows: np.ndarray, n_step: int, gamma: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray | int]:
    """The n-step returns of transitions that start at these rows (Sutton and Barto, section 7.1).

    With m = min(n, steps to the end of the segment), r and d the rewards and discounts of the m steps:

        reward   = sum_{k<m} gamma^k (prod_{j<k} d_j) r_k
        discount = gamma^(m-1) prod_{k<m} d_k

    A segment ends with its episode at the latest. Where that terminated, the discount is 0; where a time limit, a
    stop or the bound of a segment's length cut it, the value of the observation after the last step counts.

    Args:
      ring: Holds the steps.
      rows: `[N]`.
      n_step: n.
      gamma: The agent's discount.

    Returns:
      Reward `[N]` float32, discount `[N]` float32, m `[N]`, or 1 for all.
    """
    reward, discount = ring.reward[rows], ring.discount[rows]
    if n_step == 1:
        return reward, discount, 1
    steps = np.minimum(n_step, ring.steps_left[rows])
    for k in range(1, n_step):
        is_inside = k < steps
        later = (rows + k) % ring.num_rows
        discount = np.where(is_inside, np.float32(gamma) * discount, discount)
        # Not a product with is_inside: rows behind a segment hold any number, NaN too.
        reward = reward + np.where(is_inside, discount * ring.reward[later], np.float32(0))
        discount = np.where(is_inside, discount * ring.discount[later], discount)
    return reward, discount, steps
