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

from tfagents_system.policies import numpy_policy
from tfagents_system.policies.numpy_actor import UnsupportedNetworkError, require_supported
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
    if type(policy) is not ActorPolicy:
        raise UnsupportedNetworkError(f"{type(policy).__name__} is not TF-Agents' ActorPolicy")
    require_supported(policy._actor_network)
    weights = _Weights()
    layers = [weights.describe(layer) for layer in _layers_of(policy._actor_network)]
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
        return self._dense(layer)

    def _dense(self, layer: Any) -> dict[str, Any]:
        named = self._named({"kernel": layer.kernel, "bias": layer.bias})
        return {"kind": "dense", "activation": _ACTIVATIONS[layer.activation], "arrays": named}

    def _named(self, weights: Mapping[str, Any]) -> dict[str, str]:
        """The names under which weights are now in `arrays`."""
        named = {part: f"weight_{len(self.arrays) + k}_{part}" for k, part in enumerate(weights)}
        self.arrays.update({named[part]: np.asarray(weight, np.float32) for part, weight in weights.items()})
        return named


def _layers_of(actor: Any) -> list[Any]:
    """The layers of an actor that `require_supported` takes, in the order in which they act, the projection last."""
    projection = actor._projection_networks._projection_layer
    if isinstance(actor, ActorDistributionRnnNetwork):
        encoder = actor._lstm_encoder
        before = _without_flatten(encoder._input_encoder)
        return [*before, encoder._lstm_network.cell, *encoder._output_encoder, projection]
    return [*_without_flatten(actor._encoder), projection]


def _without_flatten(encoder: Any) -> list[Any]:
    return [layer for layer in encoder._postprocessing_layers if not isinstance(layer, tf.keras.layers.Flatten)]
