"""TQC: truncated mixture of continuous distributional quantile critics (Kuznetsov et al., arXiv 2005.04269).

Section 3 and algorithm 1 of the paper have the target, the critics' loss and the actor's.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tfagents_system.agents import algorithms
from tfagents_system.agents.minibatch import Noise, Steps
from tfagents_system.agents.sac import Sac, mean
from tfagents_system.train_params_base import TrainParamsBase


class Tqc(Sac):
    """N critics with M quantiles each; the d * N largest of all N * M target quantiles are dropped.

    N, M and d are 5, 25 and 2 unless params say otherwise.
    """

    critic_loss_weight = 1.0

    def __init__(self, params: TrainParamsBase, time_step_spec: Any, action_spec: Any, train_step: tf.Variable) -> None:
        super().__init__(params, time_step_spec, action_spec, train_step)
        self.num_dropped: int = algorithms.value(params, "tqc")["num_dropped_quantiles"]

    def next_values(self, next_steps: Steps, next_actions: Any, noise: Noise) -> tf.Tensor:
        """The (M - d) * N smallest quantiles of all targets, in order (equation 11), `[B, (T,) (M - d) * N]`."""
        quantiles = [self.values(target, next_steps, next_actions) for target in self.targets]
        pooled = tf.sort(tf.concat(quantiles, axis=-1), axis=-1)
        return pooled[..., : pooled.shape[-1] - self.num_dropped * len(quantiles)]

    def td_loss(self, td_targets: tf.Tensor, prediction: tf.Tensor) -> tf.Tensor:
        """Mean over the M quantiles, of the fractions (2 m - 1) / (2 M)."""
        count = int(prediction.shape[-1])
        tau = tf.constant((np.arange(count, dtype=np.float32) + 0.5) / count)
        return quantile_loss(td_targets, prediction, tau, 1.0) / float(count)

    def value_of(self, outputs: tf.Tensor) -> tf.Tensor:
        return tf.reduce_mean(outputs, axis=-1)

    def value_of_targets(self, td_targets: tf.Tensor) -> tf.Tensor:
        return self.value_of(td_targets)

    def actor_value(self, values: list[tf.Tensor]) -> tf.Tensor:
        """The mean of all quantiles of all critics, none dropped."""
        return mean(values)


@tf.custom_gradient
def quantile_loss(td_targets: tf.Tensor, quantiles: tf.Tensor, tau: tf.Tensor, kappa: float) -> tuple[tf.Tensor, Any]:
    """sum_i mean_j |tau_i - 1(d_ij < 0)| * L(d_ij), d_ij = y_j - theta_i.

    Huber's L(d) is d^2 / (2 kappa) where |d| < kappa, else |d| - kappa / 2. Its derivative, d / kappa clipped to
    [-1, 1], is computed with the loss, in a third of the passes of backpropagation.

    Args:
      td_targets: y, `[B, (T,) K]`; no gradient flows into them.
      quantiles: theta, `[B, (T,) M]`.
      tau: Their fractions, `[B, (T,) M]` or `[M]`.
      kappa: Above 0.

    Returns:
      `[B, (T,)]`.
    """
    count, tau = float(td_targets.shape[-1]), tau[..., None]
    d = td_targets[..., None, :] - quantiles[..., :, None]
    slope = tf.clip_by_value(d / kappa, -1.0, 1.0)
    weighted = tf.where(d < 0.0, 1.0 - tau, tau) * slope
    loss = tf.reduce_sum(weighted * (d - 0.5 * kappa * slope), axis=(-2, -1)) / count
    derivative = -tf.reduce_sum(weighted, axis=-1) / count
    return loss, lambda upstream: (None, upstream[..., None] * derivative, None, None)
