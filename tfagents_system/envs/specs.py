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
from tfagents_system.envs.gym_driver import (
    PlainSpace,
    box_dtype,
    leaf_name,
    no_fixed_shape,
    one_hot_sizes,
    space_kind,
    text_key,
)
from tfagents_system.errors import UserError

_TABLE = "action_table"
_MOST_ONE_HOT, _MOST_AXES = 1_000_000, 28
_INTEGERS = tuple(map(np.dtype, (np.uint8, np.int32, np.int64)))
Bounds = Sequence[Any]  # (low, high): a number each, or one for each number of an action.
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


def spaces_of_array_specs(nest: Any) -> Any:
    """A PyEnvironment's specs as a nest of Boxes, with plain dictionaries for all other mappings, as it is on disk."""
    if isinstance(nest, Mapping):
        return {text_key(key): spaces_of_array_specs(value) for key, value in nest.items()}
    if isinstance(nest, tuple) and hasattr(nest, "_fields"):
        return type(nest)(*map(spaces_of_array_specs, nest))
    if isinstance(nest, list | tuple):
        return type(nest)(map(spaces_of_array_specs, nest))
    low, high = getattr(nest, "minimum", -np.inf), getattr(nest, "maximum", np.inf)
    return PlainSpace("Box", nest.shape, np.dtype(nest.dtype), low, high)


def observation_spec_of(spaces: Any) -> Any:
    """The spec of observations in a nest of spaces.

    Discrete and MultiDiscrete become one-hot vectors, MultiBinary a vector of 0 and 1, all float32.

    Raises:
      UserError: A space has no fixed shape, or no numbers, or too many.
    """
    if not tree.flatten(spaces):
        raise UserError("the observation space has no part: give it at least one, such as a Box of shape (1,)")
    return tree.map_structure_with_path(_observation_leaf, spaces)


def _observation_leaf(path: tuple[Any, ...], space: Any) -> array_spec.ArraySpec:
    name, kind = leaf_name("observation", *path), space_kind(space)
    if kind in ("Discrete", "MultiDiscrete"):
        if (size := int(np.sum(one_hot_sizes(space)))) > _MOST_ONE_HOT:
            raise UserError(
                f"{name} has the space {space}, which is a vector of {size:,} numbers for the networks, at most "
                f"{_MOST_ONE_HOT:,} are possible: return a Box in env_ctor, such as of the number itself"
            )
        return array_spec.ArraySpec((size,), np.float32, name)
    if 0 in (shape := tuple(getattr(space, "shape", None) or ())) or len(shape) > _MOST_AXES:
        raise UserError(
            f"{name} has shape {shape}: give it at least one number and at most {_MOST_AXES} axes, or leave it out of "
            "the space in env_ctor"
        )
    if kind == "MultiBinary":
        return array_spec.ArraySpec(tuple(space.shape), np.float32, name)
    if kind != "Box":
        raise UserError(no_fixed_shape(name, space))
    shape, dtype = tuple(space.shape), _observation_dtype(box_dtype(space))
    if dtype == np.uint8 and len(shape) == 3 and np.all(np.asarray(space.high) < 255):
        dtype = np.dtype(np.int32)  # By its bounds it is no image.
    return array_spec.ArraySpec(shape, dtype, name)


def _observation_dtype(dtype: np.dtype) -> np.dtype:
    """float32 for floats and booleans; uint8, int32 and int64 stay, others become the first that holds them.

    TF-Agents can't build networks for the others. Numbers of uint64 that int64 can't hold are refused where they come.
    """
    if np.issubdtype(dtype, np.floating) or dtype == np.bool_:
        return np.dtype(np.float32)
    if np.issubdtype(dtype, np.integer):
        return next((kept for kept in _INTEGERS if np.can_cast(dtype, kept)), _INTEGERS[-1])
    raise UserError(f"observations must be numbers, found dtype {dtype}: return float32 or an integer type")


def action_spec_of(spaces: Any, bounds: Bounds | None = None) -> Any:
    """The environment's own spec of actions in a nest of spaces, each leaf flattened to one dimension.

    Of a single choice it has none.

    Args:
      bounds: `TrainParams.action_bounds`, which replace those of each Box of floats.

    Raises:
      UserError: A leaf is of another kind, or unbounded, or there is none; the bounds do not fit.
    """
    if not tree.flatten(spaces):
        raise UserError("the action space has no part: give it a Box, Discrete, MultiDiscrete or MultiBinary")
    spec = tree.map_structure_with_path(lambda path, space: _action_leaf(path, space, bounds), spaces)
    if bounds is not None and not any(np.dtype(leaf.dtype).kind == "f" for leaf in tree.flatten(spec)):
        raise UserError("TrainParams.action_bounds are of a Box of floats, and the actions are discrete: remove them")
    return spec


def _action_leaf(path: tuple[Any, ...], space: Any, bounds: Bounds | None) -> array_spec.BoundedArraySpec:
    name, kind = leaf_name("action", *path), space_kind(space)
    dtype = np.dtype(getattr(space, "dtype", None) or np.int64)
    if kind in ("Discrete", "MultiDiscrete"):
        sizes = one_hot_sizes(space)
        low = np.asarray(getattr(space, "start", 0), np.int64).reshape(-1) + 0 * sizes
        low, high = (bound.reshape(() if kind == "Discrete" else -1) for bound in (low, low + sizes - 1))
        return array_spec.BoundedArraySpec(low.shape, dtype, low, high, name)
    if kind == "MultiBinary":
        return array_spec.BoundedArraySpec((int(np.prod(space.shape)),), dtype, 0, 1, name)
    if kind != "Box":
        raise UserError(
            f"the {name} space is {space}: use a Box with finite bounds, Discrete, MultiDiscrete or MultiBinary"
        )
    low, high = space.low, space.high
    if bounds is not None and box_dtype(space).kind == "f":
        low, high = _bounds_within(name, space, bounds)
    return _bounded_action(name, tuple(space.shape), box_dtype(space), low, high)


def _bounds_within(name: str, space: Any, bounds: Bounds) -> list[np.ndarray]:
    """`TrainParams.action_bounds` in the shape and dtype of a Box, within its own bounds."""
    size, dtype = int(np.prod(space.shape, dtype=np.int64)), box_dtype(space)
    if wrong := [np.size(bound) for bound in bounds if np.ndim(bound) and np.size(bound) != size]:
        raise UserError(
            f"TrainParams.action_bounds has {wrong[0]} numbers, the {name} has {size}: give one for all or one for each"
        )
    low, high = (np.resize(np.asarray(bound, dtype), space.shape) for bound in bounds)
    if np.any(low < space.low) or np.any(high > space.high):
        own_low, own_high = (short_text(np.asarray(bound)) for bound in (space.low, space.high))
        raise UserError(
            f"TrainParams.action_bounds: low {short_text(low)} and high {short_text(high)} exceed those of the {name} "
            f"space (low {own_low}, high {own_high}): choose them within these"
        )
    return [low, high]


def _bounded_action(name: str, shape: tuple[int, ...], dtype: Any, low: Any, high: Any) -> array_spec.BoundedArraySpec:
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
        remedy = f"give every dimension bounds of less than {UNBOUNDED:g}; remove ClipAction, which has none"
        if dtype.kind == "f":
            remedy = f"set TrainParams.action_bounds = (low, high), to which actions are scaled, or {remedy}"
        raise UserError(
            f"the {name} space is unbounded (low {short_text(np.asarray(low))}, high {short_text(np.asarray(high))}): "
            f"{remedy}"
        )
    if np.any(low > high):
        raise UserError(f"the {name} space has low {short_text(low)} above high {short_text(high)}: swap them")
    own_shape = () if dtype.kind != "f" and not shape else (size,)  # The one is a PyEnvironment's single choice.
    low, high = (bound.reshape(own_shape).copy() for bound in (low, high))
    return array_spec.BoundedArraySpec(own_shape, dtype, low, high, name)


def short_text(values: np.ndarray) -> str:
    """An array for a message: of more than 8 numbers only the first and last ones."""
    return np.array2string(values, threshold=8, precision=4)
