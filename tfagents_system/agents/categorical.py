"""Categorical critics (C51: Bellemare et al., arXiv 1707.06887): a distribution of the return over fixed values.

XQC (arXiv 2509.25174) and FlashSAC (arXiv 2604.04539) have them over returns that are scaled to a deviation of 1.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import tensorflow as tf

from tfagents_system.agents import algorithms
from tfagents_system.train_params_base import TrainParamsBase


class Categories:
    """n atoms at equal distances from the lowest to the highest value.

    Args:
      num_atoms: n, at least 2.
      low, high: The first and the last atom.

    Attributes:
      atoms: z, `[n]` float32.
    """

    def __init__(self, num_atoms: int, low: float, high: float) -> None:
        self._num_atoms, self._low, self._high = num_atoms, low, high
        self.atoms = tf.linspace(tf.constant(low, tf.float32), high, num_atoms)

    @classmethod
    def of(cls, params: TrainParamsBase) -> Categories | None:
        """Those of TrainParams; None: its critics return values."""
        if not algorithms.has_categories(params):
            return None
        options = algorithms.value(params, "categorical")
        return cls(options["num_atoms"], *map(float, options["value_range"]))

    def mean(self, probabilities: tf.Tensor) -> tf.Tensor:
        """Expected values `[...]` of `[..., n]`."""
        return tf.linalg.matvec(probabilities, self.atoms)

    def lowest(self, logits: Sequence[tf.Tensor]) -> tf.Tensor:
        """Of several critics' logits, `[..., n]` each, those of the critic with the lowest mean in each place."""

        def lower(first: tuple[tf.Tensor, tf.Tensor], second: tuple[tf.Tensor, tf.Tensor]) -> tuple[tf.Tensor, ...]:
            is_first = first[0] <= second[0]
            return tf.minimum(first[0], second[0]), tf.where(is_first[..., None], first[1], second[1])

        return functools.reduce(lower, [(self.mean(tf.nn.softmax(output)), output) for output in logits])[1]

    def project(self, probabilities: tf.Tensor, values: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Moves each probability from its value to the two atoms beside it, in proportion to their nearness.

        Algorithm 1 of C51: m_i = sum_j p_j max(0, 1 - |t_j - z_i| / width), t_j clipped to the atoms' range.

        Args:
          probabilities: p, `[..., n]`.
          values: Their values t, `[..., n]`.

        Returns:
          m, `[..., n]`, and the share of the probability whose values were clipped, `[...]`.
        """
        count, last = self._num_atoms, self._num_atoms - 1
        place = (values - self._low) * (last / (self._high - self._low))
        is_outside = tf.cast((place < 0.0) | (place > float(last)), tf.float32)
        place = tf.clip_by_value(place, 0.0, float(last))
        below = tf.floor(place)
        share = place - below
        shape = tf.shape(probabilities)
        rows = tf.reshape(tf.range(tf.size(probabilities) // count) * count, tf.concat([shape[:-1], [1]], 0))
        lower = rows + tf.cast(below, tf.int32)
        upper = rows + tf.minimum(tf.cast(below, tf.int32) + 1, last)
        moved = tf.math.unsorted_segment_sum(
            tf.stack([probabilities * (1.0 - share), probabilities * share]),
            tf.stack([lower, upper]),
            tf.size(probabilities),
        )
        # The sum leaves out what has no place; a loss of NaN says that training has diverged.
        moved = tf.where(tf.math.is_nan(values), values, tf.reshape(moved, shape))
        return moved, tf.reduce_sum(probabilities * is_outside, -1)
