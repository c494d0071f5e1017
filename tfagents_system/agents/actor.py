"""The default actor."""

from __future__ import annotations

import functools
from typing import Any

from tf_agents.agents.sac.sac_agent import std_clip_transform
from tf_agents.agents.sac.tanh_normal_projection_network import TanhNormalProjectionNetwork
from tf_agents.networks import network
from tf_agents.networks.actor_distribution_network import ActorDistributionNetwork
from tf_agents.networks.actor_distribution_rnn_network import ActorDistributionRnnNetwork

from tfagents_system.agents import algorithms
from tfagents_system.agents.layered_networks import LayeredActor, actor_layers
from tfagents_system.agents.network_options import network_options
from tfagents_system.agents.normalization import NormalizedActor
from tfagents_system.agents.observation_encoding import build_encoder, encoding_kwargs
from tfagents_system.train_params_base import TrainParamsBase


def build_actor(params: TrainParamsBase, observation_spec: Any, action_spec: Any) -> network.Network:
    """A tanh-squashed Gaussian whose mean and log standard deviation depend on the observation.

    Source: Haarnoja et al., arXiv 1812.05905, appendix C. log(std) is clipped to [-20, 2].
    """
    if network_options(params).normalizes_observations:
        return NormalizedActor(observation_spec, functools.partial(_actor, params, action_spec))
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
