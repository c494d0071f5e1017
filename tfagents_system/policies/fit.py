"""What a saved policy takes of an environment's observation, and whether it fits the environment."""

from __future__ import annotations

from typing import Any

import numpy as np
import tree
from tf_agents.specs import array_spec, tensor_spec

from tfagents_system.envs.specs import short_text


def arrays_for(observation: Any, spec: Any) -> Any:
    """The parts of an observation that a policy asks for, as arrays of its spec's shapes and dtypes.

    Raises:
      ValueError: A part is not there, or has another shape.
    """
    remedy = (
        "a policy takes what training's environment gives: discrete parts one-hot, and action_history where the params "
        "ask for it"
    )

    def array(path: tuple[Any, ...], leaf_spec: Any) -> np.ndarray:
        name = "/".join(map(str, path)) or "observation"
        part = observation
        for key in path:
            try:
                part = part[key]
            except (KeyError, IndexError, TypeError):
                raise ValueError(f"the observation has no part {name}: {remedy}") from None
        value = np.asarray(part, leaf_spec.dtype)
        if value.shape != tuple(leaf_spec.shape):
            raise ValueError(f"{name} must have the shape {tuple(leaf_spec.shape)}, found {value.shape}: {remedy}")
        return value

    return tree.map_structure_with_path(array, spec)


def fit_findings(policy: Any, observation_spec: Any, action_spec: Any) -> list[str]:
    """As `shape_findings`, and actions must have the same bounds."""
    findings = shape_findings(policy, observation_spec, action_spec)
    return findings or bounds_findings(policy, action_spec)


def shape_findings(policy: Any, observation_spec: Any, action_spec: Any) -> list[str]:
    """What keeps a policy from acting in an environment, a sentence without remedy each; empty if it can.

    Args:
      policy: Loaded from disk.
      observation_spec: Nest of the environment's observations; they may have other parts beside the policy's own.
      action_spec: Nest of its actions, in its own units.
    """
    findings = []
    trained, ours = _leaves(policy.time_step_spec.observation), _leaves(observation_spec)
    if not set(trained) <= set(ours):
        findings.append(
            f"the policy was trained on observations {_in_words(trained)}, but this environment has {_in_words(ours)}"
        )
    acts, takes = tree.flatten(policy.action_spec), tree.flatten(action_spec)
    shapes = [[tuple(spec.shape) for spec in specs] for specs in (acts, takes)]
    if shapes[0] != shapes[1]:
        findings.append(f"the policy gives actions of shapes {shapes[0]}, but this environment takes {shapes[1]}")
    return findings


def bounds_findings(policy: Any, action_spec: Any) -> list[str]:
    """Where the bounds of its actions are not the environment's, which may still take them, clipped."""
    findings = []
    for own, wanted in zip(tree.flatten(policy.action_spec), tree.flatten(action_spec), strict=True):
        if hasattr(own, "minimum") and not np.allclose(_bounds(own), _bounds(wanted)):
            findings.append(
                f"the policy gives actions {_bounds_in_words(own)}, but this environment takes them "
                f"{_bounds_in_words(wanted)}"
            )
    return findings


def _leaves(nest: Any) -> list[tuple[Any, ...]]:
    """Path, shape and dtype of each, sorted: exported files have dictionaries alone."""
    arrays = tree.map_structure(_as_array, nest)
    leaves = sorted(tree.flatten_with_path(arrays), key=lambda leaf: str(leaf[0]))
    return [(path, tuple(spec.shape), np.dtype(spec.dtype).name) for path, spec in leaves]


def _in_words(leaves: list[tuple[Any, ...]]) -> str:
    """`lidar (19,) float32, speed (1,) float32`."""
    return ", ".join(f"{'/'.join(map(str, path))} {shape} {dtype}".lstrip() for path, shape, dtype in leaves)


def _as_array(spec: Any) -> Any:
    return spec if isinstance(spec, array_spec.ArraySpec) else tensor_spec.to_array_spec(spec)


def _bounds(spec: Any) -> np.ndarray:
    """The lowest and the highest action, `[2, n]`."""
    return np.stack([np.broadcast_to(bound, tuple(spec.shape)) for bound in (spec.minimum, spec.maximum)])


def _bounds_in_words(spec: Any) -> str:
    low, high = map(short_text, _bounds(spec))
    return f"from {low} to {high}"
