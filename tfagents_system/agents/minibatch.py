"""What an update learns from: a minibatch of the replay server's arrays, its steps as losses see them, random numbers.

The train step determines all random numbers, and so the actor's actions that are made of them.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
from tf_agents.distributions.utils import SquashToSpecNormal
from tf_agents.trajectories import time_step as ts
from tf_agents.utils import common

from tfagents_system.agents.layers import dropout_noise

Measured = dict[str, tuple[tf.Tensor, tf.Tensor]]
"""By name: a value, and 1 or 0 for whether this update has measured it. Unmeasured values are 0."""
TD_ERRORS = "td_errors"
"""In Measured where samples have weights `[B]`: |y - Q(s, a)| `[B]`, mean over the critics, of means of quantiles."""


_DRAWINGS_PER_UPDATE, _LEAVES_PER_DRAWING = 8, 64  # More than are used: positions in the run must not collide.
_LOG_2PI, _LOG_2 = math.log(2.0 * math.pi), math.log(2.0)


class Minibatch(NamedTuple):
    """What one update learns from.

    Attributes:
      experience: A Transition `[B, ...]`, or for recurrent networks a Trajectory `[B, T + 1, ...]`.
      weight: Weight of each transition in all losses, `[B, T]` including the burn-in; the mean after the burn-in is 1,
        see `Sequences`. Or importance weights of samples, `[B]`. None: all weights are equal.
      burn_in_steps: The first steps of each sequence only produce the state in which the losses of the others begin
        (Kapturowski et al., Recurrent Experience Replay in Distributed RL, 2019).
    """

    experience: Any
    weight: tf.Tensor | None = None
    burn_in_steps: int = 0


class Views(NamedTuple):
    """In the place of an observation, where actor and critics do not see the same.

    Attributes:
      actor: The parts that the actor sees; of images the pixels, for an encoder of its own.
      critics: All of it, with features for images.
    """

    actor: Any
    critics: Any


class Steps(NamedTuple):
    """Steps in the losses and, for recurrent networks, the steps before them.

    Attributes:
      time_steps: `[B, (T,) ...]`.
      actions: Taken there, `[B, (T,) ...]`; None where only the actor's own ones are wanted.
      past: The burn-in before them with its actions, or None.
      weight: Weight of each step's loss, `[B, T]`, or of each sample's, `[B]`; None: all weights are equal.
    """

    time_steps: ts.TimeStep
    actions: Any
    past: tuple[ts.TimeStep, Any] | None = None
    weight: tf.Tensor | None = None


def of_actor(time_steps: ts.TimeStep) -> ts.TimeStep:
    """What the actor sees of encoded time steps."""
    seen = time_steps.observation
    return time_steps._replace(observation=seen.actor) if isinstance(seen, Views) else time_steps


def of_critics(time_steps: ts.TimeStep) -> ts.TimeStep:
    """What the critics see of encoded time steps."""
    seen = time_steps.observation
    return time_steps._replace(observation=seen.critics) if isinstance(seen, Views) else time_steps


def cut_burn_in(steps: Steps, next_time_steps: ts.TimeStep, burn_in_steps: int) -> tuple[Steps, Steps]:
    """Steps and next steps of a sequence after its burn-in, each with the burn-in as its past."""
    if burn_in_steps == 0:
        return steps, Steps(next_time_steps, None)

    def cut(nest: Any, begin: int | None, end: int | None) -> Any:
        return tf.nest.map_structure(lambda tensor: tensor[:, begin:end], nest)

    seen, actions, n = steps.time_steps, steps.actions, burn_in_steps
    past = cut(seen, None, n), cut(actions, None, n)
    # The actions at next observations are the sequence's following actions.
    next_past = cut(next_time_steps, None, n), cut(actions, 1, n + 1)
    weight = None if steps.weight is None else steps.weight[:, n:]
    return (
        Steps(cut(seen, n, None), cut(actions, n, None), past, weight),
        Steps(cut(next_time_steps, n, None), None, next_past),
    )


def all_measured(values: dict[str, tf.Tensor]) -> Measured:
    """Values of an update that measures each of them."""
    return {name: (value, tf.constant(1.0)) for name, value in values.items()}


def weighted_mean(values: tf.Tensor, weight: tf.Tensor | None) -> tf.Tensor:
    """Of what was drawn with importance weights: sum(w v) / sum(w); the mean where there are none."""
    if weight is None:
        return tf.reduce_mean(values)
    return tf.reduce_sum(values * weight) / tf.reduce_sum(weight)


def batch_mean(per_example: tf.Tensor, weight: tf.Tensor | None, regularization: Any = None) -> tf.Tensor:
    """Mean over the batch of the weighted sum over time, if any, plus the networks' own losses."""
    if weight is not None:
        per_example *= weight
    if per_example.shape.rank > 1:
        per_example = tf.reduce_sum(per_example, range(1, per_example.shape.rank))
    return common.aggregate_losses(per_example_loss=per_example, regularization_loss=regularization).total_loss


# Random numbers, and actions that are made of them.


class UnsupportedActorError(Exception):
    """The actor's distribution is not a tanh-squashed Gaussian."""


class Noise:
    """The random numbers of one update: an update that is repeated after a restart draws the same ones.

    Args:
      seed: Of all updates.
      train_step: Of the update, an int64 scalar.
    """

    def __init__(self, seed: int, train_step: tf.Variable) -> None:
        self._seed, self._train_step = seed, train_step

    def of(self, purpose: int) -> Drawing:
        """Those for one purpose, numbered below 8 by the algorithm."""
        return Drawing(self._seed, self._train_step, purpose)

    def of_dropout(self) -> contextlib.AbstractContextManager[None]:
        """Dropout that is traced in this context drops units by the train step, too."""
        return dropout_noise(self._seed, self._train_step)


class Drawing:
    """Random numbers for one purpose, numbered below 8, in one update; seed, train step and number determine them."""

    def __init__(self, seed: int, train_step: tf.Tensor, number: int) -> None:
        self._seed, self._position = seed, train_step * _DRAWINGS_PER_UPDATE + number

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
        # Middle and half range of the action's bounds, `[*spec.shape]` float32.
        low, high = (np.broadcast_to(np.float32(bound), spec.shape) for bound in (spec.minimum, spec.maximum))
        middle, magnitude = (low + high) / np.float32(2.0), (high - low) / np.float32(2.0)
        is_scaled = np.any(middle != 0.0) or np.any(magnitude != 1.0)
        actions.append(middle + magnitude * tf.tanh(u) if is_scaled else tf.tanh(u))
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
