"""The default actor's forward pass in NumPy: it is an order of magnitude faster than TensorFlow."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tree
from tf_agents.agents.sac.sac_agent import std_clip_transform
from tf_agents.agents.sac.tanh_normal_projection_network import TanhNormalProjectionNetwork
from tf_agents.networks.actor_distribution_network import ActorDistributionNetwork

from tfagents_system.agents.networks import FlattenedLeaf

_LOG_STD_MAX = 2.0  # As std_clip_transform; its minimum is -20.
_NOISE_BLOCK = 1024  # Drawing few numbers takes about as long as drawing a hundred.
# From here on one matrix product for all observations is faster than one product with a vector for each of them.
_MATRIX_BATCH = 8

Step = Callable[[], object]


class UnsupportedNetworkError(Exception):
    """The network is not one that `NumpyActor` can compute; its text says why."""


class NumpyActor:
    """Dense layers and a tanh-squashed Gaussian, read off an ActorDistributionNetwork.

    The observation is a float32 vector, or any nest whose leaves are flattened by our own preprocessing.

    Args:
      actor: The network, with its variables created.
      variables: Names of its variables, as `named_variables` gives them.
      rng: Source of the exploration noise.
      batch_size: Observations that `act_on_all` takes, at most.

    Raises:
      UnsupportedNetworkError: The network has anything else in it.
    """

    def __init__(
        self, actor: Any, variables: Mapping[str, tf.Variable], rng: np.random.Generator, batch_size: int = 1
    ) -> None:
        names = {variable.ref(): name for name, variable in variables.items()}
        dense = _dense_layers(actor)
        self._names = [(names[layer.kernel.ref()], names[layer.bias.ref()]) for layer in dense]
        # The bias is one more row, which a constant 1 behind the input multiplies: it costs no addition of its own.
        self._matrices = [np.zeros((layer.kernel.shape[0] + 1, layer.kernel.shape[1]), np.float32) for layer in dense]
        self._action_shape = tuple(actor.output_tensor_spec.shape)
        activations = [_ACTIVATIONS[layer.activation] for layer in dense[:-1]]
        leaves = tf.nest.flatten(actor.input_tensor_spec)
        is_nest = tf.nest.is_nested(actor.input_tensor_spec) or leaves[0].shape.rank != 1

        def make_pass(columns: int | None) -> _Pass:
            return _Pass(self._matrices, activations, leaves if is_nest else None, rng, columns)

        self._passes = [make_pass(None) for _ in range(batch_size if batch_size < _MATRIX_BATCH else 1)]
        self._matrix_pass = make_pass(batch_size) if batch_size >= _MATRIX_BATCH else None
        self.assign({name: variable.numpy() for name, variable in variables.items()})

    def assign(self, weights: Mapping[str, np.ndarray]) -> None:
        """Takes new weights, by name."""
        for matrix, (kernel, bias) in zip(self._matrices, self._names, strict=True):
            matrix[:-1] = weights[kernel]
            matrix[-1] = weights[bias]

    def act(self, observation: Any, greedy: bool) -> np.ndarray:
        """The action for one observation, in (-1, 1).

        With mean and log(std) as the network gives them: tanh(mean) where greedy, else tanh(mean + std * noise).
        """
        forward = self._passes[0]
        forward.load(observation)
        return forward.act(greedy).reshape(self._action_shape)

    def act_on_all(self, observations: Sequence[Any], greedy: bool) -> list[np.ndarray]:
        """Like `act`, for several observations."""
        if self._matrix_pass is None:
            for forward, observation in zip(self._passes, observations, strict=False):
                forward.load(observation)
            return [forward.act(greedy).reshape(self._action_shape) for forward in self._passes[: len(observations)]]
        for column, observation in enumerate(observations):
            self._matrix_pass.load(observation, column)
        actions = np.ascontiguousarray(self._matrix_pass.act(greedy).T)
        return [action.reshape(self._action_shape) for action in actions[: len(observations)]]


class _Pass:
    """Buffers for a forward pass; nothing is allocated in it but the action.

    Vectors `[n]`, or matrices `[n, columns]` with an observation in each column: the products are the same.

    Args:
      matrices: `[inputs + 1, outputs]` of each layer, biases last; read in every pass.
      activations: Of all layers but the last: each makes the step that activates a buffer in place.
      leaves: Specs of the observation's leaves; None where it is a float32 vector itself.
      rng: Source of the exploration noise.
      columns: Number of observations; None: vectors.
    """

    def __init__(
        self,
        matrices: Sequence[np.ndarray],
        activations: Sequence[Callable[[np.ndarray], Step] | None],
        leaves: Sequence[tf.TensorSpec] | None,
        rng: np.random.Generator,
        columns: int | None,
    ) -> None:
        batch = () if columns is None else (columns,)
        sources = [np.zeros((len(matrix), *batch), np.float32) for matrix in matrices]
        for source in sources:
            source[-1] = 1.0
        output = np.zeros((matrices[-1].shape[1], *batch), np.float32)
        self._inputs = sources[0][:-1]
        outputs = [*(source[:-1] for source in sources[1:]), output]
        self._steps: list[Step] = []
        for matrix, source, into, activation in zip(matrices, sources, outputs, [*activations, None], strict=True):
            self._steps.append(functools.partial(np.dot, matrix.T, source, into))
            if activation is not None:
                self._steps.append(activation(into))
        half = len(output) // 2
        self._mean, self._log_std = output[:half], output[half:]
        self._log_std_max = np.full_like(self._log_std, _LOG_STD_MAX)
        self._leaves = _slices(leaves) if leaves is not None else None
        self._rng = rng
        self._noise = np.zeros((0, *self._mean.shape), np.float32)
        self._noise_used = 0

    def load(self, observation: Any, column: int | None = None) -> None:
        """Takes an observation; the column only where there are several."""
        inputs = self._inputs if column is None else self._inputs[:, column]
        if self._leaves is None:
            inputs[:] = observation
            return
        for leaf, (part, is_pixels) in zip(tree.flatten(observation), self._leaves, strict=True):
            values = np.ravel(leaf)
            inputs[part] = values / np.float32(255.0) if is_pixels else values

    def act(self, greedy: bool) -> np.ndarray:
        """Actions of the loaded observations, `[action_dim]` or `[action_dim, columns]`."""
        for step in self._steps:
            step()
        if greedy:
            return np.tanh(self._mean)
        # The lower limit of log(std) is left out: noise times e^-20 = 2e-9 is below float32's precision of an action.
        spread = np.minimum(self._log_std, self._log_std_max, self._log_std)
        np.exp(spread, spread)
        np.multiply(spread, self._next_noise(), spread)
        np.add(spread, self._mean, spread)
        return np.tanh(spread)

    def _next_noise(self) -> np.ndarray:
        if self._noise_used == len(self._noise):
            self._noise = self._rng.standard_normal((_NOISE_BLOCK, *self._mean.shape), np.float32)
            self._noise_used = 0
        self._noise_used += 1
        return self._noise[self._noise_used - 1]


def _relu(values: np.ndarray) -> Step:
    zeros = np.zeros_like(values)  # A scalar 0.0 would be converted anew in every call: three times as slow.
    return functools.partial(np.maximum, values, zeros, values)


def _tanh(values: np.ndarray) -> Step:
    return functools.partial(np.tanh, values, values)


_ACTIVATIONS: dict[Any, Callable[[np.ndarray], Step] | None] = {
    tf.keras.activations.relu: _relu,
    tf.keras.activations.tanh: _tanh,
    tf.keras.activations.linear: None,
}


def _slices(leaves: Sequence[tf.TensorSpec]) -> list[tuple[slice, bool]]:
    """Where each leaf lies in the network's input, and whether it is made of pixels."""
    slices, start = [], 0
    for leaf in leaves:
        size = int(np.prod(leaf.shape, dtype=np.int64))
        slices.append((slice(start, start + size), leaf.dtype == tf.uint8))
        start += size
    return slices


def _dense_layers(actor: Any) -> list[tf.keras.layers.Dense]:
    """The hidden layers and, last, the projection of an actor, if there is nothing else in it."""
    _require(type(actor) is ActorDistributionNetwork, f"{type(actor).__name__} is not an ActorDistributionNetwork")
    encoder = actor._encoder
    _check_preprocessing(actor.input_tensor_spec, encoder)
    dense = []
    for layer in encoder._postprocessing_layers:
        if type(layer) is tf.keras.layers.Flatten:
            continue
        _require(type(layer) is tf.keras.layers.Dense, f"it has a {type(layer).__name__} layer")
        _require(layer.activation in _ACTIVATIONS, f"it has the activation {layer.activation}")
        dense.append(layer)
    projection = actor._projection_networks
    _require(type(projection) is TanhNormalProjectionNetwork, f"it ends in {type(projection).__name__}")
    _require(projection._std_transform is std_clip_transform, "its standard deviation is not clipped by TF-Agents")
    _require(projection._projection_layer.activation is tf.keras.activations.linear, "its projection has an activation")
    sample_spec = projection._sample_spec
    _require(bool(np.all(sample_spec.minimum == -1) and np.all(sample_spec.maximum == 1)), "actions are not in [-1, 1]")
    dense.append(projection._projection_layer)
    _require(all(layer.use_bias for layer in dense), "it has a layer without bias")
    return dense


def _check_preprocessing(spec: Any, encoder: Any) -> None:
    layers, combiner = encoder._flat_preprocessing_layers, encoder._preprocessing_combiner
    if layers is None:
        plain = not tf.nest.is_nested(spec) and spec.shape.rank == 1 and spec.dtype == tf.float32
        _require(plain, "the observation is not one float32 vector")
        _require(combiner is None, "it has a preprocessing_combiner")
        return
    ours = len(layers) == len(tf.nest.flatten(spec)) and all(type(layer) is FlattenedLeaf for layer in layers)
    _require(ours, "it has preprocessing layers")
    joins = type(combiner) is tf.keras.layers.Concatenate and combiner.axis == -1
    _require(joins if len(layers) > 1 else combiner is None, "it has a preprocessing_combiner")


def _require(condition: bool, reason: str) -> None:
    if not condition:
        raise UnsupportedNetworkError(reason)
