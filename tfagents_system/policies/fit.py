"""What a saved policy takes of an environment's observation, and whether it fits the environment."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
import tree

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


def shape_findings(policy: Any, observation_spec: Any, action_spec: Any) -> list[str]:
    """What keeps a policy from acting in an environment, a sentence without remedy each; empty if it can.

    Args:
      policy: Loaded from disk.
      observation_spec: Nest of the environment's observations; they may have other parts beside the policy's own.
      action_spec: Nest of its actions, in its own units.
    """
    findings = []
    trained, given = _leaves(policy.time_step_spec.observation), _leaves(observation_spec)
    if not set(trained) <= set(given):
        findings.append(
            f"the policy was trained on observations {', '.join(trained)}, but this environment has {', '.join(given)}"
        )
    acts, takes = ([tuple(spec.shape) for spec in tree.flatten(specs)] for specs in (policy.action_spec, action_spec))
    if acts != takes:
        findings.append(f"the policy gives actions of shapes {acts}, but this environment takes {takes}")
    return findings


def bounds_findings(policy: Any, action_spec: Any) -> list[str]:
    """Where the bounds of its actions are not the environment's, which may still take them, clipped."""

    def bounds(spec: Any) -> np.ndarray:
        return np.stack([np.broadcast_to(bound, tuple(spec.shape)) for bound in (spec.minimum, spec.maximum)])

    pairs = zip(tree.flatten(policy.action_spec), tree.flatten(action_spec), strict=True)
    differing = [(bounds(acts), bounds(takes)) for acts, takes in pairs if hasattr(acts, "minimum")]
    return [
        f"the policy gives actions from {short_text(acts[0])} to {short_text(acts[1])}, but this environment takes "
        f"them from {short_text(takes[0])} to {short_text(takes[1])}"
        for acts, takes in differing
        if not np.allclose(acts, takes)
    ]


def _leaves(nest: Any) -> list[str]:
    """`lidar (19,) float32` of each, sorted: exported files have dictionaries alone."""
    return sorted(
        f"{'/'.join(map(str, path))} {tuple(spec.shape)} {tf.as_dtype(spec.dtype).name}".lstrip()
        for path, spec in tree.flatten_with_path(nest)
    )
