"""The scores of all actions in NumPy, from a network of `agents/value_network.py`, as a worker computes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from tfagents_system.agents.value_network import ValueNetwork
from tfagents_system.policies.network_layers import Weights
from tfagents_system.policies.numpy_network import Network
from tfagents_system.policies.score_layers import ScoreLayers

_MOST_SIZES = 16


class NumpyScores:
    """Computes `ValueNetwork.acting_values`.

    Args:
      network: With its variables created.
      variables: Names of its variables, from `named_variables`.
      weights: Their values.
      zero_leaf: The leaf of the observation that is 0 always and that nobody gives; None: there is none.

    Raises:
      UnsupportedNetworkError: See ScoreLayers.
    """

    def __init__(
        self,
        network: ValueNetwork,
        variables: Mapping[str, tf.Variable],
        weights: Weights,
        zero_leaf: int | None = None,
    ) -> None:
        self._layers = ScoreLayers(network, variables, zero_leaf=zero_leaf)
        self._arrays = self._layers.arrays(weights)
        self._first = Network(self._layers.observation, self._layers.layers, self._arrays)
        self._networks = {1: self._first}  # By number of observations.

    def assign(self, weights: Weights) -> None:
        """Takes new weights, by name."""
        self._arrays = self._layers.arrays(weights)
        self._first.assign(self._arrays)

    def __call__(self, leaves: Sequence[np.ndarray]) -> np.ndarray:
        """Scores `[N, num_actions]` float32 from the leaves of N observations, `[N, ...]` each."""
        network = self._network(len(leaves[0]))
        network.load_all(leaves)
        return network.scores().T.copy()

    def _network(self, count: int) -> Network:
        if count not in self._networks:
            if len(self._networks) > _MOST_SIZES:
                self._networks = {1: self._first}
            like = self._layers.observation, self._layers.layers, self._arrays
            self._networks[count] = Network(*like, count, self._first)
        return self._networks[count]
