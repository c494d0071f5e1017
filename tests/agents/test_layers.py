"""The layers of the default networks against plain NumPy."""

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec

from tests.support.agent_for_tests import Params
from tfagents_system.agents.layers import (
    BatchNormalization,
    BatchRenormalization,
    Dropout,
    RmsNormalization,
    dropout_noise,
    flash_layers,
    xqc_layers,
)
from tfagents_system.agents.networks import build_critic

ACTION = tensor_spec.BoundedTensorSpec((2,), tf.float32, -1.0, 1.0, "action")
OBSERVATION = tf.TensorSpec((3,), tf.float32, "observation")


def scrambled(variables, seed=0):
    """Weights as after training; variances positive."""
    rng = np.random.default_rng(seed)
    for variable in variables:
        if variable.dtype.is_floating:
            values = rng.standard_normal(variable.shape)
            variable.assign(np.abs(values) + 0.1 if "variance" in variable.name else values)


def renormalization(warmup_steps, mean=(1.0, -20.0), variance=(4.0, 0.04)):
    layer = BatchRenormalization(warmup_steps)
    layer.build(tf.TensorShape([None, 2]))
    layer.gamma.assign([2.0, 0.5])
    layer.beta.assign([0.1, -0.3])
    layer.moving_mean.assign(mean)
    layer.moving_variance.assign(variance)
    return layer


BATCH = np.array([[3.0, 1.0], [5.0, -1.0], [1.0, 3.0], [-1.0, 1.0]], np.float32)
BATCH_MEAN, BATCH_VARIANCE = BATCH.mean(0), BATCH.var(0)


def test_before_its_warmup_is_over_it_is_batch_normalisation():
    layer = renormalization(warmup_steps=1)
    expected = [2.0, 0.5] * (BATCH - BATCH_MEAN) / np.sqrt(BATCH_VARIANCE + 1e-3) + [0.1, -0.3]
    np.testing.assert_allclose(layer(BATCH, training=True), expected, rtol=1e-5)
    assert np.abs(layer(BATCH, training=True) - expected).max() > 0.1, "the second call is behind the warm-up"


def test_behind_its_warmup_it_is_batch_renormalisation_with_limits():
    """Ioffe's algorithm 1; the second feature is beyond both limits: 2 / 0.2 > 3, 21 / 0.2 > 5."""
    layer = renormalization(warmup_steps=0)
    std, moving_std = np.sqrt(BATCH_VARIANCE + 1e-3), np.sqrt(np.array([4.0, 0.04]) + 1e-3)
    r, d = std / moving_std, (BATCH_MEAN - [1.0, -20.0]) / moving_std
    assert 1 / 3 < r[0] < 3 < r[1] and abs(d[0]) < 5 < d[1]
    r, d = np.array([r[0], 3.0]), np.array([d[0], 5.0])
    expected = [2.0, 0.5] * ((BATCH - BATCH_MEAN) / std * r + d) + [0.1, -0.3]
    np.testing.assert_allclose(layer(BATCH, training=True), expected, rtol=1e-5)


def test_moving_statistics_keep_99_percent_in_a_step_and_only_in_training():
    layer = renormalization(warmup_steps=0)
    for training in (True, False):
        layer(BATCH, training=training)
        np.testing.assert_allclose(layer.moving_mean, 0.99 * np.array([1.0, -20.0]) + 0.01 * BATCH_MEAN, rtol=1e-6)
        np.testing.assert_allclose(
            layer.moving_variance, 0.99 * np.array([4.0, 0.04]) + 0.01 * BATCH_VARIANCE, rtol=1e-6
        )
        assert int(layer.steps) == 1


@pytest.mark.parametrize(("epsilon", "unbiased", "moved"), [(1e-3, False, 1.0), (1e-5, True, 4.0 / 3.0)])
def test_batch_normalisation_takes_the_batchs_statistics_in_training_and_else_the_moving_ones(epsilon, unbiased, moved):
    layer = BatchNormalization(epsilon, momentum=0.9, unbiased=unbiased)
    layer.build(tf.TensorShape([None, 2]))
    layer.gamma.assign([2.0, 0.5])
    layer.beta.assign([0.1, -0.3])
    values = np.random.default_rng(0).standard_normal((4, 2)).astype(np.float32) * np.array([0.01, 3.0], np.float32)
    mean, variance = values.mean(0), values.var(0)
    expected = [2.0, 0.5] * (values - mean) / np.sqrt(variance + epsilon) + [0.1, -0.3]
    np.testing.assert_allclose(layer(values, training=True), expected, rtol=1e-4)
    mean, variance = 0.1 * mean, 0.9 + 0.1 * moved * variance
    np.testing.assert_allclose(layer.moving_mean, mean, rtol=1e-5)
    np.testing.assert_allclose(layer.moving_variance, variance, rtol=1e-6)
    for _ in range(2):  # The first call leaves the statistics alone.
        expected = [2.0, 0.5] * (values - mean) / np.sqrt(variance + epsilon) + [0.1, -0.3]
        np.testing.assert_allclose(layer(values), expected, rtol=1e-4)


def test_rms_normalisation_divides_by_the_root_mean_square_of_a_row():
    layer = RmsNormalization(epsilon=0.5)
    layer.build(tf.TensorShape([None, 2]))
    layer.gamma.assign([2.0, -1.0])
    np.testing.assert_allclose(layer(np.array([[3.0, 4.0]], np.float32)), [[6.0 / 13.0**0.5, -4.0 / 13.0**0.5]], 1e-6)


@pytest.mark.parametrize(
    ("layers", "inputs", "count"),
    [(xqc_layers([256] * 4), 17, 203_042), (xqc_layers([512] * 4), 23, 802_350), (flash_layers([128] * 2), 17, 267_042)]
    + [(flash_layers([256] * 2), 23, 1_059_886)],
)
def test_networks_of_the_papers_have_as_many_weights_as_their_code(layers, inputs, count):
    """HalfCheetah: with heads XQC 206,126 + 2 x 854,163, FlashSAC 268,590 + 2 x 1,085,843."""
    network = tf.keras.Sequential([tf.keras.layers.InputLayer((inputs,)), *layers])
    assert sum(variable.shape.num_elements() for variable in network.trainable_variables) == count
    kernels = [variable.numpy() for variable in network.variables if "kernel" in variable.name]
    for kernel in kernels:  # Orthogonal columns, or rows where these are fewer.
        narrow = kernel if kernel.shape[0] >= kernel.shape[1] else kernel.T
        np.testing.assert_allclose(narrow.T @ narrow, np.eye(narrow.shape[1]), atol=1e-5)


@pytest.mark.parametrize("training", [False, True])
def test_flash_layers_are_an_embedding_and_residual_blocks_of_normalised_layers_and_a_last_norm(training):
    layers = flash_layers((4, 4))
    network = tf.keras.Sequential([tf.keras.layers.InputLayer((3,)), *layers])
    scrambled(network.variables)
    first, embedding, *blocks, last = layers
    rng = np.random.default_rng(1)

    def norm(values, layer):
        mean, variance = layer.moving_mean.numpy(), layer.moving_variance.numpy()
        mean, variance = (values.mean(0), values.var(0)) if training else (mean, variance)
        return layer.gamma.numpy() * (values - mean) / np.sqrt(variance + 1e-5) + layer.beta.numpy()

    values = rng.standard_normal((6, 3)).astype(np.float32)
    stream = norm(values, first) @ embedding.kernel.numpy()
    for block in blocks:
        dense, norm_1, _, project, norm_2, _ = block.layers
        assert dense.kernel.shape == (4, 16) and not dense.use_bias and not project.use_bias
        hidden = np.maximum(norm(stream @ dense.kernel.numpy(), norm_1), 0.0)
        stream = stream + np.maximum(norm(hidden @ project.kernel.numpy(), norm_2), 0.0)
    expected = last.gamma.numpy() * stream / np.sqrt((stream**2).mean(-1, keepdims=True) + 1e-6)
    found = network(values, training=training)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", [BatchNormalization, BatchRenormalization])
def test_gradients_flow_through_the_batchs_statistics_but_not_through_the_corrections(kind):
    """With r and d as constants: adding a constant to a whole feature changes nothing, so its gradients sum to 0."""
    layer = renormalization(warmup_steps=0) if kind is BatchRenormalization else kind()
    weights = tf.constant([[1.0, 2.0], [-3.0, 0.5], [2.0, 2.0], [0.7, -1.0]])
    with tf.GradientTape() as tape:
        inputs = tf.constant(BATCH)
        tape.watch(inputs)
        loss = tf.reduce_sum(weights * layer(inputs, training=True))
    gradient = tape.gradient(loss, inputs).numpy()
    assert np.abs(gradient).max() > 0.1
    np.testing.assert_allclose(gradient.sum(0), 0.0, atol=1e-5)


def test_dropout_is_always_on_keeps_the_mean_and_follows_from_seed_position_and_order_of_calls():
    layer, ones = Dropout(0.25), tf.ones((200, 100))

    def dropped(seed, position):
        with dropout_noise(seed, tf.constant(position, tf.int64)):
            return [layer(ones, training=training).numpy() for training in (False, True)]

    first, second = dropped(1, 7)
    assert set(np.unique(first)) == {np.float32(0.0), np.float32(1.0 / 0.75)}
    assert abs((first == 0).mean() - 0.25) < 0.02  # 20,000 of them: +- 0.003
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(dropped(1, 7)[0], first)
    assert not np.array_equal(dropped(2, 7)[0], first)
    assert not np.array_equal(dropped(1, 8)[0], first)
    assert np.array_equal(dropped(1, 7)[1], second)


def critic(num_outputs=1, **attributes):
    params = Params({"horizon": 10})
    params.critic_joint_fc_layer_params = (8, 8)
    for name, value in attributes.items():
        setattr(params, name, value)
    network = build_critic(params, OBSERVATION, ACTION, num_outputs)
    network.create_variables()
    scrambled(network.variables)
    return network


def inputs(batch=5):
    rng = np.random.default_rng(1)
    return rng.standard_normal((batch, 3)).astype(np.float32), rng.standard_normal((batch, 2)).astype(np.float32)


def call(network, observation, action, training=False):
    return network((observation, action), step_type=tf.ones(len(action), tf.int32), training=training)[0].numpy()


def layer_norm(values, gamma, beta):
    centered = values - values.mean(-1, keepdims=True)
    return gamma * centered / np.sqrt(values.var(-1, keepdims=True) + 1e-5) + beta


def test_a_critic_with_layer_normalisation_has_it_in_front_of_its_activations():
    network = critic(critic_layer_norm=True)
    w1, b1, g1, o1, w2, b2, g2, o2, w, b = [variable.numpy() for variable in network.variables]
    values = np.concatenate(inputs(), -1)
    for weights, bias, gamma, beta in ((w1, b1, g1, o1), (w2, b2, g2, o2)):
        values = np.maximum(layer_norm(values @ weights + bias, gamma, beta), 0.0)
    found = call(network, *inputs())
    assert found.shape == (5,)
    np.testing.assert_allclose(found, (values @ w + b)[:, 0], rtol=1e-4, atol=1e-5)


def test_dropout_stands_behind_the_product_and_in_front_of_layer_normalisation(monkeypatch):
    """As DroQ has it. A dropout that doubles would be undone by the normalisation, and seen behind it."""
    monkeypatch.setattr(Dropout, "call", lambda self, values: 2.0 * values)
    normalised, plain = (critic(critic_layer_norm=norm, critic_dropout=0.01) for norm in (True, False))
    without = critic(critic_layer_norm=True)
    np.testing.assert_allclose(call(normalised, *inputs()), call(without, *inputs()), rtol=1e-3, atol=1e-4)
    w1, b1, w2, b2, w, b = [variable.numpy() for variable in plain.variables]
    values = np.concatenate(inputs(), -1)
    for weights, bias in ((w1, b1), (w2, b2)):
        values = np.maximum(2.0 * (values @ weights + bias), 0.0)
    np.testing.assert_allclose(call(plain, *inputs()), (values @ w + b)[:, 0], rtol=1e-4, atol=1e-4)


def test_batch_renormalisation_stands_in_front_and_behind_each_hidden_layer():
    network = critic(batch_renormalization=True, num_outputs=4)
    named = {}
    for variable in network.variables:
        named.setdefault(variable.name.split("/")[-1], []).append(variable.numpy())
    norms = list(
        zip(*(named[name] for name in ("gamma:0", "beta:0", "moving_mean:0", "moving_variance:0")), strict=True)
    )
    assert len(norms) == 3

    def norm(values, gamma, beta, mean, variance):
        return gamma * (values - mean) / np.sqrt(variance + 1e-3) + beta

    values = norm(np.concatenate(inputs(), -1), *norms[0])
    for k in range(2):
        values = norm(np.maximum(values @ named["kernel:0"][k] + named["bias:0"][k], 0.0), *norms[k + 1])
    expected = values @ named["kernel:0"][2] + named["bias:0"][2]
    found = call(network, *inputs())
    assert found.shape == (5, 4)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    before = call(network, *inputs(50))
    call(network, *inputs(50), training=True)
    assert np.abs(call(network, *inputs(50)) - before).max() > 1e-4, "the statistics have moved"


def test_simba_is_residual_blocks_with_layer_normalisation_behind_normalised_observations():
    network = critic(network="simba")
    network.body.normalization.leaves[0].mean.assign([1.0, 2.0, 3.0])
    network.body.normalization.leaves[0].variance.assign([4.0, 1.0, 0.25])
    w0, b0, *blocks, gamma, beta, w, b = [variable.numpy() for variable in network.trainable_variables]
    observation, action = inputs()
    observation = (observation - [1.0, 2.0, 3.0]) / [2.0, 1.0, 0.5]
    stream = np.concatenate([observation, action], -1) @ w0 + b0
    assert len(blocks) == 12
    for g, o, w1, b1, w2, b2 in (blocks[:6], blocks[6:]):
        assert w1.shape == (8, 32)
        stream = stream + np.maximum(layer_norm(stream, g, o) @ w1 + b1, 0.0) @ w2 + b2
    expected = layer_norm(stream, gamma, beta) @ w + b
    np.testing.assert_allclose(call(network, *inputs()), expected[:, 0], rtol=1e-3, atol=1e-3)
