"""The protocol between a worker and an environment's own process: spaces once, arrays by shared memory.

Runs on both sides, also under SAC_ENV_PYTHON: standard library and NumPy only, Python 3.9, NumPy 1 or 2.

The turn is handed over with one byte through a socket: the worker asks with STEP, RESET or CALL, the environment
answers DONE or FAILED. RESET, CALL and FAILED come with a JSON object, and so does DONE after a CALL; the results of a
STEP or RESET are in the memory.
"""

from __future__ import annotations

import json
import mmap
import os
import socket
import struct
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tfagents_system.envs.spaces import box_dtype, is_known, no_fixed_shape, space_kind, text_key
from tfagents_system.errors import UserError

STEP, RESET, CALL = b"s", b"r", b"c"
DONE, FAILED = b".", b"!"

_LENGTH = struct.Struct("<Q")
_RESULT = struct.Struct("<d??I")  # reward, terminated, truncated, bytes of the info
INFO_BYTES = 64 * 1024
_ALIGNMENT = 64
_MAX_STALLS = 60


def send_message(connection: socket.socket, kind: bytes, content: Mapping[str, Any], data: bytes = b"") -> None:
    """Sends the byte, a JSON object and raw bytes."""
    text = json.dumps(content).encode()
    connection.sendall(b"".join([kind, _LENGTH.pack(len(text)), _LENGTH.pack(len(data)), text, data]))


def receive_content(connection: socket.socket) -> tuple[dict[str, Any], bytes]:
    """The rest of a message whose byte has been read.

    Raises:
      EOFError: The other side is gone.
    """
    lengths = receive_exactly(connection, 2 * _LENGTH.size)
    (text_length,), (data_length,) = _LENGTH.unpack(lengths[:8]), _LENGTH.unpack(lengths[8:])
    return json.loads(receive_exactly(connection, text_length)), receive_exactly(connection, data_length)


def receive_exactly(connection: socket.socket, count: int) -> bytes:
    """`count` bytes."""
    parts = []
    stalls = 0
    while count:
        try:
            part = connection.recv(min(count, 1 << 20))
        except BlockingIOError:  # The connection's own timeout, in the middle of a message.
            stalls += 1
            if stalls > _MAX_STALLS:
                raise EOFError("a message from an environment's process does not end") from None
            continue
        if not part:
            raise EOFError("the other side of an environment's process is gone")
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


# Spaces.


def describe_space(space: Any, name: str) -> dict[str, Any]:
    """A space as JSON.

    Raises:
      UserError: It is of no known kind.
    """
    kind = space_kind(space)
    if not is_known(space):
        raise UserError(no_fixed_shape(name, space))
    if kind == "Dict":
        return {"kind": kind, "spaces": {text_key(key): describe_space(sub, name) for key, sub in space.spaces.items()}}
    if kind == "Tuple":
        return {"kind": kind, "spaces": [describe_space(sub, name) for sub in space.spaces]}
    if kind == "Discrete":
        return {"kind": kind, "n": int(space.n), "start": int(getattr(space, "start", 0)), "shape": [1], "dtype": "<i8"}
    if kind == "MultiDiscrete":
        nvec = np.asarray(space.nvec)
        start = np.asarray(getattr(space, "start", np.zeros_like(nvec)))
        return {"kind": kind, "nvec": nvec.tolist(), "start": start.tolist(), "shape": [nvec.size], "dtype": "<i8"}
    if kind == "MultiBinary":
        return {"kind": kind, "shape": [int(size) for size in space.shape], "dtype": "|i1"}
    dtype = box_dtype(space)
    if dtype.kind not in "fiub":
        raise UserError(f"the {name} space has dtype {dtype}: use float32 or an integer type")
    shape = [int(size) for size in space.shape]
    return {"kind": "Box", "low": _bound(space.low), "high": _bound(space.high), "shape": shape, "dtype": dtype.str}


def _bound(bound: Any) -> Any:
    """One number if all are the same: an image has many."""
    bound = np.asarray(bound)
    return bound.flat[0].item() if bound.size and (bound == bound.flat[0]).all() else bound.tolist()


def map_description(function: Callable[[Mapping[str, Any]], Any], description: Mapping[str, Any]) -> Any:
    """The nest of `function` over the descriptions of a space's parts that are arrays."""
    if "spaces" not in description:
        return function(description)
    parts = description["spaces"]
    if isinstance(parts, dict):
        return {key: map_description(function, sub) for key, sub in parts.items()}
    return tuple(map_description(function, sub) for sub in parts)


# Memory.


class StepMemory:
    """The arrays of one environment's step: action, observation, reward, ends and info.

    Args:
      descriptor: File descriptor of the memory, which both sides have.
      action: Description of the action space.
      observation: Description of the observation space.
      create: Set the memory's size.
    """

    def __init__(
        self, descriptor: int, action: Mapping[str, Any], observation: Mapping[str, Any], create: bool
    ) -> None:
        self._used = _padded(_RESULT.size + INFO_BYTES)
        parts: list[Mapping[str, Any]] = []
        for space in (action, observation):
            map_description(parts.append, space)
        total = self._used + sum(map(_bytes_of, parts))
        if create:
            os.ftruncate(descriptor, total)
        self._memory = mmap.mmap(descriptor, total)
        self.action = map_description(self._view, action)
        self.observation = map_description(self._view, observation)

    def _view(self, part: Mapping[str, Any]) -> np.ndarray:
        """The next array in this memory."""
        view: np.ndarray = np.ndarray(tuple(part["shape"]), np.dtype(part["dtype"]), self._memory, self._used)
        self._used += _bytes_of(part)
        return view

    def put_result(self, reward: float, terminated: bool, truncated: bool, info: bytes) -> None:
        """Writes the results of a step except its observation."""
        if len(info) > INFO_BYTES:
            raise ValueError(f"the numbers in info take {len(info)} bytes: at most {INFO_BYTES} are taken")
        _RESULT.pack_into(self._memory, 0, reward, terminated, truncated, len(info))
        if info:
            self._memory[_RESULT.size : _RESULT.size + len(info)] = info

    def result(self) -> tuple[float, bool, bool, dict[str, Any]]:
        """(reward, terminated, truncated, info)."""
        reward, terminated, truncated, length = _RESULT.unpack_from(self._memory, 0)
        info = json.loads(self._memory[_RESULT.size : _RESULT.size + length]) if length else {}
        return reward, terminated, truncated, info


def writer(description: Mapping[str, Any], views: Any, name: str) -> Callable[[Any], None]:
    """The function that copies a nest into views of the same structure, without changing any value.

    It raises ValueError or TypeError if a shape or a kind of number differs from the space.
    """
    if "spaces" not in description:
        return _array_writer(description, views, name)
    parts = description["spaces"]
    if isinstance(parts, dict):
        by_key = {key: writer(parts[key], views[key], name) for key in parts}

        def write_dict(value: Any) -> None:
            for key, write in by_key.items():
                write(value[key])

        return write_dict
    writers = [writer(part, view, name) for part, view in zip(parts, views)]

    def write_tuple(value: Any) -> None:
        if len(value) != len(writers):
            raise ValueError(f"{name}: expected {len(writers)} parts but found {len(value)}")
        for write, part in zip(writers, value):
            write(part)

    return write_tuple


def _array_writer(description: Mapping[str, Any], view: np.ndarray, name: str) -> Callable[[Any], None]:
    is_flat = description["kind"] in ("Discrete", "MultiDiscrete")
    shape, dtype, is_integer = view.shape, view.dtype, view.dtype.kind in "iu"

    def write(value: Any) -> None:
        array = np.asarray(value)
        if is_flat:
            array = array.reshape(-1)
        if array.shape != shape:
            raise ValueError(f"{name}: expected shape {shape} but found {array.shape}")
        if is_integer and array.dtype != dtype:
            if array.dtype.kind not in "iub":
                raise TypeError(f"{name}: the space says {dtype}, but the {name} is {array.dtype}")
            if (array.astype(dtype) != array).any():
                raise ValueError(f"{name} has {array[array.astype(dtype) != array][0]}, which {dtype} can't hold")
        np.copyto(view, array, "unsafe")

    return write


def read_action(description: Mapping[str, Any], views: Any) -> Any:
    """What the views hold as the environment takes it: arrays of its own, and the number of a Discrete."""
    if "spaces" not in description:
        if description["kind"] == "Discrete":
            return views[0]
        return views.copy().reshape(np.shape(description["nvec"])) if "nvec" in description else views.copy()
    parts = description["spaces"]
    if isinstance(parts, dict):
        return {key: read_action(part, views[key]) for key, part in parts.items()}
    return tuple(read_action(part, view) for part, view in zip(parts, views))


def _bytes_of(part: Mapping[str, Any]) -> int:
    return _padded(int(np.prod(part["shape"], dtype=np.int64)) * np.dtype(part["dtype"]).itemsize)


def _padded(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
