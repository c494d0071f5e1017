"""Behaviour cloning in the actor's loss, for updates on prior data alone: it keeps the actor near the data's actions.

Critics know nothing of actions that the data lack, and an actor that trusts them there learns what does not exist.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfagents_system.train_params_base import TrainParamsBase

WEIGHT = "behaviour_cloning_weight"


def cloning_weight(params: TrainParamsBase) -> tf.Variable | None:
    """Weight of the term, which schedules change (agents/scheduled.py); None: there is no such term."""
    if not params.behaviour_cloning_weight:
        return None
    return tf.Variable(params.behaviour_cloning_weight, dtype=tf.float32, trainable=False, name=WEIGHT)


def cloning_term(value: tf.Tensor, actions: Any, taken: Any) -> tf.Tensor:
    """mean|Q| |a_pi - a|^2, `[B, (T,)]`, with the mean of the squares over the numbers of an action.

    TD3+BC (Fujimoto and Gu, arXiv 2106.06860, equations 3 to 5) minimises -lambda Q + |a_pi - a|^2 with lambda =
    alpha / mean|Q|; that divided by lambda is -Q + weight * this, with the weight 1 / alpha.
    """
    pairs = zip(tf.nest.flatten(actions), tf.nest.flatten(taken), strict=True)
    rank = value.shape.rank
    squares = [tf.math.squared_difference(ours, theirs) for ours, theirs in pairs]
    flat = [tf.reshape(each, tf.concat([tf.shape(each)[:rank], [-1]], 0)) for each in squares]
    return tf.stop_gradient(tf.reduce_mean(tf.abs(value))) * tf.reduce_mean(tf.concat(flat, -1), -1)
