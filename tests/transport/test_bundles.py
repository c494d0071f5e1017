"""Several segments in one item: the same ring as segment by segment, each stored once, and none after a bad one."""

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
from tfagents_system.transport import bundles, tables
from tfagents_system.transport.segments import MalformedSegmentError, Segment
from tfagents_system.worker import sender as sender_module
from tfagents_system.worker.sender import SegmentSender

CAPACITY, SLACK = 60, 24


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


@settings(max_examples=60, deadline=None)
@given(segments=SEGMENTS, cuts=st.lists(st.integers(1, 6), min_size=25, max_size=25))
def test_bundles_leave_the_bytes_that_single_segments_leave(tmp_path_factory, segments, cuts):
    folder = tmp_path_factory.mktemp("rings")
    singly = Ring.open(folder / "singly", LAYOUT, CAPACITY, SLACK)
    together = Ring.open(folder / "together", LAYOUT, CAPACITY, SLACK)
    for each in segments:
        assert singly.append(Segment.from_wire(each.to_wire(), LAYOUT))
    remaining = iter(segments)
    for count in cuts:
        if bundle := list(itertools.islice(remaining, count)):
            assert together.extend(list(bundles.from_wire(bundles.to_wire(bundle), LAYOUT))) == len(bundle)
            assert together.extend(bundle) == 0, "each is stored once"
    for ours, theirs in zip(together.rows.columns, singly.rows.columns, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert content(together) == content(singly)
    assert (together.held_out_steps, together.repeated_steps) == (singly.held_out_steps, singly.repeated_steps)
    assert together.verify() == 0
    reopened = Ring.open(folder / "together", LAYOUT, CAPACITY, SLACK)
    assert content(reopened) == content(singly)
    assert (reopened.ring_steps, reopened.repeated_steps) == (singly.ring_steps, singly.repeated_steps)


def test_segments_after_one_that_is_missing_are_not_stored(tmp_path):
    ring = Ring.open(tmp_path / "ring", LAYOUT, CAPACITY, SLACK)
    ring.append(segment(0, 5))
    assert ring.extend([segment(number, 5) for number in (0, 1, 2, 4, 5)]) == 2
    assert (ring.worker(0).number, ring.env_steps) == (2, 15)
    assert ring.extend([segment(number, 5) for number in (1, 2, 3, 4)]) == 2
    assert (ring.worker(0).number, ring.env_steps, ring.segments) == (4, 25, 5)


@pytest.mark.parametrize("place", ["header", "observation", "reward"])
def test_one_damaged_segment_holds_back_those_after_it_alone(place):
    arrays = bundles.to_wire([segment(number, 4) for number in range(4)])
    if place == "header":
        arrays[0][2, 6] = 0
    else:
        arrays[3 if place == "observation" else 1][2 * (5 if place == "observation" else 4) + 1] = np.nan
    arrived = []
    with pytest.raises(MalformedSegmentError):
        for each in bundles.from_wire(arrays, LAYOUT):
            arrived.append(each)
    assert [each.number for each in arrived] == [0, 1]
    np.testing.assert_array_equal(arrived[1].reward, segment(1, 4).reward)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda arrays: [arrays[0][:0], *arrays[1:]], "a bundle without segments"),
        (lambda arrays: [arrays[0][:, :-1], *arrays[1:]], "expected a header int64"),
        (lambda arrays: [arrays[0].astype(np.int32), *arrays[1:]], "expected a header int64"),
        (lambda arrays: [arrays[0], arrays[1][:-1], *arrays[2:]], "reward: expected float32"),
        (lambda arrays: [arrays[0], np.float32(1), *arrays[2:]], "reward: expected float32"),
        (lambda arrays: [*arrays, arrays[1]], "arrays but found"),
    ],
)
def test_what_is_no_bundle_is_refused_as_a_whole(change, message):
    arrays = change(bundles.to_wire([segment(number, 4) for number in range(2)]))
    with pytest.raises(MalformedSegmentError, match=message):
        next(bundles.from_wire(arrays, LAYOUT))


def count_items(sender, monkeypatch):
    """A list that gets the number of segments of each item that is sent."""
    sent, put = [], sender._connection.put
    monkeypatch.setattr(
        sender._connection,
        "put",
        lambda table, arrays: (sent.append(1 if arrays[0].ndim == 1 else len(arrays[0])), put(table, arrays)),
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


def test_a_server_stores_what_comes_before_a_damaged_segment_and_refuses_the_rest(server):
    arrays = bundles.to_wire([segment(number, 5) for number in range(4)])
    arrays[1][12] = np.inf
    server.connection.put(tables.SEGMENTS, arrays)
    server.turn_until(lambda: server.service.malformed == 1)
    assert (server.ring.worker(0).number, server.ring.env_steps) == (1, 10)
    server.connection.put(tables.SEGMENTS, bundles.to_wire([segment(number, 5) for number in range(4)]))
    server.turn_until(lambda: server.ring.env_steps == 20)
    assert server.service.duplicates == 2
