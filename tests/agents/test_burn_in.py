"""Burn-in: the first steps of a sequence only lead to the state in which the losses of the others begin."""

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.trajectories import trajectory

from tests.support.fakes import FakeParams, agent_of
from tests.support.tiny_agents import ACT, ACTION, OBS, OBSERVATION
from tests.support.updates import losses_of, noise_of, update_once
from tfagents_system.agents.minibatch import Minibatch

BATCH, BURN_IN, LENGTH = 3, 2, 3
TOTAL = BURN_IN + LENGTH


class Params(FakeParams):
    actor_fc_layer_params = (6,)
    critic_joint_fc_layer_params = (6,)
    recurrent = {"lstm_units": 4}


def build(algorithm, cls=Params):
    tf.keras.utils.set_random_seed(1)
    return agent_of(cls, OBSERVATION, ACTION, algorithm=algorithm)


def sequences(observation=None):
    rng = np.random.default_rng(0)
    outer = (BATCH, TOTAL + 1)
    step_type = np.ones(outer, np.int32)
    step_type[0, 0] = 0
    drawn = rng.standard_normal((*outer, OBS)).astype(np.float32)
    return trajectory.Trajectory(
        tf.constant(step_type),
        tf.constant(drawn) if observation is None else observation,
        tf.constant(np.tanh(rng.standard_normal((*outer, ACT))), tf.float32),
        (),
        tf.constant(np.roll(step_type, -1, 1)),
        tf.constant(rng.standard_normal(outer), tf.float32),
        tf.ones(outer),
    )


def split(agent, experience, weight=None):
    return agent.split(Minibatch(experience, weight, BURN_IN))


@pytest.fixture(scope="module")
def agent():
    return build("sac")


def test_values_behind_the_burn_in_are_those_of_the_whole_sequence(agent):
    """With the actions that were taken the state is the same, whether steps only lead there or are judged."""
    whole, next_whole = agent.split(Minibatch(sequences()))
    behind, next_behind = split(agent, sequences())
    critic = agent.critics[0]
    values = agent.values(critic, behind, behind.actions)
    assert values.shape == (BATCH, LENGTH)
    np.testing.assert_allclose(values, agent.values(critic, whole, whole.actions)[:, BURN_IN:], atol=1e-6)
    noise = [tf.zeros((BATCH, TOTAL, ACT))], [tf.zeros((BATCH, LENGTH, ACT))]
    for steps, cut in ((whole, behind), (next_whole, next_behind)):
        actions, log_pi = agent.sample(steps, noise[0], training=False)
        cut_actions, cut_log_pi = agent.sample(cut, noise[1], training=False)
        np.testing.assert_allclose(cut_actions, actions[:, BURN_IN:], atol=1e-6)
        np.testing.assert_allclose(cut_log_pi, log_pi[:, BURN_IN:], atol=1e-5)


def test_no_gradient_reaches_the_burn_in_which_matters_all_the_same(agent):
    observation = sequences().observation
    with tf.GradientTape() as tape:
        tape.watch(observation)
        steps, _ = split(agent, sequences(observation))
        values = agent.values(agent.critics[0], steps, steps.actions)
        _, log_pi = agent.sample(steps, [tf.ones((BATCH, LENGTH, ACT))], training=True)
        total = tf.reduce_sum(values) + tf.reduce_sum(log_pi)
    gradient = tape.gradient(total, observation).numpy()
    assert np.all(gradient[:, :BURN_IN] == 0)
    assert np.all(np.abs(gradient[:, BURN_IN:TOTAL]).max(-1) > 0)
    other = tf.concat([observation[:, :1] + 1.0, observation[:, 1:]], 1)
    steps, _ = split(agent, sequences(other))
    assert np.abs(agent.values(agent.critics[0], steps, steps.actions) - values).max() > 1e-4


WEIGHT = np.array([[0, 0, 3, 0, 0], [0, 0, 1.5, 1.5, 0], [0, 0, 1, 1, 1]], np.float32)


def test_each_step_counts_by_its_weight_in_the_losses_of_critics_actor_and_alpha(agent):
    steps, next_steps = split(agent, sequences(), tf.constant(WEIGHT))
    noise, weight = [tf.zeros((BATCH, LENGTH, ACT))], WEIGHT[:, BURN_IN:]
    measured = agent.critic_loss(steps, next_steps, noise, noise_of(agent), training=False)
    next_actions, next_log_pi = agent.sample(next_steps, noise, training=False)
    targets = (agent.targets[0], agent.targets[1])
    y = next_steps.time_steps.reward + 0.99 * (
        tf.minimum(*(agent.values(target, next_steps, next_actions) for target in targets)) - next_log_pi
    )
    critics = (agent.critics[0], agent.critics[1])
    values = [agent.values(critic, steps, steps.actions) for critic in critics]
    np.testing.assert_allclose(
        measured["critic_loss"], 0.5 * sum(np.sum(weight * (y - q) ** 2) for q in values) / BATCH, rtol=1e-5
    )
    np.testing.assert_allclose(
        measured["q_mean"], sum(np.sum(weight * q) for q in values) / 2 / weight.sum(), rtol=1e-5
    )
    actions, log_pi = agent.sample(steps, noise, training=False)
    judged = tf.minimum(*(agent.values(critic, steps, actions) for critic in critics))
    actor_loss = agent.actor_loss(steps, actions, log_pi)
    np.testing.assert_allclose(actor_loss, np.sum(weight * (log_pi - judged)) / BATCH, rtol=1e-5)
    _, gradient = agent.alpha_loss(steps, log_pi)
    np.testing.assert_allclose(gradient, np.sum(weight * (-log_pi + ACT)) / BATCH, rtol=1e-5)


@pytest.mark.parametrize("algorithm", ["sac", "tqc"])
def test_what_only_fills_up_a_sequence_changes_nothing_that_is_learned(algorithm):
    """Rewards, actions and observations where the weight is 0, behind the steps."""

    class Few(Params):
        num_critics = None if algorithm == "sac" else 2
        actor_update_period = None if algorithm == "sac" else 1
        tqc = {"num_quantiles": 3}

    learned, measured = [], []
    for junk in (0.0, 5.0):
        agent = build(algorithm, Few)
        filled = np.zeros((BATCH, TOTAL + 1), np.float32)
        filled[0, 4:], filled[1, 5:] = junk, junk  # Behind the observation that the last step has led to.
        experience, weight = sequences(), tf.constant(WEIGHT)
        is_unused = np.pad(WEIGHT, ((0, 0), (0, 1))) == 0
        experience = experience._replace(
            observation=experience.observation + filled[..., None],
            action=tf.clip_by_value(experience.action + np.roll(filled, -1, 1)[..., None], -1.0, 1.0),
            reward=experience.reward + np.float32(100 * junk) * is_unused.astype(np.float32),
        )
        losses = losses_of(agent, experience, weight=weight, burn_in_steps=BURN_IN)
        held_out = {f"held out {name}": value for name, value in losses.items()}
        measured.append(held_out | update_once(agent, experience, weight=weight, burn_in_steps=BURN_IN))
        learned.append([variable.numpy() for variable in agent.trainable_variables])
    for ours, theirs in zip(*learned, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)
    for name, value in measured[0].items():
        np.testing.assert_allclose(value, measured[1][name], rtol=1e-5, err_msg=name)
