"""Segments: runs of consecutive steps of one episode, as workers send them.

A segment of T new transitions holds T + 1 observations, so that every transition's next observation is in it. An item
of the queue holds one segment or, where they are short, a bundle of several: an item costs the server several times
what a segment of 50 steps costs to store. It is a flat list of arrays: headers with a row for each segment, then for
each column of `Layout` the values of all segments, one after the other.

Where an episode is cut into segments, its samples stay those of the whole episode. A sample that starts in the last
steps of a segment needs steps that come with the next one: it is `deferred` to that one, which begins with a `lead`,
the steps that such samples start at or look back to. Each step is a start in exactly one segment:

    steps of the episode      0 1 2 3 4 5 6 7 8 9 ...
    segment 0                 S S S S d d               S: samples start here
    segment 1                     c c S S S S d d       c: context, a start in an earlier segment
                                  lead    new           d: deferred, a start in the next segment
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from tfagents_system.transport.layout import OPTIONAL_COLUMNS, Column, Layout

NEVER = -2  # iteration_done of a worker that has completed none.
WIRE_VERSION = 4
HEADER_FIELDS = 11


class MalformedSegmentError(ValueError):
    """A segment whose arrays do not fit the layout; it is refused as a whole."""


@dataclasses.dataclass
class Segment:
    """T consecutive transitions of one episode.

    Attributes:
      worker_id: Who collected it.
      incarnation: Start of that worker's process, in ns since the epoch: larger for every later start.
      number: Counts the segments of one incarnation from 0.
      iteration: Iteration it was collected in; -1 for the first random episodes.
      end_of_iteration: The worker has collected its whole share of `iteration`.
      starts_episode: The first observation is the one of `reset`.
      ends_episode: The last observation is the episode's last.
      observation: Leaves `[history + lead + T + 1, ...]`.
      action: Leaves `[lead + T, ...]`, float32 in [-1, 1] or int32 numbers of actions.
      reward: `[lead + T]` float32, of each transition.
      discount: `[lead + T]` float32: 0 where the episode terminated, 1 elsewhere, also where a time limit cut it.
      held_out: Of an episode that is kept for validation and never trained on.
      history: Observations of the same episode before the first transition; 0 where it starts the episode.
      lead: Transitions that an earlier segment of the episode has brought already.
      context: Those of the lead, from its beginning, at which no sample starts.
      deferred: Transitions at the end at which no sample starts: the next segment repeats them.
      returns: `[lead + T]` float32, of each transition, where the layout has them.
      explored: `[lead + T]` uint8, likewise.
      potential: `[history + lead + T + 1]` float32, likewise.
      episode: `[1, 2]` int64, likewise: a number that no other episode of the worker has, and how many observations of
        the episode come before the segment's first one.
    """

    worker_id: int
    incarnation: int
    number: int
    iteration: int
    end_of_iteration: bool
    starts_episode: bool
    ends_episode: bool
    observation: list[np.ndarray]
    action: list[np.ndarray]
    reward: np.ndarray
    discount: np.ndarray
    held_out: bool = False
    history: int = 0
    lead: int = 0
    context: int = 0
    deferred: int = 0
    returns: np.ndarray | None = None
    explored: np.ndarray | None = None
    potential: np.ndarray | None = None
    episode: np.ndarray | None = None

    @property
    def num_rows(self) -> int:
        """Observations."""
        return self.history + len(self.reward) + 1

    @property
    def num_steps(self) -> int:
        """T, the new transitions: environment steps taken."""
        return len(self.reward) - self.lead

    @property
    def num_starts(self) -> int:
        """Transitions at which a sample may start."""
        return len(self.reward) - self.context - self.deferred

    def to_wire(self) -> list[np.ndarray]:
        """See `to_wire`."""
        return to_wire([self])

    @classmethod
    def from_wire(cls, arrays: Sequence[np.ndarray], layout: Layout) -> Segment:
        """The only segment of an item; see `from_wire`."""
        (segment,) = from_wire(arrays, layout)
        return segment

    @property
    def arrays(self) -> list[np.ndarray]:
        """Those of the columns, in the order of `Layout.on_the_wire`."""
        optional = (getattr(self, name) for name in OPTIONAL_COLUMNS)
        return [self.reward, self.discount, *self.observation, *self.action, *(a for a in optional if a is not None)]

    @property
    def header(self) -> list[int]:
        """The first array on the wire: all that is no column."""
        flags = self.end_of_iteration | self.starts_episode << 1 | self.ends_episode << 2 | self.held_out << 3
        return [
            WIRE_VERSION,
            self.worker_id,
            self.incarnation,
            self.number,
            self.iteration,
            flags,
            self.num_steps,
            self.history,
            self.lead,
            self.context,
            self.deferred,
        ]


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
    headers = np.array([segment.header for segment in segments], np.int64)
    if len(segments) == 1:
        return [headers, *segments[0].arrays]
    columns = zip(*(segment.arrays for segment in segments), strict=True)
    return [headers, *(np.concatenate(arrays) for arrays in columns)]


def from_wire(arrays: Sequence[np.ndarray], layout: Layout) -> Iterator[Segment]:
    """Reads what `to_wire` made. Segments before a malformed one come before the error, those after it do not come.

    Raises:
      MalformedSegmentError: The number, dtype or shape of an array is wrong, a float is not finite, or an action is
        none of the environment's.
    """
    columns = layout.on_the_wire
    _require(len(arrays) == 1 + len(columns), f"expected {1 + len(columns)} arrays but found {len(arrays)}")
    headers, *arrays = arrays
    fields, malformed = _read_headers(headers)
    ends = [[0] * len(columns)]
    for header in fields:
        ends.append(list(map(operator.add, ends[-1], layout.lengths(*_steps_and_rows(header)))))
    for place, (column, length) in enumerate(zip(columns, ends[-1], strict=True)):
        if malformed is not None and arrays[place].ndim:  # What comes behind the place of that header is not known.
            arrays[place] = arrays[place][:length]
        array, expected = arrays[place], (length, *column.shape)
        _require(
            array.dtype == np.dtype(column.dtype) and array.shape == expected,
            f"{column.name}: expected {column.dtype} {expected} but found {array.dtype} {array.shape}",
        )
    pairs = zip(arrays, columns, strict=True)
    suspects = [place for place, pair in enumerate(pairs) if not _has_right_values(*pair)]
    for header, first, last in zip(fields, ends[:-1], ends[1:], strict=True):
        parts = [array[start:end] for array, start, end in zip(arrays, first, last, strict=True)]
        for place in suspects:
            column = columns[place]
            rule = "are finite" if column.count is None else f"are from 0 to {column.count - 1}"
            _require(_has_right_values(parts[place], column), f"{column.name}: not all values {rule}")
        yield _segment(header, parts, layout)
    if malformed is not None:
        raise malformed


def _read_headers(headers: np.ndarray) -> tuple[list[tuple[int, ...]], MalformedSegmentError | None]:
    """Those before the first malformed one, without the version, and what is wrong with that one."""
    _require(
        headers.dtype == np.int64 and headers.ndim == 2 and headers.shape[1] == HEADER_FIELDS and len(headers) > 0,
        f"expected headers int64 (N, {HEADER_FIELDS}) but found {headers.dtype} {headers.shape}",
    )
    read: list[tuple[int, ...]] = []
    try:
        for version, *fields in headers.tolist():
            _require(version == WIRE_VERSION, f"expected version {WIRE_VERSION} but found {version}")
            worker_id, incarnation, number, iteration, flags, new_steps, *parts = fields
            history, lead, context, deferred = parts
            _require(
                worker_id >= 0 and incarnation >= 1 and number >= 0 and iteration >= -1 and 0 <= flags < 32,
                f"impossible header {fields}",
            )
            _require(min(parts) >= 0 and (history == 0 or not flags & 2), f"impossible history or lead in {fields}")
            _require(
                new_steps >= 1
                and context <= lead
                and context + deferred <= lead + new_steps
                and not (deferred and flags & 4),
                f"impossible steps in {fields}",
            )
            read.append(tuple(fields))
    except MalformedSegmentError as error:
        return read, error
    return read, None


def _steps_and_rows(fields: Sequence[int]) -> tuple[int, int]:
    """Transitions and observations of a segment with this header, those of its lead and history included."""
    _, _, _, _, _, new_steps, history, lead, _, _ = fields
    return lead + new_steps, history + lead + new_steps + 1


def _segment(fields: Sequence[int], arrays: Sequence[np.ndarray], layout: Layout) -> Segment:
    worker_id, incarnation, number, iteration, flags, _, history, lead, context, deferred = fields
    split = 2 + len(layout.observation)
    end = split + len(layout.action)
    return Segment(
        worker_id=worker_id,
        incarnation=incarnation,
        number=number,
        iteration=iteration,
        end_of_iteration=bool(flags & 1),
        starts_episode=bool(flags & 2),
        ends_episode=bool(flags & 4),
        observation=list(arrays[2:split]),
        action=list(arrays[split:end]),
        reward=arrays[0],
        discount=arrays[1],
        held_out=bool(flags & 8),
        history=history,
        lead=lead,
        context=context,
        deferred=deferred,
        **dict(zip(layout.optional, arrays[end:], strict=True)),
    )


def _has_right_values(array: np.ndarray, column: Column) -> bool:
    """Whether no value is a NaN or infinite, and each number of an action is one of the column's."""
    if column.count is not None:
        return bool(((array >= 0) & (array < column.count)).all())
    return array.dtype.kind != "f" or bool(np.isfinite(array).all())


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise MalformedSegmentError(message)


@dataclasses.dataclass(frozen=True)
class WorkerRecord:
    """What the ring has stored from one worker.

    Attributes:
      incarnation: Of the last stored segment; 0 if there is none.
      number: Of the last stored segment; -1 if there is none.
      iteration_done: The last iteration that the worker completed, `NEVER` if there is none.
      init_episodes: How many of the initial random episodes it has completed; or steps of them, in a run with
        `initial_collect_steps`.
    """

    incarnation: int
    number: int
    iteration_done: int
    init_episodes: int


NOTHING_STORED = WorkerRecord(incarnation=0, number=-1, iteration_done=NEVER, init_episodes=0)
