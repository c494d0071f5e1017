"""Segments survive the wire, one by one and several in an item; what does not fit is refused."""

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.ports import free_port
from tests.support.replay_service import Server
from tests.support.segments_for_tests import LAYOUT, content, numbered_segment
from tfagents_system.replay.ring import Ring
from tfagents_system.transport import tables
from tfagents_system.transport.segments import Layout, MalformedSegmentError, Segment, from_wire, to_wire
from tfagents_system.worker import sender as sender_module
from tfagents_system.worker.sender import SegmentSender

CAPACITY, SLACK = 60, 24


def test_wire_round_trip_keeps_every_field():
    sent = numbered_segment(worker_id=3, number=7, steps=4, incarnation=10**18, iteration=-1, end_of_iteration=True)
    received = from_wire(sent.to_wire(), LAYOUT)[0]
    for field in dataclasses.fields(Segment):
        np.testing.assert_equal(getattr(received, field.name), getattr(sent, field.name), err_msg=field.name)


def test_layout_names_columns_by_their_path_and_counts_bytes():
    spec = {"camera": np.zeros((4, 4, 3), np.uint8), "joints": np.zeros(5, np.float32)}
    layout = Layout.from_specs(spec, np.zeros(2, np.float32))
    assert [column.name for column in layout.observation] == ["observation/camera", "observation/joints"]
    assert layout.action[0].name == "action"
    # 48 pixels, 5 + 2 floats, reward, discount, steps_left of 4 bytes, step_type of 1.
    assert layout.step_bytes == 48 + 4 * 7 + 17
    assert layout.max_segment_steps(None) == 1000
    large = Layout.from_specs(np.zeros((1024, 1024), np.uint8), np.zeros(2, np.float32))
    assert large.max_segment_steps(None) == 15
    assert large.max_segment_steps(20) == 40, "two training sequences fit"


def test_columns_that_would_be_one_file_on_some_file_system_are_named_otherwise():
    def names(*keys):
        layout = Layout.from_specs({key: np.zeros(1, np.float32) for key in keys}, np.zeros(2, np.float32))
        return [column.name.removeprefix("observation/") for column in layout.observation]

    assert names("A", "a", "a_b", "a-b", "a.b") == ["A", "a_", "a-b", "a.b_", "a_b__"]
    assert names("a/b", "a.b", "a b") == ["a_b__", "a.b", "a/b_"]


@pytest.mark.parametrize(
    ("index", "change", "message"),
    [
        (1, lambda reward: reward[:-1], "reward: expected float32"),
        (1, lambda reward: reward.astype(np.float64), "but found float64"),
        (3, lambda ids: ids[:, :2], "observation/id: expected float32"),
        (3, lambda ids: np.full_like(ids, np.nan), "observation/id: not all values are finite"),
        (5, lambda action: np.full_like(action, np.inf), "action: not all values are finite"),
        (0, lambda header: header[:, :5], "expected headers"),
        (0, lambda header: header * 0, "impossible header"),
        (0, lambda header: np.full_like(header, 2**63 - 1), "impossible header"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(index, change, message):
    arrays = numbered_segment().to_wire()
    arrays[index] = change(arrays[index])
    with pytest.raises(MalformedSegmentError, match=message):
        from_wire(arrays, LAYOUT)[0]


@given(st.lists(st.sampled_from([np.int64, np.float32, np.uint8]), max_size=8), st.integers(0, 9))
def test_arbitrary_arrays_never_raise_anything_else(dtypes, size):
    with pytest.raises(MalformedSegmentError):
        from_wire([np.zeros(size, dtype) for dtype in dtypes], LAYOUT)[0]


# Several in an item.


@pytest.fixture
def server(tmp_path):
    server = Server(tmp_path / "ring", free_port())
    yield server
    server.close()


def segment(number, steps, history=0, lead=0, context=0, deferred=0, **fields):
    """One of an episode that was cut, with rows of history and lead before its new steps."""
    made = numbered_segment(number=number, steps=lead + steps, first_step=history, iteration=number // 3, **fields)
    observation = numbered_segment(number=number, steps=history + lead + steps).observation
    goes_on = deferred > 0
    return dataclasses.replace(
        made,
        observation=observation,
        starts_episode=history == 0,
        ends_episode=not goes_on,
        history=history,
        lead=lead,
        context=min(context, lead),
        deferred=min(deferred, lead + steps - min(context, lead)),
        end_of_iteration=number % 3 == 2,
    )


SEGMENTS = st.lists(
    st.tuples(*(st.integers(1, 8), *(st.integers(0, 3) for _ in range(4)), st.booleans(), st.booleans())),
    min_size=1,
    max_size=25,
).map(
    lambda rows: [
        segment(number, *sizes, held_out=held_out, incarnation=1, terminates=terminates)
        for number, (*sizes, held_out, terminates) in enumerate(rows)
    ]
)


@settings(max_examples=25, deadline=None)
@given(segments=SEGMENTS, cuts=st.lists(st.integers(1, 6), min_size=25, max_size=25))
def test_bundles_leave_the_bytes_that_single_segments_leave(tmp_path_factory, segments, cuts):
    folder = tmp_path_factory.mktemp("rings")
    singly = Ring.open(folder / "singly", LAYOUT, CAPACITY, SLACK)
    together = Ring.open(folder / "together", LAYOUT, CAPACITY, SLACK)
    for alone in segments:
        assert singly.append(from_wire(alone.to_wire(), LAYOUT)[0])
    remaining = iter(segments)
    for count in cuts:
        if bundle := list(itertools.islice(remaining, count)):
            assert together.extend(from_wire(to_wire(bundle), LAYOUT)) == len(bundle)
            assert together.extend(bundle) == 0, "each is stored once"
    for ours, theirs in zip(together.columns, singly.columns, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert content(together) == content(singly)
    assert (together.held_out_steps, together.repeated_steps) == (singly.held_out_steps, singly.repeated_steps)
    together.rollback(together.snapshot())
    assert together.verify() == 0
    reopened = Ring.open(folder / "together", LAYOUT, CAPACITY, SLACK)
    assert content(reopened) == content(singly)
    assert (reopened.ring_steps, reopened.repeated_steps) == (singly.ring_steps, singly.repeated_steps)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda arrays: [arrays[0][:0], *arrays[1:]], "expected headers int64"),
        (lambda arrays: [arrays[0].astype(np.int32), *arrays[1:]], "expected headers int64"),
        (lambda arrays: [arrays[0], np.float32(1), *arrays[2:]], "reward: expected float32"),
        (lambda arrays: [*arrays, arrays[1]], "arrays but found"),
    ],
)
def test_what_is_no_bundle_is_refused_as_a_whole(change, message):
    arrays = change(to_wire([segment(number, 4) for number in range(2)]))
    with pytest.raises(MalformedSegmentError, match=message):
        from_wire(arrays, LAYOUT)


def count_items(sender, monkeypatch):
    """A list that gets the number of segments of each item that is sent."""
    sent, put = [], sender.connection.put
    monkeypatch.setattr(
        sender.connection,
        "put",
        lambda table, arrays: (sent.append(len(arrays[0])), put(table, arrays)),
    )
    return sent


def test_a_worker_bundles_what_it_sends_before_it_asks(server, monkeypatch):
    sender = SegmentSender(server.connection, worker_id=0, incarnation=7, max_bundle_rows=20)
    sent = count_items(sender, monkeypatch)
    for number in range(5):
        sender.send(segment(number, 5))
    assert sent == [3], "18 rows; a fourth segment would make them 24"
    sender.confirm()
    assert sent == [3, 2]
    server.turn_until(lambda: sender.confirm() is not None and sender.unconfirmed_segments == 0)
    assert (server.ring.env_steps, server.ring.segments, server.ring.worker(0).number) == (25, 5, 4)
    sender.send(segment(5, 30))
    assert sent[-1] == 1, "one that is longer than a bundle goes at once"


def test_bundles_whose_confirmation_is_lost_are_sent_again_and_stored_once(server, monkeypatch):
    monkeypatch.setattr(sender_module, "_RESEND_SECS", 0.0)
    sender = SegmentSender(server.connection, worker_id=0, incarnation=7, max_bundle_rows=12)
    sent = count_items(sender, monkeypatch)
    for number in range(4):
        sender.send(segment(number, 5))
    sender.confirm()  # The server has told nothing yet: both bundles are sent once more.
    assert sent == [2, 2, 2, 2]
    server.turn_until(lambda: server.service.duplicates >= 4)
    server.turn_until(lambda: sender.confirm() is not None and sender.unconfirmed_segments == 0)
    assert (server.ring.env_steps, server.ring.segments) == (20, 4)


def test_an_item_with_a_damaged_segment_is_refused_as_a_whole(server):
    arrays = to_wire([segment(number, 5) for number in range(4)])
    arrays[1][12] = np.inf
    server.connection.put(tables.SEGMENTS, arrays)
    server.turn_until(lambda: server.service.malformed == 1)
    assert server.ring.env_steps == 0
    server.connection.put(tables.SEGMENTS, to_wire([segment(number, 5) for number in range(4)]))
    server.turn_until(lambda: server.ring.env_steps == 20)
