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
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tree

from tfagents_system.checks.frame_stacks import FrameStack, frames_of_leaves, leaf_name
from tfagents_system.policies.leaf_names import fit_names

NEVER = -2  # iteration_done of a worker that has completed none.
WIRE_VERSION = 3
HEADER_FIELDS = 11
_MAX_SEGMENT_STEPS = 1000
_MAX_SEGMENT_BYTES = 16 * 2**20


@dataclasses.dataclass(frozen=True)
class Column:
    """One leaf of the observation or action nest.

    Attributes:
      name: Path in the nest, such as `observation/camera`.
      shape: Shape of one step.
      dtype: Name of the NumPy dtype.
      count: Of an action that is the number of one of so many; None: values are not limited.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    count: int | None = None

    def describe(self) -> dict[str, Any]:
        """What a ring says of it; as before there were counts, where it has none."""
        return {name: value for name, value in dataclasses.asdict(self).items() if name != "count" or value}

    @property
    def is_image(self) -> bool:
        """Pixels `[height, width, channels]`, of which frames can be stacked."""
        return self.dtype == "uint8" and len(self.shape) == 3

    @property
    def step_bytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize


_RETURN = Column("return", (), "float32")
_OF_STEPS = (Column("reward", (), "float32"), Column("discount", (), "float32"))


@dataclasses.dataclass(frozen=True)
class Layout:
    """The columns of an environment's experience, in the order of the flattened nests.

    Attributes:
      observation: Of each observation.
      action: Of each transition.
      returns: None, or one more column of each transition: the discounted sum of the episode's rewards up to it.
      leaves: The names by which `frame_stack` knows the observation's columns.
    """

    observation: tuple[Column, ...]
    action: tuple[Column, ...]
    returns: Column | None = None
    leaves: tuple[str, ...] = dataclasses.field(default=(), compare=False)

    @classmethod
    def from_specs(cls, observation_spec: Any, action_spec: Any, *, has_returns: bool = False) -> Layout:
        """Builds the layout from nests of specs (ArraySpec or TensorSpec, without batch dimension)."""
        returns = _RETURN if has_returns else None
        leaves = tuple(leaf_name(path) for path, _ in tree.flatten_with_path(observation_spec))
        columns = _columns("observation", observation_spec), _columns("action", action_spec, _count)
        return cls(*columns, returns, leaves)

    @property
    def columns(self) -> tuple[Column, ...]:
        """All, in the order of the ring's files and of a segment's arrays."""
        return self.observation + self.action + ((self.returns,) if self.returns else ())

    @functools.cached_property
    def on_the_wire(self) -> tuple[Column, ...]:
        """What a segment's arrays hold, in their order, after its header."""
        return _OF_STEPS + self.columns

    def lengths(self, steps: int, rows: int) -> list[int]:
        """Of these arrays, for so many transitions and observations."""
        after = len(self.columns) - len(self.observation)
        return [steps] * len(_OF_STEPS) + [rows] * len(self.observation) + [steps] * after

    @property
    def step_bytes(self) -> int:
        """Bytes that one step takes in the ring, all columns together."""
        own = sum(column.step_bytes for column in self.columns)
        return own + 4 + 4 + 4 + 1 + 4  # reward, discount, steps_left, step_type, crc

    def frames(self, frame_stack: FrameStack) -> tuple[int, ...]:
        """The frames of each column of the observation that networks see at once."""
        return frames_of_leaves(self.leaves, [column.is_image for column in self.observation], frame_stack)

    def stacked_step_bytes(self, frame_stack: FrameStack) -> int:
        """Bytes that one step takes in a minibatch, each stacked column with the frames before it."""
        columns = zip(self.observation, self.frames(frame_stack), strict=True)
        return self.step_bytes + sum((frames - 1) * column.step_bytes for column, frames in columns)

    def history_rows(self, frame_stack: FrameStack) -> int:
        """Most observations before a segment that starts within an episode: its first steps are stacked, too."""
        return max(self.frames(frame_stack), default=1) - 1

    def max_segment_steps(self, sequence_length: int | None) -> int:
        """Most steps of a segment: limited in bytes, but never too short for two training sequences."""
        return max(2 * (sequence_length or 0), 1, min(_MAX_SEGMENT_STEPS, _MAX_SEGMENT_BYTES // self.step_bytes))

    def num_segments(self, steps: int, sequence_length: int | None) -> int:
        """Segments of an episode of so many steps, as `SegmentBuilder` cuts it."""
        return -(-steps // self.max_segment_steps(sequence_length))


def file_stem(name: str) -> str:
    """Of the column's file in the ring."""
    return name.replace("/", ".")


def _columns(root: str, spec: Any, count: Callable[[Any], int | None] = lambda leaf: None) -> tuple[Column, ...]:
    leaves = tree.flatten_with_path(spec)
    # Renamed only if two columns would share a file: rings of earlier versions have names that differ in case.
    wanted = ["/".join([root, *map(str, path)]) for path, _ in leaves]
    names = fit_names(wanted, also_allowed="/.-", alike=file_stem)
    columns = []
    for name, (_, leaf) in zip(names, leaves, strict=True):
        dtype = getattr(leaf.dtype, "as_numpy_dtype", leaf.dtype)
        columns.append(Column(name, tuple(int(size) for size in leaf.shape), np.dtype(dtype).name, count(leaf)))
    return tuple(columns)


def _count(action: Any) -> int | None:
    """Of an agent's spec of an action: how many there are, of which each has a number."""
    return (
        int(action.maximum) + 1
        if np.dtype(getattr(action.dtype, "as_numpy_dtype", action.dtype)).kind in "iu"
        else None
    )


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
        return arrays if self.returns is None else [*arrays, self.returns]

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
        return cls(
            worker_id=worker_id,
            incarnation=incarnation,
            number=number,
            iteration=iteration,
            end_of_iteration=bool(flags & 1),
            starts_episode=bool(flags & 2),
            ends_episode=bool(flags & 4),
            observation=list(arrays[2:split]),
            action=list(arrays[split : split + len(layout.action)]),
            reward=arrays[0],
            discount=arrays[1],
            held_out=bool(flags & 8),
            history=history,
            lead=lead,
            context=context,
            deferred=deferred,
            returns=arrays[-1] if layout.returns else None,
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
        worker_id >= 0 and incarnation >= 1 and number >= 0 and iteration >= -1 and 0 <= flags < 16,
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
        `env_steps_before_training`.
    """

    incarnation: int
    number: int
    iteration_done: int
    init_episodes: int


NOTHING_STORED = WorkerRecord(incarnation=0, number=-1, iteration_done=NEVER, init_episodes=0)
