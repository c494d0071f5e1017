"""A policy as `policy.tflite`, for TensorFlow Lite's interpreter on phones, boards and robots."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.lite.python import schema_py_generated as schema
from tensorflow.lite.tools import flatbuffer_utils

from tfagents_system.policies.policy_description import Description

SUFFIX = ".tflite"
_METADATA = "policy"
_IDENTIFIER = b"TFL3"


def save(path: Path, function: Any, policy: Any, description: Description) -> None:
    """Converts a policy.

    Args:
      path: The file to write.
      function: From `greedy_function`.
      policy: The policy whose variables it reads.
      description: Goes into the file's metadata, under `policy`.
    """
    with _without_notes():
        converter = tf.lite.TFLiteConverter.from_concrete_functions([function.get_concrete_function()], policy)
        # TensorFlow's own ops, which not every interpreter has, are used only if TensorFlow Lite lacks one.
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS, tf.lite.OpsSet.SELECT_TF_OPS]
        model = converter.convert()
    path.write_bytes(_with_metadata(model, description))


def uses_tensorflow_ops(path: Path) -> bool:
    """Whether the interpreter needs TensorFlow's own ops (the Flex delegate) beside those of TensorFlow Lite."""
    operators = flatbuffer_utils.read_model(str(path)).operatorCodes
    return any((operator.customCode or b"").startswith(b"Flex") for operator in operators)


class TFLiteFile:
    """Plays a `policy.tflite` for `ExportedPolicy`.

    Raises:
      ValueError: The file is not a policy of ours.
    """

    inference = "policy file (tflite)"

    def __init__(self, path: Path) -> None:
        content = path.read_bytes()
        self.description = _read_metadata(content)
        self._inputs = [spec["name"] for spec in (*self.description["observation"], *self.description["state"])]
        self._next = [f"next_{spec['name']}" for spec in self.description["state"]]
        with _without_notes():
            self._interpreter = tf.lite.Interpreter(model_content=content, num_threads=1)
            self._run = self._interpreter.get_signature_runner()

    def run(self, leaves: list[np.ndarray], state: list[np.ndarray]) -> tuple[np.ndarray, list[np.ndarray]]:
        """Actions and next state of n observations."""
        results = self._run(**dict(zip(self._inputs, [*leaves, *state], strict=True)))
        return results["action"], [results[name] for name in self._next]


def _with_metadata(model: bytes, description: Description) -> bytes:
    parsed = flatbuffer_utils.convert_bytearray_to_object(bytearray(model))
    buffer, entry = schema.BufferT(), schema.MetadataT()
    buffer.data = list(json.dumps(description).encode())
    entry.name, entry.buffer = _METADATA, len(parsed.buffers)
    parsed.buffers.append(buffer)
    parsed.metadata = [*(parsed.metadata or []), entry]
    return bytes(flatbuffer_utils.convert_object_to_bytearray(parsed))


def _read_metadata(content: bytes) -> Description:
    if content[4:8] != _IDENTIFIER:
        raise ValueError("it is no file of TensorFlow Lite")
    try:
        parsed = flatbuffer_utils.convert_bytearray_to_object(bytearray(content))
    except Exception as error:  # Flatbuffers checks nothing: struct.error, IndexError, TypeError.
        raise ValueError(f"it is damaged: {error}") from error
    for entry in parsed.metadata or []:
        if entry.name == _METADATA.encode():
            return json.loads(bytes(parsed.buffers[entry.buffer].data))
    raise ValueError("it has no description of a policy")


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
