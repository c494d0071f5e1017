"""The scores of all actions in NumPy, from a network of `agents/value_network.py`."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfagents_system.agents.layers import ResidualBlock
from tfagents_system.agents.normalization import MAX_NORMALIZED, VARIANCE_EPSILON
from tfagents_system.agents.observation_encoding import FlattenedLeaf
from tfagents_system.agents.value_network import LEAKY_SLOPE, ValueNetwork, leaky_relu
from tfagents_system.policies.network_layers import UnsupportedNetworkError

Weights = Mapping[str, np.ndarray]
Layer = Callable[[np.ndarray], np.ndarray]
_MAX_PIXEL = np.float32(255.0)
_SLOPE = np.float32(LEAKY_SLOPE)


class NumpyScores:
    """Computes `ValueNetwork.acting_values`.

    Args:
      network: With its variables created.
      variables: Names of its variables, from `named_variables`.
      weights: Their values.
      zero_leaf: The leaf of the observation that is 0 always and that nobody gives; None: there is none.

    Raises:
      UnsupportedNetworkError: It encodes images, or combines leaves in the user's way.
    """

    def __init__(
        self,
        network: ValueNetwork,
        variables: Mapping[str, tf.Variable],
        weights: Weights,
        zero_leaf: int | None = None,
    ) -> None:
        if network.images is not None:
            raise UnsupportedNetworkError("it has convolutions")
        self._names = {variable.ref(): name for name, variable in variables.items()}
        self._network = network
        self._zero_leaf = zero_leaf
        self._specs = tf.nest.flatten(network.input_tensor_spec)
        _check_encoder(network.encoder, len(self._specs))
        normalization = network.normalization
        self._normalized = {layer.leaf: layer for layer in normalization.leaves} if normalization is not None else {}
        self._num_quantiles = network.num_acting_quantiles if network.embedding is not None else 1
        self.assign(weights)

    def assign(self, weights: Weights) -> None:
        """Takes new weights, by name."""
        self._weights = weights
        network = self._network
        self._layers = [self._layer(layer) for layer in network.hidden_layers]
        self._moments = {
            leaf: (self._value(layer.mean), 1.0 / np.sqrt(self._value(layer.variance) + np.float32(VARIANCE_EPSILON)))
            for leaf, layer in self._normalized.items()
        }
        self._phi = None if network.embedding is None else self._embedding()
        self._heads = self._joined_heads() if network.head_layers else None
        self._kernel, self._bias = self._joined_last_layers()

    def __call__(self, leaves: Sequence[np.ndarray]) -> np.ndarray:
        """Scores `[N, num_actions]` float32 from the leaves of N observations, `[N, ...]` each."""
        values = self._vectors(leaves)
        for layer in self._layers:
            values = layer(values)
        if self._phi is not None:
            values = (values[:, None, :] * self._phi).reshape(-1, values.shape[-1])
        if self._heads is not None:
            kernel, bias, activation = self._heads
            values = values @ kernel
            values += bias
            values = activation(values)
        if self._num_quantiles > 1:  # The last layers are linear: of the mean they give the mean.
            values = values.reshape(-1, self._num_quantiles, values.shape[-1]).mean(axis=1)
        return values @ self._kernel + self._bias

    def _vectors(self, leaves: Sequence[np.ndarray]) -> np.ndarray:
        parts = []
        if (own := self._zero_leaf) is not None:
            zeros = np.zeros((len(leaves[0]), *self._specs[own].shape), np.float32)
            leaves = [*leaves[:own], zeros, *leaves[own:]]
        for number, (leaf, spec) in enumerate(zip(leaves, self._specs, strict=True)):
            values = np.asarray(leaf, np.float32)
            if number in self._moments:
                mean, scale = self._moments[number]
                values = np.clip((values - mean) * scale, -MAX_NORMALIZED, MAX_NORMALIZED)
            elif spec.dtype == tf.uint8:
                values = values / _MAX_PIXEL
            parts.append(values.reshape(len(values), -1))
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)

    def _embedding(self) -> np.ndarray:
        """Phi of the fixed fractions, `[K, units]`."""
        network = self._network
        multiples = math.pi * np.arange(1, network.num_cosines + 1, dtype=np.float32)
        cosines = np.cos(network.acting_fractions()[:, None] * multiples).astype(np.float32)
        return self._layer(network.embedding)(cosines)

    def _joined_heads(self) -> tuple[np.ndarray, np.ndarray, Layer]:
        """The hidden layers of all heads as one."""
        layers = self._network.head_layers
        kernel = np.concatenate([self._value(layer.kernel) for layer in layers], axis=1)
        bias = np.concatenate([self._value(layer.bias) for layer in layers])
        return np.ascontiguousarray(kernel), bias, _activation(layers[0].activation)

    def _joined_last_layers(self) -> tuple[np.ndarray, np.ndarray]:
        """The last layers of all heads as one: V + A - mean_a A is linear in both."""
        pairs = [(self._value(layer.kernel), self._value(layer.bias)) for layer in self._network.last_layers]
        if len(pairs) == 1:
            return pairs[0]
        (value, value_bias), (advantage, advantage_bias) = pairs
        centered = advantage - advantage.mean(axis=1, keepdims=True)
        kernel = np.concatenate([np.repeat(value, centered.shape[1], axis=1), centered])
        return kernel, value_bias + advantage_bias - advantage_bias.mean()

    def _layer(self, layer: Any) -> Layer:
        kind = type(layer)
        if kind is tf.keras.layers.Dense:
            kernel, bias = self._value(layer.kernel), self._value(layer.bias)
            return functools.partial(_dense, kernel, bias, _activation(layer.activation))
        if kind is tf.keras.layers.Activation:
            return _activation(layer.activation)
        if kind is tf.keras.layers.LayerNormalization:
            gamma, beta = self._value(layer.gamma), self._value(layer.beta)
            return functools.partial(_layer_norm, gamma, beta, np.float32(layer.epsilon))
        if kind is ResidualBlock:
            parts = [self._layer(part) for part in (layer.norm, layer.expand, layer.project)]
            return functools.partial(_residual, parts)
        raise UnsupportedNetworkError(f"it has a {kind.__name__} layer")

    def _value(self, variable: tf.Variable) -> np.ndarray:
        return self._weights[self._names[variable.ref()]]


def _check_encoder(encoder: Any, num_leaves: int) -> None:
    layers, combiner = encoder._flat_preprocessing_layers, encoder._preprocessing_combiner
    if layers is None:
        ours = combiner is None
    else:
        joins = type(combiner) is tf.keras.layers.Concatenate and combiner.axis == -1
        ours = len(layers) == num_leaves and all(type(layer) is FlattenedLeaf for layer in layers)
        ours = ours and (joins if num_leaves > 1 else combiner is None)
    if not ours:
        raise UnsupportedNetworkError("it has a preprocessing_combiner")


def _activation(function: Any) -> Layer:
    if function is tf.keras.activations.relu:
        return lambda values: np.maximum(values, np.float32(0.0))
    if function is leaky_relu:
        return lambda values: np.maximum(values, values * _SLOPE)
    if function is tf.keras.activations.linear:
        return lambda values: values
    raise UnsupportedNetworkError(f"it has the activation {function}")


def _dense(kernel: np.ndarray, bias: np.ndarray, activation: Layer, values: np.ndarray) -> np.ndarray:
    return activation(values @ kernel + bias)


def _layer_norm(gamma: np.ndarray, beta: np.ndarray, epsilon: np.float32, values: np.ndarray) -> np.ndarray:
    centered = values - values.mean(axis=1, keepdims=True)
    return centered / np.sqrt(np.square(centered).mean(axis=1, keepdims=True) + epsilon) * gamma + beta


def _residual(parts: Sequence[Layer], values: np.ndarray) -> np.ndarray:
    added = values
    for part in parts:
        added = part(added)
    return values + added
