"""What a policy is: its network as layers for `numpy_policy.py`, and the JSON description in exported files."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tree
from tf_agents.policies.actor_policy import ActorPolicy

from tfagents_system.agents.encoder import FlattenedLeaf
from tfagents_system.agents.layers import (
    BatchNormalization,
    BatchRenormalization,
    Dropout,
    FlashBlock,
    ResidualBlock,
    RmsNormalization,
)
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
from tfagents_system.envs.actions import mask_leaf
from tfagents_system.envs.history import horizon_time_leaf
from tfagents_system.errors import UserError
from tfagents_system.policies.names import fit_names
from tfagents_system.policies.weights import named_variables, read_weights

Description = dict[str, Any]
Weights = Mapping[str, np.ndarray]

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
        `is_zero` where nobody gives it (`horizon_time`), `is_picture` where it has pixels, `is_mask` where it says
        which actions are legal.
      layers: A dictionary each.

    Raises:
      UnsupportedNetworkError: The policy is any other, or its network contains anything else.
    """

    def __init__(self, policy: Any, frames: Sequence[int] = ()) -> None:
        self._network = network_of(policy)
        self.variables = named_variables(policy)
        self._names = {id(variable): name for name, variable in self.variables.items()}
        stacked = [_shape_and_dtype(spec) for spec in tf.nest.flatten(self._network.input_tensor_spec)]
        self._sizes = [int(np.prod(spec["shape"])) for spec in stacked]
        self.observation = [
            _of_single_frames(spec, count) for spec, count in zip(stacked, frames or [1] * len(stacked), strict=True)
        ]
        zero_leaf = horizon_time_leaf(policy.time_step_spec.observation)
        if zero_leaf is not None:
            self.observation[zero_leaf]["is_zero"] = True
        if (mask := mask_leaf(self._network.input_tensor_spec, policy.action_spec)) is not None:
            self.observation[mask]["is_mask"], self._sizes[mask] = True, 0
        body = self._network.body
        _require(body.images is None, "it has convolutions")
        if body.encoder is not None:
            self._read_encoder(body.encoder)
        self._weights: Weights = read_weights(self.variables)
        self._arrays: dict[str, np.ndarray] = {}
        self.layers = self._read()

    def arrays(self, weights: Weights) -> dict[str, np.ndarray]:
        """The arrays of the layers, by the names that the layers use.

        Args:
          weights: The values of all variables, by name.
        """
        self._weights, self._arrays = weights, {}
        self._read()
        return self._arrays

    def name_of(self, variable: tf.Variable) -> str:
        """A variable's name among the weights."""
        return self._names[id(variable)]

    def _read_encoder(self, encoder: Any) -> None:
        """An encoder that only flattens and joins the leaves of an observation; pixels are divided by 255."""
        layers, combiner = encoder._flat_preprocessing_layers or (), encoder._preprocessing_combiner
        flattens = combiner is None or (layers and type(combiner) is tf.keras.layers.Concatenate)
        _require(flattens, "it has a preprocessing_combiner")
        seen = [spec for spec in self.observation if not spec.get("is_mask")]
        for described, layer in zip(seen, layers, strict=bool(layers)):
            _require(type(layer) is FlattenedLeaf, "it has preprocessing layers")
            if layer.is_picture:
                described["is_picture"] = True

    def _read(self) -> list[dict[str, Any]]:
        """All layers in the order of the data; their arrays are noted, made of the weights."""
        body = self._network.body
        layers = [] if body.normalization is None else [self._input_normalization(body.normalization)]
        layers += [] if body.lstm is None else self._layers_of(body.lstm.cell)
        # Dropout is for updates.
        layers += [
            part for layer in body.hidden_layers if type(layer) is not Dropout for part in self._layers_of(layer)
        ]
        if isinstance(self._network, Actor):
            _require(not tf.nest.is_nested(self._network.projections), "it has several arrays of actions")
            (head,) = self._layers_of(self._network.projections._projection_layer)
            layers.append(head | {"log_std": self._network.log_std})
        else:
            layers += self._heads(self._network)
        return self._named(layers)

    def _layers_of(self, layer: Any) -> list[dict[str, Any]]:
        """A layer, which may be several here, with the values of its arrays."""
        kind = type(layer)
        if kind in (BatchNormalization, BatchRenormalization):  # Outside of training.
            variance = self._value(layer.moving_variance).astype(np.float64)
            scale = self._value(layer.gamma) / np.sqrt(variance + layer.epsilon)
            return [_affine(scale, self._value(layer.beta) - self._value(layer.moving_mean) * scale)]
        if kind is tf.keras.layers.LayerNormalization:
            affine = _affine(self._value(layer.gamma), self._value(layer.beta))
            return [{"kind": "layer_norm", "epsilon": layer.epsilon}, affine]
        if kind is RmsNormalization:
            gamma = self._value(layer.gamma)
            return [{"kind": "rms_norm", "epsilon": layer.epsilon}, _affine(gamma, np.zeros_like(gamma))]
        if kind in (ResidualBlock, FlashBlock):
            parts = layer.layers if kind is FlashBlock else (layer.norm, layer.expand, layer.project)
            return [{"kind": "residual", "layers": [inner for part in parts for inner in self._layers_of(part)]}]
        if kind is tf.keras.layers.LSTMCell:
            names = ("kernel", "recurrent_kernel", "bias")
            return [{"kind": "lstm", "arrays": {name: self._value(getattr(layer, name)) for name in names}}]
        if kind is tf.keras.layers.Activation:
            return [{"kind": "activation", "activation": _activation(layer)}]
        _require(kind is tf.keras.layers.Dense, f"it has a {kind.__name__} layer")
        return [_dense(self._rows(layer), _activation(layer))]

    def _input_normalization(self, normalization: Any) -> dict[str, Any]:
        """That of all leaves of an observation, as of one vector; pictures are left as they are."""
        means, scales = ([np.full(size, value, np.float32) for size in self._sizes] for value in (0.0, 1.0))
        for layer in normalization.leaves:
            means[layer.leaf] = self._value(layer.mean).ravel()
            variance = self._value(layer.variance).ravel()
            scales[layer.leaf] = 1.0 / np.sqrt(variance + np.float32(VARIANCE_EPSILON))
        mean, scale = np.concatenate(means), np.concatenate(scales)
        return {"kind": "normalization", "arrays": {"mean": mean, "scale": scale}, "limit": MAX_NORMALIZED}

    def _named(self, layers: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The layers with names in place of their arrays, which are noted."""
        named = []
        for layer in map(dict, _folded(layers)):
            if "layers" in layer:
                layer["layers"] = self._named(layer["layers"])
            if "arrays" in layer:
                values = layer["arrays"]
                layer["arrays"] = {part: f"weight_{len(self._arrays) + k}_{part}" for k, part in enumerate(values)}
                for part, name in layer["arrays"].items():
                    self._arrays[name] = values[part].astype(np.float32, copy=False)
            named.append(layer)
        return named

    def _value(self, variable: tf.Variable) -> np.ndarray:
        return np.asarray(self._weights[self.name_of(variable)])

    def _heads(self, network: ValueNetwork) -> list[dict[str, Any]]:
        """The heads of all actions' values as one: the last layers are linear, and so is V + A - mean_a A."""
        heads = []
        if network.head_layers:
            rows = np.concatenate([self._rows(layer) for layer in network.head_layers], axis=1)
            heads.append(_dense(rows, _activation(network.head_layers[0])))
        if network.embedding is not None:
            heads = [{"kind": "quantiles", "arrays": {"phi": self._phi(network)}, "layers": heads}]
        rows, *advantages = (self._rows(layer) for layer in network.last_layers)
        for advantage in advantages:  # Of the hidden layers of both heads; the last row is the bias.
            centered = advantage - advantage.mean(axis=1, keepdims=True)
            value = np.repeat(rows, centered.shape[1], axis=1)
            rows = np.vstack([value[:-1], centered[:-1], value[-1:] + centered[-1:]])
        return [*heads, _dense(rows, "linear")]

    def _rows(self, layer: Any) -> np.ndarray:
        """The kernel of a Dense layer, and its bias in one more row."""
        kernel = self._value(layer.kernel)
        return np.vstack([kernel, self._value(layer.bias) if layer.use_bias else np.zeros_like(kernel[0])])

    def _phi(self, network: ValueNetwork) -> np.ndarray:
        """Of the fixed fractions, `[units, K]`: of the mean over these the linear last layers give the mean."""
        multiples = math.pi * np.arange(1, network.num_cosines + 1, dtype=np.float32)
        cosines = np.cos(network.acting_fractions()[:, None] * multiples).astype(np.float32)
        rows = self._rows(network.embedding)
        values = cosines @ rows[:-1] + rows[-1]
        return np.maximum(values, values * np.float32(LEAKY_SLOPE)).T


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


def _affine(scale: np.ndarray, shift: np.ndarray) -> dict[str, Any]:
    return {"kind": "affine", "arrays": {"scale": scale.astype(np.float64), "shift": shift.astype(np.float64)}}


def _dense(rows: np.ndarray, activation: str) -> dict[str, Any]:
    return {"kind": "dense", "arrays": {"kernel": rows[:-1], "bias": rows[-1]}, "activation": activation}


def _folded(layers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Multiplies scales and shifts into the Dense layer before them, or else into the one behind them."""
    folded: list[dict[str, Any]] = []
    for layer in layers:
        before = folded[-1] if folded else {"kind": "input"}
        kinds, first, second = (before["kind"], layer["kind"]), before.get("arrays", {}), layer.get("arrays", {})
        if kinds == ("dense", "affine") and before["activation"] == "linear":
            scale, shift = second["scale"], second["shift"]
            arrays = {"kernel": first["kernel"] * scale, "bias": first["bias"] * scale + shift}
            folded[-1] = {**before, "arrays": arrays}
        elif kinds == ("affine", "dense"):
            kernel = second["kernel"]
            arrays = {"kernel": first["scale"][:, None] * kernel, "bias": first["shift"] @ kernel + second["bias"]}
            folded[-1] = {**layer, "arrays": arrays}
        else:
            folded.append(layer)
    return folded


def _activation(layer: Any) -> str:
    _require(layer.activation in _ACTIVATIONS, f"it has the activation {layer.activation}")
    return _ACTIVATIONS[layer.activation]


def _of_single_frames(spec: dict[str, Any], frames: int) -> dict[str, Any]:
    if frames == 1:
        return spec
    *others, size = spec["shape"]
    return {**spec, "shape": [*others, size // frames], "frames": frames}


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
    """The description of a policy with one action array; specs are without batch dimension.

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
