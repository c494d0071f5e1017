"""Agents whose actors are evaluated by TensorFlow and by NumPy."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from tf_agents.specs import tensor_spec

from tests.support.fakes import FakeParams, agent_of
from tfagents_system.policies import weights

VECTOR = tf.TensorSpec((3,), tf.float32, "observation")


ACTION = tensor_spec.BoundedTensorSpec((2,), tf.float32, -1.0, 1.0, "action")


class Params(FakeParams):
    actor_fc_layer_params = (16, 16)
    critic_joint_fc_layer_params = (8,)


def build(spec, **attributes):
    if attributes.get("recurrent"):
        attributes["recurrent"] = {"lstm_units": 4}
    return agent_of(Params, spec, ACTION, **attributes)


def as_after_training(agent, seed):
    """Weights by name, with variances above 0."""
    rng = np.random.default_rng(seed)
    values = weights.read_weights(weights.named_variables(agent.collect_policy))
    for name, value in values.items():
        if value.dtype == np.float32:
            drawn = rng.standard_normal(value.shape).astype(np.float32)
            values[name] = np.abs(drawn) + 0.1 if "variance" in name else 0.5 * drawn
    return values
