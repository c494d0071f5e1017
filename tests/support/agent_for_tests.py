"""A small agent and blocks of random minibatches for it."""

import numpy as np
import tensorflow as tf
from tf_agents.agents.sac.sac_agent import SacAgent
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts
from tf_agents.utils import common

from tests.support.fakes import FakeParams, agent_of

B, OBS, ACT = 16, 3, 2
Params = FakeParams
ACTION = tensor_spec.BoundedTensorSpec((ACT,), tf.float32, -1.0, 1.0, "action")


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
    agent.actor.projections._projection_layer.bias.assign([0.0, 0.0, -50.0, -50.0])
    return agent


class SharedLogPiAgent(SacAgent):
    """TF-Agents' SAC with given noise, and alpha's loss made from log pi of the actor's loss.

    Its distributions compute log pi themselves.
    """

    noise: list = []

    def _actions_and_log_probs(self, time_steps, training=False):
        batch_size = tf.nest.flatten(time_steps)[0].shape[0]
        policy = self._train_policy if training else self._policy
        nest = policy.distribution(time_steps, policy_state=policy.get_initial_state(batch_size)).action
        noise = self.noise.pop(0)
        flat = []
        for k, distribution in enumerate(tf.nest.flatten(nest)):
            gaussian = distribution.input_distribution
            bijector = distribution._squashed_distribution.bijector
            # Through the bijector, which remembers its input: log_prob would otherwise lose digits in atanh.
            flat.append(bijector.forward(gaussian.mean() + gaussian.stddev() * noise[k]))
        actions = tf.nest.pack_sequence_as(nest, flat)
        return actions, common.log_probability(nest, actions, self.action_spec)

    def actor_loss(self, time_steps, weights=None, training=True):
        actions, self._log_pi = self._actions_and_log_probs(time_steps, training=True)
        self._actions_and_log_probs, restore = lambda *_, **__: (actions, self._log_pi), self._actions_and_log_probs
        try:
            return super().actor_loss(time_steps, weights, training)
        finally:
            self._actions_and_log_probs = restore

    def alpha_loss(self, time_steps, weights=None, training=False):
        self._actions_and_log_probs, restore = lambda *_, **__: (None, self._log_pi), self._actions_and_log_probs
        try:
            return super().alpha_loss(time_steps, weights, training)
        finally:
            self._actions_and_log_probs = restore


def reference_agent(params=None, observation_spec=None, action_spec=ACTION, cls=SacAgent):
    """TF-Agents' SacAgent, or a subclass, with the networks, optimizers and attributes of ours."""
    params = Params({"horizon": 10}) if params is None else params
    spec = tf.TensorSpec((OBS,), tf.float32, "observation") if observation_spec is None else observation_spec
    ours = params.agent_ctor(ts.time_step_spec(spec), action_spec, tf.Variable(0, dtype=tf.int64))
    agent = cls(
        ours.time_step_spec,
        action_spec,
        actor_network=ours.actor,
        critic_network=ours.critics[0],
        critic_network_2=ours.critics[1],
        actor_optimizer=ours.actor_optimizer,
        critic_optimizer=ours.critic_optimizer,
        alpha_optimizer=ours.alpha_optimizer,
        gamma=ours.gamma,
        initial_log_alpha=params.sac_log_alpha,
        target_entropy=ours.target_entropy,
        target_update_tau=params.target_update_tau,
        target_update_period=params.target_update_period,
        gradient_clipping=params.gradient_clipping,
        train_step_counter=ours.train_step_counter,
    )
    agent.initialize()
    optimized = {
        "critic": agent._critic_network_1.trainable_weights + agent._critic_network_2.trainable_weights,
        "actor": agent._actor_network.trainable_weights,
        "alpha": [agent._log_alpha],
    }
    for part, variables in optimized.items():  # A tf.function that makes variables is traced twice.
        optimizer = getattr(agent, f"_{part}_optimizer")
        with tf.name_scope(optimizer._name):
            optimizer._create_all_weights(variables)
    return agent


def networks_of(agent):
    """The networks of our agent or of TF-Agents', by name."""
    if isinstance(agent, SacAgent):
        names = ("actor_network", "critic_network_1", "critic_network_2")
        found = [getattr(agent, f"_{name}") for name in (*names, *(f"target_{name}" for name in names[1:]))]
    else:
        found = [agent.actor, *agent.critics, *agent.targets]
    return dict(zip(("actor", "critic 1", "critic 2", "target 1", "target 2"), found, strict=True))


def copy_weights(ours, theirs):
    for name, network in networks_of(ours).items():
        for a, b in zip(network.variables, networks_of(theirs)[name].variables, strict=True):
            b.assign(a)
