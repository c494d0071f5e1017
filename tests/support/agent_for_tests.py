"""A small agent and blocks of random minibatches for it."""

import numpy as np
import tensorflow as tf
from tf_agents.specs import tensor_spec

from tests.support.fakes import agent_of
from tfagents_system.train_params_base import TrainParamsBase

B, OBS, ACT = 16, 3, 2
ACTION = tensor_spec.BoundedTensorSpec((ACT,), tf.float32, -1.0, 1.0, "action")


class Params(TrainParamsBase):
    actor_fc_layer_params = (16,)
    critic_joint_fc_layer_params = (16,)

    def env_ctor(self, *args, seed=None, **kwargs):
        raise AssertionError("not needed")


def build(recurrent=False, **attributes):
    tf.keras.utils.set_random_seed(1)  # Keras draws initial weights from Python's own numbers.
    spec = tf.TensorSpec((OBS,), tf.float32, "observation")
    attributes["recurrent"] = {"lstm_units": 4, "sequence_length": 4} if recurrent else False
    return agent_of(Params, spec, ACTION, **attributes)


def block(k, seed=0, outer=(B,)):
    rng = np.random.default_rng(seed)

    def normal(*shape):
        return rng.standard_normal(shape).astype(np.float32)

    observation, next_observation = normal(k, *outer, OBS), normal(k, *outer, OBS)
    discount = (rng.random((k, *outer)) > 0.2).astype(np.float32)
    return [observation, np.tanh(normal(k, *outer, ACT)), normal(k, *outer), discount, next_observation]


def build_quiet():
    """An agent without noise (std is clipped to e^-20, alpha is e^-50) and with a fixed actor: its numbers repeat."""
    agent = build(actor_learning_rate=0.0, alpha_learning_rate=0.0, sac_log_alpha=-50.0)
    agent._actor_network._projection_networks._projection_layer.bias.assign([0.0, 0.0, -50.0, -50.0])
    return agent
