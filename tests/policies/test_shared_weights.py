"""Policies in shared memory: never torn, never waited for, and gone with their processes."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest

from tests.support.waiting import until
from tfagents_system.policies import shared_weights
from tfagents_system.policies.shared_weights import (
    NOWHERE,
    Place,
    SharedWeights,
    SharedWeightsReader,
    open_shared,
    share,
)

READS, KILLS = 20_000, 4
# Publishes without a pause: each array is full of the policy's number.
WRITER = """
import numpy as np
from tests.policies.test_shared_weights import policy
from tfagents_system.policies.shared_weights import SharedWeights
shared = SharedWeights(policy(0))
print(*shared.place, flush=True)
number = 0
while True:
    number += 1
    shared.write(policy(number))
"""


def policy(number: int) -> list[np.ndarray]:
    """Arrays of several pages, which all say which policy it is."""
    shapes: list[tuple[tuple[int, ...], type]] = [((3,), np.int64), ((28, 256), np.float32), ((256,), np.float64)]
    return [np.full(shape, number, dtype) for shape, dtype in [*shapes, ((50, 33), np.float32), ((), np.int64)]]


@contextlib.contextmanager
def writer() -> Iterator[tuple[subprocess.Popen[str], Place]]:
    process = subprocess.Popen([sys.executable, "-c", WRITER], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        pid, descriptor = (int(number) for number in process.stdout.readline().split())
        yield process, (pid, descriptor)
    finally:
        process.kill()
        process.wait()


def number_of(arrays: list[np.ndarray]) -> int:
    """Of the policy that all arrays are of; fails for a torn one."""
    (number,) = {int(value) for array in arrays for value in (array.min(), array.max())}
    return number


def test_no_reader_sees_a_torn_policy_while_writers_are_killed_at_any_moment() -> None:
    rng, reads = random.Random(0), 0
    for _ in range(KILLS):
        with writer() as (process, place):
            reader = SharedWeightsReader(place)
            until(reader.read, 20.0, "the first policy")
            seen, kill_at = 0, reads + rng.randrange(100, 2 * READS // KILLS)
            while reads < kill_at:
                if (found := reader.read()) is not None:  # Else it was overwritten three times.
                    reads += 1
                    assert number_of(found[1]) == found[0] >= seen
                    seen = found[0]
            process.send_signal(signal.SIGKILL)
            process.wait()
            found = reader.read()
            assert found is not None and number_of(found[1]) == reader.newest >= seen, "whole after the writer's end"
            assert seen > 10 and open_shared(place) is None, "nothing is left of it for others"
    assert reads > READS / 2


def test_what_was_read_stays_while_the_next_is_read() -> None:
    shared = SharedWeights(policy(0))
    reader = SharedWeightsReader(shared.place)
    assert reader.newest == 0 and reader.read() is None
    before: list[np.ndarray] = []
    for number in range(1, 5):
        shared.write(policy(number))
        found = reader.read()
        assert found is not None and found[0] == number
        assert not before or number_of(before) == number - 1, "in use, while what is read next may turn out torn"
        before = found[1]
        assert [array.dtype for array in before] == [array.dtype for array in policy(0)]
        assert [array.shape for array in before] == [array.shape for array in policy(0)]


@pytest.mark.parametrize("word", [0, 100, -1])
def test_a_damaged_slot_is_not_used(word: int) -> None:
    shared = SharedWeights(policy(0))
    for number in (1, 2):
        shared.write(policy(number))
    shared._slots[0].words[word] ^= np.uint64(1)  # Of policy 2.
    assert SharedWeightsReader(shared.place).read() is None
    shared.write(policy(3))
    found = SharedWeightsReader(shared.place).read()
    assert found is not None and number_of(found[1]) == 3


def test_only_its_user_can_open_it_and_it_has_no_name() -> None:
    shared = SharedWeights(policy(0))
    found = os.fstat(shared.place[1])
    assert stat.S_IMODE(found.st_mode) == 0o600 and found.st_nlink == 0
    place = shared.place
    assert open_shared(place) is not None
    del shared
    assert open_shared(place) is None


def test_anything_else_at_the_place_is_left_alone() -> None:
    """The trainer's numbers may mean something else to a worker elsewhere: another machine, another container."""
    reading, writing = os.pipe()
    other, empty = os.memfd_create("environment"), os.memfd_create("sac_weights")
    os.ftruncate(other, 4096)
    try:
        for descriptor in (reading, writing, other, empty, 10_000):
            assert open_shared((os.getpid(), descriptor)) is None
        os.ftruncate(empty, 4096)
        assert open_shared((os.getpid(), empty)) is None
        assert open_shared((2**22 + 1, 3)) is None and open_shared(NOWHERE) is None
    finally:
        for descriptor in (reading, writing, other, empty):
            os.close(descriptor)


@pytest.mark.parametrize("call", ["memfd_create", "posix_fallocate"])
def test_without_such_memory_there_is_none(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = len(os.listdir("/proc/self/fd"))

    def fail(*args: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(shared_weights.os, call, fail)
        assert share(policy(0)) is None
    assert len(os.listdir("/proc/self/fd")) == before
    assert share(policy(0)) is not None
