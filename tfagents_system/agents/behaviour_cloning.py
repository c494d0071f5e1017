"""Behaviour cloning in the actor's loss, for updates on prior data alone: it keeps the actor near the data's actions.

Critics know nothing of actions that the data lack, and an actor that trusts them there learns what does not exist.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfagents_system.agents.algorithms import CLONING_WEIGHT
from tfagents_system.train_params_base import TrainParamsBase


class BehaviourCloning:
    """The term of the loss. TensorFlow does not look into this class: checkpoints have no weight of the term.

    Attributes:
      weight: float32 scalar, which follows from the position in the run alone.
    """

    def __init__(self, params: TrainParamsBase) -> None:
        self.weight = tf.Variable(params.behaviour_cloning_weight, False, dtype=tf.float32, name=CLONING_WEIGHT)

    def term(self, value: tf.Tensor, actions: Any, taken: Any) -> tf.Tensor:
        """Weight * mean|Q| |a_pi - a|^2, with the mean of the squares over the numbers of an action, `[B, (T,)]`.

        TD3+BC (Fujimoto and Gu, arXiv 2106.06860, equations 3 to 5) minimises -lambda Q + |a_pi - a|^2 with lambda =
        alpha / mean|Q|; that divided by lambda is -Q + weight * mean|Q| |a_pi - a|^2, with the weight 1 / alpha.

        Args:
          value: What the actor maximises, `[B, (T,)]`.
          actions, taken: The actor's and the data's, leaves `[B, (T,) ...]`.
        """
        squares = [
            tf.math.squared_difference(action, data)
            for action, data in zip(tf.nest.flatten(actions), tf.nest.flatten(taken), strict=True)
        ]
        outer = value.shape.rank
        flat = [tf.reshape(square, tf.concat([tf.shape(square)[:outer], [-1]], 0)) for square in squares]
        size = tf.stop_gradient(tf.reduce_mean(tf.abs(value)))
        return self.weight * size * tf.reduce_mean(tf.concat(flat, -1), -1)
