"""A recurrent critic of any list of layers, where TF-Agents' own one can't hold them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tf_agents.networks import network, utils
from tf_agents.networks.lstm_encoding_network import LSTMEncodingNetwork
from tf_agents.utils import nest_utils

from tfagents_system.agents.layered_networks import Layers


class RecurrentLayeredCritic(network.Network):
    """An LSTM over a vector and an action, and a list of layers behind it.

    Args:
      input_tensor_spec: (spec of one tensor, action spec or nest of them), each flattened and joined.
      lstm_units: Units of the LSTM.
      make_layers: Builds the layers, the last of `num_outputs` units. Called once for each copy of this network.
      num_outputs: Values of each observation and action.
      name: Name of the network.
    """

    def __init__(
        self,
        input_tensor_spec: Any,
        lstm_units: int,
        make_layers: Callable[[], Layers],
        num_outputs: int = 1,
        name: str = "RecurrentLayeredCritic",
    ) -> None:
        size = sum(spec.shape.num_elements() for spec in tf.nest.flatten(input_tensor_spec))
        spec = tf.TensorSpec((size,), tf.float32)
        # None: it would have layers of its own behind the LSTM.
        lstm = LSTMEncodingNetwork(
            spec, input_fc_layer_params=None, lstm_size=(lstm_units,), output_fc_layer_params=None
        )
        super().__init__(input_tensor_spec=input_tensor_spec, state_spec=lstm.state_spec, name=name)
        self._num_outputs = num_outputs
        self._lstm = lstm
        self._value_layers = make_layers()

    def call(
        self, inputs: Any, step_type: Any = None, network_state: Any = (), training: bool = False
    ) -> tuple[tf.Tensor, Any]:
        """Q-values `[B]` or `[B, T]`, with an axis of `num_outputs` behind these where there are several; the state."""
        outer_rank = nest_utils.get_outer_rank(inputs, self.input_tensor_spec)
        squash = utils.BatchSquash(outer_rank)
        leaves = [squash.flatten(leaf) for leaf in tf.nest.flatten(inputs)]
        vectors = [tf.reshape(leaf, [tf.shape(leaf)[0], leaf.shape[1:].num_elements()]) for leaf in leaves]
        values, network_state = self._lstm(
            squash.unflatten(tf.concat(vectors, -1)),
            step_type=step_type,
            network_state=network_state,
            training=training,
        )
        values = squash.flatten(values)  # Keras' LayerNormalization takes the rank only that it was built for.
        for layer in self._value_layers:
            values = layer(values, training=training)
        values = squash.unflatten(values)
        return (tf.squeeze(values, -1) if self._num_outputs == 1 else values), network_state
