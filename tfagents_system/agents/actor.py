"""The default actor."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tf_agents.agents.sac.sac_agent import std_clip_transform
from tf_agents.agents.sac.tanh_normal_projection_network import TanhNormalProjectionNetwork
from tf_agents.networks import network
from tf_agents.networks.actor_distribution_network import ActorDistributionNetwork
from tf_agents.networks.actor_distribution_rnn_network import ActorDistributionRnnNetwork
from tf_agents.utils import nest_utils

from tfagents_system.agents import algorithms
from tfagents_system.agents.algorithms import NetworkOptions, network_options
from tfagents_system.agents.encoder import Convolution, build_encoder, convolutions, encoding_kwargs
from tfagents_system.agents.layers import Layers, renormalization, simba_layers
from tfagents_system.agents.normalization import ObservationNormalization, normalized_spec
from tfagents_system.train_params_base import TrainParamsBase


def build_actor(params: TrainParamsBase, observation_spec: Any, action_spec: Any) -> network.Network:
    """A tanh-squashed Gaussian whose mean and log standard deviation depend on the observation.

    Source: Haarnoja et al., arXiv 1812.05905, appendix C. log(std) is clipped to [-20, 2].
    """
    if network_options(params).normalizes_observations:
        make_actor = functools.partial(_actor, params, action_spec)
        return NormalizedActor(observation_spec, make_actor, convolutions(params))
    return _actor(params, action_spec, observation_spec)


def _actor(params: TrainParamsBase, action_spec: Any, observation_spec: Any) -> network.Network:
    """The actor behind the normalisation."""
    encoding = encoding_kwargs(params, observation_spec)
    # Unlike TF-Agents' default, which exponentiates without a bound.
    projection = functools.partial(TanhNormalProjectionNetwork, std_transform=std_clip_transform)
    if recurrent := algorithms.value(params, "recurrent"):
        return ActorDistributionRnnNetwork(
            observation_spec,
            action_spec,
            **encoding,
            input_fc_layer_params=None,
            lstm_size=(recurrent["lstm_units"],),
            output_fc_layer_params=tuple(params.actor_fc_layer_params),
            continuous_projection_net=projection,
        )
    units, options = tuple(params.actor_fc_layer_params), network_options(params)
    if not options.has_plain_actor:
        return LayeredActor(
            observation_spec,
            action_spec,
            make_encoder=functools.partial(build_encoder, params, observation_spec),
            make_layers=functools.partial(actor_layers, options, units),
            make_projection=projection,
        )
    return ActorDistributionNetwork(
        observation_spec,
        action_spec,
        **encoding,
        fc_layer_params=units,
        continuous_projection_net=projection,
    )


def actor_layers(options: NetworkOptions, units: Sequence[int]) -> Layers:
    """The layers of an actor between the encoded observation and the head."""
    if options.is_simba:
        return simba_layers(units)
    layers = renormalization(options)
    for size in units:
        layers.append(tf.keras.layers.Dense(size, "relu", kernel_initializer="glorot_uniform"))
        layers += renormalization(options)
    return layers


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


class NormalizedActor(network.DistributionNetwork):
    """An actor behind the normalisation of its observations.

    Args:
      input_tensor_spec: Of the observation.
      make_actor: Builds the actor from the spec of normalised observations. Called once for each copy.
      layers: As of ObservationNormalization.
      name: Name of the network.
    """

    def __init__(
        self,
        input_tensor_spec: Any,
        make_actor: Callable[[Any], Any],
        layers: Sequence[Convolution],
        name: str = "NormalizedActor",
    ) -> None:
        actor = make_actor(normalized_spec(input_tensor_spec, layers))
        super().__init__(
            input_tensor_spec=input_tensor_spec,
            state_spec=actor.state_spec,
            output_spec=actor.output_spec,
            name=name,
        )
        self.normalization = ObservationNormalization(input_tensor_spec, layers)
        self.actor = actor

    @property
    def output_tensor_spec(self) -> Any:
        return self.actor.output_tensor_spec

    def call(
        self, observations: Any, step_type: Any = None, network_state: Any = (), training: bool = False
    ) -> tuple[Any, Any]:
        """The actor's output for normalised observations."""
        normalized = self.normalization(observations)
        return self.actor(normalized, step_type=step_type, network_state=network_state, training=training)
