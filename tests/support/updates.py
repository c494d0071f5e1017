"""Single updates of the toolkit's agents, outside of blocks; random numbers follow from a seed or are given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfagents_system.agents.agent import Agent
from tfagents_system.agents.minibatch import Measured, Minibatch, Noise
from tfagents_system.agents.sac import ACTIONS, NEXT_ACTIONS


class GivenNoise(Noise):
    """Noise whose numbers for actions are given.

    Args:
      agent: Its train step determines all others.
      next_actions, actions: An array for each leaf of the action.
    """

    def __init__(self, agent: Agent, next_actions: Sequence[Any], actions: Sequence[Any]) -> None:
        super().__init__(0, agent.train_step_counter)
        self._given = {NEXT_ACTIONS: next_actions, ACTIONS: actions}

    def of(self, purpose: int) -> Any:
        return self._given[purpose] if purpose in self._given else super().of(purpose)


def noise_of(agent: Agent, noise: Sequence[Any] | None = None, seed: int = 0) -> Noise:
    """Of the next update; `noise`: for next actions and actions."""
    return Noise(seed, agent.train_step_counter) if noise is None else GivenNoise(agent, *noise)


def update_once(
    agent: Any, experience: Any, noise: Any = None, weight: Any = None, seed: int = 0, burn_in_steps: int = 0
) -> Measured:
    """One update of an agent; what it has measured."""
    numbers = noise_of(agent, noise, seed)
    weight = None if weight is None else tf.constant(weight)
    with numbers.of_dropout():
        measured: Measured = agent.update(Minibatch(experience, weight, burn_in_steps), numbers)
    return measured


def losses_of(agent: Any, experience: Any, noise: Any = None, weight: Any = None, burn_in_steps: int = 0) -> Any:
    """The losses without learning."""
    weight = None if weight is None else tf.constant(weight)
    return agent.losses(Minibatch(experience, weight, burn_in_steps), noise_of(agent, noise))


def quantile_loss_by_pairs(y: Any, theta: Any, tau: Any, kappa: float = 1.0) -> tuple[Any, Any]:
    """sum_i mean_j |tau_i - 1(d < 0)| L(d), d = y_j - theta_i, of each row; and its gradient with respect to theta."""
    loss, gradient = np.zeros(len(y)), np.zeros(theta.shape)
    for b, i, j in np.ndindex(*theta.shape, y.shape[1]):
        d = y[b, j] - theta[b, i]
        weight = abs(tau[b, i] - (d < 0)) / y.shape[1]
        loss[b] += weight * (d * d / (2 * kappa) if abs(d) < kappa else abs(d) - kappa / 2)
        gradient[b, i] -= weight * np.clip(d / kappa, -1, 1)
    return loss, gradient
