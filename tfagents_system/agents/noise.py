"""The random numbers of updates, which the train step determines, and the actor's actions that are made of them."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
from tf_agents.distributions.utils import SquashToSpecNormal

from tfagents_system.agents.layers import dropout_noise

_DRAWINGS_PER_UPDATE, _LEAVES_PER_DRAWING = 8, 64  # More than are used: positions in the run must not collide.
_LOG_2PI, _LOG_2 = math.log(2.0 * math.pi), math.log(2.0)


class UnsupportedActorError(Exception):
    """The actor's distribution is not a tanh-squashed Gaussian."""


class Noise:
    """The random numbers of one update: an update that is repeated after a restart draws the same ones.

    Args:
      seed: Of all updates.
      train_step: Of the update, an int64 scalar.
    """

    def __init__(self, seed: int, train_step: tf.Variable) -> None:
        self._seed = seed
        self._train_step = train_step

    def of(self, purpose: int) -> Drawing:
        """Those for one purpose, numbered below 8 by the algorithm."""
        return Drawing(self._seed, self._train_step, purpose)

    def of_dropout(self) -> contextlib.AbstractContextManager[None]:
        """Dropout that is traced in this context drops units by the train step, too."""
        return dropout_noise(self._seed, self._train_step)


class Drawing:
    """Random numbers for one purpose in one update, determined by seed, train step and number.

    Args:
      seed: Of all updates.
      train_step: Of the update, int64.
      number: Of the purpose, below 8.
    """

    def __init__(self, seed: int, train_step: tf.Tensor, number: int) -> None:
        self._seed = seed
        self._position = train_step * _DRAWINGS_PER_UPDATE + number

    def normal(self, leaf: int, like: tf.Tensor) -> tf.Tensor:
        """Standard normal numbers in the shape of `like`, for a leaf of the action."""
        return tf.random.stateless_normal(tf.shape(like), self._leaf_seed(leaf))

    def uniform(self, count: int) -> tf.Tensor:
        """`[count]` numbers in [0, 1)."""
        return tf.random.stateless_uniform([count], self._leaf_seed(0))

    def integers(self, leaf: int, shape: Any, low: int, high: int) -> tf.Tensor:
        """int32 from `low` to `high`, both included, for a leaf of the observation."""
        return tf.random.stateless_uniform(shape, self._leaf_seed(leaf), low, high + 1, tf.int32)

    def _leaf_seed(self, leaf: int) -> tf.Tensor:
        return tf.stack([tf.constant(self._seed, tf.int64), self._position * _LEAVES_PER_DRAWING + leaf])


def sample(distributions: Any, action_spec: Any, noise: Drawing | Sequence[Any]) -> tuple[Any, tf.Tensor]:
    """Actions and their log pi, `[B]` or `[B, T]`.

    With u = mean + std * noise and a = tanh(u), per dimension (Haarnoja et al., arXiv 1812.05905, appendix C, in the
    stable form) log pi(a) = log N(noise) - log std - log(1 - tanh(u)^2), where
    log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2 u)).

    Args:
      distributions: The actor's, a nest like `action_spec`.
      action_spec: Bounds that the squashed actions are scaled to.
      noise: Standard normal numbers: a Drawing, or an array `[B, (T,) ...]` float32 for each leaf of the action.

    Raises:
      UnsupportedActorError: A distribution is not a tanh-squashed Gaussian.
    """
    actions, log_pis = [], []
    specs = tf.nest.flatten(action_spec)
    for leaf, (distribution, spec) in enumerate(zip(tf.nest.flatten(distributions), specs, strict=True)):
        mean, std = mean_and_std(distribution)
        epsilon = noise.normal(leaf, mean) if isinstance(noise, Drawing) else noise[leaf]
        u = mean + std * epsilon
        action_mean, magnitude = _constants(spec)
        actions.append(_scale_to_spec(tf.tanh(u), action_mean, magnitude))
        each = 2.0 * (u + tf.nn.softplus(-2.0 * u)) - tf.math.log(std) - 0.5 * tf.square(epsilon)
        event_axes = list(range(each.shape.rank - spec.shape.rank, each.shape.rank))
        constant = spec.shape.num_elements() * (0.5 * _LOG_2PI + 2.0 * _LOG_2) + np.log(magnitude).sum()
        log_pis.append(tf.reduce_sum(each, event_axes) - np.float32(constant))
    return tf.nest.pack_sequence_as(distributions, actions), tf.add_n(log_pis)


def mean_and_std(distribution: Any) -> tuple[tf.Tensor, tf.Tensor]:
    """Mean and standard deviation of the Gaussian before tanh.

    Raises:
      UnsupportedActorError: It is not a tanh-squashed Gaussian.
    """
    if type(distribution) is SquashToSpecNormal:
        gaussian = distribution.input_distribution
        if type(gaussian) is tfp.distributions.MultivariateNormalDiag:
            return gaussian.loc, gaussian.scale.diag_part()
        if type(gaussian) is tfp.distributions.Normal:
            return gaussian.loc, gaussian.scale
    raise UnsupportedActorError(f"the actor's {type(distribution).__name__} is not a tanh-squashed Gaussian")


def _constants(spec: Any) -> tuple[np.ndarray, np.ndarray]:
    """Middle and half range of the action's bounds, `[*spec.shape]` float32."""
    low, high = (np.broadcast_to(np.float32(bound), spec.shape) for bound in (spec.minimum, spec.maximum))
    return (low + high) / np.float32(2.0), (high - low) / np.float32(2.0)


def _scale_to_spec(squashed: tf.Tensor, action_mean: np.ndarray, magnitude: np.ndarray) -> tf.Tensor:
    if np.all(action_mean == 0.0) and np.all(magnitude == 1.0):
        return squashed
    return action_mean + magnitude * squashed
