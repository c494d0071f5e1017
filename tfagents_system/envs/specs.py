"""Observation and action specs: from spaces, and on disk.

Observations keep their nest. Actions have two specs: the environment's own bounds, and the agent's (see actions.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tree
from tf_agents.specs import array_spec, tensor_spec

from tfagents_system.envs.actions import actions_of
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

_TABLE = "action_table"
_INTEGERS = tuple(map(np.dtype, (np.uint8, np.int32, np.int64)))
UNBOUNDED = 1e30  # Some libraries use larger bounds to mean "none": scaling to them would lose all precision.


def save_specs(
    path: Path,
    observation_spec: Any,
    environment_action_spec: Any,
    action_table: Sequence[Sequence[float]] | None = None,
) -> None:
    """Writes both specs to one file, and what else says how an agent acts.

    Args:
      path: The file to write.
      observation_spec: Nest of array or tensor specs without batch dimension.
      environment_action_spec: The same for actions, with the environment's own bounds.
      action_table: Of TrainParams.
    """
    content = {"observation": observation_spec, "environment_action": environment_action_spec}
    if action_table is not None:  # The file takes nothing but specs: the bounds of this one are the table.
        rows = np.array(action_table, np.float64)
        content[_TABLE] = array_spec.BoundedArraySpec(rows.shape, rows.dtype, rows, rows, _TABLE)
    tensor_spec.to_pbtxt_file(str(path), tensor_spec.from_spec(content))


def load_specs(path: Path) -> tuple[Any, Any]:
    """Reads (observation_spec, action_spec), the agent's, as TensorSpecs without batch dimension."""
    content = tensor_spec.from_pbtxt_file(str(path))
    return content["observation"], tf.nest.map_structure(_agent_spec, _actions(content))


def load_actions(path: Path) -> Any:
    """Reads the nest of LeafActions."""
    return _actions(tensor_spec.from_pbtxt_file(str(path)))


def _actions(content: Mapping[str, Any]) -> Any:
    table = content[_TABLE].minimum if _TABLE in content else None
    return actions_of(content["environment_action"], table)


def _agent_spec(actions: Any) -> tensor_spec.BoundedTensorSpec:
    return tensor_spec.from_spec(actions.spec)


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
    """float32 for floats and booleans; uint8, int32 and int64 stay, others become the first that holds them.

    TF-Agents can't build networks for the others. Numbers of uint64 that int64 can't hold are refused where they come.

    Raises:
      UserError: It is not numeric.
    """
    dtype = np.dtype(dtype)
    if np.issubdtype(dtype, np.floating) or dtype == np.bool_:
        return np.dtype(np.float32)
    if np.issubdtype(dtype, np.integer):
        return next((kept for kept in _INTEGERS if np.can_cast(dtype, kept)), _INTEGERS[-1])
    raise UserError(f"observations must be numbers, found dtype {dtype}: return float32 or an integer type")


def _leaf_dtype(dtype: Any, shape: Sequence[int], high: Any) -> np.dtype:
    """As of `observation_dtype`; int32 for what has an image's dtype and shape, and by its bounds no pixels."""
    kept = observation_dtype(dtype)
    return np.dtype(np.int32) if kept == np.uint8 and len(shape) == 3 and np.all(np.asarray(high) < 255) else kept


def observation_spec_of_space(space: Any) -> Any:
    """The spec of an observation space.

    Discrete and MultiDiscrete become one-hot vectors, MultiBinary a vector of 0 and 1, all float32.

    Raises:
      UserError: The space has no fixed shape.
    """
    return map_space(_observation_leaf, space, "observation")


def _observation_leaf(space: Any, name: str) -> array_spec.ArraySpec:
    kind = space_kind(space)
    if kind in ("Discrete", "MultiDiscrete"):
        return array_spec.ArraySpec((int(np.sum(one_hot_sizes(space))),), np.float32, name)
    if kind == "MultiBinary":
        return array_spec.ArraySpec(tuple(space.shape), np.float32, name)
    if kind != "Box":
        raise UserError(no_fixed_shape(name, space))
    return array_spec.ArraySpec(tuple(space.shape), _leaf_dtype(box_dtype(space), space.shape, space.high), name)


def observation_spec_of_array_specs(nest: Any) -> Any:
    """The spec of a PyEnvironment's observations, floats as float32.

    Raises:
      UserError: A leaf is not numeric.
    """

    def convert(path: tuple[Any, ...], leaf: Any) -> array_spec.ArraySpec:
        dtype = _leaf_dtype(leaf.dtype, leaf.shape, getattr(leaf, "maximum", np.inf))
        return array_spec.ArraySpec(tuple(leaf.shape), dtype, leaf_name("observation", *path))

    return tree.map_structure_with_path(convert, plain_nest(nest))


def action_spec_of_space(space: Any) -> Any:
    """The environment's own action spec, each leaf flattened to one dimension; a Discrete has none.

    Raises:
      UserError: A leaf is of another kind, or unbounded.
    """
    return map_space(_action_leaf, space, "action")


def _action_leaf(space: Any, name: str) -> array_spec.BoundedArraySpec:
    kind, dtype = space_kind(space), np.dtype(getattr(space, "dtype", None) or np.int64)
    if kind in ("Discrete", "MultiDiscrete"):
        sizes = one_hot_sizes(space)
        first = np.asarray(getattr(space, "start", 0), np.int64).reshape(-1)
        low, high = (
            bound.reshape(() if kind == "Discrete" else -1) for bound in (first + 0 * sizes, first + sizes - 1)
        )
        return array_spec.BoundedArraySpec(low.shape, dtype, low, high, name)
    if kind == "MultiBinary":
        return array_spec.BoundedArraySpec((int(np.prod(space.shape)),), dtype, 0, 1, name)
    if kind != "Box":
        raise UserError(
            f"the {name} space is {space}: use a Box with finite bounds, Discrete, MultiDiscrete or MultiBinary"
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
    if dtype.kind not in "fiu":
        raise UserError(f"the {name} space has dtype {dtype}: use a float or an integer dtype")
    size = int(np.prod(shape, dtype=np.int64))
    if size == 0:
        raise UserError(f"the {name} space has shape {shape}, which holds no number: give it at least one")
    is_bounded = bool(np.isfinite(low).all() and np.isfinite(high).all())
    if is_bounded or dtype.kind == "f":
        low, high = (np.broadcast_to(np.asarray(bound, dtype), shape).reshape(size) for bound in (low, high))
        is_bounded = bool(np.all(np.abs(low) < UNBOUNDED) and np.all(np.abs(high) < UNBOUNDED))
    if not is_bounded:
        raise UserError(
            f"the {name} space is unbounded (low {short_text(np.asarray(low))}, high {short_text(np.asarray(high))}): "
            "give every dimension finite bounds, actions are scaled to them"
        )
    if np.any(low > high):
        raise UserError(f"the {name} space has low {short_text(low)} above high {short_text(high)}: swap them")
    own_shape = () if dtype.kind != "f" and not shape else (size,)  # The one is a PyEnvironment's single choice.
    low, high = (bound.reshape(own_shape).copy() for bound in (low, high))
    return array_spec.BoundedArraySpec(own_shape, dtype, low, high, name)


def short_text(values: np.ndarray) -> str:
    """An array for a message: of more than 8 numbers only the first and last ones."""
    return np.array2string(values, threshold=8, precision=4)
