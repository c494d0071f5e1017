"""What a policy is: its network as layers for `numpy_policy.py`, and the JSON description in exported files."""

from __future__ import annotations

import functools
import math
import operator
import re
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
from tf_agents.policies.actor_policy import ActorPolicy
from tf_agents.specs import array_spec

from tfagents_system.agents.actor import LayeredActor, NormalizedActor
from tfagents_system.agents.encoder import FlattenedLeaf
from tfagents_system.agents.layers import BatchRenormalization, ResidualBlock
from tfagents_system.agents.normalization import MAX_NORMALIZED, VARIANCE_EPSILON
from tfagents_system.agents.value_network import (
    LEAKY_SLOPE,
    ExploringPolicy,
    SamplingPolicy,
    ScorePolicy,
    ValueNetwork,
    leaky_relu,
)
from tfagents_system.envs.history import horizon_time_leaf
from tfagents_system.errors import UserError
from tfagents_system.policies.names import fit_names
from tfagents_system.policies.numpy_policy import FORMAT
from tfagents_system.policies.weights import named_variables

Description = dict[str, Any]
Weights = Mapping[str, np.ndarray]
ToArray = Callable[[Weights], np.ndarray]

_ACTIVATIONS = {
    tf.keras.activations.linear: "linear",
    tf.keras.activations.relu: "relu",
    tf.keras.activations.tanh: "tanh",
    leaky_relu: "leaky_relu",
}


class UnsupportedNetworkError(Exception):
    """The policy contains something that `numpy_policy.py` can't compute; the message says what."""


class NetworkLayers:
    """The network of a policy, as `numpy_policy.Network` takes it.

    That is Dense layers, at most one LSTM, and a tanh-squashed Gaussian, read from TF-Agents' actor networks and our
    own; or what `ValueNetwork.acting_values` computes. The observation is a float32 vector, or any nest of leaves that
    are flattened by our own preprocessing, normalised or not.

    Args:
      policy: An agent's, with its variables created.
      frames: Of each leaf of its observation; empty where none is stacked.

    Attributes:
      variables: The policy's, by name.
      observation: Shape and dtype of each leaf of the observation, of single frames, and `frames` where it is stacked;
        `is_zero` where nobody gives it (`horizon_time`), `is_picture` where it has pixels.
      layers: A dictionary each.

    Raises:
      UnsupportedNetworkError: The policy is any other, or its network contains anything else.
    """

    def __init__(self, policy: Any, frames: Sequence[int] = ()) -> None:
        network, is_actor = network_of(policy), type(policy) is ActorPolicy
        self.variables = named_variables(policy)
        self._names = {variable.ref(): name for name, variable in self.variables.items()}
        self._arrays: dict[str, ToArray] = {}
        stacked = [shape_and_dtype(spec) for spec in tf.nest.flatten(network.input_tensor_spec)]
        self._sizes = [int(np.prod(spec["shape"])) for spec in stacked]
        self.observation = [
            _of_single_frames(spec, count) for spec, count in zip(stacked, frames or [1] * len(stacked), strict=True)
        ]
        zero_leaf = horizon_time_leaf(policy.time_step_spec.observation)
        if zero_leaf is not None:
            self.observation[zero_leaf]["is_zero"] = True
        self.layers: list[dict[str, Any]] = (self._read_actor if is_actor else self._read_values)(network)

    def arrays(self, weights: Weights) -> dict[str, np.ndarray]:
        """The arrays of the layers, by the names that the layers use.

        Args:
          weights: The values of all variables, by name.
        """
        return {name: to_array(weights) for name, to_array in self._arrays.items()}

    def name_of(self, variable: tf.Variable) -> str:
        """A variable's name among the weights."""
        return self._names[variable.ref()]

    def _read_actor(self, actor: Any) -> list[dict[str, Any]]:
        normalized = []
        if type(actor) is NormalizedActor:
            normalized.append(self._input_normalization(actor.normalization))
            actor = actor.actor
        layers = _keras_layers(actor)
        self._mark_pictures(actor._encoder if hasattr(actor, "_encoder") else actor._lstm_encoder._input_encoder)
        return [*normalized, *map(self._layer, layers)]

    def _read_values(self, network: ValueNetwork) -> list[dict[str, Any]]:
        _require(network.images is None, "it has convolutions")
        _check_flattening(network.encoder, len(self._sizes))
        self._mark_pictures(network.encoder)
        layers = [] if network.normalization is None else [self._input_normalization(network.normalization)]
        layers += [self._layer(layer) for layer in network.acting_layers]
        heads = [self._joined_heads(network)] if network.head_layers else []
        if network.embedding is not None:
            heads = [self._quantiles(network, heads)]
        return [*layers, *heads, self._joined_last_layers(network)]

    def _mark_pictures(self, encoder: Any) -> None:
        """Says of which leaves the numbers are divided by 255, as `FlattenedLeaf` does."""
        for described, layer in zip(self.observation, encoder._flat_preprocessing_layers or (), strict=False):
            if layer.is_picture:
                described["is_picture"] = True

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
        sizes = self._sizes

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
        return operator.itemgetter(self.name_of(variable))

    def _quantiles(self, network: ValueNetwork, heads: list[dict[str, Any]]) -> dict[str, Any]:
        """The last layers are linear: of the mean over the fixed fractions they give the mean."""
        multiples = math.pi * np.arange(1, network.num_cosines + 1, dtype=np.float32)
        cosines = np.cos(network.acting_fractions()[:, None] * multiples).astype(np.float32)
        embedding: Any = network.embedding
        _require(embedding.activation is leaky_relu, "its embedding of fractions has another activation")
        kernel, bias = self._value(embedding.kernel), self._value(embedding.bias)

        def phi(weights: Weights) -> np.ndarray:
            """Of the fixed fractions, `[units, K]`."""
            values = cosines @ kernel(weights) + bias(weights)
            return np.maximum(values, values * np.float32(LEAKY_SLOPE)).T

        return self._described("quantiles", phi=phi) | {"layers": heads}

    def _joined_heads(self, network: ValueNetwork) -> dict[str, Any]:
        """The hidden layers of all heads as one."""
        kernels = [self._value(layer.kernel) for layer in network.head_layers]
        biases = [self._value(layer.bias) for layer in network.head_layers]
        described = self._described(
            "dense",
            kernel=lambda weights: np.concatenate([kernel(weights) for kernel in kernels], axis=1),
            bias=lambda weights: np.concatenate([bias(weights) for bias in biases]),
        )
        return described | {"activation": self._layer(network.head_layers[0])["activation"]}

    def _joined_last_layers(self, network: ValueNetwork) -> dict[str, Any]:
        """The last layers of all heads as one: V + A - mean_a A is linear in both."""
        if len(network.last_layers) == 1:
            return self._layer(network.last_layers[0])
        value, advantage = ([self._value(layer.kernel), self._value(layer.bias)] for layer in network.last_layers)

        def kernel(weights: Weights) -> np.ndarray:
            of_advantage = advantage[0](weights)
            centered = of_advantage - of_advantage.mean(axis=1, keepdims=True)
            return np.concatenate([np.repeat(value[0](weights), centered.shape[1], axis=1), centered])

        def bias(weights: Weights) -> np.ndarray:
            of_advantage = advantage[1](weights)
            return value[1](weights) + of_advantage - of_advantage.mean()

        return self._described("dense", kernel=kernel, bias=bias) | {"activation": "linear"}


def network_of(policy: Any) -> Any:
    """The network of an agent's policy.

    Raises:
      UnsupportedNetworkError: The policy may do more than choose actions by a network.
    """
    if type(policy) is ActorPolicy:  # Exactly these classes: a subclass may act in another way.
        _require(policy._observation_normalizer is None, "its policy normalises observations")
        return policy._actor_network
    is_known = type(policy) in (ScorePolicy, ExploringPolicy, SamplingPolicy)
    _require(is_known, f"{type(policy).__name__} is not TF-Agents' ActorPolicy itself")
    return policy.network


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
    _check_flattening(encoder, len(tf.nest.flatten(spec)))
    return [layer for layer in encoder._postprocessing_layers if type(layer) is not tf.keras.layers.Flatten]


def _check_flattening(encoder: Any, num_leaves: int) -> None:
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


def describe(
    observation_spec: Any,
    actions: Any,
    policy_state_spec: Any,
    checkpoint: str,
    train_step: int,
    iteration: int | None,
) -> Description:
    """The description of a policy with one action array.

    Args:
      observation_spec: Nest of TensorSpecs without batch dimension.
      actions: LeafActions, or a nest of them.
      policy_state_spec: Nest of TensorSpecs; empty without memory.
      checkpoint: Name of the checkpoint.
      train_step: Updates done when it was saved.
      iteration: The iteration in which it was saved; None if unknown.

    Returns:
      observation: of each array its name (an identifier), path in the nest, shape and dtype; action: shape, dtype,
      the bounds low and high and, where the policy chooses one of n actions, their rows; state: name and shape of each
      array; checkpoint, train_step, iteration, format.

    Raises:
      UserError: The action is a nest.
    """
    if tf.nest.is_nested(actions):
        raise UserError("an exported policy has one array of actions, this environment's is a nest: use the SavedModel")
    paths = [path for path, _ in tree.flatten_with_path(observation_spec)]
    leaves = zip(_names(paths), paths, tf.nest.flatten(observation_spec), strict=True)
    return {
        "format": FORMAT,
        "checkpoint": checkpoint,
        "train_step": train_step,
        "iteration": iteration,
        "observation": [{"name": name, "path": list(path), **shape_and_dtype(spec)} for name, path, spec in leaves],
        "action": actions.describe(),
        "state": [
            {"name": f"state_{k}", **shape_and_dtype(spec)} for k, spec in enumerate(tf.nest.flatten(policy_state_spec))
        ],
    }


def observation_array_specs(description: Description) -> Any:
    """The nest of ArraySpecs of an observation; lists come back as tuples."""
    leaves = [
        (tuple(leaf["path"]), array_spec.ArraySpec(tuple(leaf["shape"]), np.dtype(leaf["dtype"]), leaf["name"]))
        for leaf in description["observation"]
    ]
    return _nest(leaves)


def action_array_spec(description: Description) -> array_spec.BoundedArraySpec:
    """The environment's own action spec."""
    action = description["action"]
    return array_spec.BoundedArraySpec(
        tuple(action["shape"]), np.dtype(action["dtype"]), action["low"], action["high"], "action"
    )


def shape_and_dtype(spec: tf.TensorSpec) -> dict[str, Any]:
    """As in a description."""
    return {"shape": spec.shape.as_list(), "dtype": spec.dtype.name}


def _names(paths: Sequence[tuple[Any, ...]]) -> list[str]:
    """An identifier for each path: `observation`, `sensors_touch`, `observation_0`."""
    joined = ["_".join(map(str, path)) for path in paths]
    wanted = [name if re.match("[A-Za-z]", name) else f"observation_{name}".rstrip("_") for name in joined]
    return fit_names(wanted, is_taken=_is_of_another_array)


def _is_of_another_array(name: str) -> bool:
    return re.fullmatch(r"(next_)?state_\d+|action", name) is not None


def _nest(leaves: Sequence[tuple[tuple[Any, ...], Any]]) -> Any:
    """The nest of dictionaries and tuples whose leaves have these paths."""
    if len(leaves) == 1 and not leaves[0][0]:
        return leaves[0][1]
    children: dict[Any, list[tuple[tuple[Any, ...], Any]]] = {}
    for path, leaf in leaves:
        children.setdefault(path[0], []).append((path[1:], leaf))
    nests: Mapping[Any, Any] = {key: _nest(below) for key, below in children.items()}
    return tuple(nests.values()) if all(isinstance(key, int) for key in nests) else nests
