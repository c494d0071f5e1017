"""Layers of the default networks other than Dense, and what actors and critics build of them alike."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

Layers = list[tf.keras.layers.Layer]
VALUE_LAYER = "value"  # The name of the layer that returns Q-values or their quantiles.
_EXPANSION = 4
_OF_DROPOUT = 0x64726F70  # Separates its seeds from those of actions, which may have the same seed and position.
_CALLS_PER_POSITION = 1 << 16
_HALF_WORDS = 1 << 16


def as_vector(leaf: tf.Tensor) -> tf.Tensor:
    """From `[B, ...]` to `[B, n]` float32."""
    return tf.reshape(tf.cast(leaf, tf.float32), [tf.shape(leaf)[0], leaf.shape[1:].num_elements()])


class BatchNormalization(tf.keras.layers.Layer):
    """Batch normalisation (Ioffe and Szegedy, arXiv 1502.03167) over all axes but the last.

    In training y = gamma * (x - mean_B) / sqrt(variance_B + epsilon) + beta with the batch's mean and population
    variance, through which gradients flow. Outside training the moving statistics take their place.

    The moving statistics are not trainable: soft target updates copy them.

    Args:
      epsilon: Added to variances.
      momentum: Share of a moving statistic that a call in training keeps.
      unbiased: The moving variance averages n / (n - 1) times the population variance of n rows, as PyTorch's does.
    """

    def __init__(self, epsilon: float = 1e-3, momentum: float = 0.99, unbiased: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.epsilon, self.momentum, self.unbiased = epsilon, momentum, unbiased

    def build(self, input_shape: tf.TensorShape) -> None:
        size = input_shape[-1:]
        self.gamma = self.add_weight("gamma", size, initializer="ones")
        self.beta = self.add_weight("beta", size, initializer="zeros")
        self.moving_mean = self.add_weight("moving_mean", size, initializer="zeros", trainable=False)
        self.moving_variance = self.add_weight("moving_variance", size, initializer="ones", trainable=False)
        super().build(input_shape)

    def call(self, inputs: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        """From `[..., n]` to `[..., n]`."""
        if not training:
            scale = self.gamma * tf.math.rsqrt(self.moving_variance + self.epsilon)
            return (inputs - self.moving_mean) * scale + self.beta
        rows = tf.reshape(inputs, [-1, inputs.shape[-1]])
        mean = tf.reduce_mean(rows, 0)
        centered = rows - mean
        variance = tf.reduce_mean(tf.square(centered), 0)
        gamma, beta = self._scale_and_shift(tf.stop_gradient(mean), tf.stop_gradient(variance))
        outputs = _batch_normalized(rows, centered, tf.math.rsqrt(variance + self.epsilon), gamma, beta)
        if self.unbiased:
            count = tf.cast(tf.shape(rows)[0], tf.float32)
            variance *= count / (count - 1.0)
        self._move(mean, variance)
        return tf.reshape(outputs, tf.shape(inputs))

    def _scale_and_shift(self, mean: tf.Tensor, variance: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        del mean, variance
        return self.gamma, self.beta

    def _move(self, mean: tf.Tensor, variance: tf.Tensor) -> None:
        self.moving_mean.assign_sub((1.0 - self.momentum) * (self.moving_mean - mean))
        self.moving_variance.assign_sub((1.0 - self.momentum) * (self.moving_variance - variance))


@tf.custom_gradient
def _batch_normalized(
    inputs: tf.Tensor, centered: tf.Tensor, inverse_std: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor
) -> tuple[tf.Tensor, Any]:
    """Returns gamma * centered * inverse_std + beta, `[B, n]`; its gradient through the batch is written by hand.

    That takes two thirds of the time of backpropagation.

    Args:
      inputs: x, `[B, n]`, what the gradient is of; centered: x minus its mean over the rows.
      inverse_std, gamma, beta: `[n]`.
    """
    scale = gamma * inverse_std

    def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor | None, ...]:
        of_beta = tf.reduce_mean(upstream, 0)
        of_gamma = tf.reduce_mean(upstream * centered, 0) * inverse_std
        of_inputs = (upstream - (of_beta + centered * (of_gamma * inverse_std))) * scale
        count = tf.cast(tf.shape(inputs)[0], tf.float32)
        return of_inputs, None, None, of_gamma * count, of_beta * count

    return centered * scale + beta, gradient


class BatchRenormalization(BatchNormalization):
    """Batch renormalisation (Ioffe, arXiv 1702.03275) as CrossQ has it (Bhatt et al., arXiv 1902.05605).

    In training y = gamma * ((x - mean_B) / std_B * r + d) + beta, where r = std_B / std within [1 / r_max, r_max] and
    d = (mean_B - mean) / std within [-d_max, d_max] take it to the moving statistics; no gradient flows through r and
    d. Before `warmup_steps` calls in training r is 1 and d is 0, plain batch normalisation: the moving statistics are
    not yet meaningful.

    Args:
      warmup_steps: Calls in training with plain batch normalisation.
    """

    r_max, d_max = 3.0, 5.0

    def __init__(self, warmup_steps: int = 100_000, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.warmup_steps = warmup_steps

    def build(self, input_shape: tf.TensorShape) -> None:
        super().build(input_shape)
        self.steps = self.add_weight("steps", (), dtype=tf.int64, initializer="zeros", trainable=False)

    def _scale_and_shift(self, mean: tf.Tensor, variance: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        moving_std = tf.sqrt(self.moving_variance + self.epsilon)
        r = tf.clip_by_value(tf.sqrt(variance + self.epsilon) / moving_std, 1.0 / self.r_max, self.r_max)
        d = tf.clip_by_value((mean - self.moving_mean) / moving_std, -self.d_max, self.d_max)
        is_warm = self.steps >= self.warmup_steps
        return self.gamma * tf.where(is_warm, r, 1.0), self.gamma * tf.where(is_warm, d, 0.0) + self.beta

    def _move(self, mean: tf.Tensor, variance: tf.Tensor) -> None:
        super()._move(mean, variance)
        self.steps.assign_add(1)


class RmsNormalization(tf.keras.layers.Layer):
    """Root mean square normalisation (Zhang and Sennrich, arXiv 1910.07467): gamma * x / sqrt(mean(x^2) + epsilon).

    Args:
      epsilon: Added to the mean of squares.
    """

    def __init__(self, epsilon: float = 1e-6, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.epsilon = epsilon

    def build(self, input_shape: tf.TensorShape) -> None:
        self.gamma = self.add_weight("gamma", input_shape[-1:], initializer="ones")
        super().build(input_shape)

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """From `[..., n]` to `[..., n]`."""
        mean_square = tf.reduce_mean(tf.square(inputs), axis=-1, keepdims=True)
        return self.gamma * inputs * tf.math.rsqrt(mean_square + self.epsilon)


class Dropout(tf.keras.layers.Layer):
    """Dropout in all of an update: DroQ's targets and actor loss use it, too (arXiv 2110.02034, algorithm 2).

    It is active inside `dropout_noise` alone: while acting it would make greedy actions random.

    Args:
      rate: Share of the inputs that become 0; the others are divided by 1 - rate.
    """

    def __init__(self, rate: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.rate = rate

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """From `[..., n]` to `[..., n]`."""
        if _seeds is None:
            return inputs
        units = round(self.rate * _HALF_WORDS)
        kept = tf.reshape(_random_half_words(tf.size(inputs), next(_seeds)), tf.shape(inputs)) >= units
        return tf.where(kept, inputs / (1.0 - units / _HALF_WORDS), 0.0)


def _random_half_words(count: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """`[count]` int32 in [0, 65536): two from each random word, because drawing words dominates dropout's time."""
    words = tf.random.stateless_uniform([(count + 1) // 2], seed, minval=None, maxval=None, dtype=tf.uint32)
    return tf.cast(tf.reshape(tf.bitcast(words, tf.uint16), [-1])[:count], tf.int32)


_seeds: Iterator[tf.Tensor] | None = None  # Of the update that is traced now.


@contextlib.contextmanager
def dropout_noise(seed: int, position: tf.Tensor) -> Iterator[None]:
    """Dropout is active inside. It depends only on seed, position and the order of the calls.

    So an update that is repeated after a restart drops the same units. Its position is its train step.
    """
    global _seeds
    first = tf.cast(position, tf.int64) * _CALLS_PER_POSITION
    outer = _seeds
    _seeds = (tf.stack([tf.constant(seed ^ _OF_DROPOUT, tf.int64), first + call]) for call in itertools.count(1))
    try:
        yield
    finally:
        _seeds = outer


class ResidualBlock(tf.keras.layers.Layer):
    """SimBa's block: x + W2 relu(W1 LN(x) + b1) + b2 with W1 four times as wide (Lee et al., arXiv 2410.09754)."""

    def build(self, input_shape: tf.TensorShape) -> None:
        width = int(input_shape[-1])
        self.norm = layer_norm()
        self.expand = tf.keras.layers.Dense(_EXPANSION * width, "relu", kernel_initializer="he_normal")
        self.project = tf.keras.layers.Dense(width, kernel_initializer="he_normal")
        super().build(input_shape)

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """From `[..., n]` to `[..., n]`."""
        return inputs + self.project(self.expand(self.norm(inputs)))


def layer_norm() -> tf.keras.layers.Layer:
    """Layer normalisation (Ba et al., arXiv 1607.06450) over the last axis."""
    return tf.keras.layers.LayerNormalization(epsilon=1e-5)


def simba_layers(units: Sequence[int]) -> Layers:
    """SimBa (Lee et al., arXiv 2410.09754, section 4) behind its normalisation of observations.

    A linear embedding of `units[0]` features, a residual block for each entry of `units`, and a layer normalisation.
    """
    embedding = tf.keras.layers.Dense(units[0], kernel_initializer="orthogonal")
    return [embedding, *(ResidualBlock() for _ in units), layer_norm()]


class FlashBlock(tf.keras.layers.Layer):
    """FlashSAC's block (arXiv 2604.04539): x + relu(BN(W2 relu(BN(W1 x)))) with W1 four times as wide."""

    def build(self, input_shape: tf.TensorShape) -> None:
        width = int(input_shape[-1])
        self.layers = [*_normalized(_EXPANSION * width, _flash_norm()), *_normalized(width, _flash_norm())]
        super().build(input_shape)

    def call(self, inputs: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        """From `[..., n]` to `[..., n]`."""
        values = inputs
        for layer in self.layers:
            values = layer(values, training=training)
        return inputs + values


def xqc_layers(units: Sequence[int]) -> Layers:
    """XQC (Palenicek et al., arXiv 2509.25174): batch normalisation of the inputs and of each linear layer."""
    return [BatchNormalization(), *(layer for size in units for layer in _normalized(size, BatchNormalization()))]


def flash_layers(units: Sequence[int]) -> Layers:
    """FlashSAC (arXiv 2604.04539): a linear embedding of `units[0]` features and a block for each entry of `units`."""
    embedding = tf.keras.layers.Dense(units[0], use_bias=False, kernel_initializer="orthogonal")
    return [_flash_norm(), embedding, *(FlashBlock() for _ in units), RmsNormalization()]


def _flash_norm() -> BatchNormalization:
    return BatchNormalization(epsilon=1e-5, unbiased=True)


def _normalized(size: int, norm: BatchNormalization) -> Layers:
    dense = tf.keras.layers.Dense(size, use_bias=False, kernel_initializer="orthogonal")
    return [dense, norm, tf.keras.layers.Activation("relu")]
