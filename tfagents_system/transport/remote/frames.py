"""Frames: one message, and the arrays that belong to it, on a stream of bytes.

    magic  4 bytes   b"SAC1"
    head   uint32    bytes of the message
    body   uint64    bytes of the arrays
    the message (messages.py), then the arrays' raw bytes in C order, little-endian, each at a multiple of 16

Nothing from the other side is trusted: lengths are checked against limits before memory is allocated, dtypes against
a list, and shapes against the length of the body.
"""

from __future__ import annotations

import dataclasses
import math
import struct
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from tfagents_system.transport.remote.errors import FrameError
from tfagents_system.transport.remote.messages import ArrayHead

Arrays = list[np.ndarray]

MAGIC = b"SAC1"
_HEAD = struct.Struct("<4sIQ")
HEAD_BYTES = _HEAD.size
_ALIGNMENT = 16
_MAX_ARRAYS = 4096
_MAX_DIMENSIONS = 16
_DTYPES = {
    np.dtype(name).name: np.dtype(name)
    for name in [
        "bool",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
        "float16",
        "float32",
        "float64",
    ]
}

Buffer = bytes | memoryview


@dataclasses.dataclass(frozen=True)
class Limits:
    """Limits of one frame.

    Attributes:
      message_bytes: The message alone.
      body_bytes: All its arrays together.
    """

    message_bytes: int
    body_bytes: int


HELLO_LIMITS = Limits(message_bytes=4096, body_bytes=0)


def encode(message: msgspec.Struct, arrays: Sequence[np.ndarray] = ()) -> list[Buffer]:
    """A frame as buffers that are sent one after the other; large arrays are not copied.

    Raises:
      FrameError: An array has a dtype that can't be sent.
    """
    body: list[Buffer] = []
    body_bytes = 0
    if arrays:
        plain = [_plain(array) for array in arrays]
        message.arrays = [ArrayHead(array.dtype.name, list(array.shape)) for array in plain]  # type: ignore[attr-defined]
        for array in plain:
            padding = -body_bytes % _ALIGNMENT
            if padding:
                body.append(bytes(padding))
            body.append(array.reshape(-1).view(np.uint8).data)
            body_bytes += padding + array.nbytes
    encoded = msgspec.msgpack.encode(message)
    return [_HEAD.pack(MAGIC, len(encoded), body_bytes) + encoded, *body]


def _plain(array: np.ndarray) -> np.ndarray:
    """In C order, of a dtype that can be sent."""
    array = np.asarray(array)
    if array.dtype.name not in _DTYPES:
        raise FrameError(f"arrays of {array.dtype} do not travel: {', '.join(_DTYPES)} do")
    return np.asarray(array, dtype=_DTYPES[array.dtype.name], order="C")


def read_head(head: bytes | bytearray, limits: Limits) -> tuple[int, int]:
    """Bytes of the message and of the arrays.

    Raises:
      FrameError: It is not a frame, or is too long.
    """
    magic, message_bytes, body_bytes = _HEAD.unpack(head)
    if magic != MAGIC:
        raise FrameError(f"not a frame: it begins with {bytes(magic)!r}")
    if message_bytes > limits.message_bytes:
        raise FrameError(f"a message of {message_bytes} bytes, at most {limits.message_bytes} may be")
    if body_bytes > limits.body_bytes:
        raise FrameError(f"arrays of {body_bytes} bytes, at most {limits.body_bytes} may be")
    return message_bytes, body_bytes


def decode_message(encoded: bytes | bytearray, types: Any) -> Any:
    """Decodes one of the message types.

    Raises:
      FrameError: It is anything else.
    """
    try:
        return msgspec.msgpack.decode(encoded, type=types)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise FrameError(f"a malformed message: {error}") from None


def decode_arrays(heads: Sequence[ArrayHead], body: np.ndarray) -> Arrays:
    """The arrays of a message, as views of its body.

    Args:
      heads: Their dtypes and shapes.
      body: `[bytes]` uint8.

    Raises:
      FrameError: A dtype is not allowed, a shape is impossible, or their length differs from the body's.
    """
    if len(heads) > _MAX_ARRAYS:
        raise FrameError(f"{len(heads)} arrays, at most {_MAX_ARRAYS} may be")
    arrays, offset = [], 0
    for head in heads:
        dtype = _DTYPES.get(head.dtype)
        if dtype is None:
            raise FrameError(f"an array of {head.dtype[:40]!r}, which does not travel")
        if len(head.shape) > _MAX_DIMENSIONS or any(size < 0 for size in head.shape):
            raise FrameError(f"an array of shape {head.shape[: _MAX_DIMENSIONS + 1]}")
        offset += -offset % _ALIGNMENT
        nbytes = math.prod(head.shape) * dtype.itemsize
        if nbytes > len(body) - offset:
            raise FrameError(f"an array {head.dtype} {head.shape} is longer than what came")
        piece = body[offset : offset + nbytes]
        if dtype == np.bool_ and nbytes and piece.max() > 1:
            raise FrameError("an array of bool with other bytes than 0 and 1")
        try:
            arrays.append(piece.view(dtype).reshape(head.shape))
        except ValueError:  # An empty array whose other dimensions are too large.
            raise FrameError(f"an array of shape {head.shape}") from None
        offset += nbytes
    if offset != len(body):
        raise FrameError(f"{len(body)} bytes of arrays came, {offset} are declared")
    return arrays
