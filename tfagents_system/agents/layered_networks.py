"""The layers of actor and critics, and an actor of any list of layers where TF-Agents' own can't hold them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tf_agents.networks import network, utils
from tf_agents.utils import nest_utils

from tfagents_system.agents.layers import BatchRenormalization, Dropout, ResidualBlock, layer_norm
from tfagents_system.agents.network_options import NetworkOptions

Layers = list[tf.keras.layers.Layer]
_FAN_IN = {"scale": 1.0 / 3.0, "mode": "fan_in", "distribution": "uniform"}
VALUE_LAYER = "value"  # The name of the layer that returns Q-values or their quantiles.


class LayeredActor(network.DistributionNetwork):
    """An actor of any list of layers behind an encoder of the observation.

    Args:
      input_tensor_spec: Of the observation.
      output_tensor_spec: Of the action, or a nest of them.
      make_encoder: Builds the network from observations to `[B, n]`. Called once for each copy of this network.
      make_layers: Builds the layers behind it. Likewise.
      make_projection: Builds the head of an action's leaf from its spec. Likewise.
      name: Name of the network.
    """

    def __init__(
        self,
        input_tensor_spec: Any,
        output_tensor_spec: Any,
        make_encoder: Callable[[], network.Network],
        make_layers: Callable[[], Layers],
        make_projection: Callable[[Any], network.DistributionNetwork],
        name: str = "LayeredActor",
    ) -> None:
        projections = tf.nest.map_structure(make_projection, output_tensor_spec)
        output_spec = tf.nest.map_structure(lambda projection: projection.output_spec, projections)
        super().__init__(input_tensor_spec=input_tensor_spec, state_spec=(), output_spec=output_spec, name=name)
        self._output_tensor_spec = output_tensor_spec
        self._encoder = make_encoder()
        self._hidden_layers = make_layers()
        self._projection_networks = projections

    @property
    def output_tensor_spec(self) -> Any:
        return self._output_tensor_spec

    def call(
        self, observations: Any, step_type: Any = None, network_state: Any = (), training: bool = False
    ) -> tuple[Any, Any]:
        """The distributions of the action's leaves."""
        outer_rank = nest_utils.get_outer_rank(observations, self.input_tensor_spec)
        values, _ = self._encoder(observations, step_type=step_type, training=training)
        for layer in self._hidden_layers:
            values = layer(values, training=training)
        distributions = tf.nest.map_structure(
            lambda projection: projection(values, outer_rank, training=training)[0], self._projection_networks
        )
        return distributions, network_state


def critic_layers(options: NetworkOptions, units: Sequence[int], num_outputs: int, is_recurrent: bool) -> Layers:
    """All layers of a critic, the last one linear."""
    if options.is_simba:
        return [
            *simba_layers(units),
            tf.keras.layers.Dense(num_outputs, kernel_initializer="orthogonal", name=VALUE_LAYER),
        ]
    if num_outputs == 1 and options.has_plain_critic:
        # Initialised like TF-Agents' critics, whose weights behind an LSTM are larger.
        initializer = None if is_recurrent else tf.compat.v1.keras.initializers.VarianceScaling(**_FAN_IN)
        layers = utils.mlp_layers(fc_layer_params=units, kernel_initializer=initializer)
    else:
        layers = _renormalization(options)
        for size in units:
            layers += _hidden_critic_layer(options, size)
            layers += _renormalization(options)
    # Initialised like TF-Agents' critics: close to 0.
    initializer = tf.keras.initializers.RandomUniform(-0.003, 0.003)
    return [*layers, tf.keras.layers.Dense(num_outputs, kernel_initializer=initializer, name=VALUE_LAYER)]


def actor_layers(options: NetworkOptions, units: Sequence[int]) -> Layers:
    """The layers of an actor between the encoded observation and the head."""
    if options.is_simba:
        return simba_layers(units)
    layers = _renormalization(options)
    for size in units:
        layers.append(tf.keras.layers.Dense(size, "relu", kernel_initializer="glorot_uniform"))
        layers += _renormalization(options)
    return layers


def simba_layers(units: Sequence[int]) -> Layers:
    """SimBa (Lee et al., arXiv 2410.09754, section 4) behind its normalisation of observations.

    A linear embedding of `units[0]` features, a residual block for each entry of `units`, and a layer normalisation.
    """
    embedding = tf.keras.layers.Dense(units[0], kernel_initializer="orthogonal")
    return [embedding, *(ResidualBlock() for _ in units), layer_norm()]


def _hidden_critic_layer(options: NetworkOptions, size: int) -> Layers:
    """Dense, dropout, layer normalisation, ReLU: the order of DroQ (arXiv 2110.02034, figure 1)."""
    between = [
        *([Dropout(options.critic_dropout)] if options.critic_dropout else []),
        *([layer_norm()] if options.critic_layer_norm else []),
    ]
    initializer = tf.keras.initializers.VarianceScaling(**_FAN_IN)
    if not between:
        return [tf.keras.layers.Dense(size, "relu", kernel_initializer=initializer)]
    return [tf.keras.layers.Dense(size, kernel_initializer=initializer), *between, tf.keras.layers.ReLU()]


def _renormalization(options: NetworkOptions) -> Layers:
    return [BatchRenormalization(options.batch_renormalization_warmup_steps)] if options.batch_renormalization else []
