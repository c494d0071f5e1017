"""Segments: runs of consecutive steps of one episode, as workers send them; and the columns that a step consists of.

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
import functools
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tree

from tfagents_system.agents.algorithms import value
from tfagents_system.hyperparameters import FrameStack, frames_of_leaves, leaf_name
from tfagents_system.policies.names import fit_names
from tfagents_system.train_params_base import TrainParamsBase, overrides_any

NEVER = -2  # iteration_done of a worker that has completed none.
_MAX_SEGMENT_STEPS = 1000
_MAX_SEGMENT_BYTES = 16 * 2**20


# Columns.


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

    @property
    def is_image(self) -> bool:
        """Pixels `[height, width, channels]`, of which frames can be stacked."""
        return self.dtype == "uint8" and len(self.shape) == 3

    @property
    def step_bytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize


# Columns that a run has only if something asks for them, by the attribute of Layout, Segment and so on that has them.
OPTIONAL_COLUMNS = {
    "returns": Column("return", (), "float32"),
    "explored": Column("explored", (), "uint8", count=2),
    "potential": Column("potential", (), "float32"),
    "episode": Column("episode", (2,), "int64"),  # In the ring; a segment has one row for all of its rows.
}
_OF_STEPS = (Column("reward", (), "float32"), Column("discount", (), "float32"))


@dataclasses.dataclass(frozen=True)
class Layout:
    """The columns of an environment's experience, in the order of the flattened nests.

    Attributes:
      observation: Of each observation.
      action: Of each transition.
      returns: None, or one more column of each transition: the discounted sum of the episode's rewards up to it.
      explored: None, or one more of each transition: 1 where the action is another one than the policy's greedy one.
      potential: None, or one more of each observation: what TrainParams.potential says of it.
      episode: None, or one more of each observation: of which episode it is, and where in it (replay/hindsight.py).
      leaves: The names by which `frame_stack` knows the observation's columns.
    """

    observation: tuple[Column, ...]
    action: tuple[Column, ...]
    returns: Column | None = None
    explored: Column | None = None
    potential: Column | None = None
    episode: Column | None = None
    leaves: tuple[str, ...] = dataclasses.field(default=(), compare=False)

    @classmethod
    def from_specs(cls, observation_spec: Any, action_spec: Any, optional: Collection[str] = ()) -> Layout:
        """Builds the layout from nests of specs (ArraySpec or TensorSpec, without batch dimension).

        Args:
          optional: The names of those of OPTIONAL_COLUMNS that it has.
        """
        more: dict[str, Any] = {name: OPTIONAL_COLUMNS[name] for name in optional}
        leaves = tuple(leaf_name(path) for path, _ in tree.flatten_with_path(observation_spec))
        columns = _columns("observation", observation_spec), _columns("action", action_spec, _count)
        return cls(*columns, **more, leaves=leaves)

    @classmethod
    def from_columns(cls, columns: Sequence[Column]) -> Layout:
        """That of a ring which has these columns."""

        def of(root: str) -> tuple[Column, ...]:
            return tuple(column for column in columns if column.name == root or column.name.startswith(f"{root}/"))

        optional: dict[str, Any] = {name: column for name, column in OPTIONAL_COLUMNS.items() if of(column.name)}
        return cls(of("observation"), of("action"), **optional)

    @functools.cached_property
    def optional(self) -> tuple[str, ...]:
        """The attributes of the columns behind the action's that this layout has, in their order."""
        return tuple(name for name in OPTIONAL_COLUMNS if getattr(self, name) is not None)

    @property
    def columns(self) -> tuple[Column, ...]:
        """All, in the order of the ring's files and of a segment's arrays."""
        return self.observation + self.action + tuple(OPTIONAL_COLUMNS[name] for name in self.optional)

    @functools.cached_property
    def on_the_wire(self) -> tuple[Column, ...]:
        """What a segment's arrays hold, in their order, after its header."""
        return _OF_STEPS + self.columns

    def lengths(self, steps: int, rows: int) -> list[int]:
        """Of these arrays, for so many transitions and observations."""
        own = [rows] * len(self.observation) + [steps] * len(self.action)
        others = {"potential": rows, "episode": 1}
        return [steps] * len(_OF_STEPS) + own + [others.get(name, steps) for name in self.optional]

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


def run_layout(params: TrainParamsBase, observation_spec: Any, action_spec: Any) -> Layout:
    """The columns of a run's experience, which its workers and replay server have alike.

    Args:
      observation_spec, action_spec: Of the environment: nests without batch dimension.
    """
    form = params.sample_form_ctor()
    needed = {
        "returns": value(params, "normalize_rewards"),
        "explored": form.cuts_at_exploration,
        "potential": overrides_any(params, "potential"),
        "episode": form.hindsight is not None,
    }
    return Layout.from_specs(observation_spec, action_spec, [name for name, is_needed in needed.items() if is_needed])


def _columns(root: str, spec: Any, count: Callable[[Any], int | None] = lambda leaf: None) -> tuple[Column, ...]:
    leaves = tree.flatten_with_path(spec)
    # Renamed only if two columns would share a file, on file systems that ignore case as well.
    wanted = ["/".join([root, *map(str, path)]) for path, _ in leaves]
    names = fit_names(wanted, also_allowed="/.-")
    columns = []
    for name, (_, leaf) in zip(names, leaves, strict=True):
        dtype = getattr(leaf.dtype, "as_numpy_dtype", leaf.dtype)
        columns.append(Column(name, tuple(int(size) for size in leaf.shape), np.dtype(dtype).name, count(leaf)))
    return tuple(columns)


def _count(action: Any) -> int | None:
    """Of an agent's spec of an action: how many there are, of which each has a number."""
    dtype = np.dtype(getattr(action.dtype, "as_numpy_dtype", action.dtype))
    return int(action.maximum) + 1 if dtype.kind in "iu" else None


# Segments.

_MOST = 2**62  # Of each number: what is added to it must fit into 64 bits.
# What a segment's row of the headers holds: numbers, each with its least value, and flags.
_NUMBERS = {
    **{"worker_id": 0, "incarnation": 1, "number": 0, "iteration": -1},
    **{"num_steps": 1, "history": 0, "lead": 0, "context": 0, "deferred": 0},
}
_FLAGS = ("end_of_iteration", "starts_episode", "ends_episode", "held_out")
_FIELDS = (*_NUMBERS, *_FLAGS)
_HEADER = operator.attrgetter(*_FIELDS)


class MalformedSegmentError(ValueError):
    """A segment whose arrays do not fit the layout; its item is refused as a whole."""


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

    @property
    def arrays(self) -> list[np.ndarray]:
        """Those of the columns, in the order of `Layout.on_the_wire`."""
        optional = (getattr(self, name) for name in OPTIONAL_COLUMNS)
        return [self.reward, self.discount, *self.observation, *self.action, *(a for a in optional if a is not None)]


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
    headers = np.array([_HEADER(segment) for segment in segments], np.int64)
    if len(segments) == 1:
        return [headers, *segments[0].arrays]
    columns = zip(*(segment.arrays for segment in segments), strict=True)
    return [headers, *(np.concatenate(arrays) for arrays in columns)]


def from_wire(arrays: Sequence[np.ndarray], layout: Layout) -> list[Segment]:
    """Reads what `to_wire` made.

    Raises:
      MalformedSegmentError: The number, dtype or shape of an array is wrong, a float is not finite, or an action is
        none of the environment's.
    """
    columns = layout.on_the_wire
    if len(arrays) != 1 + len(columns):
        raise MalformedSegmentError(f"expected {1 + len(columns)} arrays but found {len(arrays)}")
    headers, *arrays = arrays
    fields = _read_headers(headers)
    ends = [[0] * len(columns)]
    for header in fields:
        steps = header["lead"] + header["num_steps"]
        lengths = layout.lengths(steps, header["history"] + steps + 1)
        ends.append(list(map(operator.add, ends[-1], lengths)))
    for column, length, array in zip(columns, ends[-1], arrays, strict=True):
        expected = (length, *column.shape)
        if array.dtype != np.dtype(column.dtype) or array.shape != expected:
            found = f"but found {array.dtype} {array.shape}"
            raise MalformedSegmentError(f"{column.name}: expected {column.dtype} {expected} {found}")
        if not _has_right_values(array, column):
            rule = "are finite" if column.count is None else f"are from 0 to {column.count - 1}"
            raise MalformedSegmentError(f"{column.name}: not all values {rule}")
    return [
        _segment(header, [array[start:end] for array, start, end in zip(arrays, first, last, strict=True)], layout)
        for header, first, last in zip(fields, ends[:-1], ends[1:], strict=True)
    ]


def _read_headers(headers: np.ndarray) -> list[dict[str, int]]:
    if headers.dtype != np.int64 or headers.ndim != 2 or headers.shape[1] != len(_FIELDS) or len(headers) == 0:
        expected = f"expected headers int64 (N, {len(_FIELDS)})"
        raise MalformedSegmentError(f"{expected} but found {headers.dtype} {headers.shape}")
    fields = [dict(zip(_FIELDS, row, strict=True)) for row in headers.tolist()]
    for header in fields:
        lead, context, deferred = header["lead"], header["context"], header["deferred"]
        is_possible = (
            context <= lead
            and context + deferred <= lead + header["num_steps"]
            and not (header["history"] and header["starts_episode"])
            and not (deferred and header["ends_episode"])
        )
        are_in_range = all(least <= header[name] <= _MOST for name, least in _NUMBERS.items())
        if not (is_possible and are_in_range and all(header[name] in (0, 1) for name in _FLAGS)):
            raise MalformedSegmentError(f"impossible header {header}")
    return fields


def _segment(header: Mapping[str, int], arrays: Sequence[np.ndarray], layout: Layout) -> Segment:
    split = 2 + len(layout.observation)
    end = split + len(layout.action)
    values: dict[str, Any] = {name: header[name] for name in _NUMBERS if name != "num_steps"}  # The arrays say that.
    values |= {name: bool(header[name]) for name in _FLAGS} | dict(zip(layout.optional, arrays[end:], strict=True))
    return Segment(
        **values,
        observation=list(arrays[2:split]),
        action=list(arrays[split:end]),
        reward=arrays[0],
        discount=arrays[1],
    )


def _has_right_values(array: np.ndarray, column: Column) -> bool:
    """Whether no value is a NaN or infinite, and each number of an action is one of the column's."""
    if column.count is not None:
        return bool(((array >= 0) & (array < column.count)).all())
    return array.dtype.kind != "f" or bool(np.isfinite(array).all())


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
