"""A block of K minibatches is K updates, each the one that TF-Agents would do."""

import numpy as np
import tensorflow as tf
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import policy_step, trajectory
from tf_agents.trajectories import time_step as ts

from tfagents_system.agents.block_update import BlockUpdate
from tfagents_system.agents.checkpoints import TrainerCheckpoints, TrainerState
from tfagents_system.train_params_base import TrainParamsBase

B, OBS, ACT = 16, 3, 2
ACTION = tensor_spec.BoundedTensorSpec((ACT,), tf.float32, -1.0, 1.0, "action")


class Params(TrainParamsBase):
    actor_fc_layer_params = (16,)
    critic_joint_fc_layer_params = (16,)
    recurrent_sequence_length = 4
    recurrent_lstm_units = 4

    def env_ctor(self, *args, seed=None, **kwargs):
        raise AssertionError("not needed")


def build(recurrent=False, **attributes):
    params = Params({"horizon": 10})
    params.recurrent = recurrent
    for name, value in attributes.items():
        setattr(params, name, value)
    tf.random.set_seed(1)
    spec = tf.TensorSpec((OBS,), tf.float32, "observation")
    return params.agent_ctor(ts.time_step_spec(spec), ACTION, tf.Variable(0, dtype=tf.int64))


def block(k, seed=0, outer=(B,)):
    rng = np.random.default_rng(seed)

    def normal(*shape):
        return rng.standard_normal(shape).astype(np.float32)

    observation, next_observation = normal(k, *outer, OBS), normal(k, *outer, OBS)
    discount = (rng.random((k, *outer)) > 0.2).astype(np.float32)
    return [observation, np.tanh(normal(k, *outer, ACT)), normal(k, *outer), discount, next_observation]


def test_k_minibatches_are_k_updates_and_all_networks_change():
    agent = build()
    before = [v.numpy() for v in agent._actor_network.variables + agent._target_critic_network_1.variables]
    update = BlockUpdate(agent, B, None)
    losses = update(block(5))
    update(block(2))
    assert int(agent.train_step_counter) == 7
    assert set(losses) == {"loss", "actor_loss", "critic_loss", "alpha_loss"}
    assert all(np.isfinite(value) for value in losses.values())
    after = [v.numpy() for v in agent._actor_network.variables + agent._target_critic_network_1.variables]
    assert all(not np.array_equal(a, b) for a, b in zip(before, after, strict=True))


def test_the_critics_learn_the_td_target_of_the_transition_they_are_given():
    """Of a terminating transition the target is the reward alone: it does not depend on the next observation."""
    agent = build(critic_learning_rate=1e-2, actor_learning_rate=1e-9, sac_log_alpha=-20.0)
    k = 400
    observation = np.ones((k, B, OBS), np.float32)
    action = np.zeros((k, B, ACT), np.float32)
    reward = np.full((k, B), 3.0, np.float32)
    junk = np.random.default_rng(0).standard_normal((k, B, OBS)).astype(np.float32)
    BlockUpdate(agent, B, None)([observation, action, reward, np.zeros((k, B), np.float32), junk])
    q, _ = agent._critic_network_1((observation[0], action[0]), step_type=tf.fill([B], 1))
    np.testing.assert_allclose(q, 3.0, atol=0.02)


def build_quiet():
    """An agent without noise (std is clipped to e^-20, alpha is e^-50) and with a fixed actor: its numbers repeat."""
    agent = build(actor_learning_rate=0.0, alpha_learning_rate=0.0, sac_log_alpha=-50.0)
    agent._actor_network._projection_networks._projection_layer.bias.assign([0.0, 0.0, -50.0, -50.0])
    return agent


def copy_networks(source, target):
    for name in (
        "_actor_network",
        "_critic_network_1",
        "_critic_network_2",
        "_target_critic_network_1",
        "_target_critic_network_2",
    ):
        for a, b in zip(getattr(source, name).variables, getattr(target, name).variables, strict=True):
            b.assign(a)


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
    ours, theirs = build_quiet(), build_quiet()
    copy_networks(ours, theirs)
    BlockUpdate(ours, B, None)(block(6))
    train_one_by_one(theirs, block(6))
    for a, b in zip(ours._critic_network_2.variables, theirs._critic_network_2.variables, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-6)


def test_a_recurrent_agent_trains_on_sequences():
    agent = build(recurrent=True)
    length = 4
    observation, action, reward, discount, _ = block(3, outer=(B, length + 1))
    step_type = np.ones((3, B, length + 1), np.int32)
    step_type[:, : B // 2, 0] = 0
    losses = BlockUpdate(agent, B, length)([step_type, observation, action, reward, discount])
    assert int(agent.train_step_counter) == 3
    assert np.isfinite(losses["critic_loss"])


def test_a_checkpoint_brings_back_weights_optimizers_and_counters(tmp_path):
    agent, state = build_quiet(), TrainerState(4, 900, -1.5, "policy_checkpoint_0000000003")
    checkpoints = TrainerCheckpoints(tmp_path, agent, state, agent.train_step_counter)
    assert not checkpoints.restore()
    update = BlockUpdate(agent, B, None)
    update(block(3))
    checkpoints.save()
    update(block(2, seed=1))

    other, other_state = build_quiet(), TrainerState()
    assert TrainerCheckpoints(tmp_path, other, other_state, other.train_step_counter).restore()
    assert int(other.train_step_counter) == 3
    assert other_state == state
    BlockUpdate(other, B, None)(block(2, seed=1))
    assert int(other._critic_optimizer.iterations) == 5, "3 from the checkpoint and 2 more"
    for a, b in zip(agent._critic_network_1.variables, other._critic_network_1.variables, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
        moments = [
            agent_.get_slot(v, "m") for agent_, v in ((agent._critic_optimizer, a), (other._critic_optimizer, b))
        ]
        np.testing.assert_allclose(*moments, atol=1e-6)


def test_the_last_two_checkpoints_are_kept(tmp_path):
    agent = build()
    checkpoints = TrainerCheckpoints(tmp_path, agent, TrainerState(), agent.train_step_counter)
    for _ in range(3):
        agent.train_step_counter.assign_add(10)
        checkpoints.save()
    assert sorted(path.stem for path in tmp_path.glob("*.index")) == ["ckpt-20", "ckpt-30"]
