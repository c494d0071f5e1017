"""A whole update of CrossQ with its own networks, batch renormalisation included, against NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from tests.support.agent_for_tests import Params
from tests.support.fakes import agent_of
from tests.support.tiny_agents import ACTION, OBSERVATION, SGD, B, Minibatch, numeric_gradient
from tests.support.updates import update_once

RATE, GAMMA, ALPHA = 0.01, 0.9, float(np.exp(-0.5))
CLOSE = {"rtol": 1e-4, "atol": 1e-6}


class Layers:
    """Dense layers and batch renormalisations of a network, in float64."""

    def __init__(self, layers):
        self.layers = [
            ["norm", *(np.array(each, np.float64) for each in (x.gamma, x.beta, x.moving_mean, x.moving_variance))]
            if hasattr(x, "moving_mean")
            else [x.activation.__name__, *(np.array(each, np.float64) for each in (x.kernel, x.bias))]
            for x in layers
        ]

    @property
    def weights(self):
        return [array for _, *arrays in self.layers for array in arrays[:2]]

    @property
    def moving(self):
        return [array for kind, *arrays in self.layers if kind == "norm" for array in arrays[2:]]

    def __call__(self, x, corrections=None, moved=None):
        """As in acting; or in training, with r and d of each normalisation, which no gradient flows through.

        Args:
          x: `[B, n]`.
          corrections: A list that gets r and d, or has them from a call before; None: as in acting.
          moved: Gets the moving statistics after this pass.
        """
        taken = 0
        for kind, *arrays in self.layers:
            if kind != "norm":
                x = x @ arrays[0] + arrays[1]
                x = np.maximum(x, 0) if kind == "relu" else x
                continue
            gamma, beta, mean, variance = arrays
            if corrections is None:
                x = gamma * (x - mean) / np.sqrt(variance + 1e-3) + beta
                continue
            batch_mean, batch_variance = x.mean(0), x.var(0)
            if len(corrections) == taken:
                std = np.sqrt(variance + 1e-3)
                r = np.clip(np.sqrt(batch_variance + 1e-3) / std, 1 / 3, 3)
                corrections.append((r, np.clip((batch_mean - mean) / std, -5, 5)))
            r, d = corrections[taken]
            taken += 1
            if moved is not None:
                moved += [0.99 * mean + 0.01 * batch_mean, 0.99 * variance + 0.01 * batch_variance]
            x = gamma * ((x - batch_mean) / np.sqrt(batch_variance + 1e-3) * r + d) + beta
        return x


def layers_of_actor(agent):
    actor = agent.actor
    return Layers([*actor.body.hidden_layers, actor.projections._projection_layer])


def layers_of_critics(agent):
    return [Layers(critic.body.hidden_layers) for critic in agent.critics]


def sample(actor, observation, noise, **statistics):
    mean, log_std = np.split(actor(np.float64(observation), **statistics), 2, -1)
    std = np.exp(np.clip(log_std, -20, 2))
    u = mean + std * noise
    gaussian = -0.5 * noise**2 - np.log(std) - 0.5 * np.log(2 * np.pi)
    return np.tanh(u), np.sum(gaussian - np.log(1 - np.tanh(u) ** 2), -1)


@pytest.fixture(scope="module")
def agent():
    """Just before an update in which the actor's turn comes, with moving statistics far from the first ones."""
    tf.keras.utils.set_random_seed(0)
    attributes = {
        "algorithm": "crossq",
        "batch_renormalization": {"warmup_steps": 0},
        "actor_fc_layer_params": (5,),
        "critic_joint_fc_layer_params": (4,),
        "discount": GAMMA,
        "sac_log_alpha": -0.5,
    }
    agent = agent_of(Params, OBSERVATION, ACTION, **attributes)
    rng = np.random.default_rng(0)
    for network in (*agent.critics, agent.actor):
        for variable in network.variables:
            if "variance" in variable.name:
                variable.assign(rng.uniform(0.3, 0.6, variable.shape))
            elif variable.dtype.is_floating:
                variable.assign(0.5 * rng.standard_normal(variable.shape))
    agent.train_step_counter.assign(2)
    return agent


def test_losses_steps_and_moving_statistics(agent):
    batch, actor, critics = Minibatch(), layers_of_actor(agent), layers_of_critics(agent)
    agent.critic_optimizer, agent.actor_optimizer = SGD(RATE), SGD(RATE)
    measured = update_once(agent, batch.transition(), batch.noise())
    numbers = {name: float(value) for name, (value, _) in measured.items()}
    after_actor, after_critics = layers_of_actor(agent), layers_of_critics(agent)

    # Next actions come from the actor as it acts; the critics see both halves of the batch in one pass of training.
    next_action, next_log_pi = sample(actor, batch.next_observation, batch.next_noise)
    here = np.concatenate([batch.observation, batch.action], -1)
    x = np.float64(np.concatenate([here, np.concatenate([batch.next_observation, next_action], -1)]))
    corrections, moved = [[], []], [[], []]
    values = [critics[i](x, corrections[i], moved[i])[:, 0] for i in range(2)]
    y = batch.reward + GAMMA * batch.discount * (np.minimum(*values)[B:] - ALPHA * next_log_pi)
    np.testing.assert_allclose(numbers["critic_loss"], 0.5 * sum(np.mean((q[:B] - y) ** 2) for q in values), **CLOSE)
    for i, (critic, after) in enumerate(zip(critics, after_critics, strict=True)):

        def critic_loss(critic=critic, i=i):
            return 0.5 * np.mean((critic(x, corrections[i])[:B, 0] - y) ** 2)

        check_steps(critic, after, critic_loss)
        for ours, expected in zip(after.moving, moved[i], strict=True):
            np.testing.assert_allclose(ours, expected, **CLOSE)

    # The actor is trained; the critics after their step judge it as they act.
    of_actor, moved_actor = [], []
    sample(actor, batch.observation, batch.actor_noise, corrections=of_actor, moved=moved_actor)

    def actor_loss():
        action, log_pi = sample(actor, batch.observation, batch.actor_noise, corrections=of_actor)
        inputs = np.concatenate([batch.observation, action], -1)
        return np.mean(ALPHA * log_pi - np.minimum(*(critic(inputs)[:, 0] for critic in after_critics)))

    np.testing.assert_allclose(numbers["actor_loss"], actor_loss(), **CLOSE)
    check_steps(actor, after_actor, actor_loss)
    for ours, expected in zip(after_actor.moving, moved_actor, strict=True):
        np.testing.assert_allclose(ours, expected, **CLOSE)


def check_steps(before, after, loss):
    for weights, ours in zip(before.weights, after.weights, strict=True):
        np.testing.assert_allclose(ours, weights - RATE * numeric_gradient(loss, weights), **CLOSE)
