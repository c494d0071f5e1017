"""IQN: implicit quantile networks (Dabney et al., arXiv 1806.06923), with the sampling of Linesight."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfagents_system.agents import algorithms
from tfagents_system.agents.dqn import FRACTIONS, TARGET_FRACTIONS, CriticLoss, Dqn, Sample, of_actions
from tfagents_system.agents.minibatch import Drawing, Noise
from tfagents_system.agents.networks import best, of_legal
from tfagents_system.agents.tqc import quantile_loss
from tfagents_system.train_params_base import TrainParamsBase


class Iqn(Dqn):
    """One network of quantiles; N = N' = 8, kappa = 1 and dueling heads unless params say otherwise.

    kappa is the error below which the loss is quadratic.
    """

    def __init__(self, params: TrainParamsBase, time_step_spec: Any, action_spec: Any, train_step: tf.Variable) -> None:
        super().__init__(params, time_step_spec, action_spec, train_step)
        options = algorithms.value(params, "iqn")
        self.num_quantiles, self.kappa = options["num_quantiles"], options["huber_kappa"]

    def fractions(self, noise: Noise, purpose: int, batch_size: int) -> tf.Tensor:
        """Drawn ones, `[batch_size, N]`."""
        return symmetric_fractions(noise.of(purpose), batch_size, self.num_quantiles)

    def critic_loss(self, sample: Sample, noise: Noise, training: bool) -> CriticLoss:
        """Quantiles theta_i at N drawn fractions tau_i learn the targets y_j = r + g * Z_target(s', a') at N others.

        a', of the legal ones, has the highest mean quantile of the online network; if not `double_q`, of the target.
        """
        (critic,), (target,) = self.critics, self.targets
        batch_size = sample.reward.shape[0]
        tau, next_tau = (self.fractions(noise, purpose, batch_size) for purpose in (FRACTIONS, TARGET_FRACTIONS))
        next_quantiles, _ = target(sample.next_observation, tau=next_tau)
        choosing = critic(sample.next_observation, tau=next_tau)[0] if self.double_q else next_quantiles
        next_actions = best(of_legal(tf.reduce_mean(choosing, axis=1), sample.next_observation))
        next_values = of_actions(next_quantiles, next_actions)
        td_targets = tf.stop_gradient(sample.reward[:, None] + sample.bootstrap[:, None] * next_values)
        quantiles = of_actions(critic(sample.observation, training=training, tau=tau)[0], sample.action)
        loss, q = quantile_loss(td_targets, quantiles, tau, self.kappa), tf.reduce_mean(quantiles, axis=1)
        return CriticLoss(loss, q, tf.abs(tf.reduce_mean(td_targets, axis=1) - tf.stop_gradient(q)))


def symmetric_fractions(drawing: Drawing, batch_size: int, count: int) -> tf.Tensor:
    """Stratified and symmetric, `[batch_size, count]`: (k + u_k) / count for k < count / 2, and 1 minus each."""
    half = count // 2
    u = tf.reshape(drawing.uniform(batch_size * half), [batch_size, half])
    lower = (tf.range(half, dtype=tf.float32) + u) / float(count)
    return tf.concat([lower, 1.0 - lower], axis=1)
