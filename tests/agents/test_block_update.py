"""A block of K minibatches is K updates, each the one that TF-Agents would do."""

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.agents import tf_agent
from tf_agents.agents.sac.sac_agent import SacAgent
from tf_agents.trajectories import time_step as ts

from tests.support.agent_for_tests import B, Params, block, build, build_quiet, reference_agent
from tfagents_system.agents.block_update import BlockUpdate, DivergedError
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
    with pytest.raises(DivergedError, match="^critic_loss is nan, q_mean is nan"):
        update(arrays)


def test_measuring_gives_the_losses_of_an_update_and_changes_nothing():
    agent = build_quiet()
    update = BlockUpdate(agent, B, TransitionForm(), measures=True)
    update(block(1))
    variables = [*agent.variables, agent.train_step_counter]
    before = [variable.numpy() for variable in variables]
    arrays = block(3, seed=1)
    measured = [update.measure([array[k : k + 1] for array in arrays])["critic_loss"] for k in range(3)]
    assert update.measure(arrays)["critic_loss"] == pytest.approx(np.mean(measured), rel=1e-5)
    for variable, value in zip(variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)
    assert update([array[:1] for array in arrays])["critic_loss"] == pytest.approx(measured[0], rel=1e-4)

    agent.critics[0].variables[-1].assign([np.nan])
    with pytest.raises(DivergedError, match="critic_loss is nan"):
        update.measure(arrays)


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
def test_an_update_draws_standard_normal_noise_that_seed_and_train_step_determine():
    """Nothing learns, so losses differ by their noise alone; alpha's tells the mean of log pi."""
    still = {"actor_learning_rate": 0.0, "critic_learning_rate": 0.0, "alpha_learning_rate": 0.0}

    def losses(seed, train_step=0, updates=1):
        agent = build(target_entropy=0.0, sac_log_alpha=1.0, **still)
        agent.train_step_counter.assign(train_step)
        update, arrays = BlockUpdate(agent, B, TransitionForm(), seed=seed), block(1)
        told = [update(arrays) for _ in range(updates)]
        return agent, arrays[0][0], [(each["critic_loss"], each["actor_loss"], each["alpha_loss"]) for each in told]

    assert losses(1)[-1] == losses(1)[-1]
    assert len({losses(1)[-1][0], losses(2)[-1][0], losses(1, train_step=1)[-1][0]}) == 3
    agent, observation, told = losses(1, updates=12)
    assert [len(set(values)) for values in zip(*told, strict=True)] == [12] * 3
    repeated = tf.repeat(tf.constant(observation), 200, axis=0)
    distribution = agent.policy.distribution(ts.restart(repeated, len(repeated))).action
    expected = float(tf.reduce_mean(distribution.log_prob(distribution.sample(seed=1))))
    # 192 samples, with a standard deviation of about 1; no noise would be 1 off, half of it 0.75.
    assert -np.mean([alpha_loss for *_, alpha_loss in told]) == pytest.approx(expected, abs=0.3)
