"""The policy's observation, made from the stored one.

The environment's observation is stored, each frame once. The policy's observation is the same nest, but each stacked
leaf has the previous frames on its last axis (an image's channels, a vector's numbers), oldest first, as in
gymnasium's FrameStackObservation: the first frame stands in for those before an episode's start.
`replay/frame_stacks.py` stacks them for minibatches, `policies/frame_stack_policy.py` and `policies/numpy_policy.py`
for acting.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
import tree
from tf_agents.trajectories import time_step as ts

from tfagents_system.checks.frame_stacks import FrameStack, frames_of_leaves, leaf_name
from tfagents_system.train_params_base import TrainParamsBase


def is_image(spec: Any) -> bool:
    """Whether a spec describes images: uint8 `[height, width, channels]`."""
    return len(spec.shape) == 3 and np.dtype(getattr(spec.dtype, "as_numpy_dtype", spec.dtype)) == np.uint8


def has_images(observation_spec: Any) -> bool:
    """Whether any leaf of a nest of specs describes images."""
    return any(map(is_image, tree.flatten(observation_spec)))


def leaf_names(observation_spec: Any) -> list[str]:
    """The names by which `frame_stack` knows the leaves of a nest, in its flattened order."""
    return [leaf_name(path) for path, _ in tree.flatten_with_path(observation_spec)]


def frames_in(observation_spec: Any, frame_stack: FrameStack) -> tuple[int, ...]:
    """The frames of each leaf of a nest of specs, of single frames or stacked ones, in its flattened order."""
    are_images = list(map(is_image, tree.flatten(observation_spec)))
    return frames_of_leaves(leaf_names(observation_spec), are_images, frame_stack)


def stacked_spec(observation_spec: Any, frame_stack: FrameStack) -> Any:
    """The spec of the policy's observation, from that of the stored one: nests of TensorSpecs without batch."""
    return _with_last_axis(observation_spec, frame_stack, lambda size, frames: size * frames)


def single_frame_spec(observation_spec: Any, frame_stack: FrameStack) -> Any:
    """The inverse of `stacked_spec`."""
    return _with_last_axis(observation_spec, frame_stack, lambda size, frames: size // frames)


def policy_time_step_spec(params: TrainParamsBase, observation_spec: Any) -> ts.TimeStep:
    """The observation spec that agents are built for.

    Args:
      params: Only their `frame_stack` is used.
      observation_spec: Of the stored observation: nest of TensorSpecs without batch dimension.
    """
    return ts.time_step_spec(stacked_spec(observation_spec, params.frame_stack))


def _with_last_axis(observation_spec: Any, frame_stack: FrameStack, size_of: Callable[[int, int], int]) -> Any:
    def convert(spec: tf.TensorSpec, frames: int) -> tf.TensorSpec:
        if frames == 1:
            return spec
        *others, size = spec.shape
        return tf.TensorSpec((*others, size_of(size, frames)), spec.dtype, spec.name)

    leaves = zip(tf.nest.flatten(observation_spec), frames_in(observation_spec, frame_stack), strict=True)
    return tf.nest.pack_sequence_as(observation_spec, [convert(spec, frames) for spec, frames in leaves])
