"""What actor and critics make of any nest of observations: one vector."""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf
from tf_agents.networks import network
from tf_agents.networks.encoding_network import EncodingNetwork

from tfagents_system.agents.encoder import ImageTrunk, is_features
from tfagents_system.train_params_base import TrainParamsBase


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


def is_plain_vector(observation_spec: Any) -> bool:
    return not tf.nest.is_nested(observation_spec) and (
        observation_spec.shape.rank == 1 and observation_spec.dtype == tf.float32
    )


def build_encoder(params: TrainParamsBase, observation_spec: Any) -> network.Network:
    """From any observation to one tensor `[B, n]`."""
    return EncodingNetwork(observation_spec, **encoding_kwargs(params, observation_spec))


def encoding_kwargs(params: TrainParamsBase, observation_spec: Any) -> dict[str, Any]:
    """New `preprocessing_layers` and `preprocessing_combiner` for each network, as TF-Agents' networks take them."""
    combiner = params.preprocessing_combiner
    if combiner is not None and not isinstance(combiner, tf.keras.layers.Layer):
        combiner = combiner()
    if combiner is None:
        if is_plain_vector(observation_spec):
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
