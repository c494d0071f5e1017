"""Scales observations to mean 0 and variance 1, rewards to returns of deviation 1, by statistics of the training data.

Each network that normalises has its own copy of the statistics as variables: so they are in checkpoints, in the
weights that workers get, and in SavedModels. `update_statistics` sets all copies to the same values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfagents_system.agents.encoder import Convolution, is_features, is_picture
from tfagents_system.envs.gym_driver import ACTION_MASK
from tfagents_system.envs.history import leaf_names

MAX_NORMALIZED = 10.0  # In standard deviations; larger values are clipped.
VARIANCE_EPSILON = 1e-8
MIN_RETURN_STD = 1e-4  # Returns that vary by less count as equal: otherwise rounding errors would be learned from.
# Earlier samples weigh at most like this many. Minibatches are drawn from the whole replay repeatedly: a few hundred
# describe what it holds now, while all minibatches ever drawn would describe what it held at the start.
WINDOW = 100_000.0


class RunningNormalization(tf.keras.layers.Layer):
    """One leaf of the observation as clip((x - mean) / std, -10, 10), float32; only clipped before any statistics.

    Args:
      leaf: Number of the leaf in the network's flattened observation.

    Attributes:
      source: Its number in the agent's, which has more of them where an actor sees a part (`actor_observations`).
    """

    def __init__(self, leaf: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.leaf = self.source = leaf

    def build(self, input_shape: tf.TensorShape) -> None:
        """Makes the variables of a leaf of this shape, without outer dimensions."""
        self.count = self.add_weight("count", (), initializer="zeros", trainable=False)
        self.mean = self.add_weight("mean", input_shape, initializer="zeros", trainable=False)
        self.variance = self.add_weight("variance", input_shape, initializer="ones", trainable=False)
        super().build(input_shape)

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """From `[..., *shape]` to `[..., *shape]`."""
        normalized = (tf.cast(inputs, tf.float32) - self.mean) * tf.math.rsqrt(self.variance + VARIANCE_EPSILON)
        return tf.clip_by_value(normalized, -MAX_NORMALIZED, MAX_NORMALIZED)


class ObservationNormalization(tf.keras.layers.Layer):
    """`RunningNormalization` of all leaves except pictures and the encoder's features.

    The encoder's convolutions say what a picture is.
    """

    def __init__(self, observation_spec: Any, convolutions: Sequence[Convolution], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        specs = tf.nest.flatten(observation_spec)
        names = leaf_names(observation_spec)
        # Neither pixels, whose range is known, nor their features, which go to a trunk with its own normalisation; nor
        # a mask of actions, which no network sees.
        self.leaves = [
            RunningNormalization(k)
            for k, spec in enumerate(specs)
            if not is_picture(spec, convolutions) and not is_features(spec) and names[k] != ACTION_MASK
        ]
        for layer in self.leaves:
            layer.build(specs[layer.leaf].shape)

    def call(self, observation: Any) -> Any:
        """The nest with normalised leaves, `[..., *shape]` each."""
        values = tf.nest.flatten(observation)
        for layer in self.leaves:
            values[layer.leaf] = layer(values[layer.leaf])
        return tf.nest.pack_sequence_as(observation, values)


def set_sources(network: Any, sources: Sequence[int]) -> None:
    """Says for each leaf that a network sees its number in the agent's flattened observation."""
    for layer in network.submodules:
        if isinstance(layer, RunningNormalization):
            layer.source = sources[layer.leaf]


def update_statistics(agent: tf.Module, observations: Sequence[tf.Tensor], weight: tf.Tensor | None = None) -> None:
    """Adds all observations of a block, once, to the statistics of all networks; `WINDOW` defines their weight.

    Args:
      agent: The normalisations in it are found by their class.
      observations: The leaves in flattened order, each `[..., *shape]` with any outer dimensions.
      weight: `[...]`: how often each counts; None: once.
    """
    layers: dict[int, list[RunningNormalization]] = {}
    for module in agent.submodules:
        if isinstance(module, RunningNormalization):
            layers.setdefault(module.source, []).append(module)
    for leaf, copies in layers.items():
        _take_into_account(copies, observations[leaf], weight)


def _take_into_account(holders: Sequence[Any], values: tf.Tensor, weight: tf.Tensor | None) -> None:
    """Merges values into the moments of one leaf, and updates all copies."""
    first = holders[0]
    merged = merge_moments((tf.minimum(first.count, WINDOW), first.mean, first.variance), values, weight)
    for holder in holders:
        for variable, value in zip((holder.count, holder.mean, holder.variance), merged, strict=True):
            variable.assign(value)


Moments = tuple[tf.Tensor, tf.Tensor, tf.Tensor]


def merge_moments(moments: Moments, values: tf.Tensor, weight: tf.Tensor | None = None) -> Moments:
    """Count, mean and variance of the earlier values and `values` together.

    With n and m of both, and delta the difference of their means (Chan, Golub and LeVeque 1979): mean + delta * m /
    (n + m), and (n * variance + m * variance_m + delta^2 * n * m / (n + m)) / (n + m). If these overflow float32, as
    for a number such as 1e20, mean and variance stay unchanged: they would never be finite again.

    Args:
      moments: float32; mean and variance `[*shape]`.
      values: `[..., *shape]`.
      weight: `[...]`: how often each of them counts, its sum above 0; None: once.
    """
    count, mean, variance = (tf.convert_to_tensor(moment) for moment in moments)
    values = tf.reshape(tf.cast(values, tf.float32), tf.concat([[-1], tf.shape(mean)], 0))
    if weight is None:
        new_mean, new_variance = tf.nn.moments(values, axes=[0])
        new_count = tf.cast(tf.shape(values)[0], tf.float32)
    else:
        weight = tf.reshape(weight, tf.concat([[-1], tf.ones_like(tf.shape(mean))], 0))
        new_mean, new_variance = tf.nn.weighted_moments(values, axes=[0], frequency_weights=weight)
        new_count = tf.reduce_sum(weight)
    total = count + new_count
    delta = new_mean - mean
    share = new_count / total
    merged = (1.0 - share) * variance + share * new_variance + tf.square(delta) * share * (1.0 - share)
    is_finite = tf.math.is_finite(mean + delta * share) & tf.math.is_finite(merged)
    return total, tf.where(is_finite, mean + delta * share, mean), tf.where(is_finite, merged, variance)


class RewardScale(tf.Module):
    """Divides rewards by the standard deviation of the discounted return, and clips them.

    The return of a step sums its episode's rewards so far, R_t = gamma R_(t-1) + r_t, as in VecNormalize of
    Stable-Baselines3 and NormalizeReward of Gymnasium. So returns, and with them Q-values, vary by about 1 however
    rare rewards are. The mean is not subtracted: that would reward long episodes or punish them. While all returns
    are equal, rewards are only clipped.

    Args:
      limit: Largest size of a divided reward; None: any, for categorical critics, whose atoms have bounds of their own.
    """

    def __init__(self, limit: float | None = MAX_NORMALIZED) -> None:
        super().__init__(name="reward_scale")
        self._limit = limit
        self.count = tf.Variable(0.0, trainable=False, name="count")
        self.mean = tf.Variable(0.0, trainable=False, name="mean")
        self.variance = tf.Variable(0.0, trainable=False, name="variance")

    def update(self, returns: tf.Tensor, weight: tf.Tensor | None = None) -> None:
        """Adds all returns of a block, once; `WINDOW` defines their weight."""
        _take_into_account([self], returns, weight)

    @property
    def divisor(self) -> tf.Tensor:
        """The divisor of rewards."""
        return tf.where(self.variance > 0.0, tf.maximum(tf.sqrt(self.variance), MIN_RETURN_STD), 1.0)

    def __call__(self, rewards: tf.Tensor) -> tf.Tensor:
        """Rewards, or with n_step > 1 their sums over n steps, divided and clipped."""
        scaled = rewards / self.divisor
        return scaled if self._limit is None else tf.clip_by_value(scaled, -self._limit, self._limit)
