"""Running statistics of observations and rewards: against NumPy over all that was seen, the same in all networks."""

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec

from tests.support.agent_for_tests import ACT, OBS, B, Params, block, build
from tests.support.fakes import agent_of
from tfagents_system.agents.block_update import BlockUpdate
from tfagents_system.agents.normalization import (
    RewardScale,
    RunningNormalization,
    merge_moments,
    update_statistics,
)
from tfagents_system.replay.sampling import SequenceForm, TransitionForm


def layers_of(agent):
    return [module for module in agent.submodules if isinstance(module, RunningNormalization)]


def shifted(k, seed, scale=(0.5, 30.0, 0.1), shift=(100.0, -3.0, 7.0)):
    arrays = block(k, seed)
    for index in (0, 4):
        arrays[index] = (arrays[index] * scale + shift).astype(np.float32)
    return arrays


def test_moments_merged_block_by_block_are_those_of_all_values():
    rng = np.random.default_rng(0)
    blocks = [rng.normal(1000.0 + k, 0.1 + k, (4, 5, 3)).astype(np.float32) for k in range(6)]
    moments = (tf.zeros(()), tf.zeros(3), tf.ones(3))
    for values in blocks:
        moments = merge_moments(moments, tf.constant(values))
    everything = np.concatenate(blocks).reshape(-1, 3).astype(np.float64)
    assert float(moments[0]) == 120
    np.testing.assert_allclose(moments[1], everything.mean(0), rtol=1e-6)
    np.testing.assert_allclose(moments[2], everything.var(0), rtol=1e-3)


@pytest.fixture(scope="module")
def trained():
    """An agent after two blocks, and what they held."""
    agent = build(normalize_observations=True)
    update = BlockUpdate(agent, B, TransitionForm())
    blocks = [shifted(3, 0), shifted(2, 1)]
    for arrays in blocks:
        update(arrays)
    return agent, blocks


def test_all_networks_have_the_statistics_of_all_blocks(trained):
    agent, blocks = trained
    seen = np.concatenate([arrays[0].reshape(-1, OBS) for arrays in blocks]).astype(np.float64)
    layers = layers_of(agent)
    assert len(layers) == 5, "actor, critics and targets"
    assert len({layer.mean.ref() for layer in layers}) == 5
    for layer in layers:
        assert float(layer.count) == len(seen) == 5 * B
        np.testing.assert_allclose(layer.mean, seen.mean(0), rtol=1e-5)
        np.testing.assert_allclose(layer.variance, seen.var(0), rtol=2e-3)


MIXED = {
    "camera": tf.TensorSpec((2, 2, 1), tf.uint8, "camera"),
    "gear": tf.TensorSpec((), tf.int64, "gear"),
    "joints": tf.TensorSpec((3,), tf.float32, "joints"),
}


def test_pixels_are_left_alone_and_all_else_is_normalised_leaf_by_leaf():
    params = Params({"horizon": 10})
    params.normalize_observations, params.image_encoder_layers = True, ()
    action = tensor_spec.BoundedTensorSpec((ACT,), tf.float32, -1.0, 1.0, "action")
    actor = params.actor_ctor(MIXED, action)
    actor.create_variables()
    assert [layer.leaf for layer in actor.body.normalization.leaves] == [1, 2]
    holder = tf.Module()
    holder.actor = actor
    rng = np.random.default_rng(0)
    observation = {
        "camera": tf.constant(rng.integers(0, 256, (6, 2, 2, 1)), tf.uint8),
        "gear": tf.constant([1, 2, 3, 4, 5, 3], tf.int64),
        "joints": tf.constant(rng.normal(50.0, 3.0, (6, 3)), tf.float32),
    }
    np.testing.assert_array_equal(actor.body.normalization(observation)["gear"], [1, 2, 3, 4, 5, 3], "nothing seen yet")
    update_statistics(holder, tf.nest.flatten(observation))
    normalised = actor.body.normalization(observation)
    np.testing.assert_array_equal(normalised["camera"], observation["camera"])
    np.testing.assert_allclose(normalised["gear"], (np.array([1, 2, 3, 4, 5, 3]) - 3) / np.sqrt(10 / 6), rtol=1e-5)
    np.testing.assert_allclose(np.std(normalised["joints"], 0), 1.0, rtol=1e-4)
    distribution, _ = actor(observation, step_type=tf.ones(6, tf.int32), network_state=())
    assert distribution.mode().shape == (6, ACT)


@pytest.mark.usefixtures("uncompiled")
def test_behind_an_encoder_of_images_the_other_leaves_are_normalised_by_what_was_observed():
    spec = {"camera": tf.TensorSpec((16, 16, 1), tf.uint8, "camera"), "joints": tf.TensorSpec((OBS,), tf.float32, "j")}
    action = tensor_spec.BoundedTensorSpec((ACT,), tf.float32, -1.0, 1.0, "action")
    agent = agent_of(Params, spec, action, normalize_observations=True, image_encoder_layers=(4, 4, 4, 4))
    joints, actions, reward, discount, next_joints = shifted(2, 0)
    cameras = np.random.default_rng(0).integers(0, 256, (2, 2, B, 16, 16, 1)).astype(np.uint8)
    losses = BlockUpdate(agent, B, TransitionForm())(
        [cameras[0], joints, actions, reward, discount, cameras[1], next_joints]
    )
    assert np.isfinite(losses["critic_loss"])
    layers = layers_of(agent)
    assert {layer.leaf for layer in layers} == {1}
    for layer in layers:
        np.testing.assert_allclose(layer.mean, joints.reshape(-1, OBS).mean(0), rtol=1e-5)


@pytest.mark.usefixtures("uncompiled")
def test_what_fills_up_sequences_is_not_in_the_statistics():
    agent = build(recurrent=True, normalize_observations=True, normalize_rewards=True)
    agent.reward_scale = RewardScale()
    update = BlockUpdate(agent, B, SequenceForm(4))
    observation, action, reward, discount, returns = block(2, outer=(B, 5))
    returns, weight = returns[..., 0], np.ones_like(reward)
    weight[..., -1], weight[:, 0, 2:], weight[:, 0, :2] = 0.0, 0.0, 2.0
    observation[weight == 0] = 1e6  # Nothing is learned from these.
    returns[weight == 0] = 1e6
    step_type = np.ones((2, B, 5), np.int32)
    losses = update([step_type, observation + 40.0, action, reward, discount, weight, returns])
    assert np.isfinite(losses["critic_loss"]) and losses["critic_loss"] < 1e3
    mean = np.average(observation + 40.0, axis=(0, 1, 2), weights=np.broadcast_to(weight[..., None], observation.shape))
    np.testing.assert_allclose(layers_of(agent)[0].mean, mean, rtol=1e-5)
    assert float(agent.reward_scale.count) == 2 * B * 4
    mean = np.average(returns, weights=weight)
    variance = np.average((returns - mean) ** 2, weights=weight)
    np.testing.assert_allclose(agent.reward_scale.variance, variance, rtol=1e-4)


def test_rewards_are_divided_by_the_standard_deviation_of_returns_and_clipped():
    scale, rewards = RewardScale(), tf.constant([2.0, -4.0])
    np.testing.assert_array_equal(scale(rewards), rewards)
    scale.update(tf.zeros((2, 3)))
    np.testing.assert_array_equal(scale(rewards), rewards, "returns that are all the same change nothing")
    returns = [0.0] * 6 + [30.0, -30.0]
    scale.update(tf.constant([returns[6:]]))
    assert float(scale.divisor) == pytest.approx(np.std(returns), rel=1e-5)
    scale.update(tf.constant([7.0]))
    assert float(scale.count) == 9
    deviation = np.std([*returns, 7.0])
    np.testing.assert_allclose(scale(rewards), np.array(rewards) / deviation, rtol=1e-5)
    np.testing.assert_array_equal(scale(tf.constant([1e9, -1e9])), [10.0, -10.0])
    scale.variance.assign(1e-30)
    assert float(scale.divisor) == pytest.approx(1e-4)


def test_statistics_follow_the_replay_and_forget_what_it_held_long_ago():
    """After 100,000 samples older ones count as 100,000 at most: each 10,000 new ones bring 1 / 11 of the way."""
    normalization, scale = RunningNormalization(0), RewardScale()
    normalization.build(tf.TensorShape([1]))
    holder = tf.Module()
    holder.layers = [normalization]
    for value, blocks, mean in ((1.0, 10, 1.0), (1.0, 50, 1.0), (3.0, 30, 3.0 - 2.0 * (10 / 11) ** 30)):
        for _ in range(blocks):
            update_statistics(holder, [tf.fill((10_000, 1), value)])
            scale.update(tf.fill((10_000,), value))
        assert float(normalization.mean[0]) == pytest.approx(mean, rel=1e-4)
    assert float(scale.mean) == pytest.approx(3.0 - 2.0 * (10 / 11) ** 30, rel=1e-4)
    assert float(scale.variance) == pytest.approx(float(normalization.variance[0]), rel=1e-4)
    assert float(normalization.variance[0]) == pytest.approx(4 * (10 / 11) ** 30 * (1 - (10 / 11) ** 30), rel=1e-3)


def test_an_outlier_that_float32_can_not_square_leaves_its_own_statistics_as_they_are():
    normalization = RunningNormalization(0)
    normalization.build(tf.TensorShape([3]))
    holder = tf.Module()
    holder.layers = [normalization]
    rng = np.random.default_rng(0)
    blocks = [rng.normal((50.0, -3.0, 7.0), (2.0, 0.5, 1.0), (200, 3)).astype(np.float32) for _ in range(4)]
    blocks[1][7, 0] = 1e20  # Its square is beyond float32.
    blocks[2][:, 1] = -3e19  # The square of its distance from what was seen before is.
    for values in blocks:
        update_statistics(holder, [tf.constant(values)])
    assert float(normalization.count) == 800
    np.testing.assert_allclose(normalization.mean[2], np.concatenate(blocks)[:, 2].mean(), rtol=1e-5)
    for feature, skipped in ((0, 1), (1, 2)):
        seen = np.concatenate([values[:, feature] for k, values in enumerate(blocks) if k != skipped])
        np.testing.assert_allclose(normalization.mean[feature], seen.mean(), rtol=2e-3)
        np.testing.assert_allclose(normalization.variance[feature], seen.var(), rtol=0.03)
    assert 0.5 < np.std(normalization(blocks[3])[:, 0]) < 2
    assert normalization(blocks[1])[7, 0] == 10.0
