"""Agents with linear networks, whose losses and steps NumPy can follow, and that NumPy."""

import functools

import numpy as np
import tensorflow as tf
from tf_agents.agents.sac.sac_agent import std_clip_transform
from tf_agents.agents.sac.tanh_normal_projection_network import TanhNormalProjectionNetwork
from tf_agents.networks.actor_distribution_network import ActorDistributionNetwork
from tf_agents.networks.network import Network
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import policy_step, trajectory
from tf_agents.trajectories import time_step as ts

from tests.support.fakes import FakeParams, agent_of
from tfagents_system.agents.algorithms import num_critic_outputs

B, OBS, ACT = 6, 3, 2
OBSERVATION = tf.TensorSpec((OBS,), tf.float32, "observation")
ACTION = tensor_spec.BoundedTensorSpec((ACT,), tf.float32, -1.0, 1.0, "action")
CRITIC_RATE, ACTOR_RATE, ALPHA_RATE = 0.1, 1.0, 0.5
SGD = tf.keras.optimizers.legacy.SGD


class LinearCritic(Network):
    """x @ w + b of x = (observation, action); where `is_centred`, x without its mean over the batch in training."""

    def __init__(self, input_tensor_spec, num_outputs=1, is_centred=False, name="LinearCritic"):
        super().__init__(input_tensor_spec=input_tensor_spec, state_spec=(), name=name)
        self._num_outputs = num_outputs
        self._is_centred = is_centred
        self._dense = tf.keras.layers.Dense(num_outputs, kernel_initializer="glorot_normal", bias_initializer="normal")

    def call(self, inputs, step_type=None, network_state=(), training=False):
        x = tf.concat(inputs, -1)
        if self._is_centred and training:
            x -= tf.reduce_mean(x, 0)
        values = self._dense(x)
        return (values[..., 0] if self._num_outputs == 1 else values), network_state


class TinyParams(FakeParams):
    discount = 0.9
    target_update_tau = 0.25
    sac_log_alpha = -0.5
    tqc = {"num_quantiles": 4, "num_dropped_quantiles": 1}
    is_centred = False

    def actor_ctor(self, observation_spec, action_spec):
        projection = functools.partial(TanhNormalProjectionNetwork, std_transform=std_clip_transform)
        return ActorDistributionNetwork(
            observation_spec, action_spec, fc_layer_params=(), continuous_projection_net=projection
        )

    def critic_ctor(self, observation_spec, action_spec):
        return LinearCritic((observation_spec, action_spec), num_critic_outputs(self), self.is_centred)


def build(**attributes):
    """The agent of a TinyParams; each target is off its critic."""
    tf.keras.utils.set_random_seed(4)
    agent = agent_of(TinyParams, OBSERVATION, ACTION, **attributes)
    rng = np.random.default_rng(2)
    for target in agent.targets:
        for variable in target.variables:
            variable.assign_add(rng.standard_normal(variable.shape))
    return agent


def with_sgd(agent):
    """The agent with plain gradient steps."""
    agent.critic_optimizer, agent.actor_optimizer = SGD(CRITIC_RATE), SGD(ACTOR_RATE)
    if agent.alpha_optimizer is not None:
        agent.alpha_optimizer = SGD(ALPHA_RATE)
    return agent


def numeric_gradient(loss, array):
    """Central differences of `loss()` with respect to each number of an array, which it looks at."""
    gradient = np.zeros_like(array)
    for index in np.ndindex(array.shape):
        kept, values = array[index], []
        for sign in (1, -1):
            array[index] = kept + sign * 1e-5
            values.append(loss())
        array[index] = kept
        gradient[index] = (values[0] - values[1]) / 2e-5
    return gradient


def softmax(logits):
    exponents = np.exp(logits - logits.max(-1, keepdims=True))
    return exponents / exponents.sum(-1, keepdims=True)


def project(probabilities, values, atoms):
    """m_i = sum_j p_j max(0, 1 - |t_j - z_i| / width) of `[B, n]`, in float64."""
    width = atoms[1] - atoms[0]
    clipped = np.clip(values, atoms[0], atoms[-1])
    nearness = np.maximum(0.0, 1.0 - np.abs(clipped[:, None, :] - atoms[:, None]) / width)
    return np.einsum("bj,bij->bi", probabilities, nearness)


class Minibatch:
    """Random numbers, as NumPy arrays, as a transition and as noise."""

    def __init__(self, seed=0):
        rng = np.random.default_rng(seed)
        self.observation, self.next_observation = rng.standard_normal((2, B, OBS)).astype(np.float32)
        self.action = np.tanh(rng.standard_normal((B, ACT))).astype(np.float32)
        self.reward = rng.standard_normal(B).astype(np.float32)
        self.discount = np.float32([1, 0, 1, 1, 0, 1])
        self.next_noise, self.actor_noise = rng.standard_normal((2, B, ACT)).astype(np.float32)

    def transition(self):
        mid, zeros, ones = tf.ones(B, tf.int32), tf.zeros(B), tf.ones(B)
        return trajectory.Transition(
            ts.TimeStep(mid, zeros, ones, tf.constant(self.observation)),
            policy_step.PolicyStep(tf.constant(self.action)),
            ts.TimeStep(mid, tf.constant(self.reward), tf.constant(self.discount), tf.constant(self.next_observation)),
        )

    def noise(self):
        return [[tf.constant(numbers)] for numbers in (self.next_noise, self.actor_noise)]


class NumpyAgent:
    """The weights of an agent in float64, and what every algorithm computes in the same way."""

    def __init__(self, agent):
        projection = agent.actor._projection_networks._projection_layer
        self.actor = [np.array(variable, np.float64) for variable in projection.variables]
        self.critics = [self._weights(critic) for critic in agent.critics]
        self.targets = [self._weights(target) for target in agent.targets]
        self.alpha = float(np.exp(agent.log_alpha))

    @staticmethod
    def _weights(critic):
        kernel, bias = critic.variables
        return np.float64(kernel), np.float64(bias)

    def sample(self, observation, noise):
        """Actions `[B, ACT]` and log pi `[B]`, from the densities themselves."""
        kernel, bias = self.actor
        mean, log_std = np.split(observation @ kernel + bias, 2, axis=-1)
        std = np.exp(np.clip(log_std, -20, 2))
        u = mean + std * noise
        gaussian = -0.5 * ((u - mean) / std) ** 2 - np.log(std) - 0.5 * np.log(2 * np.pi)
        return np.tanh(u), np.sum(gaussian - np.log(1 - np.tanh(u) ** 2), -1)

    @staticmethod
    def values(weights, observation, action):
        """`[B, number of outputs]`."""
        kernel, bias = weights
        return np.concatenate([observation, action], -1) @ kernel + bias
