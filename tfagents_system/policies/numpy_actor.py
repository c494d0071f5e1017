"""The default actors' forward pass in NumPy: it is an order of magnitude faster than TensorFlow."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tree
from tf_agents.agents.sac.sac_agent import std_clip_transform
from tf_agents.agents.sac.tanh_normal_projection_network import TanhNormalProjectionNetwork
from tf_agents.keras_layers.dynamic_unroll_layer import DynamicUnroll
from tf_agents.networks.actor_distribution_network import ActorDistributionNetwork
from tf_agents.networks.actor_distribution_rnn_network import ActorDistributionRnnNetwork
from tf_agents.networks.lstm_encoding_network import LSTMEncodingNetwork

from tfagents_system.agents.networks import FlattenedLeaf

_LOG_STD_MAX = 2.0  # As std_clip_transform; its minimum is -20.
_NOISE_BLOCK = 1024  # Drawing few numbers takes about as long as drawing a hundred.
# From here on one matrix product for all observations is faster than one product with a vector for each of them.
_MATRIX_BATCH = 8

Step = Callable[[], object]


class UnsupportedNetworkError(Exception):
    """The network is not one that `NumpyActor` can compute; its text says why."""


@dataclasses.dataclass(frozen=True)
class _Layer:
    """One product with a matrix, and what follows it.

    Attributes:
      weights: Its variables, each `[rows, columns]`, whose rows make up the matrix from above; last the bias, one row,
        which a constant 1 behind the input multiplies: it costs no addition of its own.
      activation: A key of `_ACTIVATIONS`; of an LSTM None.
      memory: Units of an LSTM, whose input ends in its last output; 0 of any other layer.
    """

    weights: tuple[tf.Variable, ...]
    activation: Any
    memory: int = 0

    def new_matrix(self) -> np.ndarray:
        rows = sum(1 if weight.shape.rank == 1 else weight.shape[0] for weight in self.weights)
        return np.zeros((rows, self.weights[-1].shape[0]), np.float32)

    def fill(self, matrix: np.ndarray, values: Sequence[np.ndarray]) -> None:
        """Takes the values of `weights`."""
        np.concatenate([np.atleast_2d(value) for value in values], out=matrix)
        if self.memory:
            # From Keras' order of the gates (input, forget, candidate, output) to one with the candidate last; and
            # sigmoid(x) = (1 + tanh(x / 2)) / 2, so that one tanh does for all four.
            entry, forget, candidate, output = np.split(matrix, 4, axis=1)
            matrix[:] = np.concatenate([0.5 * entry, 0.5 * forget, 0.5 * output, candidate], axis=1)


class NumpyActor:
    """Dense layers, at most one LSTM, and a tanh-squashed Gaussian, read off TF-Agents' actor networks.

    The observation is a float32 vector, or any nest whose leaves are flattened by our own preprocessing.

    Args:
      actor: The network, with its variables created.
      variables: Names of its variables, as `named_variables` gives them.
      rng: Source of the exploration noise.
      num_envs: Environments that it acts in, each with a memory of its own.

    Raises:
      UnsupportedNetworkError: The network has anything else in it.
    """

    def __init__(
        self, actor: Any, variables: Mapping[str, tf.Variable], rng: np.random.Generator, num_envs: int = 1
    ) -> None:
        names = {variable.ref(): name for name, variable in variables.items()}
        self._layers = _layers_of(actor)
        self._names = [[names[weight.ref()] for weight in layer.weights] for layer in self._layers]
        self._matrices = [layer.new_matrix() for layer in self._layers]
        self._action_shape = tuple(actor.output_tensor_spec.shape)
        leaves = tf.nest.flatten(actor.input_tensor_spec)
        is_nest = tf.nest.is_nested(actor.input_tensor_spec) or leaves[0].shape.rank != 1
        is_recurrent = any(layer.memory for layer in self._layers)

        def make_pass(columns: int | None) -> _Pass:
            return _Pass(self._layers, self._matrices, leaves if is_nest else None, rng, columns)

        self._rng = rng
        as_matrix = num_envs >= _MATRIX_BATCH and not is_recurrent
        self._passes = [make_pass(None) for _ in range(1 if as_matrix else num_envs)]
        self._matrix_pass = make_pass(num_envs) if as_matrix else None
        self.assign({name: variable.numpy() for name, variable in variables.items()})

    def assign(self, weights: Mapping[str, np.ndarray]) -> None:
        """Takes new weights, by name."""
        for layer, matrix, names in zip(self._layers, self._matrices, self._names, strict=True):
            layer.fill(matrix, [weights[name] for name in names])

    def reseed(self, seed: int) -> None:
        """The exploration noise from now on follows from this seed."""
        self._rng.bit_generator.state = np.random.default_rng(seed).bit_generator.state
        for forward in (*self._passes, *([self._matrix_pass] if self._matrix_pass else [])):
            forward.drop_noise()

    def reset(self, env: int) -> None:
        """Forgets what it remembers of an environment."""
        if self._matrix_pass is None:
            self._passes[env].forget()

    def act(self, observation: Any, greedy: bool) -> np.ndarray:
        """The action in environment 0 for one observation, in (-1, 1).

        With mean and log(std) as the network gives them: tanh(mean) where greedy, else tanh(mean + std * noise).
        """
        return self._act_with(self._passes[0], observation, greedy)

    def act_on_all(self, observations: Mapping[int, Any], greedy: bool) -> dict[int, np.ndarray]:
        """Like `act`, for several environments."""
        if self._matrix_pass is None:
            return {env: self._act_with(self._passes[env], each, greedy) for env, each in observations.items()}
        for env, observation in observations.items():
            self._matrix_pass.load(observation, env)
        actions = np.ascontiguousarray(self._matrix_pass.act(greedy).T)
        return {env: actions[env].reshape(self._action_shape) for env in observations}

    def _act_with(self, forward: _Pass, observation: Any, greedy: bool) -> np.ndarray:
        forward.load(observation)
        return forward.act(greedy).reshape(self._action_shape)


class _Pass:
    """Buffers for a forward pass; nothing is allocated in it but the action.

    Vectors `[n]`, or matrices `[n, columns]` with an observation in each column: the products are the same.

    Args:
      layers: The network's, the projection to mean and log(std) last.
      matrices: Theirs; read in every pass.
      leaves: Specs of the observation's leaves; None where it is a float32 vector itself.
      rng: Source of the exploration noise.
      columns: Number of observations; None: vectors.
    """

    def __init__(
        self,
        layers: Sequence[_Layer],
        matrices: Sequence[np.ndarray],
        leaves: Sequence[tf.TensorSpec] | None,
        rng: np.random.Generator,
        columns: int | None,
    ) -> None:
        batch = () if columns is None else (columns,)
        sources = [np.zeros((len(matrix), *batch), np.float32) for matrix in matrices]
        for source in sources:
            source[-1] = 1.0
        output = np.zeros((matrices[-1].shape[1], *batch), np.float32)
        own = [source[: len(source) - 1 - layer.memory] for layer, source in zip(layers, sources, strict=True)]
        self._inputs = own[0]
        self._memories: list[np.ndarray] = []
        self._steps: list[Step] = []
        for layer, matrix, source, into in zip(layers, matrices, sources, [*own[1:], output], strict=True):
            if layer.memory:
                self._add_lstm(layer.memory, matrix, source, into)
                continue
            self._steps.append(functools.partial(np.dot, matrix.T, source, into))
            activation = _ACTIVATIONS[layer.activation]
            if activation is not None:
                self._steps.append(activation(into))
        half = len(output) // 2
        self._mean, self._log_std = output[:half], output[half:]
        self._log_std_max = np.full_like(self._log_std, _LOG_STD_MAX)
        self._leaves = _slices(leaves) if leaves is not None else None
        self._rng = rng
        self._noise = np.zeros((0, *self._mean.shape), np.float32)
        self._noise_used = 0

    def _add_lstm(self, units: int, matrix: np.ndarray, source: np.ndarray, into: np.ndarray) -> None:
        """A step: c <- forget * c + input * candidate; h <- output * tanh(c), for the next layer and the next step."""
        gates = np.zeros((4 * units, *source.shape[1:]), np.float32)
        entry, forget, output, candidate = np.split(gates, 4)
        sigmoids = gates[: 3 * units]
        half = np.full_like(sigmoids, 0.5)
        c, h = np.zeros_like(entry), source[-1 - units : -1]
        self._memories += [c, h]
        self._steps += [
            functools.partial(np.dot, matrix.T, source, gates),
            functools.partial(np.tanh, gates, gates),
            functools.partial(np.multiply, sigmoids, half, sigmoids),
            functools.partial(np.add, sigmoids, half, sigmoids),
            functools.partial(np.multiply, c, forget, c),
            functools.partial(np.multiply, candidate, entry, candidate),
            functools.partial(np.add, c, candidate, c),
            functools.partial(np.tanh, c, h),
            functools.partial(np.multiply, h, output, h),
            functools.partial(np.copyto, into, h),
        ]

    def drop_noise(self) -> None:
        """Numbers that were drawn ahead are not used."""
        self._noise_used = len(self._noise)

    def forget(self) -> None:
        """An episode begins."""
        for memory in self._memories:
            memory[:] = 0.0

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


def _layers_of(actor: Any) -> list[_Layer]:
    """All layers of an actor, the projection last, if there is nothing else in it."""
    if type(actor) is ActorDistributionNetwork:
        layers = _encoder_layers(actor.input_tensor_spec, actor._encoder)
    elif type(actor) is ActorDistributionRnnNetwork and type(actor._lstm_encoder) is LSTMEncodingNetwork:
        encoder = actor._lstm_encoder
        layers = [
            *_encoder_layers(actor.input_tensor_spec, encoder._input_encoder),
            _lstm_layer(encoder._lstm_network),
            *map(_dense_layer, encoder._output_encoder),
        ]
    else:
        raise UnsupportedNetworkError(f"{type(actor).__name__} is not one of TF-Agents' actor networks")
    projection = actor._projection_networks
    _require(type(projection) is TanhNormalProjectionNetwork, f"it ends in {type(projection).__name__}")
    _require(projection._std_transform is std_clip_transform, "its standard deviation is not clipped by TF-Agents")
    _require(projection._projection_layer.activation is tf.keras.activations.linear, "its projection has an activation")
    sample_spec = projection._sample_spec
    _require(bool(np.all(sample_spec.minimum == -1) and np.all(sample_spec.maximum == 1)), "actions are not in [-1, 1]")
    return [*layers, _dense_layer(projection._projection_layer)]


def _encoder_layers(spec: Any, encoder: Any) -> list[_Layer]:
    _check_preprocessing(spec, encoder)
    layers = [layer for layer in encoder._postprocessing_layers if type(layer) is not tf.keras.layers.Flatten]
    return [_dense_layer(layer) for layer in layers]


def _dense_layer(layer: Any) -> _Layer:
    _require(type(layer) is tf.keras.layers.Dense, f"it has a {type(layer).__name__} layer")
    _require(layer.activation in _ACTIVATIONS, f"it has the activation {layer.activation}")
    _require(layer.use_bias, "it has a layer without bias")
    return _Layer((layer.kernel, layer.bias), layer.activation)


def _lstm_layer(unroll: Any) -> _Layer:
    cell: Any = getattr(unroll, "cell", None)
    _require(type(unroll) is DynamicUnroll and type(cell) is tf.keras.layers.LSTMCell, "its memory is not one LSTM")
    usual = cell.activation is tf.keras.activations.tanh and cell.recurrent_activation is tf.keras.activations.sigmoid
    _require(usual and cell.use_bias, "its LSTM is not of the usual kind")
    return _Layer((cell.kernel, cell.recurrent_kernel, cell.bias), None, memory=int(cell.units))


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
