"""Policies on disk, whatever their format: SavedModels, checkpoints of a run, and exported files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import tensorflow as tf
from tf_agents.policies import policy_loader, py_policy, tf_policy
from tf_agents.trajectories import policy_step
from tf_agents.trajectories import time_step as ts

from tfagents_system.errors import UserError
from tfagents_system.policies import numpy_policy
from tfagents_system.policies.description import (
    Description,
    NetworkLayers,
    action_array_spec,
    observation_array_specs,
)
from tfagents_system.policies.environment_policies import SingleFramesPolicy, innermost
from tfagents_system.policies.numpy_policy import initial_state, observation_leaves
from tfagents_system.policies.weights import read_weights

FILE_NAME = "policy"
PLAYER = Path(numpy_policy.__file__)  # Plays policy.npz with NumPy alone.
_MODEL = "greedy_policy"  # A run's SavedModel, to which its checkpoints of weights belong.


class PolicyFile(Protocol):
    """An opened file of one format: how actions are computed, for logs, and what `description.describe` returned."""

    inference: str
    description: Description

    def run(self, leaves: list[np.ndarray], state: list[np.ndarray]) -> tuple[np.ndarray, list[np.ndarray]]:
        """Actions `[n, action_dim]` in the environment's units and next state, of n observations."""


class ExportedPolicy(py_policy.PyPolicy):
    """An exported file as a policy. Like a loaded SavedModel it takes one time step without a batch dimension.

    Args:
      file: The file.
    """

    def __init__(self, file: PolicyFile) -> None:
        description = file.description
        state_spec = tuple(
            tf.TensorSpec(tuple(spec["shape"]), spec["dtype"], spec["name"]) for spec in description["state"]
        )
        super().__init__(
            ts.time_step_spec(observation_array_specs(description)), action_array_spec(description), state_spec
        )
        self._file = file
        self.inference = file.inference
        self.description = description

    def get_train_step(self) -> int:
        """Updates done when its checkpoint was saved."""
        return int(self.description["train_step"])

    def _get_initial_state(self, batch_size: int | None) -> tuple[np.ndarray, ...]:
        return tuple(initial_state(self.description, batch_size or 1))

    def _action(self, time_step: ts.TimeStep, policy_state: Any, seed: Any = None) -> policy_step.PolicyStep:
        leaves, is_batch = observation_leaves(time_step.observation, self.description["observation"])
        actions, state = self._file.run(leaves, list(policy_state))
        return policy_step.PolicyStep(actions if is_batch else actions[0], tuple(state))


def load_policy(path: Path, setting: str) -> py_policy.PyPolicy:
    """Loads a greedy policy, which acts in the environment's own units.

    Args:
      path: A SavedModel (`policies/greedy_policy` of a run), weights (`.../checkpoints/policy_checkpoint_<n>`), a file
        of `sac export`, or the folder of such files.
      setting: The flag or variable with the path; named in errors.

    Raises:
      UserError: It is none of these.
    """
    file = _exported_file(path)
    if file is not None:
        try:
            return ExportedPolicy(_opened(file))
        except (OSError, ValueError, KeyError) as error:
            raise UserError(f"{setting}={path} can't be loaded: {error}") from None
    return load_saved_model(path, setting)


def load_saved_model(path: Path, setting: str) -> py_policy.PyPolicy:
    """Loads a SavedModel, or weights beside it. See `load_policy`."""
    is_checkpoint = not (path / "saved_model.pb").is_file()
    model = path.resolve().parent.parent / _MODEL if is_checkpoint else path
    if not (model / "saved_model.pb").is_file():
        raise UserError(
            f"{setting}={path} is neither a SavedModel, nor a policy checkpoint of a run, nor a file of "
            "sac export: give a folder such as logs/pendulum/policies/greedy_policy or "
            "logs/pendulum/policies/checkpoints/policy_checkpoint_0000010000, or a file such as policy.npz"
        )
    try:
        return policy_loader.load(str(model), str(path) if is_checkpoint else None)
    except (OSError, ValueError, tf.errors.OpError) as error:
        raise UserError(f"{setting}={path} can't be loaded: {error}") from None


def _exported_file(path: Path) -> Path | None:
    """The exported file at a path; of a folder's files the simplest."""
    suffixes = (".npz", ".tflite", ".onnx")
    files = [path / f"{FILE_NAME}{suffix}" for suffix in suffixes] if path.is_dir() else [path]
    return next((file for file in files if file.suffix in suffixes and file.is_file()), None)


def _opened(file: Path) -> PolicyFile:
    if file.suffix == ".npz":
        return NumpyFile(file)
    from tfagents_system.policies.exports import ExportedFile

    return ExportedFile(file)


def save_numpy(path: Path, policy: tf_policy.TFPolicy, description: Description) -> None:
    """Writes an agent's policy as `policy.npz`, which `numpy_policy.py` plays.

    Raises:
      UnsupportedNetworkError: It contains something that NumPy can't compute.
    """
    network = NetworkLayers(innermost(policy), policy.frames if isinstance(policy, SingleFramesPolicy) else ())
    action = description["action"]
    bounds = {name: np.asarray(action[name], action["dtype"]) for name in ("low", "high", "rows") if name in action}
    arrays = network.arrays(read_weights(network.variables))
    further: dict[str, Any] = {"layers": network.layers, "inputs": network.observation}
    of_environment = [leaf for leaf in network.observation if not leaf.get("is_zero")]
    if any("frames" in leaf for leaf in of_environment):
        leaves = zip(description["observation"], of_environment, strict=True)
        further["observation"] = [{**leaf, **of_network} for leaf, of_network in leaves]
        state = numpy_policy.Network(network.observation, network.layers, arrays).state
        further["state"] = [
            {"name": f"state_{k}", "shape": [len(part)], "dtype": "float32"} for k, part in enumerate(state)
        ]
    text = np.array(json.dumps({**description, **further}))
    with path.open("wb") as file:
        np.savez(file, description=text, **bounds, **arrays)


class NumpyFile:
    """Plays a `policy.npz` for `ExportedPolicy`.

    Raises:
      ValueError: The file is not a policy.
    """

    inference = "policy file (numpy)"

    def __init__(self, path: Path) -> None:
        self._policy = numpy_policy.load(path)
        self.description: Description = self._policy.description
        self.run = self._policy.step
