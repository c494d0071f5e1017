"""A policy as `policy.onnx`, for any runtime of ONNX. Needs the extra `onnx` of this package."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np

from tfagents_system.errors import UserError
from tfagents_system.machine.installed import is_installed
from tfagents_system.policies.policy_description import Description

SUFFIX = ".onnx"
_METADATA = "policy"
_OPSET = 17  # From 2022: runtimes on embedded boards support it, too.


def require(*packages: str) -> None:
    """Raises UserError if a package that ONNX files need is not installed."""
    if missing := [package for package in packages if not is_installed(package)]:
        raise UserError(f"ONNX files need {' and '.join(missing)}: in the toolkit's folder, pip install '.[onnx]'")


def save(path: Path, function: Any, description: Description) -> None:
    """Converts a policy.

    Args:
      path: The file to write.
      function: From `greedy_function`.
      description: Goes into the file's metadata, under `policy`.
    """
    import tf2onnx

    logging.getLogger("tf2onnx").setLevel(logging.ERROR)
    model, _ = tf2onnx.convert.from_function(function, function.input_signature, opset=_OPSET)
    _name_axes(model.graph, description)
    entry = model.metadata_props.add()
    entry.key, entry.value = _METADATA, json.dumps(description)
    path.write_bytes(model.SerializeToString())


def _name_axes(graph: Any, description: Description) -> None:
    """Calls the first axis of inputs and outputs `n`, as the documents do; the others have their lengths."""
    inputs = [*description["observation"], *description["state"]]
    shapes = {spec["name"]: spec["shape"] for spec in inputs}
    shapes |= {f"next_{spec['name']}": spec["shape"] for spec in description["state"]}
    shapes["action"] = description["action"]["shape"]
    for value in (*graph.input, *graph.output):
        shape = value.type.tensor_type.shape
        shape.ClearField("dim")
        shape.dim.add().dim_param = "n"
        for length in shapes[value.name]:
            shape.dim.add().dim_value = length


class OnnxFile:
    """Plays a `policy.onnx` for `ExportedPolicy`.

    Raises:
      UserError: onnxruntime is not installed.
      ValueError: The file is not a policy of ours.
    """

    inference = "policy file (onnx)"

    def __init__(self, path: Path) -> None:
        require("onnxruntime")
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        try:
            self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime does not export its exception types.
            raise ValueError(f"onnxruntime does not read it: {error}") from error
        text = self._session.get_modelmeta().custom_metadata_map.get(_METADATA)
        if text is None:
            raise ValueError("it has no description of a policy")
        self.description: Description = json.loads(text)
        self._inputs = [spec["name"] for spec in (*self.description["observation"], *self.description["state"])]
        self._outputs = ["action", *(f"next_{spec['name']}" for spec in self.description["state"])]

    def run(self, leaves: list[np.ndarray], state: list[np.ndarray]) -> tuple[np.ndarray, list[np.ndarray]]:
        """Actions and next state of n observations."""
        action, *following = self._session.run(self._outputs, dict(zip(self._inputs, [*leaves, *state], strict=True)))
        return action, following
