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
from tf_agents.policies.actor_policy import ActorPolicy

from tfagents_system.agents.encoder import FlattenedLeaf
from tfagents_system.agents.layers import BatchRenormalization, ResidualBlock
from tfagents_system.agents.networks import (
    LEAKY_SLOPE,
    Actor,
    ExploringPolicy,
    SamplingPolicy,
    ScorePolicy,
    ValueNetwork,
    leaky_relu,
)
from tfagents_system.agents.normalization import MAX_NORMALIZED, VARIANCE_EPSILON
from tfagents_system.envs.history import horizon_time_leaf
from tfagents_system.errors import UserError
from tfagents_system.policies.names import fit_names
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

    That is what an `Actor` computes, or `ValueNetwork.acting_values`: Dense layers, at most one LSTM, a tanh-squashed
    Gaussian. The observation is a float32 vector, or any nest of leaves that are only flattened, normalised or not.

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
        network = network_of(policy)
        self.variables = named_variables(policy)
        self._names = {variable.ref(): name for name, variable in self.variables.items()}
        self._arrays: dict[str, ToArray] = {}
        stacked = [_shape_and_dtype(spec) for spec in tf.nest.flatten(network.input_tensor_spec)]
        self.observation = [
            _of_single_frames(spec, count) for spec, count in zip(stacked, frames or [1] * len(stacked), strict=True)
        ]
        zero_leaf = horizon_time_leaf(policy.time_step_spec.observation)
        if zero_leaf is not None:
            self.observation[zero_leaf]["is_zero"] = True
        body = network.body
        _require(body.images is None, "it has convolutions")
        if body.encoder is not None:
            self._read_encoder(body.encoder)
        layers = [*([] if body.lstm is None else [body.lstm.cell]), *body.acting_layers]
        self.layers: list[dict[str, Any]] = [self._layer(layer) for layer in layers]
        if body.normalization is not None:
            sizes = [int(np.prod(spec["shape"])) for spec in stacked]
            self.layers.insert(0, self._input_normalization(body.normalization, sizes))
        if isinstance(network, Actor):
            _require(not tf.nest.is_nested(network.projections), "it has several arrays of actions")
            self.layers.append(self._layer(network.projections._projection_layer))
        else:
            self.layers += self._heads(network)

    def arrays(self, weights: Weights) -> dict[str, np.ndarray]:
        """The arrays of the layers, by the names that the layers use.

        Args:
          weights: The values of all variables, by name.
        """
        return {name: to_array(weights) for name, to_array in self._arrays.items()}

    def name_of(self, variable: tf.Variable) -> str:
        """A variable's name among the weights."""
        return self._names[variable.ref()]

    def _read_encoder(self, encoder: Any) -> None:
        """An encoder that only flattens and joins the leaves of an observation; pixels are divided by 255."""
        layers, combiner = encoder._flat_preprocessing_layers or (), encoder._preprocessing_combiner
        flattens = combiner is None or (layers and type(combiner) is tf.keras.layers.Concatenate)
        _require(flattens, "it has a preprocessing_combiner")
        for described, layer in zip(self.observation, layers, strict=bool(layers)):
            _require(type(layer) is FlattenedLeaf, "it has preprocessing layers")
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
            kernels = {"kernel": layer.kernel, "recurrent_kernel": layer.recurrent_kernel}
            return self._described("lstm", **kernels, bias=layer.bias)
        if kind is tf.keras.layers.Activation:
            return {"kind": "activation", "activation": _activation(layer)}
        _require(kind is tf.keras.layers.Dense, f"it has a {kind.__name__} layer")
        return self._described("dense", kernel=layer.kernel, bias=layer.bias) | {"activation": _activation(layer)}

    def _renormalization(self, layer: BatchRenormalization) -> dict[str, Any]:
        """Outside of training."""
        gamma, variance = self._value(layer.gamma), self._value(layer.moving_variance)

        def scale(weights: Weights) -> np.ndarray:
            return gamma(weights) / np.sqrt(variance(weights) + np.float32(layer.epsilon))

        described = self._described("normalization", mean=layer.moving_mean, scale=scale, shift=layer.beta)
        return described | {"limit": None}

    def _input_normalization(self, normalization: Any, sizes: Sequence[int]) -> dict[str, Any]:
        """That of all leaves of an observation, as of one vector; pictures are left as they are."""
        layers = {layer.leaf: layer for layer in normalization.leaves}

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

    def _heads(self, network: ValueNetwork) -> list[dict[str, Any]]:
        """The heads of all actions' values as one: the last layers are linear, and so is V + A - mean_a A."""
        heads = []
        if network.head_layers:
            activation = _activation(network.head_layers[0])
            heads.append(self._dense(_joined([self._weights(layer) for layer in network.head_layers]), activation))
        if network.embedding is not None:
            heads = [self._quantiles(network, heads)]
        last = [self._weights(layer) for layer in network.last_layers]
        return [*heads, self._dense(last[0] if len(last) == 1 else _dueling(*last), "linear")]

    def _weights(self, layer: Any) -> ToArray:
        """The kernel of a Dense layer, and its bias in one more row."""
        kernel, bias = self._value(layer.kernel), self._value(layer.bias)
        return lambda weights: np.vstack([kernel(weights), bias(weights)])

    def _dense(self, rows: ToArray, activation: str) -> dict[str, Any]:
        parts = {"kernel": lambda weights: rows(weights)[:-1], "bias": lambda weights: rows(weights)[-1]}
        return self._described("dense", **parts) | {"activation": activation}

    def _quantiles(self, network: ValueNetwork, heads: list[dict[str, Any]]) -> dict[str, Any]:
        """The last layers are linear: of the mean over the fixed fractions they give the mean."""
        multiples = math.pi * np.arange(1, network.num_cosines + 1, dtype=np.float32)
        cosines = np.cos(network.acting_fractions()[:, None] * multiples).astype(np.float32)
        rows = self._weights(network.embedding)

        def phi(weights: Weights) -> np.ndarray:
            """Of the fixed fractions, `[units, K]`."""
            kernel_and_bias = rows(weights)
            values = cosines @ kernel_and_bias[:-1] + kernel_and_bias[-1]
            return np.maximum(values, values * np.float32(LEAKY_SLOPE)).T

        return self._described("quantiles", phi=phi) | {"layers": heads}


def network_of(policy: Any) -> Any:
    """The network of an agent's policy.

    Raises:
      UnsupportedNetworkError: The policy may do more than choose actions by a network of ours.
    """
    # Exactly these classes: a subclass may act in another way.
    is_actor = type(policy) is ActorPolicy and policy._observation_normalizer is None
    is_known = is_actor or type(policy) in (ScorePolicy, ExploringPolicy, SamplingPolicy)
    _require(is_known, f"{type(policy).__name__} is none of the policies that NumPy computes")
    network = policy._actor_network if is_actor else policy.network
    _require(type(network) in (Actor, ValueNetwork), f"{type(network).__name__} is none of the toolkit's networks")
    return network


def _joined(parts: Sequence[ToArray]) -> ToArray:
    return lambda weights: np.concatenate([part(weights) for part in parts], axis=1)


def _dueling(value: ToArray, advantage: ToArray) -> ToArray:
    """V + A - mean_a A of the hidden layers of both heads; the last row is the bias."""

    def rows(weights: Weights) -> np.ndarray:
        of_value, of_advantage = value(weights), advantage(weights)
        centered = of_advantage - of_advantage.mean(axis=1, keepdims=True)
        repeated = np.repeat(of_value, centered.shape[1], axis=1)
        return np.vstack([repeated[:-1], centered[:-1], repeated[-1:] + centered[-1:]])

    return rows


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


def _require(condition: Any, reason: str) -> None:
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
      array; checkpoint, train_step, iteration.

    Raises:
      UserError: The action is a nest.
    """
    if tf.nest.is_nested(actions):
        raise UserError("an exported policy has one array of actions, this environment's is a nest: use the SavedModel")
    paths = [path for path, _ in tree.flatten_with_path(observation_spec)]
    leaves = zip(_names(paths), paths, tf.nest.flatten(observation_spec), strict=True)
    return {
        "checkpoint": checkpoint,
        "train_step": train_step,
        "iteration": iteration,
        "observation": [{"name": name, "path": list(path), **_shape_and_dtype(spec)} for name, path, spec in leaves],
        "action": actions.describe(),
        "state": [
            {"name": f"state_{k}", **_shape_and_dtype(spec)}
            for k, spec in enumerate(tf.nest.flatten(policy_state_spec))
        ],
    }


def _shape_and_dtype(spec: tf.TensorSpec) -> dict[str, Any]:
    """As in a description."""
    return {"shape": spec.shape.as_list(), "dtype": spec.dtype.name}


def _names(paths: Sequence[tuple[Any, ...]]) -> list[str]:
    """An identifier for each path: `observation`, `sensors_touch`, `observation_0`."""
    joined = ["_".join(map(str, path)) for path in paths]
    wanted = [name if re.match("[A-Za-z]", name) else f"observation_{name}".rstrip("_") for name in joined]
    return fit_names(wanted, is_taken=lambda name: re.fullmatch(r"(next_)?state_\d+|action", name) is not None)
