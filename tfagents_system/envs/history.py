"""The policy's observation, made from the stored one.

The environment's observation is stored, each frame once. The policy's observation is the same nest, but each image has
the previous frames on its channel axis, oldest first, as in gymnasium's FrameStackObservation: the first frame stands
in for those before an episode's start. `replay/frame_stacks.py` stacks them for minibatches,
`policies/frame_stack_policy.py` for acting.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
import tree
from tf_agents.trajectories import time_step as ts

from tfagents_system.train_params_base import TrainParamsBase


def is_image(spec: Any) -> bool:
    """Whether a spec describes images: uint8 `[height, width, channels]`."""
    return len(spec.shape) == 3 and np.dtype(getattr(spec.dtype, "as_numpy_dtype", spec.dtype)) == np.uint8


def has_images(observation_spec: Any) -> bool:
    """Whether any leaf of a nest of specs describes images."""
    return any(map(is_image, tree.flatten(observation_spec)))


def stacked_spec(observation_spec: Any, frame_stack: int) -> Any:
    """The spec of the policy's observation, from that of the stored one: nests of TensorSpecs without batch."""
    return _with_channels(observation_spec, lambda channels: channels * frame_stack)


def single_frame_spec(observation_spec: Any, frame_stack: int) -> Any:
    """The inverse of `stacked_spec`."""
    return _with_channels(observation_spec, lambda channels: channels // frame_stack)


def policy_time_step_spec(params: TrainParamsBase, observation_spec: Any) -> ts.TimeStep:
    """The observation spec that agents are built for.

    Args:
      params: Only their `frame_stack` is used.
      observation_spec: Of the stored observation: nest of TensorSpecs without batch dimension.
    """
    return ts.time_step_spec(stacked_spec(observation_spec, params.frame_stack))


def _with_channels(observation_spec: Any, count: Callable[[int], int]) -> Any:
    def convert(spec: tf.TensorSpec) -> tf.TensorSpec:
        if not is_image(spec):
            return spec
        height, width, channels = spec.shape
        return tf.TensorSpec((height, width, count(channels)), spec.dtype, spec.name)

    return tf.nest.map_structure(convert, observation_spec)
