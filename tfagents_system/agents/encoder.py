"""Images as in DrQ-v2 (Yarats et al., arXiv 2107.09645): one encoder for actor and critics, and random shifts.

The encoder's convolutions are shared and learn only from the critics' loss. Actor and critics are networks over its
features, each with a trunk of its own; target critics see the features of the same encoder.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf
from tf_agents.networks import network, utils
from tf_agents.networks.encoding_network import EncodingNetwork
from tf_agents.utils import nest_utils

from tfagents_system.agents.algorithms import ALGORITHMS
from tfagents_system.agents.layers import as_vector, layer_norm
from tfagents_system.agents.minibatch import Drawing, Views
from tfagents_system.envs.history import is_image, seen_by_actor, without_mask
from tfagents_system.train_params_base import TrainParamsBase, overrides_any

_KERNEL, _FIRST_STRIDE = 3, 2  # DrQ-v2's.
_PIXELS = 4  # DrQ-v2's shift, for images of 84 x 84.
_FEATURES = "image_features"  # The specs' name, which distinguishes features from the environment's observations.


class Convolution(NamedTuple):
    """A convolution with ReLU and without padding; kernel and stride are those of both directions, in pixels."""

    filters: int
    kernel: int
    stride: int


def convolutions(params: TrainParamsBase) -> tuple[Convolution, ...]:
    """Those of the encoder, in the order of the data; none: images are flattened."""
    return tuple(
        Convolution(*(layer if isinstance(layer, Sequence) else (layer, _KERNEL, 1 if k else _FIRST_STRIDE)))
        for k, layer in enumerate(params.image_encoder_layers)
    )


class ImageEncoder(network.Network):
    """Convolutions over each image of an observation; all other leaves pass unchanged.

    Pixels go in as p / 255 - 0.5. `encoded_spec` has features `[h, w, filters of the last layer]` float32 in place of
    images.
    """

    def __init__(self, observation_spec: Any, layers: Sequence[Convolution]) -> None:
        super().__init__(input_tensor_spec=observation_spec, state_spec=(), name="ImageEncoder")
        specs = tf.nest.flatten(observation_spec)
        self._stacks = [[_layer(each) for each in layers] if is_encoded(spec, layers) else None for spec in specs]
        created = tf.nest.flatten(self.create_variables())
        self.encoded_spec = tf.nest.pack_sequence_as(
            observation_spec,
            [
                spec if stack is None else tf.TensorSpec(output.shape, tf.float32, _FEATURES)
                for spec, stack, output in zip(specs, self._stacks, created, strict=True)
            ],
        )

    def call(
        self, observation: Any, step_type: Any = None, network_state: Any = (), training: bool = False
    ) -> tuple[Any, Any]:
        """From leaves `[B, (T,) ...]` to leaves `[B, (T,) ...]`."""
        del step_type, training
        squash = utils.BatchSquash(nest_utils.get_outer_rank(observation, self.input_tensor_spec))
        leaves = []
        for leaf, stack in zip(tf.nest.flatten(observation), self._stacks, strict=True):
            if stack is not None:
                values = tf.cast(squash.flatten(leaf), tf.float32) / 255.0 - 0.5
                for convolution in stack:
                    values = convolution(values)
                leaf = squash.unflatten(values)
            leaves.append(leaf)
        return tf.nest.pack_sequence_as(observation, leaves), network_state


class EncodedActor(network.Network):
    """An actor over an encoder's features: from environments' observations to distributions of actions."""

    def __init__(self, encoder: ImageEncoder, actor: network.Network) -> None:
        super().__init__(encoder.input_tensor_spec, actor.state_spec, "EncodedActor")
        self._encoder, self._actor = encoder, actor

    def call(
        self, observation: Any, step_type: Any = None, network_state: Any = (), training: bool = False
    ) -> tuple[Any, Any]:
        """Distributions, and the actor's next state."""
        encoded, _ = self._encoder(observation)
        return self._actor(encoded, step_type=step_type, network_state=network_state, training=training)


class ImageTrunk(tf.keras.layers.Layer):
    """From the features of an image to a vector: a dense layer, layer normalisation, tanh.

    Args:
      units: Of the vector.
    """

    def __init__(self, units: int) -> None:
        super().__init__()
        self._dense, self._norm = tf.keras.layers.Dense(units, kernel_initializer="orthogonal"), layer_norm()

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """From `[B, h, w, n]` to `[B, units]`."""
        return tf.tanh(self._norm(self._dense(as_vector(inputs))))


class ObservationPipeline:
    """Prepares observations for an update: shifts images at random, then encodes them.

    Unless `image_augmentation_pixels` is set, images are shifted if they are encoded. Without an encoder networks get
    the pixels themselves.
    """

    def __init__(
        self,
        params: TrainParamsBase,
        encoder: ImageEncoder | None,
        observation_spec: Any,
        actor_observations: Sequence[str] | None = None,
    ) -> None:
        self._encoder, self._actor_observations = encoder, actor_observations
        pixels, specs = params.image_augmentation_pixels, tf.nest.flatten(observation_spec)
        self._pixels = _PIXELS if pixels is None else pixels
        if pixels is None:
            self._is_shifted = [encoder is not None and is_encoded(spec, convolutions(params)) for spec in specs]
        else:
            self._is_shifted = [pixels > 0 and is_image(spec) for spec in specs]

    def shifted(self, time_steps: Any, drawing: Drawing) -> Any:
        """Time steps `[B, (T,) ...]` with shifted images: one shift per image and sample, alike within a sequence."""
        leaves = tf.nest.flatten(time_steps.observation)
        for k, leaf in enumerate(leaves):
            if self._is_shifted[k]:
                offsets = drawing.integers(k, [tf.shape(leaf)[0], 2], -self._pixels, self._pixels)
                leaves[k] = shift(leaf, offsets)
        return time_steps._replace(observation=tf.nest.pack_sequence_as(time_steps.observation, leaves))

    def encoded(self, time_steps: Any) -> Any:
        """Time steps as networks see them: with features for images, and `Views` where they see different parts."""
        observation = time_steps.observation
        encoded = observation if self._encoder is None else self._encoder(observation)[0]
        if self._actor_observations is not None:
            encoded = Views(seen_by_actor(observation, self._actor_observations), encoded)
        return time_steps._replace(observation=encoded)


def shift(images: tf.Tensor, offsets: tf.Tensor) -> tf.Tensor:
    """Each sample's images, moved by some pixels; edge pixels are repeated.

    Equals padding all sides with the edge and cropping: pixel (y, x) is taken from (y + dy, x + dx).

    Args:
      images: `[B, (T,) height, width, channels]`.
      offsets: (dy, dx) of each sample, `[B, 2]` int32.
    """
    shape = tf.shape(images)
    height, width, channels = images.shape[-3:]
    rows = tf.clip_by_value(tf.range(height) + offsets[:, :1], 0, height - 1)
    columns = tf.clip_by_value(tf.range(width) + offsets[:, 1:], 0, width - 1)
    sequences = tf.reshape(images, [shape[0], -1, height, width, channels])
    moved = tf.gather(tf.gather(sequences, rows, axis=2, batch_dims=1), columns, axis=3, batch_dims=1)
    return tf.ensure_shape(tf.reshape(moved, shape), images.shape)


def make_encoder(params: TrainParamsBase, observation_spec: Any) -> ImageEncoder | None:
    """The encoder of a run; None if there is no image for it, or if the user's own networks take the pixels."""
    layers = convolutions(params)
    has_images = any(is_encoded(spec, layers) for spec in tf.nest.flatten(observation_spec))
    return ImageEncoder(observation_spec, layers) if has_images and not has_own_networks(params) else None


def is_encoded(spec: tf.TensorSpec, layers: Sequence[Convolution]) -> bool:
    """Whether a leaf is an image that is large enough for the convolutions."""
    return bool(layers) and is_picture(spec, layers)


def is_picture(spec: tf.TensorSpec, layers: Sequence[Convolution]) -> bool:
    """Whether a leaf has pixels, which are divided by 255: an image that is not too small for the convolutions.

    Other uint8 are numbers like all others.
    """
    return is_image(spec) and min(spec.shape[:2]) >= smallest_side(layers)


def smallest_side(layers: Sequence[Convolution]) -> int:
    """Height and width, in pixels, that the convolutions reduce to one."""
    return functools.reduce(lambda side, layer: (side - 1) * layer.stride + layer.kernel, reversed(layers), 1)


def is_features(spec: tf.TensorSpec) -> bool:
    """Whether a leaf of a spec came from an image."""
    return spec.name == _FEATURES


def has_own_networks(params: TrainParamsBase) -> bool:
    """Whether the user's own networks take unprocessed observations."""
    return params.preprocessing_combiner is not None or overrides_any(params, "actor_ctor", "critic_ctor")


def _layer(convolution: Convolution) -> tf.keras.layers.Layer:
    return tf.keras.layers.Conv2D(
        convolution.filters,
        convolution.kernel,
        strides=convolution.stride,
        activation="relu",
        kernel_initializer=tf.keras.initializers.Orthogonal(gain=math.sqrt(2.0)),
    )


class FlattenedLeaf(tf.keras.layers.Layer):
    """One leaf of an observation as a float32 vector.

    Args:
      is_picture: Its numbers are divided by 255.
    """

    def __init__(self, is_picture: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.is_picture = is_picture

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """From `[B, ...]` to `[B, n]`."""
        return as_vector(inputs) / 255.0 if self.is_picture else as_vector(inputs)


def _leaf_layer(params: TrainParamsBase, spec: tf.TensorSpec) -> tf.keras.layers.Layer:
    if is_features(spec):
        return ImageTrunk(params.image_encoder_features)
    return FlattenedLeaf(is_picture(spec, convolutions(params)))


def is_plain_vector(observation_spec: Any) -> bool:
    return not tf.nest.is_nested(observation_spec) and (
        observation_spec.shape.rank == 1 and observation_spec.dtype == tf.float32
    )


def build_encoder(params: TrainParamsBase, observation_spec: Any) -> network.Network:
    """From any observation, without the mask of discrete actions, to one tensor `[B, n]`, by layers of its own."""
    if ALGORITHMS[params.algorithm].actions == "discrete":
        observation_spec = without_mask(observation_spec)
    combiner = params.preprocessing_combiner
    if combiner is not None and not isinstance(combiner, tf.keras.layers.Layer):
        combiner = combiner()
    layers: Any = None
    if combiner is None and not is_plain_vector(observation_spec):
        layers = tf.nest.map_structure(functools.partial(_leaf_layer, params), observation_spec)
        combiner = tf.keras.layers.Concatenate() if len(tf.nest.flatten(observation_spec)) > 1 else None
    elif hasattr(combiner, "_merge_function"):  # Keras' merging layers take a list: Concatenate and Add among them.
        layers = tf.nest.map_structure(lambda _: tf.keras.layers.Layer(), observation_spec)
    return EncodingNetwork(observation_spec, preprocessing_layers=layers, preprocessing_combiner=combiner)
