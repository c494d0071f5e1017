"""Policies as `policy.onnx`, for any runtime of ONNX, and `policy.tflite`, for phones, boards and robots.

What a file takes and returns is described in JSON beside it: `policy.onnx.json`, `policy.tflite.json`.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.lite.tools import flatbuffer_utils
from tf_agents.distributions.utils import SquashToSpecNormal
from tf_agents.policies import tf_policy
from tf_agents.trajectories import time_step as ts

from tfagents_system.envs.actions import LeafActions
from tfagents_system.errors import UserError
from tfagents_system.machine.installed import is_installed
from tfagents_system.policies.description import Description
from tfagents_system.policies.environment_policies import in_environment_units

_OPSET = 17  # From 2022: runtimes on embedded boards support it, too.


def _greedy_function(policy: tf_policy.TFPolicy, actions: LeafActions, description: Description) -> Any:
    """A `tf.function` of the observation's arrays and those of the state, n of each, in the order of `description`.

    It returns a dictionary: `action` in the environment's own units, and each part of the next state as
    `next_<its name>`. The time step's other fields are those of a step within an episode: an episode begins with a
    state of zeros.

    Args:
      policy: The agent's, with the weights to use.
      actions: What its actions are in the environment.
      description: From `describe`.
    """
    inputs = [*description["observation"], *description["state"]]
    num_leaves = len(description["observation"])
    observation_spec, state_spec = policy.time_step_spec.observation, policy.policy_state_spec

    def act(*arrays: tf.Tensor) -> dict[str, tf.Tensor]:
        n = tf.shape(arrays[0])[0]
        observation = tf.nest.pack_sequence_as(observation_spec, arrays[:num_leaves])
        state = tf.nest.pack_sequence_as(state_spec, arrays[num_leaves:])
        time_step = ts.TimeStep(tf.fill([n], ts.StepType.MID), tf.zeros([n]), tf.ones([n]), observation)
        step = policy._distribution(time_step, state)
        following = zip(description["state"], tf.nest.flatten(step.state), strict=True)
        return {
            "action": in_environment_units(_mode(step.action), actions),
            **{f"next_{spec['name']}": value for spec, value in following},
        }

    signature = [tf.TensorSpec((None, *spec["shape"]), spec["dtype"], spec["name"]) for spec in inputs]
    return tf.function(act, input_signature=signature, autograph=False)


def _mode(distribution: Any) -> tf.Tensor:
    if isinstance(distribution, SquashToSpecNormal):
        # Its mode() computes shapes of distributions, for which ONNX has no ops.
        mean = distribution.input_distribution.loc
        return distribution.action_magnitudes * tf.tanh(mean) + distribution.action_means
    return distribution.mode()


def require(*packages: str) -> None:
    """Raises UserError if a package that ONNX files need is not installed."""
    if missing := [package for package in packages if not is_installed(package)]:
        raise UserError(f"ONNX files need {' and '.join(missing)}: in the toolkit's folder, pip install '.[onnx]'")


def save_onnx(path: Path, policy: tf_policy.TFPolicy, actions: LeafActions, description: Description) -> None:
    """Converts a policy; arguments as of `_greedy_function`."""
    import tf2onnx

    function = _greedy_function(policy, actions, description)
    logging.getLogger("tf2onnx").setLevel(logging.ERROR)
    model, _ = tf2onnx.convert.from_function(function, function.input_signature, opset=_OPSET)
    _write(path, model.SerializeToString(), description)


def save_tflite(path: Path, policy: tf_policy.TFPolicy, actions: LeafActions, description: Description) -> None:
    """Converts a policy; arguments as of `_greedy_function`."""
    function = _greedy_function(policy, actions, description)
    with _without_notes():
        converter = tf.lite.TFLiteConverter.from_concrete_functions([function.get_concrete_function()], policy)
        # TensorFlow's own ops, which not every interpreter has, are used only if TensorFlow Lite lacks one.
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS, tf.lite.OpsSet.SELECT_TF_OPS]
        _write(path, converter.convert(), description)


def _write(path: Path, model: bytes, description: Description) -> None:
    path.write_bytes(model)
    Path(f"{path}.json").write_text(json.dumps(description))


def uses_tensorflow_ops(path: Path) -> bool:
    """Whether the interpreter needs TensorFlow's own ops (the Flex delegate) beside those of TensorFlow Lite."""
    operators = flatbuffer_utils.read_model(str(path)).operatorCodes
    return any((operator.customCode or b"").startswith(b"Flex") for operator in operators)


class ExportedFile:
    """Plays a `policy.onnx` or `policy.tflite` for `ExportedPolicy`.

    Raises:
      UserError: onnxruntime is needed and not installed.
      OSError, ValueError: The file is not a policy, or its description is not beside it.
    """

    def __init__(self, path: Path) -> None:
        self.inference = f"policy file ({path.suffix[1:]})"
        self.description: Description = json.loads(Path(f"{path}.json").read_text())
        self._inputs = [spec["name"] for spec in (*self.description["observation"], *self.description["state"])]
        self._outputs = ["action", *(f"next_{spec['name']}" for spec in self.description["state"])]
        self._run = (_onnx_runner if path.suffix == ".onnx" else _tflite_runner)(path, self._outputs)

    def run(self, leaves: list[np.ndarray], state: list[np.ndarray]) -> tuple[np.ndarray, list[np.ndarray]]:
        """Actions and next state of n observations."""
        results = self._run(dict(zip(self._inputs, [*leaves, *state], strict=True)))
        action, *following = (results[name] for name in self._outputs)
        return action, following


def _onnx_runner(path: Path, outputs: list[str]) -> Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]:
    require("onnxruntime")
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime does not export its exception types.
        raise ValueError(f"onnxruntime does not read it: {error}") from error
    return lambda arrays: dict(zip(outputs, session.run(outputs, arrays), strict=True))


def _tflite_runner(path: Path, outputs: list[str]) -> Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]:
    del outputs  # It returns all of them, by name.
    with _without_notes():
        runner = tf.lite.Interpreter(str(path), num_threads=1).get_signature_runner()
    return lambda arrays: runner(**arrays)


@contextlib.contextmanager
def _without_notes() -> Iterator[None]:
    """The converter writes statistics to standard error, past Python's own streams."""
    kept = os.dup(2)
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
