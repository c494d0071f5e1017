"""The layers of the default actors as `NumpyActor` computes them, read off the networks."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.agents.sac.sac_agent import std_clip_transform
from tf_agents.agents.sac.tanh_normal_projection_network import TanhNormalProjectionNetwork
from tf_agents.keras_layers.dynamic_unroll_layer import DynamicUnroll
from tf_agents.networks.actor_distribution_network import ActorDistributionNetwork
from tf_agents.networks.actor_distribution_rnn_network import ActorDistributionRnnNetwork
from tf_agents.networks.lstm_encoding_network import LSTMEncodingNetwork

from tfagents_system.agents.layered_networks import LayeredActor
from tfagents_system.agents.layers import BatchRenormalization, ResidualBlock
from tfagents_system.agents.networks import FlattenedLeaf
from tfagents_system.agents.normalization import NormalizedActor
from tfagents_system.policies.numpy_maps import InputMap, InputNormalization, Step, layer_norm_map, renormalization_map


class UnsupportedNetworkError(Exception):
    """The network is not one that `NumpyActor` can compute; its text says why."""


@dataclasses.dataclass(frozen=True)
class Layer:
    """One product with a matrix, what is done to its input before and what follows it.

    Attributes:
      weights: Its variables, each `[rows, columns]`, whose rows make up the matrix from above; last the bias, one row,
        which a constant 1 behind the input multiplies: it costs no addition of its own.
      activation: A key of `ACTIVATIONS`; of an LSTM None.
      memory: Units of an LSTM, whose input ends in its last output; 0 of any other layer.
      before: What maps its input.
      adds: The product is added to the stream of residual blocks, which is the input of those that standardise it.
    """

    weights: tuple[tf.Variable, ...]
    activation: Any
    memory: int = 0
    before: InputMap | None = None
    adds: bool = False

    @property
    def variables(self) -> tuple[tf.Variable, ...]:
        return self.weights if self.before is None else (*self.weights, *self.before.variables)

    @property
    def standardizes(self) -> bool:
        return self.before is not None and self.before.standardizes

    def new_matrix(self) -> np.ndarray:
        rows = sum(1 if weight.shape.rank == 1 else weight.shape[0] for weight in self.weights)
        return np.zeros((rows, self.weights[-1].shape[0]), np.float32)

    def fill(self, matrix: np.ndarray, values: Sequence[np.ndarray]) -> None:
        """Takes the values of `variables`."""
        count = len(self.weights)
        np.concatenate([np.atleast_2d(value) for value in values[:count]], out=matrix)
        if self.before is not None:
            self.before.fold(values[count:], matrix)
        if self.memory:
            # From Keras' order of the gates (input, forget, candidate, output) to one with the candidate last; and
            # sigmoid(x) = (1 + tanh(x / 2)) / 2, so that one tanh does for all four.
            entry, forget, candidate, output = np.split(matrix, 4, axis=1)
            matrix[:] = np.concatenate([0.5 * entry, 0.5 * forget, 0.5 * output, candidate], axis=1)


def _relu(values: np.ndarray) -> Step:
    zeros = np.zeros_like(values)  # A scalar 0.0 would be converted anew in every call: three times as slow.
    return functools.partial(np.maximum, values, zeros, values)


def _tanh(values: np.ndarray) -> Step:
    return functools.partial(np.tanh, values, values)


ACTIVATIONS: dict[Any, Callable[[np.ndarray], Step] | None] = {
    tf.keras.activations.relu: _relu,
    tf.keras.activations.tanh: _tanh,
    tf.keras.activations.linear: None,
}


def slices_of(leaves: Sequence[tf.TensorSpec]) -> list[tuple[slice, bool]]:
    """Where each leaf lies in the network's input, and whether it is made of pixels."""
    slices, start = [], 0
    for leaf in leaves:
        size = int(np.prod(leaf.shape, dtype=np.int64))
        slices.append((slice(start, start + size), leaf.dtype == tf.uint8))
        start += size
    return slices


def layers_of(actor: Any) -> list[Layer]:
    """All layers of an actor, the projection last, if there is nothing else in it."""
    before_projection: InputMap | None = None
    if type(actor) is LayeredActor:
        layers, before_projection = _hidden_layers(actor)
    elif type(actor) is ActorDistributionNetwork:
        layers = _encoder_layers(actor.input_tensor_spec, actor._encoder)
    elif type(actor) is ActorDistributionRnnNetwork and type(actor._lstm_encoder) is LSTMEncodingNetwork:
        encoder = actor._lstm_encoder
        layers = [
            *_encoder_layers(actor.input_tensor_spec, encoder._input_encoder),
            _lstm_layer(encoder._lstm_network),
            *map(_dense_layer, encoder._output_encoder),
        ]
    else:
        raise UnsupportedNetworkError(f"{type(actor).__name__} is not one of TF-Agents' actor networks or our own")
    projection = actor._projection_networks
    _require(type(projection) is TanhNormalProjectionNetwork, f"it ends in {type(projection).__name__}")
    _require(projection._std_transform is std_clip_transform, "its standard deviation is not clipped by TF-Agents")
    _require(projection._projection_layer.activation is tf.keras.activations.linear, "its projection has an activation")
    sample_spec = projection._sample_spec
    _require(bool(np.all(sample_spec.minimum == -1) and np.all(sample_spec.maximum == 1)), "actions are not in [-1, 1]")
    return [*layers, _dense_layer(projection._projection_layer, before_projection)]


def _hidden_layers(actor: LayeredActor) -> tuple[list[Layer], InputMap | None]:
    """All layers but the projection, and what maps the projection's input."""
    layers = _encoder_layers(actor.input_tensor_spec, actor._encoder)
    before: InputMap | None = None
    for layer in actor._hidden_layers:
        if type(layer) is BatchRenormalization:
            before = renormalization_map(layer)
        elif type(layer) is tf.keras.layers.LayerNormalization:
            before = layer_norm_map(layer)
        elif type(layer) is ResidualBlock:
            layers += [_dense_layer(layer.expand, layer_norm_map(layer.norm)), _dense_layer(layer.project, adds=True)]
        else:
            layers.append(_dense_layer(layer, before))
            before = None
    return layers, before


def normalization_of(actor: Any, leaves: Sequence[tf.TensorSpec]) -> InputNormalization | None:
    if type(actor) is not NormalizedActor:
        return None
    slices = [part for part, _ in slices_of(leaves)]
    return InputNormalization(actor.normalization.leaves, slices, slices[-1].stop)


def _encoder_layers(spec: Any, encoder: Any) -> list[Layer]:
    _check_preprocessing(spec, encoder)
    layers = [layer for layer in encoder._postprocessing_layers if type(layer) is not tf.keras.layers.Flatten]
    return [_dense_layer(layer) for layer in layers]


def _dense_layer(layer: Any, before: InputMap | None = None, adds: bool = False) -> Layer:
    _require(type(layer) is tf.keras.layers.Dense, f"it has a {type(layer).__name__} layer")
    _require(layer.activation in ACTIVATIONS, f"it has the activation {layer.activation}")
    _require(layer.use_bias, "it has a layer without bias")
    return Layer((layer.kernel, layer.bias), layer.activation, before=before, adds=adds)


def _lstm_layer(unroll: Any) -> Layer:
    cell: Any = getattr(unroll, "cell", None)
    _require(type(unroll) is DynamicUnroll and type(cell) is tf.keras.layers.LSTMCell, "its memory is not one LSTM")
    usual = cell.activation is tf.keras.activations.tanh and cell.recurrent_activation is tf.keras.activations.sigmoid
    _require(usual and cell.use_bias, "its LSTM is not of the usual kind")
    return Layer((cell.kernel, cell.recurrent_kernel, cell.bias), None, memory=int(cell.units))


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
