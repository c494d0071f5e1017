"""Saved policies of every format, loaded as one kind of policy: SavedModels, checkpoints of a run, exported files.

A policy is a description and weights, with three backends: TensorFlow in SavedModels, NumPy in `policy.npz`, and the
interpreters of `policy.tflite` and `policy.onnx`, which have the description in JSON beside them. `Policy` plays any
of them, and `misfits` says whether it fits an environment.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tree
from tf_agents.policies import policy_loader, py_policy
from tf_agents.specs import array_spec
from tf_agents.trajectories import policy_step
from tf_agents.trajectories import time_step as ts

from tfagents_system.checks.findings import is_installed
from tfagents_system.envs.specs import short_text
from tfagents_system.errors import UserError
from tfagents_system.policies import numpy_policy
from tfagents_system.policies.description import Description
from tfagents_system.policies.names import nest_of

FILE_NAME = "policy"
PLAYER = Path(numpy_policy.__file__)  # Plays policy.npz with NumPy alone.
_MODEL = "greedy_policy"  # A run's SavedModel, to which its checkpoints of weights belong.
_SUFFIXES = (".npz", ".tflite", ".onnx")  # The simplest first.

# Actions `[n, action_dim]` in the environment's units and the next state, of the arrays of n observations and a state.
Step = Callable[[list[np.ndarray], list[np.ndarray]], tuple[np.ndarray, list[np.ndarray]]]


def load_policy(path: Path, setting: str) -> py_policy.PyPolicy:
    """Loads a greedy policy, which acts in the environment's own units.

    Args:
      path: A SavedModel (`policies/greedy_policy` of a run), weights (`.../checkpoints/policy_checkpoint_<n>`), a file
        of `sac export`, or the folder of such files.
      setting: The flag or variable with the path; named in errors.

    Raises:
      UserError: It is none of these.
    """
    files = [path / f"{FILE_NAME}{suffix}" for suffix in _SUFFIXES] if path.is_dir() else [path]
    file = next((file for file in files if file.suffix in _SUFFIXES and file.is_file()), None)
    if file is None:
        return load_saved_model(path, setting)
    try:
        return ExportedPolicy(file)
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{setting}={path} can't be loaded: {error}: export it again, or give another") from None


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
        raise UserError(f"{setting}={path} can't be loaded: {error}: export it again, or give another") from None


class ExportedPolicy(py_policy.PyPolicy):
    """An exported file as a policy. It takes one time step without a batch dimension, as a SavedModel does, or n.

    Attributes:
      inference: How actions are computed, for logs.
      description: What `description.describe` returned.

    Raises:
      OSError, ValueError, KeyError: The file is no policy, or its description is not beside it.
      UserError: onnxruntime is needed and not installed.
    """

    _step: Step

    def __init__(self, path: Path) -> None:
        if path.suffix == ".npz":
            player = numpy_policy.load(path)
            self.inference, self.description, self._step = "policy file (numpy)", player.description, player.step
        else:
            self.inference = f"policy file ({path.suffix[1:]})"
            self.description = json.loads(Path(f"{path}.json").read_text())
            self._step = _step_of(path, self.description)
        state_spec = tuple(
            tf.TensorSpec(tuple(spec["shape"]), spec["dtype"], spec["name"]) for spec in self.description["state"]
        )
        leaves = self.description["observation"]  # Lists of a nest come back as tuples.
        observation_spec = nest_of(
            [(tuple(leaf["path"]), array_spec.ArraySpec(leaf["shape"], leaf["dtype"], leaf["name"])) for leaf in leaves]
        )
        action = self.description["action"]
        bounds = action["low"], action["high"]
        action_spec = array_spec.BoundedArraySpec(action["shape"], np.dtype(action["dtype"]), *bounds, "action")
        super().__init__(ts.time_step_spec(observation_spec), action_spec, state_spec)

    def get_train_step(self) -> int:
        """Updates done when its checkpoint was saved."""
        return int(self.description["train_step"])

    def _get_initial_state(self, batch_size: int | None) -> tuple[np.ndarray, ...]:
        return tuple(numpy_policy.initial_state(self.description, batch_size or 1))

    def _action(self, time_step: ts.TimeStep, policy_state: Any, seed: Any = None) -> policy_step.PolicyStep:
        leaves, is_batch = numpy_policy.observation_leaves(time_step.observation, self.description["observation"])
        actions, state = self._step(leaves, list(policy_state))
        return policy_step.PolicyStep(actions if is_batch else actions[0], tuple(state))


def _step_of(path: Path, description: Description) -> Step:
    """What a file for an interpreter computes. Its arrays are named as in the description."""
    state_names = [spec["name"] for spec in description["state"]]
    inputs = [*(spec["name"] for spec in description["observation"]), *state_names]
    outputs = ["action", *(f"next_{name}" for name in state_names)]
    run = (_onnx_runner if path.suffix == ".onnx" else _tflite_runner)(path, outputs)

    def step(leaves: list[np.ndarray], state: list[np.ndarray]) -> tuple[np.ndarray, list[np.ndarray]]:
        action, *following = run(dict(zip(inputs, [*leaves, *state], strict=True)))
        return action, following

    return step


def _onnx_runner(path: Path, outputs: list[str]) -> Callable[[dict[str, np.ndarray]], list[np.ndarray]]:
    require("onnxruntime")
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime does not export its exception types.
        raise ValueError(f"onnxruntime does not read it: {error}") from error
    return lambda arrays: session.run(outputs, arrays)


def _tflite_runner(path: Path, outputs: list[str]) -> Callable[[dict[str, np.ndarray]], list[np.ndarray]]:
    with without_notes():
        runner = tf.lite.Interpreter(str(path), num_threads=1).get_signature_runner()
    return lambda arrays: [*map(runner(**arrays).__getitem__, outputs)]


def require(*packages: str) -> None:
    """Raises UserError if a package that ONNX files need is not installed."""
    if missing := [package for package in packages if not is_installed(package)]:
        raise UserError(f"ONNX files need {' and '.join(missing)}: in the toolkit's folder, pip install '.[onnx]'")


@contextlib.contextmanager
def without_notes() -> Iterator[None]:
    """TensorFlow Lite writes statistics to standard error, past Python's own streams."""
    kept = os.dup(2)
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


class Policy:
    """Called with an observation as training's environment gives it, returns the action in the environment's own units.

    A policy with a memory (recurrent networks, stacked frames) remembers the episode until `reset()`.
    """

    def __init__(self, policy: py_policy.PyPolicy) -> None:
        self._policy = policy
        self.reset()

    def reset(self) -> None:
        """An episode begins."""
        self._is_first, self._state = True, self._policy.get_initial_state(1)

    def __call__(self, observation: Any) -> Any:
        """Action `[...]` of one observation, NumPy arrays of the environment's dtypes.

        Args:
          observation: May have other parts beside those that the actor sees (`actor_observations`). Discrete parts are
            one-hot, as in training, and `action_history` is a part where the params ask for it.

        Raises:
          ValueError: A part is missing, has another shape, or is not finite.
        """
        seen = _seen(observation, self._policy.time_step_spec.observation)
        time_step = ts.restart(seen) if self._is_first else ts.transition(seen, reward=0.0)
        step = self._policy.action(time_step, self._state)
        self._is_first, self._state = False, step.state
        return step.action


def _seen(observation: Any, spec: Any) -> Any:
    """The parts of an observation that a policy asks for, as arrays of its spec's shapes and dtypes.

    Raises:
      ValueError: A part is not there, has another shape, or is not finite.
    """
    parts = [
        {"name": "/".join(map(str, path)) or "observation", "path": path, "shape": leaf.shape, "dtype": leaf.dtype}
        for path, leaf in tree.flatten_with_path(spec)
    ]
    try:
        leaves, is_batch = numpy_policy.observation_leaves(observation, parts)
        if is_batch:
            raise numpy_policy.OtherPartsError("expected one observation, found a batch of them")
    except numpy_policy.OtherPartsError as error:
        raise ValueError(
            f"{error}: a policy takes what training's environment gives: discrete parts one-hot, and action_history "
            "where the params ask for it"
        ) from None
    return tree.unflatten_as(spec, [leaf[0] for leaf in leaves])


def misfits(policy: py_policy.PyPolicy, observation_spec: Any, action_spec: Any) -> list[str]:
    """What keeps a policy from acting in an environment of these specs, a sentence without remedy each.

    Observations may have other parts beside the policy's own; actions are in the environment's units.
    """
    trained, given = (
        sorted(  # `lidar (19,) float32` of each leaf: exported files have dictionaries alone.
            f"{'/'.join(map(str, path))} {tuple(spec.shape)} {tf.as_dtype(spec.dtype).name}".lstrip()
            for path, spec in tree.flatten_with_path(nest)
        )
        for nest in (policy.time_step_spec.observation, observation_spec)
    )
    findings = []
    if not set(trained) <= set(given):
        findings.append(
            f"the policy was trained on observations {', '.join(trained)}, but this environment has {', '.join(given)}"
        )
    acts, takes = tree.flatten(policy.action_spec), tree.flatten(action_spec)
    shapes = [[tuple(spec.shape) for spec in specs] for specs in (acts, takes)]
    if shapes[0] != shapes[1]:
        return [*findings, f"the policy gives actions of shapes {shapes[0]}, but this environment takes {shapes[1]}"]
    for own, its in zip(acts, takes, strict=True):
        if not hasattr(own, "minimum"):
            continue
        bounds = [[np.broadcast_to(bound, own.shape) for bound in (spec.minimum, spec.maximum)] for spec in (own, its)]
        if not np.allclose(bounds[0], bounds[1]):
            (low, high), (least, most) = [[short_text(bound) for bound in pair] for pair in bounds]
            findings.append(
                f"the policy gives actions from {low} to {high}, but this environment takes them from {least} to {most}"
            )
    return findings
