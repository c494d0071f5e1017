"""The default actor's forward pass in NumPy: for one observation it is an order of magnitude faster than TensorFlow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.agents.sac.sac_agent import std_clip_transform
from tf_agents.agents.sac.tanh_normal_projection_network import TanhNormalProjectionNetwork
from tf_agents.networks.actor_distribution_network import ActorDistributionNetwork

_ACTIVATIONS: dict[Any, Callable[[np.ndarray], np.ndarray]] = {
    tf.keras.activations.relu: lambda x: np.maximum(x, 0.0),
    tf.keras.activations.tanh: np.tanh,
    tf.keras.activations.linear: lambda x: x,
}

_LOG_STD_MIN, _LOG_STD_MAX = np.float32(-20.0), np.float32(2.0)  # as std_clip_transform


class UnsupportedNetworkError(Exception):
    """The network is not one that `NumpyActor` can compute; its text says why."""


class NumpyActor:
    """Dense layers and a tanh-squashed Gaussian, read off an ActorDistributionNetwork.

    Args:
      actor: The network, with its variables created.
      variables: Names of its variables, as `named_variables` gives them.

    Raises:
      UnsupportedNetworkError: The network has anything else in it.
    """

    def __init__(self, actor: Any, variables: Mapping[str, tf.Variable]) -> None:
        names = {variable.ref(): name for name, variable in variables.items()}
        dense, projection = _layers(actor)
        self._names = [(names[layer.kernel.ref()], names[layer.bias.ref()]) for layer in [*dense, projection]]
        self._activations = [_ACTIVATIONS[layer.activation] for layer in dense]
        self._action_shape = tuple(actor.output_tensor_spec.shape)
        self._layers: list[tuple[np.ndarray, np.ndarray]] = []
        self.assign({name: variable.numpy() for name, variable in variables.items()})

    def assign(self, weights: Mapping[str, np.ndarray]) -> None:
        """Takes new weights, by name."""
        self._layers = [(np.array(weights[kernel]), np.array(weights[bias])) for kernel, bias in self._names]

    def distribution(self, observation: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and log standard deviation, before tanh: each `[..., action_dim]` float32.

        Args:
          observation: `[..., obs_dim]` float32.
        """
        hidden = observation
        for (kernel, bias), activation in zip(self._layers, self._activations, strict=False):
            hidden = activation(hidden @ kernel + bias)
        kernel, bias = self._layers[-1]
        mean, log_std = np.split(hidden @ kernel + bias, 2, axis=-1)
        return mean, np.clip(log_std, _LOG_STD_MIN, _LOG_STD_MAX)

    def sample(self, observation: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """An action in (-1, 1): tanh(mean + std * normal noise)."""
        mean, log_std = self.distribution(observation)
        noise = rng.standard_normal(mean.shape, np.float32)
        return self._shaped(np.tanh(mean + np.exp(log_std) * noise))

    def mode(self, observation: np.ndarray) -> np.ndarray:
        """The greedy action in (-1, 1): tanh(mean)."""
        return self._shaped(np.tanh(self.distribution(observation)[0]))

    def _shaped(self, action: np.ndarray) -> np.ndarray:
        return action.reshape(action.shape[:-1] + self._action_shape)


def _layers(actor: Any) -> tuple[list[tf.keras.layers.Dense], tf.keras.layers.Dense]:
    """The hidden layers and the projection of an actor, if there is nothing else in it."""
    _require(type(actor) is ActorDistributionNetwork, f"{type(actor).__name__} is not an ActorDistributionNetwork")
    spec = actor.input_tensor_spec
    plain = not tf.nest.is_nested(spec) and spec.shape.rank == 1 and spec.dtype == tf.float32
    _require(plain, "the observation is not one float32 vector")
    encoder = actor._encoder
    _require(encoder._preprocessing_combiner is None, "it has a preprocessing_combiner")
    _require(encoder._flat_preprocessing_layers is None, "it has preprocessing layers")
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
    return dense, projection._projection_layer


def _require(condition: bool, reason: str) -> None:
    if not condition:
        raise UnsupportedNetworkError(reason)
