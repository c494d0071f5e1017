"""A block of K minibatches is K updates, each the one that TF-Agents would do."""

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.agents import tf_agent
from tf_agents.agents.sac.sac_agent import SacAgent
from tf_agents.trajectories import policy_step, trajectory
from tf_agents.trajectories import time_step as ts

from tests.support.agent_for_tests import B, Params, block, build, build_quiet, copy_weights, reference_agent
from tfagents_system.agents.block_update import BlockUpdate, DivergedError, of_whole_sequences
from tfagents_system.agents.sac import Sac
from tfagents_system.replay.sampling import SequenceForm, TransitionForm


def test_k_minibatches_are_k_updates_traced_once_and_a_loss_that_is_not_finite_is_told(monkeypatch):
    """Tracing takes most of a trainer's start, and TensorFlow traces twice what makes variables."""
    traced, update_of = [], Sac.update
    monkeypatch.setattr(Sac, "update", lambda self, *args: traced.append(1) or update_of(self, *args))
    agent = build()
    networks = [agent.actor, agent.targets[0]]
    before = [variable.numpy() for network in networks for variable in network.variables]
    update = BlockUpdate(agent, B, TransitionForm())
    made = len(agent.critic_optimizer.weights), len(agent.actor_optimizer.weights)
    losses = update(block(5))
    update(block(2))
    assert len(traced) == 1
    assert made == (len(agent.critic_optimizer.weights), len(agent.actor_optimizer.weights))
    assert int(agent.train_step_counter) == 7
    assert set(losses) == {"actor_loss", "critic_loss", "alpha_loss", "q_mean"}
    assert all(np.isfinite(value) for value in losses.values())
    after = [variable.numpy() for network in networks for variable in network.variables]
    assert all(not np.array_equal(a, b) for a, b in zip(before, after, strict=True))
    arrays = block(3)
    arrays[2][1] = np.nan
    with pytest.raises(DivergedError, match="^Critic loss is inf or nan$"):
        update(arrays)


def test_measuring_gives_the_losses_and_changes_nothing():
    agent = build_quiet()
    update = BlockUpdate(agent, B, TransitionForm(), measures=True)
    update(block(1))
    variables = [*agent.variables, agent.train_step_counter]
    before = [variable.numpy() for variable in variables]
    arrays = block(3, seed=1)
    measured = update.measure(arrays)
    for variable, value in zip(variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)
    expected = [critic_loss(agent, *(array[k] for array in arrays)) for k in range(3)]
    np.testing.assert_allclose(measured["critic_loss"], np.mean(expected), rtol=1e-4)
    first = update([array[:1] for array in arrays])
    np.testing.assert_allclose(first["critic_loss"], expected[0], rtol=1e-4)

    agent.critics[0].variables[-1].assign([np.nan])
    with pytest.raises(DivergedError, match="critic_loss is nan"):
        update.measure(arrays)


def critic_loss(agent, observation, action, reward, discount, next_observation):
    """Half of the squared errors of both critics, of an agent without noise and entropy."""
    mid = tf.ones(B, tf.int32)

    def q(networks, observation, action):
        return np.array([network((observation, action), step_type=mid)[0] for network in networks])

    next_action = agent.policy.action(ts.restart(next_observation, B)).action
    targets = (agent.targets[0], agent.targets[1])
    td_target = reward + 0.99 * discount * q(targets, next_observation, next_action).min(0)
    critics = (agent.critics[0], agent.critics[1])
    return 0.5 * np.square(td_target - q(critics, observation, action)).mean(1).sum()


def train_one_by_one(agent, arrays):
    """The updates of a block as TF-Agents does them."""
    mid, zeros, ones = tf.ones(B, tf.int32), tf.zeros(B), tf.ones(B)
    for k in range(len(arrays[0])):
        observation, action, reward, discount, next_observation = (tf.constant(array[k]) for array in arrays)
        transition = trajectory.Transition(
            ts.TimeStep(mid, zeros, ones, observation),
            policy_step.PolicyStep(action),
            ts.TimeStep(mid, reward, discount, next_observation),
        )
        agent._train(transition, weights=None)


def test_a_block_equals_the_same_updates_done_one_by_one_by_tf_agents():
    ours, params = build_quiet(), Params({"horizon": 10})
    params.actor_learning_rate, params.alpha_learning_rate, params.sac_log_alpha = 0.0, 0.0, -50.0
    theirs = reference_agent(params)
    copy_weights(ours, theirs)
    BlockUpdate(ours, B, TransitionForm())(block(6))
    train_one_by_one(theirs, block(6))
    for a, b in zip(ours.critics[1].variables, theirs._critic_network_2.variables, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-6)


def test_an_agents_own_train_is_given_weight_for_whole_sequences_alone():
    class Own(SacAgent):
        """Tells which of its minibatch's sequences have weight: sequence i counts 2^i."""

        def train(self, experience, weights=None):
            self.train_step_counter.assign_add(1)
            return tf_agent.LossInfo(tf.reduce_sum(weights * 2.0 ** tf.range(B, dtype=tf.float32)), ())

    length, params = 4, Params({"horizon": 10})
    params.recurrent = {"lstm_units": 4, "sequence_length": 4}
    agent = reference_agent(params, cls=Own)
    observation, action, reward, discount, _ = block(2, outer=(B, length + 1))
    weight = np.ones_like(reward)
    weight[..., -1], weight[:, 4:, 2:], weight[:, 4:, :2] = 0.0, 0.0, 2.0
    update = BlockUpdate(agent, B, SequenceForm(length))
    assert update.kind == "generic"
    losses = update([np.ones(reward.shape, np.int32), observation, action, reward, discount, weight])
    assert losses["loss"] == pytest.approx((1 + 2 + 4 + 8) * B / 4)


def test_the_mean_over_whole_sequences_stays_one():
    weight = tf.constant([[1.0, 1.0], [2.0, 0.0], [1.0, 1.0], [2.0, 0.0]])
    np.testing.assert_allclose(of_whole_sequences(weight), [2, 0, 2, 0])
    np.testing.assert_array_equal(of_whole_sequences(weight[1:2]), [0])


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("weight", [np.nan, -2e8])
def test_a_weight_that_has_exploded_is_told(weight):
    agent = build()
    update = BlockUpdate(agent, B, TransitionForm())
    update(block(1))
    variable = agent.targets[0].variables[-1]
    variable.assign(np.full(variable.shape, 9e7, np.float32))
    agent.actor.variables[-1].assign(np.full(agent.actor.variables[-1].shape, weight, np.float32))
    with pytest.raises(DivergedError):
        update(block(1))


@pytest.mark.usefixtures("uncompiled")
def test_an_update_repeats_its_noise_only_where_seed_and_train_step_are_the_same():
    def losses(seed, train_step=0):
        agent = build(actor_learning_rate=0.0, critic_learning_rate=0.0, alpha_learning_rate=0.0)
        agent.train_step_counter.assign(train_step)
        return BlockUpdate(agent, B, TransitionForm(), seed=seed)(block(1))["actor_loss"]

    assert losses(1) == losses(1)
    assert len({losses(1), losses(2), losses(1, train_step=1)}) == 3
