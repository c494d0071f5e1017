"""The policy's observation, made from the stored one.

The environment's observation is stored, each frame once. The policy's observation is the same nest, but each stacked
leaf has the previous frames on its last axis (an image's channels, a vector's numbers), oldest first, as in
gymnasium's FrameStackObservation: the first frame stands in for those before an episode's start.
`replay/sampling.py` stacks them for minibatches, `policies/tensorflow_policy.py` and `policies/numpy_policy.py`
for acting.

Where samples are mini-races, the policy's observation has one part more, `horizon_time`: the share of the mini-race
that is over. Minibatches have it (replay/sampling.py). It is 0 where a policy acts, and policies for environments, in
workers and in files, take observations without it (`policies/tensorflow_policy.py`).

With `actor_observations`, agents are built for all of the policy's observation, and the actor takes some parts of it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tree
from tf_agents.trajectories import time_step as ts

from tfagents_system.envs.gym_driver import ACTION_MASK, mask_of
from tfagents_system.hyperparameters import FrameStack, frames_of_leaves, leaf_name
from tfagents_system.train_params_base import TrainParamsBase

OBSERVATION = "observation"  # Key of the environment's own observation if that is not a dictionary,
ACTION_HISTORY = "action_history"  # and of what the toolkit adds to it.
HORIZON_TIME = "horizon_time"
_ALWAYS_SEEN = (ACTION_HISTORY, HORIZON_TIME, ACTION_MASK)
# The specs of environments' observations have names that begin with `observation`: this one is told apart by its name.
_HORIZON_TIME_SPEC = tf.TensorSpec((1,), tf.float32, HORIZON_TIME)


def is_image(spec: Any) -> bool:
    """Whether a spec describes images: uint8 `[height, width, channels]`."""
    return len(spec.shape) == 3 and np.dtype(getattr(spec.dtype, "as_numpy_dtype", spec.dtype)) == np.uint8


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


def _with_last_axis(observation_spec: Any, frame_stack: FrameStack, size_of: Callable[[int, int], int]) -> Any:
    def convert(spec: tf.TensorSpec, frames: int) -> tf.TensorSpec:
        if frames == 1:
            return spec
        *others, size = spec.shape
        return tf.TensorSpec((*others, size_of(size, frames)), spec.dtype, spec.name)

    leaves = zip(tf.nest.flatten(observation_spec), frames_in(observation_spec, frame_stack), strict=True)
    return tf.nest.pack_sequence_as(observation_spec, [convert(spec, frames) for spec, frames in leaves])


def policy_time_step_spec(params: TrainParamsBase, observation_spec: Any) -> ts.TimeStep:
    """The observation spec that agents are built for.

    Args:
      params: Their `frame_stack` and form of samples are used.
      observation_spec: Of the stored observation: nest of TensorSpecs without batch dimension.
    """
    spec = stacked_spec(observation_spec, params.frame_stack)
    if params.sample_form_ctor().has_horizon_time:
        spec = with_horizon_time(spec, _HORIZON_TIME_SPEC)
    return ts.time_step_spec(spec)


def with_horizon_time(observation: Any, horizon_time: Any) -> dict[str, Any]:
    """The nest with the share of a mini-race that is over, `[B, 1]` or a spec; beside `observation`, if it is no dict.

    A dict of `observation` alone counts as none: so `without_horizon_time` knows which of the two it was.
    """
    has_parts = isinstance(observation, Mapping) and set(observation) != {OBSERVATION}
    return {**(observation if has_parts else {OBSERVATION: observation}), HORIZON_TIME: horizon_time}


def without_horizon_time(observation: Any) -> Any:
    """The inverse of `with_horizon_time`."""
    parts = {name: part for name, part in observation.items() if name != HORIZON_TIME}
    return parts[OBSERVATION] if set(parts) == {OBSERVATION} else parts


def horizon_time_leaf(observation_spec: Any) -> int | None:
    """The number of the horizon time among the leaves of a policy's observation; None: the policy takes none."""
    spec = observation_spec.get(HORIZON_TIME) if isinstance(observation_spec, Mapping) else None
    if getattr(spec, "name", None) != HORIZON_TIME:
        return None
    return leaf_names(observation_spec).index(HORIZON_TIME)


def without_mask(observation: Any) -> Any:
    """What networks see of an observation, or of its spec: a mask of actions only rules out what they choose."""
    if mask_of(observation) is None:
        return observation
    return {name: part for name, part in observation.items() if name != ACTION_MASK}


def seen_by_actor(observation: Any, names: Sequence[str] | None) -> Any:
    """The parts of an observation, or of its spec, that the actor sees: a nest of dictionaries, or all of it.

    Args:
      observation: A nest; with `names` a dictionary that has these parts.
      names: `actor_observations`. What the toolkit adds to observations is seen in any case.
    """
    return observation if names is None else _named_parts(observation, "", {*names, *_ALWAYS_SEEN})


def leaves_seen_by_actor(observation_spec: Any, names: Sequence[str] | None) -> list[int]:
    """The numbers of these parts among the leaves of the whole observation, in the flattened order of both."""
    leaves = tree.flatten(observation_spec)
    numbered = tree.unflatten_as(observation_spec, range(len(leaves)))
    return list(tree.flatten(seen_by_actor(numbered, names)))


def _named_parts(nest: Mapping[Any, Any], above: str, names: Collection[str]) -> dict[Any, Any]:
    named: dict[Any, Any] = {}
    for key, part in nest.items():
        name = f"{above}{key}"
        if name in names:
            named[key] = part
        elif isinstance(part, Mapping) and (below := _named_parts(part, f"{name}/", names)):
            named[key] = below
    return named
