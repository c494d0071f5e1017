"""Segments survive the wire, and anything that does not fit is refused."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.segments_for_tests import LAYOUT, numbered_segment
from tfagents_system.transport.segments import Layout, MalformedSegmentError, Segment


def test_wire_round_trip_keeps_every_field():
    sent = numbered_segment(worker_id=3, number=7, steps=4, incarnation=10**18, iteration=-1, end_of_iteration=True)
    received = Segment.from_wire(sent.to_wire(), LAYOUT)
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
        (0, lambda header: header[:5], "expected a header"),
        (0, lambda header: header * 0, "expected version 3 but found 0"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(index, change, message):
    arrays = numbered_segment().to_wire()
    arrays[index] = change(arrays[index])
    with pytest.raises(MalformedSegmentError, match=message):
        Segment.from_wire(arrays, LAYOUT)


@given(st.lists(st.sampled_from([np.int64, np.float32, np.uint8]), max_size=8), st.integers(0, 9))
def test_arbitrary_arrays_never_raise_anything_else(dtypes, size):
    with pytest.raises(MalformedSegmentError):
        Segment.from_wire([np.zeros(size, dtype) for dtype in dtypes], LAYOUT)
