"""An actor's network as a list of layers, which `numpy_network.py` computes: in workers and beside exported files."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.agents.sac.sac_agent import std_clip_transform
from tf_agents.agents.sac.tanh_normal_projection_network import TanhNormalProjectionNetwork
from tf_agents.keras_layers.dynamic_unroll_layer import DynamicUnroll
from tf_agents.networks.actor_distribution_network import ActorDistributionNetwork
from tf_agents.networks.actor_distribution_rnn_network import ActorDistributionRnnNetwork
from tf_agents.networks.lstm_encoding_network import LSTMEncodingNetwork

from tfagents_system.agents.actor import LayeredActor, NormalizedActor
from tfagents_system.agents.encoder import FlattenedLeaf
from tfagents_system.agents.layers import BatchRenormalization, ResidualBlock
from tfagents_system.agents.normalization import MAX_NORMALIZED, VARIANCE_EPSILON
from tfagents_system.agents.value_network import leaky_relu
from tfagents_system.policies.policy_description import shape_and_dtype

Weights = Mapping[str, np.ndarray]
ToArray = Callable[[Weights], np.ndarray]

_ACTIVATIONS = {
    tf.keras.activations.linear: "linear",
    tf.keras.activations.relu: "relu",
    tf.keras.activations.tanh: "tanh",
    leaky_relu: "leaky_relu",
}


class UnsupportedNetworkError(Exception):
    """The network contains something that `numpy_network.py` can't compute; the message says what."""


class NetworkLayers:
    """Dense layers, at most one LSTM, and a tanh-squashed Gaussian, read from TF-Agents' actor networks and our own.

    The observation is a float32 vector, or any nest whose leaves are flattened by our own preprocessing, normalised or
    not. Batch renormalisation, layer normalisation and residual blocks are read, too.

    Args:
      actor: The network, with its variables created.
      variables: Names of its variables, from `named_variables`.
      frames: Of each leaf of the observation that the actor takes, as of FrameStackPolicy; empty where none is stacked.
      zero_leaf: The leaf that is 0 always and that nobody gives; None: there is none.

    Attributes:
      observation: Shape and dtype of each leaf of the observation, of single frames, and `frames` where it is stacked;
        `is_zero` where nobody gives it, `is_picture` where it has pixels.
      sizes: How many numbers each leaf has.
      layers: As `numpy_network.Network` takes them.

    Raises:
      UnsupportedNetworkError: The network contains anything else.
    """

    def __init__(
        self,
        actor: Any,
        variables: Mapping[str, tf.Variable],
        frames: Sequence[int] = (),
        zero_leaf: int | None = None,
    ) -> None:
        self._names = {variable.ref(): name for name, variable in variables.items()}
        self._arrays: dict[str, ToArray] = {}
        stacked = [shape_and_dtype(spec) for spec in tf.nest.flatten(actor.input_tensor_spec)]
        self.sizes = [int(np.prod(spec["shape"])) for spec in stacked]
        self.observation = [
            _of_single_frames(spec, count) for spec, count in zip(stacked, frames or [1] * len(stacked), strict=True)
        ]
        if zero_leaf is not None:
            self.observation[zero_leaf]["is_zero"] = True
        self.layers: list[dict[str, Any]] = self._read(actor)

    def _read(self, actor: Any) -> list[dict[str, Any]]:
        normalized = []
        if type(actor) is NormalizedActor:
            normalized.append(self._input_normalization(actor.normalization))
            actor = actor.actor
        layers = _keras_layers(actor)
        self._mark_pictures(actor._encoder if hasattr(actor, "_encoder") else actor._lstm_encoder._input_encoder)
        return [*normalized, *map(self._layer, layers)]

    def _mark_pictures(self, encoder: Any) -> None:
        """Says of which leaves the numbers are divided by 255, as `FlattenedLeaf` does."""
        for described, layer in zip(self.observation, encoder._flat_preprocessing_layers or (), strict=False):
            if layer.is_picture:
                described["is_picture"] = True

    def arrays(self, weights: Weights) -> dict[str, np.ndarray]:
        """The arrays of the layers, by the names that the layers use.

        Args:
          weights: The values of all variables, by name.
        """
        return {name: to_array(weights) for name, to_array in self._arrays.items()}

    def _layer(self, layer: Any) -> dict[str, Any]:
        kind = type(layer)
        if kind is BatchRenormalization:
            return self._renormalization(layer)
        if kind is tf.keras.layers.LayerNormalization:
            return self._described("layer_norm", scale=layer.gamma, shift=layer.beta) | {"epsilon": layer.epsilon}
        if kind is ResidualBlock:
            parts = (layer.norm, layer.expand, layer.project)
            return {"kind": "residual", "layers": [self._layer(part) for part in parts]}
        if kind is tf.keras.layers.LSTMCell:
            tanh, sigmoid = tf.keras.activations.tanh, tf.keras.activations.sigmoid
            is_usual = layer.activation is tanh and layer.recurrent_activation is sigmoid and layer.use_bias
            _require(is_usual, "its LSTM is not of the usual kind")
            kernels = {"kernel": layer.kernel, "recurrent_kernel": layer.recurrent_kernel}
            return self._described("lstm", **kernels, bias=layer.bias)
        if kind is tf.keras.layers.Activation:
            return {"kind": "activation", "activation": _activation(layer)}
        _require(kind is tf.keras.layers.Dense, f"it has a {kind.__name__} layer")
        _require(layer.use_bias, "it has a layer without bias")
        return self._described("dense", kernel=layer.kernel, bias=layer.bias) | {"activation": _activation(layer)}

    def _renormalization(self, layer: BatchRenormalization) -> dict[str, Any]:
        """Outside of training."""
        gamma, variance = self._value(layer.gamma), self._value(layer.moving_variance)

        def scale(weights: Weights) -> np.ndarray:
            return gamma(weights) / np.sqrt(variance(weights) + np.float32(layer.epsilon))

        described = self._described("normalization", mean=layer.moving_mean, scale=scale, shift=layer.beta)
        return described | {"limit": None}

    def _input_normalization(self, normalization: Any) -> dict[str, Any]:
        """That of all leaves of an observation, as of one vector; pictures are left as they are."""
        layers = {layer.leaf: layer for layer in normalization.leaves}
        sizes = self.sizes

        def joined(of_leaf: Callable[[Any], ToArray], of_pixels: float) -> ToArray:
            parts: list[ToArray] = [functools.partial(_constant, size, of_pixels) for size in sizes]
            for leaf, layer in layers.items():
                parts[leaf] = of_leaf(layer)
            return lambda weights: np.concatenate([np.ravel(part(weights)) for part in parts], dtype=np.float32)

        described = self._described(
            "normalization",
            mean=joined(lambda layer: self._value(layer.mean), 0.0),
            scale=joined(lambda layer: self._inverse_std(layer.variance), 1.0),
            shift=functools.partial(_constant, sum(sizes), 0.0),
        )
        return described | {"limit": MAX_NORMALIZED}

    def _inverse_std(self, variable: tf.Variable) -> ToArray:
        variance = self._value(variable)
        return lambda weights: 1.0 / np.sqrt(variance(weights) + np.float32(VARIANCE_EPSILON))

    def _described(self, kind: str, **parts: tf.Variable | ToArray) -> dict[str, Any]:
        names = {part: f"weight_{len(self._arrays) + k}_{part}" for k, part in enumerate(parts)}
        for part, value in parts.items():
            self._arrays[names[part]] = value if callable(value) else self._value(value)
        return {"kind": kind, "arrays": names}

    def _value(self, variable: tf.Variable) -> ToArray:
        return operator.itemgetter(self._names[variable.ref()])


def _activation(layer: Any) -> str:
    _require(layer.activation in _ACTIVATIONS, f"it has the activation {layer.activation}")
    return _ACTIVATIONS[layer.activation]


def _of_single_frames(spec: dict[str, Any], frames: int) -> dict[str, Any]:
    if frames == 1:
        return spec
    *others, size = spec["shape"]
    return {**spec, "shape": [*others, size // frames], "frames": frames}


def _constant(size: int, value: float, weights: Weights) -> np.ndarray:
    del weights
    return np.full(size, value, np.float32)


def _keras_layers(actor: Any) -> list[Any]:
    """The layers of an actor in order, the projection last, if it contains nothing else."""
    if type(actor) in (ActorDistributionNetwork, LayeredActor):
        layers = [*_encoder_layers(actor.input_tensor_spec, actor._encoder), *getattr(actor, "_hidden_layers", [])]
    elif type(actor) is ActorDistributionRnnNetwork and type(actor._lstm_encoder) is LSTMEncodingNetwork:
        encoder = actor._lstm_encoder
        cell = getattr(encoder._lstm_network, "cell", None)
        is_lstm = type(encoder._lstm_network) is DynamicUnroll and type(cell) is tf.keras.layers.LSTMCell
        _require(is_lstm, "its memory is not one LSTM")
        before = _encoder_layers(actor.input_tensor_spec, encoder._input_encoder)
        layers = [*before, cell, *encoder._output_encoder]
    else:
        raise UnsupportedNetworkError(f"{type(actor).__name__} is not one of TF-Agents' actor networks or our own")
    projection = actor._projection_networks
    _require(type(projection) is TanhNormalProjectionNetwork, f"it ends in {type(projection).__name__}")
    _require(projection._std_transform is std_clip_transform, "its standard deviation is not clipped by TF-Agents")
    layer, spec = projection._projection_layer, projection._sample_spec
    _require(layer.activation is tf.keras.activations.linear, "its projection has an activation")
    _require(bool(np.all(spec.minimum == -1) and np.all(spec.maximum == 1)), "actions are not in [-1, 1]")
    return [*layers, layer]


def _encoder_layers(spec: Any, encoder: Any) -> list[Any]:
    if encoder._flat_preprocessing_layers is None:
        is_vector = not tf.nest.is_nested(spec) and spec.shape.rank == 1 and spec.dtype == tf.float32
        _require(is_vector, "the observation is not one float32 vector")
    check_flattening(encoder, len(tf.nest.flatten(spec)))
    return [layer for layer in encoder._postprocessing_layers if type(layer) is not tf.keras.layers.Flatten]


def check_flattening(encoder: Any, num_leaves: int) -> None:
    """Whether an encoder only flattens and joins the leaves of an observation, as our own does."""
    layers, combiner = encoder._flat_preprocessing_layers, encoder._preprocessing_combiner
    if layers is not None:
        ours = len(layers) == num_leaves and all(type(layer) is FlattenedLeaf for layer in layers)
        _require(ours, "it has preprocessing layers")
    joins = type(combiner) is tf.keras.layers.Concatenate and combiner.axis == -1
    _require(joins if layers is not None and num_leaves > 1 else combiner is None, "it has a preprocessing_combiner")


def _require(condition: bool, reason: str) -> None:
    if not condition:
        raise UnsupportedNetworkError(reason)
