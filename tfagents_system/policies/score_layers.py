"""A network of `agents/value_network.py` as a list of layers, which `numpy_network.py` computes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tfagents_system.agents.value_network import LEAKY_SLOPE, ValueNetwork, leaky_relu
from tfagents_system.policies.network_layers import NetworkLayers, UnsupportedNetworkError, Weights, check_flattening


class ScoreLayers(NetworkLayers):
    """What `ValueNetwork.acting_values` computes; arguments and attributes as of NetworkLayers.

    Raises:
      UnsupportedNetworkError: It encodes images, or combines leaves in the user's way, or has other layers.
    """

    def _read(self, actor: ValueNetwork) -> list[dict[str, Any]]:
        if actor.images is not None:
            raise UnsupportedNetworkError("it has convolutions")
        check_flattening(actor.encoder, len(self.sizes))
        self._mark_pictures(actor.encoder)
        layers = [] if actor.normalization is None else [self._input_normalization(actor.normalization)]
        layers += [self._layer(layer) for layer in actor.acting_layers]
        heads = [self._joined_heads(actor)] if actor.head_layers else []
        if actor.embedding is not None:
            heads = [self._quantiles(actor, heads)]
        return [*layers, *heads, self._joined_last_layers(actor)]

    def _quantiles(self, network: ValueNetwork, heads: list[dict[str, Any]]) -> dict[str, Any]:
        """The last layers are linear: of the mean over the fixed fractions they give the mean."""
        multiples = math.pi * np.arange(1, network.num_cosines + 1, dtype=np.float32)
        cosines = np.cos(network.acting_fractions()[:, None] * multiples).astype(np.float32)
        if network.embedding.activation is not leaky_relu:  # type: ignore[union-attr]
            raise UnsupportedNetworkError("its embedding of fractions has another activation")
        kernel, bias = self._value(network.embedding.kernel), self._value(network.embedding.bias)  # type: ignore[union-attr]

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
