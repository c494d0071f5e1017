"""The default actor and critic: what `TrainParamsBase.actor_ctor` and `critic_ctor` return."""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf
from tf_agents.agents.sac.sac_agent import std_clip_transform
from tf_agents.agents.sac.tanh_normal_projection_network import TanhNormalProjectionNetwork
from tf_agents.keras_layers.dynamic_unroll_layer import DynamicUnroll
from tf_agents.networks import network
from tf_agents.networks.actor_distribution_network import ActorDistributionNetwork
from tf_agents.networks.actor_distribution_rnn_network import ActorDistributionRnnNetwork
from tf_agents.networks.encoding_network import EncodingNetwork

from tfagents_system.agents.critic import Critic, CriticParts
from tfagents_system.agents.encoder import ImageTrunk, is_features
from tfagents_system.agents.layered_networks import LayeredActor, actor_layers, critic_layers
from tfagents_system.agents.network_options import network_options
from tfagents_system.agents.normalization import NormalizedActor, ObservationNormalization, normalized_spec
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
    encoding = _encoding_kwargs(params, observation_spec)
    # Unlike TF-Agents' default, which exponentiates without a bound.
    projection = functools.partial(TanhNormalProjectionNetwork, std_transform=std_clip_transform)
    if params.recurrent:
        return ActorDistributionRnnNetwork(
            observation_spec,
            action_spec,
            **encoding,
            input_fc_layer_params=None,
            lstm_size=(params.recurrent_lstm_units,),
            output_fc_layer_params=tuple(params.actor_fc_layer_params),
            continuous_projection_net=projection,
        )
    units, options = tuple(params.actor_fc_layer_params), network_options(params)
    if not options.has_plain_actor:
        return LayeredActor(
            observation_spec,
            action_spec,
            make_encoder=functools.partial(_encoder, params, observation_spec),
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


def build_critic(
    params: TrainParamsBase, observation_spec: Any, action_spec: Any, num_outputs: int = 1
) -> network.Network:
    """A Q-network over the concatenation of observation and action.

    Args:
      params: Its sizes and parts; None there means the value of the algorithm's paper.
      observation_spec: Of the observation, any nest.
      action_spec: Of the action.
      num_outputs: Values of each observation and action: the network gives `[B]`, or `[B, num_outputs]` if not 1;
        `[B, T]` and `[B, T, num_outputs]` where recurrent.
    """
    make_parts = functools.partial(_critic_parts, params, observation_spec, num_outputs)
    return Critic((observation_spec, action_spec), make_parts, num_outputs)


def _critic_parts(params: TrainParamsBase, observation_spec: Any, num_outputs: int) -> CriticParts:
    options = network_options(params)
    normalization = encoder = lstm = None
    if options.normalizes_observations:
        normalization = ObservationNormalization(observation_spec)
        observation_spec = normalized_spec(observation_spec)
    if params.preprocessing_combiner is not None or not _is_plain_vector(observation_spec):
        encoder = _encoder(params, observation_spec)
    if params.recurrent:
        lstm = DynamicUnroll(tf.keras.layers.LSTMCell(params.recurrent_lstm_units))
    layers = critic_layers(options, tuple(params.critic_joint_fc_layer_params), num_outputs, params.recurrent)
    return CriticParts(layers, normalization, encoder, lstm)


class FlattenedLeaf(tf.keras.layers.Layer):
    """One leaf of an observation as a float32 vector; pixels (uint8) are divided by 255."""

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """From `[B, ...]` to `[B, n]`."""
        values = tf.cast(inputs, tf.float32)
        if inputs.dtype == tf.uint8:
            values /= 255.0
        return tf.reshape(values, [tf.shape(inputs)[0], inputs.shape[1:].num_elements()])


def _leaf_layer(params: TrainParamsBase, spec: tf.TensorSpec) -> tf.keras.layers.Layer:
    return ImageTrunk(params.image_encoder_features) if is_features(spec) else FlattenedLeaf()


def _is_plain_vector(observation_spec: Any) -> bool:
    return not tf.nest.is_nested(observation_spec) and (
        observation_spec.shape.rank == 1 and observation_spec.dtype == tf.float32
    )


def _encoder(params: TrainParamsBase, observation_spec: Any) -> network.Network:
    """From any observation to one tensor `[B, n]`."""
    return EncodingNetwork(observation_spec, **_encoding_kwargs(params, observation_spec))


def _encoding_kwargs(params: TrainParamsBase, observation_spec: Any) -> dict[str, Any]:
    """New `preprocessing_layers` and `preprocessing_combiner` for each network, as TF-Agents' networks take them."""
    combiner = params.preprocessing_combiner
    if combiner is not None and not isinstance(combiner, tf.keras.layers.Layer):
        combiner = combiner()
    if combiner is None:
        if _is_plain_vector(observation_spec):
            return {}
        layers = tf.nest.map_structure(functools.partial(_leaf_layer, params), observation_spec)
        nested = len(tf.nest.flatten(observation_spec)) > 1
        return {
            "preprocessing_layers": layers,
            "preprocessing_combiner": tf.keras.layers.Concatenate() if nested else None,
        }
    takes_list = hasattr(combiner, "_merge_function")  # Keras' merging layers, Concatenate and Add among them.
    if not takes_list:
        return {"preprocessing_combiner": combiner}
    identity = tf.nest.map_structure(lambda _: tf.keras.layers.Layer(), observation_spec)
    return {"preprocessing_layers": identity, "preprocessing_combiner": combiner}
