"""Observation and action specs: from spaces, and on disk.

Observations keep their nest. Actions have two specs: the environment's own bounds, and [-1, 1] for the agent.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tree
from tf_agents.specs import array_spec, tensor_spec

from tfagents_system.envs.spaces import (
    box_dtype,
    leaf_name,
    map_space,
    no_fixed_shape,
    one_hot_sizes,
    space_kind,
    text_key,
)
from tfagents_system.errors import UserError

UNBOUNDED = 1e30  # Some libraries use larger bounds to mean "none": scaling to them would lose all precision.


def save_specs(path: Path, observation_spec: Any, environment_action_spec: Any) -> None:
    """Writes both specs to one file.

    Args:
      path: The file to write.
      observation_spec: Nest of array or tensor specs without batch dimension.
      environment_action_spec: The same for actions, with the environment's own bounds.
    """
    both = {"observation": observation_spec, "environment_action": environment_action_spec}
    tensor_spec.to_pbtxt_file(str(path), tensor_spec.from_spec(both))


def load_specs(path: Path) -> tuple[Any, Any]:
    """Reads (observation_spec, action_spec) as TensorSpecs without batch dimension; actions are in [-1, 1] float32."""
    both = tensor_spec.from_pbtxt_file(str(path))
    return both["observation"], tf.nest.map_structure(agent_action_spec, both["environment_action"])


def load_environment_action_spec(path: Path) -> Any:
    """Reads the environment's own action spec: BoundedTensorSpecs of its bounds and dtype, without batch dimension."""
    return tensor_spec.from_pbtxt_file(str(path))["environment_action"]


def agent_action_spec(spec: Any) -> tensor_spec.BoundedTensorSpec:
    """The agent's spec of one action: the same shape, float32, in [-1, 1]."""
    return tensor_spec.BoundedTensorSpec(spec.shape, tf.float32, -1.0, 1.0, name=spec.name)


def to_agent_units(action: Any, spec: Any) -> np.ndarray:
    """From the environment's own bounds to [-1, 1], `[n]` float32; 0 where both bounds are the same."""
    low, high = np.asarray(spec.minimum, np.float64), np.asarray(spec.maximum, np.float64)
    span = np.where(high > low, high - low, 1.0)
    scaled = 2.0 * (np.asarray(action, np.float64).reshape(tuple(spec.shape)) - low) / span - 1.0
    return np.where(high > low, np.clip(scaled, -1.0, 1.0), 0.0).astype(np.float32)


def plain_nest(nest: Any) -> Any:
    """The same nest with plain dictionaries for all other mappings, as it is read back from disk."""
    if isinstance(nest, Mapping):
        return {text_key(key): plain_nest(value) for key, value in nest.items()}
    if isinstance(nest, tuple) and hasattr(nest, "_fields"):
        return type(nest)(*(plain_nest(value) for value in nest))
    if isinstance(nest, list | tuple):
        return type(nest)(plain_nest(value) for value in nest)
    return nest


def observation_dtype(dtype: Any) -> np.dtype:
    """float32 for floats and booleans; integers, such as pixels, keep their dtype.

    Raises:
      UserError: It is not numeric.
    """
    dtype = np.dtype(dtype)
    if np.issubdtype(dtype, np.floating) or dtype == np.bool_:
        return np.dtype(np.float32)
    if np.issubdtype(dtype, np.integer):
        return dtype
    raise UserError(f"observations must be numbers, found dtype {dtype}: return float32 or an integer type")


def observation_spec_of_space(space: Any, name: str = "observation") -> Any:
    """The spec of an observation space.

    Discrete and MultiDiscrete become one-hot vectors, MultiBinary a vector of 0 and 1, all float32.

    Raises:
      UserError: The space has no fixed shape.
    """
    return map_space(_observation_leaf, space, name)


def _observation_leaf(space: Any, name: str) -> array_spec.ArraySpec:
    kind = space_kind(space)
    if kind in ("Discrete", "MultiDiscrete"):
        return array_spec.ArraySpec((int(np.sum(one_hot_sizes(space))),), np.float32, name)
    if kind == "MultiBinary":
        return array_spec.ArraySpec(tuple(space.shape), np.float32, name)
    if kind != "Box":
        raise UserError(no_fixed_shape(name, space))
    return array_spec.ArraySpec(tuple(space.shape), observation_dtype(box_dtype(space)), name)


def observation_spec_of_array_specs(nest: Any) -> Any:
    """The spec of a PyEnvironment's observations, floats as float32.

    Raises:
      UserError: A leaf is not numeric.
    """

    def convert(path: tuple[Any, ...], leaf: Any) -> array_spec.ArraySpec:
        return array_spec.ArraySpec(tuple(leaf.shape), observation_dtype(leaf.dtype), leaf_name("observation", *path))

    return tree.map_structure_with_path(convert, plain_nest(nest))


def action_spec_of_space(space: Any, name: str = "action") -> Any:
    """The environment's own action spec, each leaf flattened to one dimension.

    Raises:
      UserError: A leaf is discrete or unbounded.
    """
    return map_space(_action_leaf, space, name)


def _action_leaf(space: Any, name: str) -> array_spec.BoundedArraySpec:
    if space_kind(space) != "Box":
        raise UserError(
            f"the {name} space is {space}, but SAC needs continuous actions: "
            "use a Box with finite bounds and a float dtype"
        )
    return _bounded_action(name, tuple(space.shape), box_dtype(space), space.low, space.high)


def action_spec_of_array_specs(nest: Any) -> Any:
    """The same for a PyEnvironment's action spec."""

    def convert(path: tuple[Any, ...], leaf: Any) -> array_spec.BoundedArraySpec:
        low, high = getattr(leaf, "minimum", -np.inf), getattr(leaf, "maximum", np.inf)
        return _bounded_action(leaf_name("action", *path), tuple(leaf.shape), leaf.dtype, low, high)

    return tree.map_structure_with_path(convert, plain_nest(nest))


def _bounded_action(name: str, shape: tuple[int, ...], dtype: Any, low: Any, high: Any) -> array_spec.BoundedArraySpec:
    dtype = np.dtype(dtype)
    if not np.issubdtype(dtype, np.floating):
        raise UserError(
            f"the {name} space is discrete (dtype {dtype}), but SAC needs continuous actions: "
            "use finite bounds and a float dtype"
        )
    size = int(np.prod(shape, dtype=np.int64))
    if size == 0:
        raise UserError(f"the {name} space has shape {shape}, which holds no number: give it at least one")
    low, high = (np.broadcast_to(np.asarray(bound, dtype), shape).reshape(size) for bound in (low, high))
    if not (np.all(np.abs(low) < UNBOUNDED) and np.all(np.abs(high) < UNBOUNDED)):
        raise UserError(
            f"the {name} space is unbounded (low {short_text(low)}, high {short_text(high)}): "
            "give every dimension finite bounds, actions are scaled to them"
        )
    if np.any(low > high):
        raise UserError(f"the {name} space has low {short_text(low)} above high {short_text(high)}: swap them")
    return array_spec.BoundedArraySpec((size,), dtype, low.copy(), high.copy(), name)


def short_text(values: np.ndarray) -> str:
    """An array for a message: of more than 8 numbers only the first and last ones."""
    return np.array2string(values, threshold=8, precision=4)
