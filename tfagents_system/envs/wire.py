"""The protocol between a worker and an environment's own process.

Runs on both sides, also under SAC_ENV_PYTHON: standard library and NumPy only, Python 3.9, NumPy 1 or 2.

A request is (name, arguments), its answer ("ok", value), ("error", text) or ("findings", texts), both pickled. Actions
and observations are packed before, because pickling an array takes longer than most steps; large arrays of observations
are in shared memory, which the next observation overwrites.
"""

from __future__ import annotations

import mmap
import os
import pickle
import socket
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from tfagents_system.envs.spaces import box_dtype, is_known, no_fixed_shape, space_kind, text_key
from tfagents_system.errors import UserError

_LENGTH = struct.Struct("<Q")
_PROTOCOL = 4  # In which NumPy 2 and NumPy 1 read arrays of each other without a warning.
_READ_BYTES = 1 << 16
_SHARED_BYTES = 4096  # Arrays from this size on are in shared memory.
_ALIGNMENT = 64


def send(connection: socket.socket, content: Any) -> None:
    """Sends a message."""
    data = pickle.dumps(content, _PROTOCOL)
    connection.sendall(_LENGTH.pack(len(data)) + data)


def receive(connection: socket.socket) -> Any:
    """The next message.

    Raises:
      BlockingIOError: None has begun within the connection's timeout.
      EOFError: The other side is gone.
    """
    message = connection.recv(_READ_BYTES)
    length = _LENGTH.size + (_LENGTH.unpack_from(message)[0] if len(message) >= _LENGTH.size else 0)
    if len(message) < length:
        chunks, missing = [message], length - len(message)
        while missing and chunks[-1]:
            try:
                chunks.append(connection.recv(min(missing, 1 << 20)))
            except BlockingIOError:  # The connection's own timeout, in the middle of a message.
                continue
            missing -= len(chunks[-1])
        message = b"".join(chunks)
    if not message or len(message) < length:
        raise EOFError("the other side of an environment's process is gone")
    return pickle.loads(memoryview(message)[_LENGTH.size :])


class Memory:
    """Shared memory that grows.

    Args:
      descriptor: Its file descriptor, which both sides have.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._map, self._used = descriptor, mmap.mmap(-1, _ALIGNMENT), 0

    def clear(self) -> None:
        """What comes next overwrites what is there."""
        self._used = 0

    def put(self, array: np.ndarray) -> int:
        """Copies an array there; returns where."""
        start, self._used = self._used, self._used + -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
        if os.fstat(self._descriptor).st_size < self._used:
            os.ftruncate(self._descriptor, self._used)
        np.copyto(self.view(start, array.shape, array.dtype), array)
        return start

    def view(self, start: int, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """The array there."""
        if len(self._map) < os.fstat(self._descriptor).st_size:
            self._map = mmap.mmap(self._descriptor, 0)
        view: np.ndarray = np.ndarray(shape, dtype, self._map, start)
        return view


def packer(space: Any, name: str, memory: Memory | None = None) -> Callable[[Any], Any]:
    """The function from an element of a space to a nest of plain types.

    An array becomes its dtype, its shape, and its bytes or where it is in the memory. A part that is missing, or no
    array of numbers, is a KeyError, TypeError or ValueError.
    """
    kind = space_kind(space)
    if kind == "Dict":
        by_key = {key: packer(sub, name, memory) for key, sub in space.spaces.items()}
        return lambda value: {key: pack(value[key]) for key, pack in by_key.items()}
    if kind == "Tuple":
        parts = [packer(sub, name, memory) for sub in space.spaces]

        def pack_tuple(value: Any) -> list[Any]:
            if len(value) != len(parts):
                raise ValueError(f"{name}: expected {len(parts)} parts but found {len(value)}")
            return [pack(part) for pack, part in zip(parts, value)]

        return pack_tuple

    def pack_array(value: Any) -> tuple[str, tuple[int, ...], bytes | int]:
        array = np.asarray(value)
        if array.dtype.kind not in "fiub":
            raise TypeError(f"{name}: expected numbers but found {value!r}")
        if memory is None or array.nbytes < _SHARED_BYTES:
            return array.dtype.str, array.shape, array.tobytes()
        return array.dtype.str, array.shape, memory.put(array)

    return pack_array


def unpacker(space: Any, memory: Memory | None = None) -> Callable[[Any], Any]:
    """The inverse of `packer`; arrays of no dimension become numbers. Those in memory are views of it."""
    kind = space_kind(space)
    if kind == "Dict":
        by_key = {key: unpacker(sub, memory) for key, sub in space.spaces.items()}
        return lambda packed: {key: unpack(packed[key]) for key, unpack in by_key.items()}
    if kind == "Tuple":
        parts = [unpacker(sub, memory) for sub in space.spaces]
        return lambda packed: tuple(unpack(part) for unpack, part in zip(parts, packed))

    def unpack_array(packed: tuple[str, tuple[int, ...], Any]) -> Any:
        dtype, shape, data = packed
        if memory is not None and isinstance(data, int):
            return memory.view(data, shape, dtype)
        return np.ndarray(shape, dtype, bytearray(data))[()]

    return unpack_array


# Spaces.


def describe_space(space: Any, name: str) -> dict[str, Any]:
    """A space without its library.

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
        return {"kind": kind, "n": int(space.n), "start": int(getattr(space, "start", 0))}
    if kind == "MultiDiscrete":
        nvec = np.asarray(space.nvec)
        return {"kind": kind, "nvec": nvec, "start": np.asarray(getattr(space, "start", np.zeros_like(nvec)))}
    shape = [int(size) for size in space.shape]
    if kind == "MultiBinary":
        return {"kind": kind, "n": shape}
    dtype = box_dtype(space)
    if dtype.kind not in "fiub":
        raise UserError(f"the {name} space has dtype {dtype}: use float32 or an integer type")
    low, high = (np.broadcast_to(np.asarray(bound, dtype), shape) for bound in (space.low, space.high))
    return {"kind": "Box", "low": low, "high": high, "dtype": dtype.str}


def gymnasium_space(description: dict[str, Any]) -> Any:
    """The Gymnasium space of a description."""
    from gymnasium import spaces  # Here: the other side may be without it.

    arguments = {key: value for key, value in description.items() if key != "kind"}
    kind = description["kind"]
    if kind == "Dict":
        return spaces.Dict({key: gymnasium_space(sub) for key, sub in arguments["spaces"].items()})
    if kind == "Tuple":
        return spaces.Tuple([gymnasium_space(sub) for sub in arguments["spaces"]])
    if kind == "Box":
        arguments["dtype"] = np.dtype(arguments["dtype"]).type
    return getattr(spaces, kind)(**arguments)
