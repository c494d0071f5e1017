"""Segments: runs of consecutive steps of one episode, as workers send them.

A segment of T new transitions holds T + 1 observations, so that every transition's next observation is in it. On the
wire it is one Reverb item, a flat list of arrays; `Layout` says which array is what.

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
from collections.abc import Sequence

import numpy as np

from tfagents_system.transport.layout import OPTIONAL_COLUMNS, Column, Layout

NEVER = -2  # iteration_done of a worker that has completed none.
WIRE_VERSION = 3
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
        """The flat list of arrays to send."""
        arrays = [np.array(self.header, np.int64), self.reward, self.discount, *self.observation, *self.action]
        optional = (getattr(self, name) for name in OPTIONAL_COLUMNS)
        return arrays + [array for array in optional if array is not None]

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

    @classmethod
    def from_wire(cls, arrays: Sequence[np.ndarray], layout: Layout) -> Segment:
        """Reads what `to_wire` made.

        Raises:
          MalformedSegmentError: The number, dtype or shape of an array is wrong, a float is not finite, or an action
            is none of the environment's.
        """
        count = 3 + len(layout.columns)
        _require(len(arrays) == count, f"expected {count} arrays but found {len(arrays)}")
        fields = read_header(arrays[0])
        steps, rows = steps_and_rows(fields)
        for array, column, length in zip(arrays[1:], layout.on_the_wire, layout.lengths(steps, rows), strict=True):
            check_array(array, column, length)
            check_values(array, column)
        return cls.from_parts(fields, arrays[1:], layout)

    @classmethod
    def from_parts(cls, fields: Sequence[int], arrays: Sequence[np.ndarray], layout: Layout) -> Segment:
        """Of what `read_header` returns, and of arrays that were checked."""
        worker_id, incarnation, number, iteration, flags, _, history, lead, context, deferred = fields
        split = 2 + len(layout.observation)
        end = split + len(layout.action)
        return cls(
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


def steps_and_rows(fields: Sequence[int]) -> tuple[int, int]:
    """Transitions and observations of a segment with this header, those of its lead and history included."""
    _, _, _, _, _, new_steps, history, lead, _, _ = fields
    return lead + new_steps, history + lead + new_steps + 1


def read_header(header: np.ndarray) -> tuple[int, ...]:
    """What `to_wire` writes into the first array, without the version.

    Raises:
      MalformedSegmentError: It is anything else.
    """
    _require(
        header.dtype == np.int64 and header.shape == (HEADER_FIELDS,),
        f"expected a header int64 ({HEADER_FIELDS},) but found {header.dtype} {header.shape}",
    )
    version, *fields = header.tolist()
    _require(version == WIRE_VERSION, f"expected version {WIRE_VERSION} but found {version}")
    worker_id, incarnation, number, iteration, flags, new_steps, *parts = fields
    _require(
        worker_id >= 0 and incarnation >= 1 and number >= 0 and iteration >= -1 and 0 <= flags < 32,
        f"impossible header {header.tolist()}",
    )
    history, lead, context, deferred = parts
    _require(min(parts) >= 0 and (history == 0 or not flags & 2), f"impossible history or lead in {header.tolist()}")
    _require(
        new_steps >= 1 and context <= lead and context + deferred <= lead + new_steps and not (deferred and flags & 4),
        f"impossible steps in {header.tolist()}",
    )
    return tuple(fields)


def check_array(array: np.ndarray, column: Column, rows: int) -> None:
    """Raises MalformedSegmentError unless it has so many rows of the column."""
    expected = (rows, *column.shape)
    _require(
        array.dtype == np.dtype(column.dtype) and array.shape == expected,
        f"{column.name}: expected {column.dtype} {expected} but found {array.dtype} {array.shape}",
    )


def check_values(array: np.ndarray, column: Column) -> None:
    """Raises MalformedSegmentError where a value can't be one of the column's."""
    rule = "are finite" if column.count is None else f"are from 0 to {column.count - 1}"
    _require(has_right_values(array, column), f"{column.name}: not all values {rule}")


def has_right_values(array: np.ndarray, column: Column) -> bool:
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
