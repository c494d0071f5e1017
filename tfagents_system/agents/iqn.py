"""IQN: implicit quantile networks (Dabney et al., arXiv 1806.06923), with the sizes and sampling of Linesight."""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf

from tfagents_system.agents import algorithms
from tfagents_system.agents.noise import Drawing
from tfagents_system.agents.update_parts import CriticLoss
from tfagents_system.agents.value_agent import ValueActing, ValueAgent, exploring_acting
from tfagents_system.agents.value_network import best
from tfagents_system.agents.value_update import (
    FRACTIONS,
    TARGET_FRACTIONS,
    Sample,
    ValueLearnerParts,
    ValueUpdate,
    of_actions,
)
from tfagents_system.train_params_base import TrainParamsBase


class IqnUpdate(ValueUpdate):
    """Quantiles theta_i at N drawn fractions tau_i learn the targets y_j = r + g * Z_target(s', a') at N others.

    Args:
      parts: Of the agent.
      seed: As of ValueUpdate.
      double_q: a' has the highest mean quantile of the online network; else of the target.
      num_quantiles: N, even.
      kappa: Error below which the loss is quadratic.
    """

    def __init__(
        self, parts: ValueLearnerParts, seed: int = 0, *, double_q: bool, num_quantiles: int, kappa: float
    ) -> None:
        super().__init__(parts, seed)
        self._double_q = double_q
        self._num_quantiles = num_quantiles
        self._kappa = kappa

    def fractions(self, batch_size: int, purpose: int) -> tf.Tensor:
        """The fractions of this train step, `[batch_size, N]`."""
        return symmetric_fractions(self._drawing(purpose), batch_size, self._num_quantiles)

    def _critic_loss(self, sample: Sample, training: bool) -> CriticLoss:
        (critic,), (target,) = self._parts.critics, self._parts.targets
        batch_size = sample.reward.shape[0]
        tau, next_tau = (self.fractions(batch_size, purpose) for purpose in (FRACTIONS, TARGET_FRACTIONS))
        next_quantiles, _ = target(sample.next_observation, tau=next_tau)
        choosing = critic(sample.next_observation, tau=next_tau)[0] if self._double_q else next_quantiles
        next_actions = best(tf.reduce_mean(choosing, axis=1))
        next_values = of_actions(next_quantiles, next_actions)
        td_targets = tf.stop_gradient(sample.reward[:, None] + sample.bootstrap[:, None] * next_values)
        quantiles = of_actions(critic(sample.observation, training=training, tau=tau)[0], sample.action)
        loss, q = quantile_loss(td_targets, quantiles, tau, self._kappa), tf.reduce_mean(quantiles, axis=1)
        return CriticLoss(loss, q, tf.abs(tf.reduce_mean(td_targets, axis=1) - tf.stop_gradient(q)))


def symmetric_fractions(drawing: Drawing, batch_size: int, count: int) -> tf.Tensor:
    """Stratified and symmetric, `[batch_size, count]`: (k + u_k) / count for k < count / 2, and 1 minus each."""
    half = count // 2
    u = tf.reshape(drawing.uniform(batch_size * half), [batch_size, half])
    lower = (tf.range(half, dtype=tf.float32) + u) / float(count)
    return tf.concat([lower, 1.0 - lower], axis=1)


@tf.custom_gradient
def quantile_loss(td_targets: tf.Tensor, quantiles: tf.Tensor, tau: tf.Tensor, kappa: float) -> tuple[tf.Tensor, Any]:
    """sum_i mean_j |tau_i - 1(d_ij < 0)| * L(d_ij), d_ij = y_j - theta_i.

    L(d) = d^2 / (2 kappa) where |d| < kappa, else |d| - kappa / 2. Its derivative, d / kappa clipped to [-1, 1], is
    computed with the loss, in a third of the passes of backpropagation.

    Args:
      td_targets: y, `[B, N']`; no gradient flows into them.
      quantiles: theta, `[B, N]`.
      tau: Their fractions, `[B, N]`.
      kappa: Above 0.

    Returns:
      `[B]`.
    """
    count = float(td_targets.shape[-1])
    d = td_targets[:, None, :] - quantiles[:, :, None]
    slope = tf.clip_by_value(d / kappa, -1.0, 1.0)
    weighted = tf.where(d < 0.0, 1.0 - tau[:, :, None], tau[:, :, None]) * slope
    loss = tf.reduce_sum(weighted * (d - 0.5 * kappa * slope), axis=(1, 2)) / count
    derivative = -tf.reduce_sum(weighted, axis=2) / count
    return loss, lambda upstream: (None, upstream[:, None] * derivative, None, None)


def build_agent(params: TrainParamsBase, time_step_spec: Any, action_spec: Any, train_step: tf.Variable) -> ValueAgent:
    """IQN with N = N' = 8, kappa = 0.005 and dueling heads unless params say otherwise."""
    options = algorithms.value(params, "iqn")
    update_class = functools.partial(
        IqnUpdate,
        double_q=bool(algorithms.value(params, "double_q")),
        num_quantiles=options["num_quantiles"],
        kappa=options["huber_kappa"],
    )
    return ValueAgent(params, time_step_spec, action_spec, train_step, build_acting, update_class)


def build_acting(params: TrainParamsBase, time_step_spec: Any, action_spec: Any) -> ValueActing:
    """What workers need of it."""
    return exploring_acting(params, time_step_spec, action_spec)
