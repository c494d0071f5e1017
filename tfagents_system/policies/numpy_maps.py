"""What can stand in front of a product with a matrix in `NumpyActor`: normalisations, which mostly cost nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfagents_system.agents.normalization import MAX_NORMALIZED, VARIANCE_EPSILON, RunningNormalization

Step = Callable[[], object]
Values = Sequence[np.ndarray]


@dataclasses.dataclass(frozen=True)
class InputMap:
    """An affine map of a product's input, x -> factor * x + offset: it is multiplied into the matrix.

    Attributes:
      variables: What it follows from.
      to_affine: From their values to factor and offset, `[n]` each.
      standardizes: The input is first brought to mean 0 and variance 1 itself, which no matrix can do.
      epsilon: Added to that variance.
    """

    variables: tuple[tf.Variable, ...]
    to_affine: Callable[[Values], tuple[np.ndarray, np.ndarray]]
    standardizes: bool = False
    epsilon: float = 0.0

    def fold(self, values: Values, matrix: np.ndarray) -> None:
        """Changes `[n + 1, m]`, whose last row is the bias, so that it takes the input as it is before the map."""
        factor, offset = self.to_affine(values)
        weights = matrix[:-1]
        matrix[-1] += offset @ weights
        weights *= factor[:, None]


def renormalization_map(layer: Any) -> InputMap:
    """Of a BatchRenormalization outside of training."""

    def to_affine(values: Values) -> tuple[np.ndarray, np.ndarray]:
        gamma, beta, mean, variance = values
        factor = gamma / np.sqrt(variance + np.float32(layer.epsilon))
        return factor, beta - mean * factor

    return InputMap((layer.gamma, layer.beta, layer.moving_mean, layer.moving_variance), to_affine)


def layer_norm_map(layer: Any) -> InputMap:
    """Of a LayerNormalization over the last axis."""
    return InputMap((layer.gamma, layer.beta), lambda values: (values[0], values[1]), True, layer.epsilon)


def standardization(source: np.ndarray, into: np.ndarray, epsilon: float) -> Step:
    """A step: each column of `source`, `[n]` or `[n, columns]`, with mean 0 and variance 1 in `into`."""
    averaging = np.full((1, len(source)), 1.0 / len(source), np.float32)
    squares = np.zeros_like(source)
    moment = np.zeros((1, *source.shape[1:]), np.float32)
    small = np.full_like(moment, epsilon)

    def standardize() -> None:
        np.dot(averaging, source, moment)
        np.subtract(source, moment, into)
        np.multiply(into, into, squares)
        np.dot(averaging, squares, moment)
        np.add(moment, small, moment)
        np.sqrt(moment, moment)
        np.divide(into, moment, into)

    return standardize


class InputNormalization:
    """Of the flattened observation, clip((x - mean) / std, -10, 10); pixels pass as they are.

    Args:
      leaves: The normalised leaves.
      slices: Where each leaf of the observation lies in the network's input, in flattened order.
      size: Of that input.
    """

    def __init__(self, leaves: Sequence[RunningNormalization], slices: Sequence[slice], size: int) -> None:
        self._parts = [slices[layer.leaf] for layer in leaves]
        self.variables = [variable for layer in leaves for variable in (layer.mean, layer.variance)]
        self._mean, self._factor = np.zeros((size, 1), np.float32), np.ones((size, 1), np.float32)

    def assign(self, values: Values) -> None:
        """Takes the values of `variables`."""
        for part, mean, variance in zip(self._parts, values[::2], values[1::2], strict=True):
            self._mean[part, 0] = mean.ravel()
            self._factor[part, 0] = 1.0 / np.sqrt(variance.ravel() + np.float32(VARIANCE_EPSILON))

    def step(self, inputs: np.ndarray) -> Step:
        """Normalises `[n]` or `[n, columns]` in place."""
        mean, factor = (self._mean, self._factor) if inputs.ndim == 2 else (self._mean[:, 0], self._factor[:, 0])
        # Scalars would be converted anew in every call.
        high = np.full_like(inputs, MAX_NORMALIZED)
        low = -high

        def normalize() -> None:
            np.subtract(inputs, mean, inputs)
            np.multiply(inputs, factor, inputs)
            np.minimum(inputs, high, inputs)
            np.maximum(inputs, low, inputs)

        return normalize
