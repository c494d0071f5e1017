"""Weights of a policy as named arrays, and the memory in which the programs of one machine share the newest ones.

A worker takes them from there without asking the replay server. The memory is a file without a name (memfd), mode
0600. The trainer has it open and says where, as `Place`. Programs of the same user open it through /proc; elsewhere
there is nothing to open, or something that is not this file. It is gone with the last process that has it open,
whatever kills these: nothing is ever left to be removed.

    page 0   sequence number of the newest policy, CRCs of the two slots, shapes and dtypes of the arrays
    then     two slots, each with the arrays of one policy; policy k is in slot k % 2

The writer fills the slot that is not the newest, then its CRC, then says the new number. A writer that is killed
meanwhile leaves the newest policy as it was. A reader copies a slot and uses the copy only if its CRC is right: a slot
that was overwritten meanwhile is noticed. Nobody ever waits.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import re
import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from absl import logging

if TYPE_CHECKING:
    import tensorflow as tf

Place = tuple[int, int]  # Process id and file descriptor of the writer.
NOWHERE: Place = (0, 0)

_KERAS_NUMBER = re.compile(r"_\d+(?=/|:|$)")
_NAME = "sac_weights"
_HEAD = np.dtype([("newest", "<i8"), ("crc", "<u4", (2,)), ("slot_bytes", "<i8"), ("layout", "<i8")])
_NEWEST = slice(8)  # Of its bytes.
_PAGE_BYTES, _ALIGNED_BYTES = 4096, 64
_SUMS = 512  # As many words as a page has.
_TRIES = 3


def named_variables(policy: Any) -> dict[str, tf.Variable]:
    """The policy's variables by name, without the numbers that Keras increments over a whole process.

    If a worker's environment has its own network, its `dense_7` may be the trainer's `dense_5`. Repeated names get
    `#1`, `#2`, ... in the order in which the policy lists them.
    """
    variables: dict[str, tf.Variable] = {}
    for variable in policy.variables():
        name = plain = f"{_KERAS_NUMBER.sub('', variable.name).removesuffix(':0')}:0"
        repeat = 0
        while name in variables:
            repeat += 1
            name = f"{plain}#{repeat}"
        variables[name] = variable
    return variables


def read_weights(variables: Mapping[str, tf.Variable]) -> dict[str, np.ndarray]:
    """Copies the values of `named_variables`."""
    return {name: variable.numpy() for name, variable in variables.items()}


def assign_weights(variables: Mapping[str, tf.Variable], weights: Mapping[str, np.ndarray]) -> None:
    """Sets `named_variables` to `weights`.

    Raises:
      ValueError: The names differ: the two sides were built from different parameters.
    """
    if variables.keys() != weights.keys():
        differing = sorted(variables.keys() ^ weights.keys())
        raise ValueError(
            f"the policy's variables and the weights differ in {differing}: both sides need the same params"
        )
    for name, variable in variables.items():
        variable.assign(weights[name])


def to_arrays(weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """A flat list: the names as JSON bytes, then the values."""
    names = np.frombuffer(json.dumps(list(weights)).encode(), np.uint8)
    return [names, *(np.asarray(value) for value in weights.values())]


def from_arrays(arrays: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    """The inverse of `to_arrays`."""
    names = json.loads(arrays[0].tobytes())
    return dict(zip(names, arrays[1:], strict=True))


class SharedWeights:
    """Shares policies with the readers on this machine, one after the other; for one thread.

    Args:
      arrays: The first policy, as the tables have it: later ones have the same shapes and dtypes. It is not shared yet.

    Attributes:
      place: For `SharedWeightsReader`.

    Raises:
      OSError: There is no memory for it, or the kernel has no such files.
    """

    def __init__(self, arrays: Sequence[np.ndarray]) -> None:
        layout = json.dumps([(array.dtype.str, array.shape) for array in arrays]).encode()
        slot_bytes = _up_to(sum(_up_to(array.nbytes, _ALIGNED_BYTES) for array in arrays), _PAGE_BYTES)
        head_bytes = _up_to(_HEAD.itemsize + len(layout), _PAGE_BYTES)
        self._descriptor = os.memfd_create(_NAME, os.MFD_CLOEXEC)
        os.fchmod(self._descriptor, 0o600)
        os.posix_fallocate(self._descriptor, 0, head_bytes + 2 * slot_bytes)  # Later a full memory would kill us.
        self.place = (os.getpid(), self._descriptor)
        memory = mmap.mmap(self._descriptor, head_bytes + 2 * slot_bytes)
        memory[_HEAD.itemsize : _HEAD.itemsize + len(layout)] = layout
        self._seed = zlib.crc32(layout)
        self._head = np.frombuffer(memory, _HEAD, 1)[0]
        self._head["slot_bytes"], self._head["layout"] = slot_bytes, len(layout)
        self._slots = [_Slot(memory, head_bytes + k * slot_bytes, slot_bytes, arrays) for k in range(2)]

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError, OSError):
            os.close(self._descriptor)

    def write(self, arrays: Sequence[np.ndarray]) -> None:
        """Makes this the newest policy."""
        number = int(self._head["newest"]) + 1
        slot = self._slots[number % 2]
        for own, array in zip(slot.arrays, arrays, strict=True):
            np.copyto(own, array)
        self._head["crc"][number % 2] = _checksum(slot.words, number, self._seed)
        self._head["newest"] = number


class SharedWeightsReader:
    """Reads what the `SharedWeights` of another process shares.

    Raises:
      OSError: There is nothing that can be opened.
      ValueError: It is something else.
    """

    def __init__(self, place: Place) -> None:
        path = f"/proc/{place[0]}/fd/{place[1]}"
        if not os.readlink(path).startswith(f"/memfd:{_NAME} "):  # Opening a stranger's pipe could block.
            raise ValueError(f"{path} is another file")
        with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb", buffering=0) as file:
            memory = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        self._head = np.frombuffer(memory, _HEAD, 1)[0]
        self._newest = memoryview(memory)[_NEWEST].cast("q")
        slot_bytes, layout_end = int(self._head["slot_bytes"]), _HEAD.itemsize + int(self._head["layout"])
        layout, head_bytes = memory[_HEAD.itemsize : layout_end], _up_to(layout_end, _PAGE_BYTES)
        self._seed = zlib.crc32(layout)
        like = [np.broadcast_to(np.zeros((), dtype), shape) for dtype, shape in json.loads(layout)]
        self._slots = [np.frombuffer(memory, np.uint64, slot_bytes // 8, head_bytes + k * slot_bytes) for k in range(2)]
        # Two: what was read last is still in use while the next one is read, which may turn out torn.
        self._copies = [_Slot(bytearray(slot_bytes), 0, slot_bytes, like) for _ in range(2)]

    @property
    def newest(self) -> int:
        """The sequence number of the newest policy; 0: there is none yet. It costs a tenth of a microsecond."""
        return self._newest[0]

    def read(self) -> tuple[int, list[np.ndarray]] | None:
        """The newest policy with its sequence number; None if it was overwritten again and again meanwhile.

        The arrays are overwritten by the call after the next.
        """
        copy = self._copies[0]
        for _ in range(_TRIES):
            number = self.newest
            if number == 0:
                return None
            crc = int(self._head["crc"][number % 2])
            np.copyto(copy.words, self._slots[number % 2])
            if _checksum(copy.words, number, self._seed) == crc:
                self._copies.reverse()
                return number, copy.arrays
        return None


def share(arrays: Sequence[np.ndarray]) -> SharedWeights | None:
    """Memory for policies like this one; None where there is none: workers then ask the replay server."""
    try:
        return SharedWeights(arrays)
    except OSError as error:
        logging.info("policies are not shared in memory: %s", error.strerror)
        return None


def open_shared(place: Place) -> SharedWeightsReader | None:
    """What is shared at that place; None if nothing is, as seen from here."""
    if place == NOWHERE:
        return None
    try:
        return SharedWeightsReader(place)
    except (OSError, ValueError) as error:
        logging.info("policies come through the replay server, not from memory: %s", error)
        return None


class _Slot:
    """The arrays of one policy in a buffer from `offset` on, with shapes and dtypes as `like` has them.

    Attributes:
      words: All of it, with the gaps, which are 0.
    """

    def __init__(self, buffer: mmap.mmap | bytearray, offset: int, num_bytes: int, like: Sequence[np.ndarray]) -> None:
        self.words = np.frombuffer(buffer, np.uint64, num_bytes // 8, offset)
        self.arrays = []
        for array in like:
            self.arrays.append(np.frombuffer(buffer, array.dtype, array.size, offset).reshape(array.shape))
            offset += _up_to(array.nbytes, _ALIGNED_BYTES)


def _checksum(words: np.ndarray, number: int, seed: int) -> int:
    """CRC-32 of the layout (`seed`), the sequence number, and the sums of the words at the same place of all pages.

    A CRC of all the words would take nine times as long, 1.3 ms for 4 MB. A mixture of two policies has other sums,
    with the certainty of 64 bits for each place at which they differ.
    """
    sums = np.add.reduce(words.reshape(-1, _SUMS), axis=0)
    return zlib.crc32(sums, zlib.crc32(number.to_bytes(8, "little"), seed))


def _up_to(size: int, unit: int) -> int:
    """The next multiple of `unit`."""
    return -(-size // unit) * unit
