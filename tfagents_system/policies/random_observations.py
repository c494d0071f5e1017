"""Random observations like those that a policy has seen, to compare two ways of computing its actions."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.policies import tf_policy

from tfagents_system.agents.normalization import RunningNormalization
from tfagents_system.envs.history import horizon_time_leaf
from tfagents_system.policies.frame_stack_policy import innermost


def random_observations(policy: tf_policy.TFPolicy, count: int, rng: np.random.Generator) -> Any:
    """`[count, ...]`, around the mean of the policy's training observations if it knows that.

    Otherwise all would be clipped, and no weight behind the normalisation would matter.
    """
    spec = policy.time_step_spec.observation
    own = horizon_time_leaf(innermost(policy).time_step_spec.observation)
    seen = {
        module.leaf - (own is not None and module.leaf > own): (module.mean.numpy(), np.sqrt(module.variance.numpy()))
        for module in policy.submodules
        if isinstance(module, RunningNormalization) and module.leaf != own
    }
    leaves = enumerate(tf.nest.flatten(spec))
    return tf.nest.pack_sequence_as(spec, [draw(leaf, _of_newest(seen.get(k), leaf), count, rng) for k, leaf in leaves])


def _of_newest(seen: tuple[Any, Any] | None, spec: tf.TensorSpec) -> tuple[Any, Any] | None:
    """Of what networks have seen of a stacked leaf, the last axis of which has several frames, the newest one."""
    if seen is None or not spec.shape.rank:
        return seen
    mean, std = seen
    return mean[..., -spec.shape[-1] :], std[..., -spec.shape[-1] :]


def draw(spec: tf.TensorSpec, seen: tuple[Any, Any] | None, count: int, rng: np.random.Generator) -> np.ndarray:
    """`[count, *shape]`, from (mean, standard deviation) if known."""
    shape, dtype = (count, *spec.shape), spec.dtype.as_numpy_dtype
    if not spec.dtype.is_floating and seen is None:
        return rng.integers(0, min(255, np.iinfo(dtype).max), shape, dtype, endpoint=True)
    mean, std = seen or (0.0, 1.0)
    spread = np.resize([1.0, 1.0, 0.1, 10.0], count).reshape(-1, *[1] * len(spec.shape))
    values = mean + spread * std * rng.standard_normal(shape)
    if spec.dtype.is_floating:
        return values.astype(dtype)
    return np.clip(np.rint(values), np.iinfo(dtype).min, np.iinfo(dtype).max).astype(dtype)
