"""The encoder of images: what it computes, what it learns from, and how minibatches are shifted."""

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import policy_step, trajectory
from tf_agents.trajectories import time_step as ts

from tests.support.fakes import FakeParams
from tests.support.updates import update_once
from tfagents_system.agents import encoder
from tfagents_system.agents.minibatch import Drawing

ACTION = tensor_spec.BoundedTensorSpec((2,), tf.float32, -1.0, 1.0, "action")
OBSERVATION = {
    "camera": tf.TensorSpec((16, 17, 3), tf.uint8, "observation/camera"),
    "icon": tf.TensorSpec((4, 4, 1), tf.uint8, "observation/icon"),
    "joints": tf.TensorSpec((3,), tf.float32, "observation/joints"),
}
BATCH = 6


class PixelParams(FakeParams):
    image_encoder_layers = (2, 3, 2, 4)
    image_encoder_features = 5


def build_params(**attributes):
    tf.keras.utils.set_random_seed(1)
    return type("TrainParams", (PixelParams,), attributes)({"horizon": 10})


def build(**attributes):
    params = build_params(**attributes)
    return params.agent_ctor(ts.time_step_spec(OBSERVATION), ACTION, tf.Variable(0, dtype=tf.int64))


def observations(outer, seed=0):
    rng = np.random.default_rng(seed)
    return {
        "camera": tf.constant(rng.integers(0, 256, (*outer, 16, 17, 3), np.uint8)),
        "icon": tf.constant(rng.integers(0, 3, (*outer, 4, 4, 1), np.uint8)),  # Too small for pixels: plain numbers.
        "joints": tf.constant(rng.standard_normal((*outer, 3)).astype(np.float32)),
    }


def transition(seed=0):
    rng = np.random.default_rng(seed + 100)
    reward, ones = tf.constant(rng.standard_normal(BATCH).astype(np.float32)), tf.ones(BATCH)
    action = tf.constant(rng.uniform(-1, 1, (BATCH, 2)).astype(np.float32))
    mid = tf.fill([BATCH], ts.StepType.MID)
    return trajectory.Transition(
        ts.TimeStep(mid, tf.zeros(BATCH), ones, observations((BATCH,), seed)),
        policy_step.PolicyStep(action),
        ts.TimeStep(mid, reward, ones, observations((BATCH,), seed + 1)),
    )


def values_of(variables):
    return [variable.numpy() for variable in variables]


def all_differ(before, variables):
    return all(np.any(old != new) for old, new in zip(before, values_of(variables), strict=True))


# Shifts.


def test_a_shift_is_a_crop_of_the_image_padded_with_its_edge():
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (81, 5, 7, 6), np.uint8)
    offsets = np.array([(dy, dx) for dy in range(-4, 5) for dx in range(-4, 5)], np.int32)
    shifted = encoder.shift(tf.constant(images), tf.constant(offsets))
    assert shifted.dtype == tf.uint8
    padded = np.pad(images, ((0, 0), (4, 4), (4, 4), (0, 0)), mode="edge")
    for k, (dy, dx) in enumerate(offsets):
        np.testing.assert_array_equal(shifted[k], padded[k, 4 + dy : 9 + dy, 4 + dx : 11 + dx])
    sequences = np.repeat(images[:, None], 3, axis=1)
    np.testing.assert_array_equal(encoder.shift(sequences, offsets), np.repeat(shifted[:, None], 3, axis=1))


def test_shifts_follow_from_the_train_step_and_are_all_equally_likely():
    step = tf.Variable(5, dtype=tf.int64)

    def drawn():
        return Drawing(3, step, 4).integers(0, [4000, 2], -4, 4).numpy()

    first = drawn()
    np.testing.assert_array_equal(first, drawn())
    values, counts = np.unique(first, return_counts=True)
    assert values.tolist() == list(range(-4, 5))
    assert abs(counts - 8000 / 9).max() < 4.5 * np.sqrt(8000 / 9)
    step.assign(6)
    assert (first != drawn()).any()


def test_only_images_that_are_encoded_are_shifted_unless_pixels_are_said():
    time_steps = ts.restart(observations((BATCH,)), BATCH)
    for pixels, icon_moves in ((None, False), (1, True)):
        params = build_params(image_augmentation_pixels=pixels)
        pipeline = encoder.ObservationPipeline(params, encoder.make_encoder(params, OBSERVATION), OBSERVATION)
        moved = pipeline.shifted(time_steps, Drawing(0, tf.constant(0, tf.int64), 4)).observation
        assert moved["camera"].dtype == tf.uint8 and moved["camera"].shape == (BATCH, 16, 17, 3)
        assert np.any(moved["camera"] != time_steps.observation["camera"])
        assert np.any(moved["icon"] != time_steps.observation["icon"]) == icon_moves
        np.testing.assert_array_equal(moved["joints"], time_steps.observation["joints"])


# The networks.


def convolved(image, kernel, bias, stride):
    """Valid convolution with ReLU, written out."""
    side = kernel.shape[0]
    size = [(length - side) // stride + 1 for length in image.shape[:2]]
    result = np.zeros((*size, kernel.shape[-1]))
    for y, x in np.ndindex(*size):
        patch = image[y * stride : y * stride + side, x * stride : x * stride + side]
        result[y, x] = np.tensordot(patch, kernel, axes=3) + bias
    return np.maximum(result, 0.0)


@pytest.mark.parametrize(
    ("layers", "strides", "shape"),
    [((2, 3, 2, 4), (2, 1, 1, 1), (1, 2, 4)), (((3, 4, 2), (2, 3, 1), (4, 2, 3)), (2, 1, 3), (2, 2, 4))],
    ids=["filters alone", "kernels and strides"],
)
def test_the_encoder_is_convolutions_over_centred_pixels(layers, strides, shape):
    tf.keras.utils.set_random_seed(0)
    net = encoder.make_encoder(build_params(image_encoder_layers=layers), OBSERVATION)
    observation = observations((2,))
    encoded, _ = net(observation)
    assert tuple(net.encoded_spec["camera"].shape) == shape
    assert net.encoded_spec["icon"] == OBSERVATION["icon"] and net.encoded_spec["joints"] == OBSERVATION["joints"]
    weights = values_of(net.trainable_variables)
    for k in range(2):
        values = observation["camera"][k].numpy() / 255.0 - 0.5
        for layer, stride in enumerate(strides):
            values = convolved(values, weights[2 * layer], weights[2 * layer + 1], stride)
        np.testing.assert_allclose(encoded["camera"][k], values, atol=1e-5)
    np.testing.assert_array_equal(encoded["icon"], observation["icon"])
    sequences, _ = net(tf.nest.map_structure(lambda leaf: tf.stack([leaf, leaf], axis=1), observation))
    np.testing.assert_allclose(sequences["camera"][:, 1], encoded["camera"], atol=1e-6)


def test_images_that_the_convolutions_would_reduce_to_nothing_are_not_encoded():
    linesight = [encoder.Convolution(*layer) for layer in ((16, 4, 2), (32, 4, 2), (64, 3, 2), (32, 3, 1))]
    plain = encoder.convolutions(build_params(image_encoder_layers=(8, 8, 8, 8)))
    assert [encoder.smallest_side(layers) for layers in (linesight, plain)] == [34, 15]


def test_the_trunk_normalises_and_squashes():
    trunk = encoder.ImageTrunk(5)
    features = np.random.default_rng(0).standard_normal((3, 2, 2, 4)).astype(np.float32)
    found = trunk(features).numpy()
    kernel, bias, gamma, beta = values_of(trunk.trainable_variables)
    dense = features.reshape(3, -1) @ kernel + bias
    normed = (dense - dense.mean(1, keepdims=True)) / np.sqrt(dense.var(1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(found, np.tanh(normed * gamma + beta), atol=1e-5)


def test_networks_of_the_users_own_see_pixels():
    def actor_ctor(self, observation_spec, action_spec):
        return PixelParams.actor_ctor(self, observation_spec, action_spec)

    for own in ({"actor_ctor": actor_ctor}, {"preprocessing_combiner": tf.keras.layers.Concatenate}):
        assert encoder.make_encoder(build_params(**own), OBSERVATION) is None
    assert encoder.make_encoder(build_params(image_encoder_layers=()), OBSERVATION) is None
    assert encoder.make_encoder(build_params(), {"icon": OBSERVATION["icon"]}) is None, "too small"


# What is learned from what.


def sgd_agent(critic_rate, actor_rate, **attributes):
    sgd, rates = {"name": "sgd"}, {"critic_learning_rate": critic_rate, "actor_learning_rate": actor_rate}
    return build(critic_optimizer=sgd, actor_optimizer=sgd, learn_entropy_coef=False, **rates, **attributes)


def test_the_encoder_steps_along_the_gradient_of_the_critics_loss():
    agent = sgd_agent(1.0, 1.0, image_augmentation_pixels=0)
    experience, noise = transition(), [[np.zeros((BATCH, 2), np.float32)]] * 2
    pipeline, critics = agent.encoder, agent.critics
    learned = [
        *pipeline.trainable_variables,
        *(variable for critic in critics for variable in critic.trainable_variables),
    ]
    assert len(pipeline.trainable_variables) == 8
    next_features, _ = pipeline(experience.next_time_step.observation)
    distribution, _ = agent.actor(next_features, step_type=None, network_state=())
    next_actions = distribution.mode()
    log_pi = distribution.log_prob(next_actions)
    targets = [target((next_features, next_actions))[0] for target in agent.targets]
    y = experience.next_time_step.reward + 0.99 * (tf.minimum(*targets) - log_pi)
    with tf.GradientTape() as tape:  # Over everything at once.
        features, _ = pipeline(experience.time_step.observation)
        loss = 0.5 * tf.add_n(
            [tf.reduce_mean((y - critic((features, experience.action_step.action))[0]) ** 2) for critic in critics]
        )
    gradients = tape.gradient(loss, learned)
    before = values_of(learned)
    measured = update_once(agent, experience, noise)
    np.testing.assert_allclose(measured["critic_loss"][0], loss, rtol=1e-5)
    for old, new, gradient in zip(before, values_of(learned), gradients, strict=True):
        np.testing.assert_allclose(old - new, gradient, atol=1e-5)
    assert max(np.abs(gradient).max() for gradient in gradients[:8]) > 50 * 1e-5, "far above that"


def test_the_actors_loss_and_the_targets_leave_the_encoder_alone():
    agent = sgd_agent(0.0, 1.0)
    before, actor = values_of(agent.encoder.variables), values_of(agent.actor.trainable_variables)
    update_once(agent, transition())
    for old, new in zip(before, values_of(agent.encoder.variables), strict=True):
        np.testing.assert_array_equal(old, new)
    assert all_differ(actor, agent.actor.trainable_variables), "the actor has learned, its trunk included"
    encoder_variables = {variable.ref() for variable in agent.encoder.variables}
    for net in (agent.actor, *agent.critics, *agent.targets):
        assert not encoder_variables & {variable.ref() for variable in net.variables}


@pytest.mark.parametrize("algorithm", ["redq", "crossq"])
def test_variants_train_the_encoder_too(algorithm):
    agent = build(algorithm=algorithm, num_critics=2)
    before = values_of(agent.encoder.trainable_variables)
    measured = update_once(agent, transition())
    assert all(np.isfinite(value) for value, _ in measured.values())
    assert all_differ(before, agent.encoder.trainable_variables)
    assert {variable.ref() for variable in agent.encoder.variables} <= {each.ref() for each in agent.variables}
