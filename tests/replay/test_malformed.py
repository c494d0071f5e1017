"""Whatever workers send to the replay server: it is stored as what it says, or refused, and the server lives on."""

import dataclasses
import time
from types import SimpleNamespace

import numpy as np
import pytest
import reverb
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tests.support.ports import free_port
from tests.support.replay_service import Server, ask, take_block
from tests.support.segments_for_tests import LAYOUT, numbered_segment
from tfagents_system.replay.server import ReplayService
from tfagents_system.transport import tables
from tfagents_system.transport.segments import OPTIONAL_COLUMNS, MalformedSegmentError, from_wire

DTYPES = ["float32", "float64", "int64", "int32", "uint8", "bool", "uint64", "float16"]
NUMBERS = st.one_of(
    st.integers(-3, 10), st.sampled_from([2**62, 2**63 - 1, -(2**63), 2**31, 10**18]), st.integers(-(2**63), 2**63 - 1)
)


def any_array():
    return st.sampled_from(DTYPES).flatmap(
        lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=6))
    )


def strings():
    return st.just(np.array([b"text"], object))


@st.composite
def mutated(draw, arrays):
    """Some arrays of a message replaced, cut, cast, filled with other numbers, dropped or added."""
    arrays = [array.copy() for array in arrays]
    for _ in range(draw(st.integers(1, 3))):
        how = draw(st.sampled_from(["replace", "header", "cast", "cut", "poison", "drop", "add"]))
        index = draw(st.integers(0, len(arrays) - 1)) if arrays else 0
        if how == "add" or not arrays:
            arrays.append(draw(st.one_of(any_array(), strings())))
        elif how == "replace":
            arrays[index] = draw(st.one_of(any_array(), strings()))
        elif how == "drop":
            del arrays[index]
        elif how == "header" and arrays[0].dtype == np.int64 and arrays[0].size:
            arrays[0].reshape(-1)[draw(st.integers(0, arrays[0].size - 1))] = draw(NUMBERS)
        elif how == "cast" and arrays[index].dtype != object:
            with np.errstate(all="ignore"):
                arrays[index] = arrays[index].astype(draw(st.sampled_from(DTYPES)))
        elif how == "cut" and arrays[index].ndim:
            arrays[index] = arrays[index][: draw(st.integers(0, len(arrays[index])))]
        elif how == "poison" and arrays[index].dtype.kind == "f" and arrays[index].size:
            place = draw(st.integers(0, arrays[index].size - 1))
            arrays[index] = arrays[index].copy()
            arrays[index].reshape(-1)[place] = draw(st.sampled_from([np.nan, np.inf, -np.inf]))
    return arrays


GOOD_SEGMENT = numbered_segment(steps=4, iteration=2, end_of_iteration=True).to_wire()


@given(mutated(GOOD_SEGMENT))
def test_a_segment_is_whole_or_refused(arrays):
    try:
        segment = from_wire(arrays, LAYOUT)[0]
    except MalformedSegmentError:
        return
    assert segment.num_steps >= 1
    assert segment.worker_id >= 0 and segment.incarnation >= 1 and segment.number >= 0 and segment.iteration >= -1
    for array, expected in zip(segment.to_wire(), arrays, strict=True):
        np.testing.assert_array_equal(array, expected), "what is read is what was sent"
    for column, values in zip(LAYOUT.observation, segment.observation, strict=True):
        assert values.dtype == column.dtype and values.shape == (segment.num_steps + 1, *column.shape)
    assert np.isfinite(segment.reward).all() and np.isfinite(segment.discount).all()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("run") / "ring", free_port())
    yield server
    server.close()


def put_anything(server, arrays):
    """Whether Reverb took it."""
    try:
        with server.connection._client.trajectory_writer(num_keep_alive_refs=1) as writer:
            writer.append(list(arrays))
            writer.create_item(tables.SEGMENTS, 1.0, [column[-1:] for column in writer.history])
            writer.flush(timeout_ms=10_000)
    except (reverb.errors.ReverbError, RuntimeError, ValueError, TypeError):
        return False
    return True


@settings(max_examples=30)
@given(mutated(GOOD_SEGMENT))
def test_a_live_server_refuses_or_takes_and_lives_on(server, arrays):
    if arrays and put_anything(server, arrays):
        server.turn_until(lambda: not server.connection.size(tables.SEGMENTS))
        server.turn(3)


def test_a_server_that_was_sent_malformed_segments_still_stores_and_draws(server):
    refused = server.service.malformed
    server.connection._client.insert(np.int64(3), {tables.SEGMENTS: 1.0})  # A number alone.
    for table in (tables.SEGMENTS, tables.SEGMENTS, tables.REQUESTS, tables.SNAPSHOTS):
        server.connection.put(table, [np.zeros(3, np.int64)])
    server.turn_until(lambda: server.service.malformed == refused + 5)
    incarnation, iteration = 10**18 + time.time_ns(), 2**62
    segment = numbered_segment(steps=50, incarnation=incarnation, iteration=iteration, end_of_iteration=True)
    segment.number = server.ring.worker(0).number + 1 if server.ring.worker(0).incarnation == incarnation else 0
    server.connection.put(tables.SEGMENTS, segment.to_wire())
    stored = server.ring.env_steps
    server.turn_until(lambda: server.ring.env_steps == stored + 50)
    reader = server.connection.reader(tables.BLOCKS)
    ask(server, iteration=0, session=2**63 - 1, count=4)
    block = take_block(server, reader)
    while block.session != 2**63 - 1:  # Blocks for earlier requests may be on their way.
        block = take_block(server, reader)
    assert block.arrays[0].shape[1:] == (4, 3)
    assert server.ring.verify() == 0


@pytest.mark.parametrize(("first", "is_taken"), [(0, True), (2**32 - 1, True), (2**32, False), (-1, False)])
def test_a_place_in_an_episode_that_would_overflow_the_rings_column_is_refused(first, is_taken):
    """The ring adds it to the worker's number times 2**32."""
    refused, layout = [], dataclasses.replace(LAYOUT, episode=OPTIONAL_COLUMNS["episode"])
    ring = SimpleNamespace(layout=layout, max_segment_rows=100)
    service = SimpleNamespace(_ring=ring, _max_workers=2, _refuse=lambda what, error: refused.append(error))
    segment = dataclasses.replace(numbered_segment(steps=4), episode=np.array([[7, first]], np.int64))
    assert len(ReplayService._read_segments(service, segment.to_wire())) == is_taken == 1 - len(refused)


def test_segments_that_do_not_fit_this_ring_are_refused(server):
    refused, stored = server.service.malformed, server.ring.env_steps
    last = 2**62  # A worker that starts later could have no larger one that fits.
    for segment in (
        numbered_segment(worker_id=1, steps=3),
        numbered_segment(steps=1000, incarnation=2**63 - 1),
        numbered_segment(steps=4, incarnation=last),
        numbered_segment(steps=4, incarnation=last, iteration=2**63 - 1),
    ):
        server.connection.put(tables.SEGMENTS, segment.to_wire())
    server.turn_until(lambda: server.service.malformed == refused + 4)
    assert server.ring.env_steps == stored
