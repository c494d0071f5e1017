"""Policies in shared memory: never torn, never waited for, and gone with their processes."""

from __future__ import annotations

import os
import stat
import subprocess
import sys

import numpy as np
import pytest

from tfagents_system.policies import weights
from tfagents_system.policies.weights import (
    NOWHERE,
    SharedWeights,
    SharedWeightsReader,
    open_shared,
    share,
)

READS, KILLS = 100_000, 30
# A reader, and one writer after the other, which publishes without a pause until it is killed: forked from a small
# process, so that hundreds of them take seconds. Each array is full of the policy's number.
READER_AND_WRITERS = """
import os, random, signal, sys, time
import numpy as np
from tfagents_system.policies.weights import SharedWeights, SharedWeightsReader, open_shared

READS, KILLS, PARENT = int(sys.argv[1]), int(sys.argv[2]), os.getpid()
WORDS = 700  # Two pages.

def write(pipe):
    policy = [np.zeros((), np.int64), np.zeros(WORDS), np.zeros((2, 3), np.float32)]
    shared = SharedWeights(policy)
    os.write(pipe, b"%d %d" % shared.place)
    number = 0
    while os.getppid() == PARENT:
        number += 1
        for array in policy:
            array.fill(number)
        shared.write(policy)

def number_of(found):
    number, (first, second, third) = found
    assert first == number and np.add.reduce(second) == WORDS * number and third[1, 2] == number, "torn"
    return number

def read(reader, up_to, reads):
    seen = 0
    while reads < up_to or not seen:
        if (found := reader.read()) is not None:  # Else it was overwritten three times.
            reads, before, seen = reads + 1, seen, number_of(found)
            assert seen >= before
    return reads, seen

rng, reads, policies, longest_secs = random.Random(0), 0, 0, 0.0
for kill in range(1, KILLS + 1):
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        write(writing)
        os._exit(0)
    place = tuple(map(int, os.read(reading, 100).split()))
    os.close(reading)
    os.close(writing)
    reader = SharedWeightsReader(place)
    until = READS if kill == KILLS else kill * READS // KILLS - rng.randrange(READS // KILLS)
    reads, seen = read(reader, until, reads)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    began = time.perf_counter()
    policies += number_of(reader.read())
    longest_secs = max(longest_secs, time.perf_counter() - began)
    assert reader.newest >= seen and open_shared(place) is None, "nothing is left of it for others"
del reader
files = [os.path.realpath(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")]
assert not any("sac_weights" in file for file in files), "nor does a reader keep it"
print(reads, policies, longest_secs)
"""


def policy(number: int) -> list[np.ndarray]:
    """Arrays of several pages, which all say which policy it is."""
    shapes: list[tuple[tuple[int, ...], type]] = [((3,), np.int64), ((28, 256), np.float32), ((256,), np.float64)]
    return [np.full(shape, number, dtype) for shape, dtype in [*shapes, ((50, 33), np.float32), ((), np.int64)]]


def number_of(arrays: list[np.ndarray]) -> int:
    """Of the policy that all arrays are of; fails for a torn one."""
    (number,) = {int(value) for array in arrays for value in (array.min(), array.max())}
    return number


@pytest.mark.slow
def test_no_reader_sees_a_torn_policy_while_writers_are_killed_at_any_moment() -> None:
    command = [sys.executable, "-c", READER_AND_WRITERS, str(READS), str(KILLS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stderr
    reads, policies, longest_secs = map(float, done.stdout.split())
    assert reads >= READS and policies > 10 * KILLS
    assert longest_secs < 10.0, "a killed writer holds nobody up"


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
        patch.setattr(weights.os, call, fail)
        assert share(policy(0)) is None
    assert len(os.listdir("/proc/self/fd")) == before
    assert share(policy(0)) is not None
