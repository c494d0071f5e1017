"""Behaviour cloning in the actor's loss, for updates on prior data alone: it keeps the actor near the data's actions.

Critics know nothing of actions that the data lack, and an actor that trusts them there learns what does not exist.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfagents_system.agents.iteration_counts import offline_updates
from tfagents_system.agents.update_parts import CloningWeight, Parts
from tfagents_system.train_params_base import TrainParamsBase

WEIGHT = "behaviour_cloning_weight"


def is_wanted(params: TrainParamsBase) -> bool:
    """Whether some update of a run has the term."""
    return params.behaviour_cloning_weight > 0 and offline_updates(params) > 0


def cloning_weight(params: TrainParamsBase) -> CloningWeight | None:
    """Weight of the term, which schedules change (agents/scheduled.py); None: there is no such term."""
    if not is_wanted(params):
        return None
    return CloningWeight(tf.Variable(params.behaviour_cloning_weight, dtype=tf.float32, trainable=False, name=WEIGHT))


def with_cloning(loss: tf.Tensor, parts: Parts, value: tf.Tensor, actions: Any, taken: Any) -> tf.Tensor:
    """The actor's loss plus weight * mean|Q| |a_pi - a|^2, with the mean of the squares over the numbers of an action.

    TD3+BC (Fujimoto and Gu, arXiv 2106.06860, equations 3 to 5) minimises -lambda Q + |a_pi - a|^2 with lambda =
    alpha / mean|Q|; that divided by lambda is -Q + weight * mean|Q| |a_pi - a|^2, with the weight 1 / alpha.

    Args:
      loss: `[B, (T,)]`.
      parts: Of the agent; without a weight of cloning the loss stays as it is.
      value: What the actor maximises, `[B, (T,)]`.
      actions, taken: The actor's and the data's, leaves `[B, (T,) ...]`.
    """
    if parts.cloning_weight is None:
        return loss
    squares = [
        tf.math.squared_difference(ours, theirs)
        for ours, theirs in zip(tf.nest.flatten(actions), tf.nest.flatten(taken), strict=True)
    ]
    outer = value.shape.rank
    flat = [tf.reshape(each, tf.concat([tf.shape(each)[:outer], [-1]], 0)) for each in squares]
    size = tf.stop_gradient(tf.reduce_mean(tf.abs(value)))
    return loss + parts.cloning_weight.variable * size * tf.reduce_mean(tf.concat(flat, -1), -1)
