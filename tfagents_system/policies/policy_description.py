"""The JSON description in an exported policy's file; `describe` lists the keys."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tree
from tf_agents.specs import array_spec

from tfagents_system.errors import UserError
from tfagents_system.policies.leaf_names import fit_names
from tfagents_system.policies.numpy_policy import FORMAT

Description = dict[str, Any]


def describe(
    observation_spec: Any,
    actions: Any,
    policy_state_spec: Any,
    checkpoint: str,
    train_step: int,
    iteration: int | None,
) -> Description:
    """The description of a policy with one action array.

    Args:
      observation_spec: Nest of TensorSpecs without batch dimension.
      actions: LeafActions, or a nest of them.
      policy_state_spec: Nest of TensorSpecs; empty without memory.
      checkpoint: Name of the checkpoint.
      train_step: Updates done when it was saved.
      iteration: The iteration in which it was saved; None if unknown.

    Returns:
      observation: of each array its name (an identifier), path in the nest, shape and dtype; action: shape, dtype,
      the bounds low and high and, where the policy chooses one of n actions, their rows; state: name and shape of each
      array; checkpoint, train_step, iteration, format.

    Raises:
      UserError: The action is a nest.
    """
    if tf.nest.is_nested(actions):
        raise UserError("an exported policy has one array of actions, this environment's is a nest: use the SavedModel")
    paths = [path for path, _ in tree.flatten_with_path(observation_spec)]
    leaves = zip(_names(paths), paths, tf.nest.flatten(observation_spec), strict=True)
    return {
        "format": FORMAT,
        "checkpoint": checkpoint,
        "train_step": train_step,
        "iteration": iteration,
        "observation": [{"name": name, "path": list(path), **shape_and_dtype(spec)} for name, path, spec in leaves],
        "action": actions.describe(),
        "state": [
            {"name": f"state_{k}", **shape_and_dtype(spec)} for k, spec in enumerate(tf.nest.flatten(policy_state_spec))
        ],
    }


def observation_array_specs(description: Description) -> Any:
    """The nest of ArraySpecs of an observation; lists come back as tuples."""
    leaves = [
        (tuple(leaf["path"]), array_spec.ArraySpec(tuple(leaf["shape"]), np.dtype(leaf["dtype"]), leaf["name"]))
        for leaf in description["observation"]
    ]
    return _nest(leaves)


def action_array_spec(description: Description) -> array_spec.BoundedArraySpec:
    """The environment's own action spec."""
    action = description["action"]
    return array_spec.BoundedArraySpec(
        tuple(action["shape"]), np.dtype(action["dtype"]), action["low"], action["high"], "action"
    )


def shape_and_dtype(spec: tf.TensorSpec) -> dict[str, Any]:
    """As in a description."""
    return {"shape": spec.shape.as_list(), "dtype": spec.dtype.name}


def _names(paths: Sequence[tuple[Any, ...]]) -> list[str]:
    """An identifier for each path: `observation`, `sensors_touch`, `observation_0`."""
    joined = ["_".join(map(str, path)) for path in paths]
    wanted = [name if re.match("[A-Za-z]", name) else f"observation_{name}".rstrip("_") for name in joined]
    return fit_names(wanted, is_taken=_is_of_another_array)


def _is_of_another_array(name: str) -> bool:
    return re.fullmatch(r"(next_)?state_\d+|action", name) is not None


def _nest(leaves: Sequence[tuple[tuple[Any, ...], Any]]) -> Any:
    """The nest of dictionaries and tuples whose leaves have these paths."""
    if len(leaves) == 1 and not leaves[0][0]:
        return leaves[0][1]
    children: dict[Any, list[tuple[tuple[Any, ...], Any]]] = {}
    for path, leaf in leaves:
        children.setdefault(path[0], []).append((path[1:], leaf))
    nests: Mapping[Any, Any] = {key: _nest(below) for key, below in children.items()}
    return tuple(nests.values()) if all(isinstance(key, int) for key in nests) else nests
