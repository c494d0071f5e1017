"""FlashSAC (arXiv 2604.04539): wide residual networks with batch normalisation, and exploration that holds its noise.

Workers hold the noise (`noise_hold_steps`, policies/worker_policy.py).
"""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf

from tfagents_system.agents.crossq import joined
from tfagents_system.agents.layers import BatchNormalization, RmsNormalization
from tfagents_system.agents.minibatch import Drawing, Steps
from tfagents_system.agents.xqc import Xqc
from tfagents_system.train_params_base import TrainParamsBase


class FlashSac(Xqc):
    """XQC's update with other networks, in another order: the actor steps first, in every second update.

    It does so in the updates 2, 4 and so on, in the authors' code in 1, 3 and so on. The actor, too, sees states and
    next states in one pass. The critics' losses are averaged. Scales and shifts of a normalisation of d numbers have
    the norm sqrt(d) together.
    """

    actor_steps_first = True

    def __init__(self, params: TrainParamsBase, time_step_spec: Any, action_spec: Any, train_step: tf.Variable) -> None:
        super().__init__(params, time_step_spec, action_spec, train_step)
        self.critic_loss_weight = 1.0 / len(self.critics)

    def project(self, layer: Any) -> None:
        super().project(layer)
        if isinstance(layer, BatchNormalization | RmsNormalization):
            values = layer.trainable_variables
            norm = tf.sqrt(tf.add_n([tf.reduce_sum(tf.square(value)) for value in values]) + 1e-8)
            for value in values:
                value.assign(value * (math.sqrt(value.shape[0]) / norm))

    def learning_actions(self, steps: Steps, next_steps: Steps, noise: Drawing) -> tuple[Any, tf.Tensor]:
        actions, log_pi = self.sample(joined(steps, next_steps), noise, training=True)
        first: tuple[Any, tf.Tensor] = tf.nest.map_structure(lambda rows: tf.split(rows, 2)[0], (actions, log_pi))
        return first
