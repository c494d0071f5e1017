"""A policy as `policy.npz`, which `numpy_policy.py` plays: NumPy is all that it needs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.networks.actor_distribution_rnn_network import ActorDistributionRnnNetwork
from tf_agents.policies import tf_policy
from tf_agents.policies.actor_policy import ActorPolicy

from tfagents_system.agents.layered_networks import LayeredActor
from tfagents_system.agents.layers import BatchRenormalization, ResidualBlock
from tfagents_system.agents.normalization import MAX_NORMALIZED, VARIANCE_EPSILON, NormalizedActor
from tfagents_system.policies import numpy_policy
from tfagents_system.policies.frame_stack_policy import FrameStackPolicy
from tfagents_system.policies.numpy_layers import UnsupportedNetworkError, layers_of, slices_of
from tfagents_system.policies.policy_description import Description

SUFFIX = ".npz"
PLAYER = Path(numpy_policy.__file__)

_ACTIVATIONS = {
    tf.keras.activations.linear: "linear",
    tf.keras.activations.relu: "relu",
    tf.keras.activations.tanh: "tanh",
}


def save(path: Path, policy: tf_policy.TFPolicy, description: Description) -> None:
    """Writes an agent's policy.

    Raises:
      UnsupportedNetworkError: It has something in it that `numpy_policy.py` can't compute.
    """
    if isinstance(policy, FrameStackPolicy):
        raise UnsupportedNetworkError("its frames are stacked (frame_stack > 1)")
    if type(policy) is not ActorPolicy:
        raise UnsupportedNetworkError(f"{type(policy).__name__} is not TF-Agents' ActorPolicy")
    network, weights, layers = policy._actor_network, _Weights(), []
    if type(network) is NormalizedActor:
        layers.append(weights.input_normalization(network.normalization, network.input_tensor_spec))
        network = network.actor
    layers_of(network)  # Refuses what workers can't compute in NumPy, either.
    layers += [weights.describe(layer) for layer in _keras_layers(network)]
    action = description["action"]
    bounds = {bound: np.asarray(action[bound], action["dtype"]) for bound in ("low", "high")}
    text = np.array(json.dumps({**description, "layers": layers}))
    with path.open("wb") as file:
        np.savez(file, description=text, **bounds, **weights.arrays)


class NumpyFile:
    """Plays a `policy.npz` as `ExportedPolicy` wants it.

    Raises:
      ValueError: The file is no policy.
    """

    inference = "policy file (numpy)"

    def __init__(self, path: Path) -> None:
        self._policy = numpy_policy.load(path)
        self.description: Description = self._policy.description

    def run(self, leaves: list[np.ndarray], state: list[np.ndarray]) -> tuple[np.ndarray, list[np.ndarray]]:
        """Actions and next state of n observations."""
        return self._policy.step(leaves, state)


class _Weights:
    """Layers of Keras as `numpy_policy.py` reads them, and their weights.

    Attributes:
      arrays: The weights of all layers so far, by the names that the layers have for them.
    """

    def __init__(self) -> None:
        self.arrays: dict[str, np.ndarray] = {}

    def describe(self, layer: Any) -> dict[str, Any]:
        """One layer, whose weights are added to `arrays`."""
        if isinstance(layer, tf.keras.layers.LSTMCell):
            weights = {"kernel": layer.kernel, "recurrent_kernel": layer.recurrent_kernel, "bias": layer.bias}
            return {"kind": "lstm", "arrays": self._named(weights)}
        if isinstance(layer, tf.keras.layers.LayerNormalization):
            named = self._named({"scale": layer.gamma, "shift": layer.beta})
            return {"kind": "layer_norm", "epsilon": layer.epsilon, "arrays": named}
        if isinstance(layer, ResidualBlock):
            parts = (layer.norm, layer.expand, layer.project)
            return {"kind": "residual", "layers": [self.describe(part) for part in parts]}
        if isinstance(layer, BatchRenormalization):
            scale = layer.gamma / tf.sqrt(layer.moving_variance + layer.epsilon)
            return self._normalization(layer.moving_mean, scale, layer.beta, limit=None)
        return self._dense(layer)

    def input_normalization(self, normalization: Any, observation_spec: Any) -> dict[str, Any]:
        """That of all leaves of an observation, as of one vector; pixels are left as they are."""
        slices = [part for part, _ in slices_of(tf.nest.flatten(observation_spec))]
        mean, scale = np.zeros(slices[-1].stop, np.float32), np.ones(slices[-1].stop, np.float32)
        for layer in normalization.leaves:
            mean[slices[layer.leaf]] = np.ravel(layer.mean)
            scale[slices[layer.leaf]] = np.ravel(tf.math.rsqrt(layer.variance + VARIANCE_EPSILON))
        return self._normalization(mean, scale, np.zeros_like(mean), limit=MAX_NORMALIZED)

    def _normalization(self, mean: Any, scale: Any, shift: Any, limit: float | None) -> dict[str, Any]:
        named = self._named({"mean": mean, "scale": scale, "shift": shift})
        return {"kind": "normalization", "limit": limit, "arrays": named}

    def _dense(self, layer: Any) -> dict[str, Any]:
        named = self._named({"kernel": layer.kernel, "bias": layer.bias})
        return {"kind": "dense", "activation": _ACTIVATIONS[layer.activation], "arrays": named}

    def _named(self, weights: Mapping[str, Any]) -> dict[str, str]:
        """The names under which weights are now in `arrays`."""
        named = {part: f"weight_{len(self.arrays) + k}_{part}" for k, part in enumerate(weights)}
        self.arrays.update({named[part]: np.asarray(weight, np.float32) for part, weight in weights.items()})
        return named


def _keras_layers(actor: Any) -> list[Any]:
    """The layers of an actor that `layers_of` takes, in the order in which they act, the projection last."""
    projection = actor._projection_networks._projection_layer
    if isinstance(actor, ActorDistributionRnnNetwork):
        encoder = actor._lstm_encoder
        before = _without_flatten(encoder._input_encoder)
        return [*before, encoder._lstm_network.cell, *encoder._output_encoder, projection]
    hidden = actor._hidden_layers if isinstance(actor, LayeredActor) else []
    return [*_without_flatten(actor._encoder), *hidden, projection]


def _without_flatten(encoder: Any) -> list[Any]:
    return [layer for layer in encoder._postprocessing_layers if not isinstance(layer, tf.keras.layers.Flatten)]
