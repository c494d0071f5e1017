"""Frames: what goes in comes out, and nothing else gets through."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tfagents_system.transport.remote import frames, messages
from tfagents_system.transport.remote.errors import FrameError

DTYPES = st.sampled_from(
    ["bool", "int8", "uint8", "int16", "uint16", "int32", "int64", "uint64", "float16", "float32", "float64"]
)
ARRAYS = st.lists(
    DTYPES.flatmap(lambda name: hnp.arrays(name, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0))), max_size=5
)
LIMITS = frames.Limits(10_000, 1_000_000)


def as_bytes(buffers):
    return b"".join(bytes(buffer) for buffer in buffers)


def decode(data, types=messages.FromClient):
    message_bytes, body_bytes = frames.read_head(data[: frames.HEAD_BYTES], LIMITS)
    rest = data[frames.HEAD_BYTES :]
    if len(rest) != message_bytes + body_bytes:
        raise FrameError("cut short")
    message = frames.decode_message(rest[:message_bytes], types)
    body = np.frombuffer(rest[message_bytes:], np.uint8)
    return message, frames.decode_arrays(getattr(message, "arrays", []), body)


@given(arrays=ARRAYS)
def test_arrays_come_out_as_they_went_in(arrays):
    message, decoded = decode(as_bytes(frames.encode(messages.Put(7, ["segments"]), arrays)))
    assert (message.id, message.tables) == (7, ["segments"])
    assert len(decoded) == len(arrays)
    for before, after in zip(arrays, decoded, strict=True):
        assert after.dtype == before.dtype and after.shape == before.shape
        assert after.tobytes() == before.tobytes()


def test_views_of_any_order_travel():
    array = np.arange(24, dtype=">f4").reshape(4, 6)[::-1, ::2]
    _, (decoded,) = decode(as_bytes(frames.encode(messages.Put(1, ["x"]), [array])))
    np.testing.assert_array_equal(decoded, array)
    assert decoded.dtype == np.float32


def test_large_arrays_are_not_copied():
    array = np.zeros(100_000, np.float32)
    buffers = frames.encode(messages.Put(1, ["x"]), [array])
    assert np.shares_memory(np.frombuffer(buffers[-1], np.uint8), array)


@given(data=st.binary(max_size=300))
def test_junk_is_a_frame_error_or_a_message(data):
    head = frames._HEAD.pack(b"SAC1", len(data), 0)
    try:
        decode(head + data)
    except FrameError:
        pass


@given(arrays=ARRAYS, position=st.integers(0, 10**6), value=st.integers(0, 255))
def test_one_changed_byte_does_no_harm(arrays, position, value):
    data = bytearray(as_bytes(frames.encode(messages.Put(1, ["segments"]), arrays)))
    data[position % len(data)] = value
    try:
        _, decoded = decode(bytes(data))
    except FrameError:
        return
    assert sum(array.nbytes for array in decoded) <= len(data)


@pytest.mark.parametrize(
    ("dtype", "shape", "words"),
    [
        ("object", [1], "does not travel"),
        ("float32", [-1], "shape"),
        ("float32", [2**62, 4], "longer than what came"),
        ("float32", [0, 2**62, 2**62], "shape"),
        ("float32", [1] * 17, "shape"),
        ("float32", [3], "longer than what came"),
        ("float32", [1], "8 bytes of arrays came, 4 are declared"),
        ("bool", [8], "other bytes than 0 and 1"),
    ],
)
def test_arrays_that_are_not_what_they_claim(dtype, shape, words):
    with pytest.raises(FrameError, match=words):
        frames.decode_arrays([messages.ArrayHead(dtype, shape)], np.full(8, 7, np.uint8))


def test_no_message_says_the_password():
    hello = messages.Hello("collect", token="t" * 32, password="p" * 20)
    assert "ppp" not in repr(hello) and "ttt" not in str(hello)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(hello), type=messages.Hello).password == "p" * 20
