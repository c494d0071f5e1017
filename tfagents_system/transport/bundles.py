"""Bundles: several segments in one item of the queue, where a worker's segments are short.

An item costs the server several times what a segment of 50 steps costs to store. On the wire a bundle looks like a
segment: each array holds the values of all its segments, one after the other, and the header has a row for each
segment. A bundle of one segment is that segment.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from tfagents_system.transport.segments import (
    Layout,
    MalformedSegmentError,
    Segment,
    check_array,
    check_values,
    has_right_values,
    read_header,
    steps_and_rows,
)


def bundled(segments: Iterable[Segment], max_rows: int) -> Iterator[list[Segment]]:
    """The segments, in order, in bundles of at most so many rows; a longer segment goes alone."""
    bundle: list[Segment] = []
    rows = 0
    for segment in segments:
        if bundle and rows + segment.num_rows > max_rows:
            yield bundle
            bundle, rows = [], 0
        bundle.append(segment)
        rows += segment.num_rows
    if bundle:
        yield bundle


def to_wire(segments: Sequence[Segment]) -> list[np.ndarray]:
    """The flat list of arrays to send, of one worker's consecutive segments (at least one)."""
    if len(segments) == 1:
        return segments[0].to_wire()
    _, *columns = zip(*(segment.to_wire() for segment in segments), strict=True)
    headers = np.array([segment.header for segment in segments], np.int64)
    return [headers, *(np.concatenate(arrays) for arrays in columns)]


def from_wire(arrays: Sequence[np.ndarray], layout: Layout) -> Iterator[Segment]:
    """Reads what `to_wire` made. Segments before a malformed one come before the error, those after it do not come.

    Raises:
      MalformedSegmentError: A segment is malformed, or the arrays are those of no bundle.
    """
    columns = layout.on_the_wire
    if len(arrays) != 1 + len(columns) or arrays[0].ndim != 2:
        yield Segment.from_wire(arrays, layout)
        return
    headers, *arrays = arrays
    fields, malformed = _read_headers(headers)
    sizes = [layout.lengths(*steps_and_rows(each)) for each in fields]
    ends = np.cumsum(np.array([[0] * len(columns), *sizes], np.int64), axis=0)
    _check_together(arrays, layout, ends[-1].tolist(), is_whole=malformed is None)
    pairs = zip(arrays, columns, strict=True)
    suspects = [place for place, pair in enumerate(pairs) if not has_right_values(*pair)]
    for each, first, last in zip(fields, ends[:-1].tolist(), ends[1:].tolist(), strict=True):
        parts = [array[start:end] for array, start, end in zip(arrays, first, last, strict=True)]
        for place in suspects:
            check_values(parts[place], columns[place])
        yield Segment.from_parts(each, parts, layout)
    if malformed is not None:
        raise malformed


def _read_headers(headers: np.ndarray) -> tuple[list[tuple[int, ...]], MalformedSegmentError | None]:
    """Those before the first malformed one, and what is wrong with that one."""
    fields: list[tuple[int, ...]] = []
    try:
        for header in headers:
            fields.append(read_header(header))
    except MalformedSegmentError as error:
        return fields, error
    return fields, None if fields else MalformedSegmentError("a bundle without segments")


def _check_together(arrays: Sequence[np.ndarray], layout: Layout, lengths: Sequence[int], is_whole: bool) -> None:
    """Checks the arrays of all segments; where a header is malformed, what comes behind its place is not known."""
    for array, column, length in zip(arrays, layout.on_the_wire, lengths, strict=True):
        check_array(array if is_whole else array[:length], column, length)
