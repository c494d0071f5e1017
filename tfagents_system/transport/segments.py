"""Segments: runs of consecutive steps of one episode, as workers send them.

A segment of T transitions holds T + 1 observations, so that every transition's next observation is in it. On the wire
it is one Reverb item, a flat list of arrays; `Layout` says which array is what.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import tree

from tfagents_system.policies.leaf_names import fit_names

NEVER = -2  # iteration_done of a worker that has completed none.
WIRE_VERSION = 2
_HEADER_FIELDS = 8
_MAX_SEGMENT_STEPS = 1000
_MAX_SEGMENT_BYTES = 16 * 2**20


@dataclasses.dataclass(frozen=True)
class Column:
    """One leaf of the observation or action nest.

    Attributes:
      name: Path in the nest, such as `observation/camera`.
      shape: Shape of one step.
      dtype: Name of the NumPy dtype.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def is_image(self) -> bool:
        """Pixels `[height, width, channels]`, of which frames can be stacked."""
        return self.dtype == "uint8" and len(self.shape) == 3

    @property
    def step_bytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize


_RETURN = Column("return", (), "float32")


@dataclasses.dataclass(frozen=True)
class Layout:
    """The columns of an environment's experience, in the order of the flattened nests.

    Attributes:
      observation: Of each observation.
      action: Of each transition.
      returns: None, or one column more of each transition: the discounted sum of the episode's rewards up to it.
    """

    observation: tuple[Column, ...]
    action: tuple[Column, ...]
    returns: Column | None = None

    @classmethod
    def from_specs(cls, observation_spec: Any, action_spec: Any, *, has_returns: bool = False) -> Layout:
        """Builds the layout from nests of specs (ArraySpec or TensorSpec, without batch dimension)."""
        returns = _RETURN if has_returns else None
        return cls(_columns("observation", observation_spec), _columns("action", action_spec), returns)

    @property
    def columns(self) -> tuple[Column, ...]:
        """All, in the order of the ring's files and of a segment's arrays."""
        return self.observation + self.action + ((self.returns,) if self.returns else ())

    @property
    def step_bytes(self) -> int:
        """Bytes that one step takes in the ring, all columns together."""
        own = sum(column.step_bytes for column in self.columns)
        return own + 4 + 4 + 4 + 1 + 4  # reward, discount, steps_left, step_type, crc

    def stacked_step_bytes(self, frame_stack: int) -> int:
        """Bytes that one step takes in a minibatch, each image with the frames before it."""
        images = sum(column.step_bytes for column in self.observation if column.is_image)
        return self.step_bytes + (frame_stack - 1) * images

    def history_rows(self, frame_stack: int) -> int:
        """Observations that go before a segment from within an episode, at most: its first steps are stacked, too."""
        return frame_stack - 1 if any(column.is_image for column in self.observation) else 0

    def max_segment_steps(self, sequence_length: int | None) -> int:
        """Steps of a segment, at most: limited in bytes, but never too short for two training sequences."""
        return max(2 * (sequence_length or 0), 1, min(_MAX_SEGMENT_STEPS, _MAX_SEGMENT_BYTES // self.step_bytes))

    def num_segments(self, steps: int, sequence_length: int | None) -> int:
        """Segments of an episode of so many steps, as `SegmentBuilder` cuts it."""
        return -(-steps // self.max_segment_steps(sequence_length))


def file_stem(name: str) -> str:
    """Of the column's file in the ring."""
    return name.replace("/", ".")


def _columns(root: str, spec: Any) -> tuple[Column, ...]:
    leaves = tree.flatten_with_path(spec)
    # Others only where two would be one file of the ring: rings of earlier versions have names that differ in case.
    wanted = ["/".join([root, *map(str, path)]) for path, _ in leaves]
    names = fit_names(wanted, also_allowed="/.-", alike=file_stem)
    columns = []
    for name, (_, leaf) in zip(names, leaves, strict=True):
        dtype = getattr(leaf.dtype, "as_numpy_dtype", leaf.dtype)
        columns.append(Column(name, tuple(int(size) for size in leaf.shape), np.dtype(dtype).name))
    return tuple(columns)


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
      end_of_iteration: The worker has collected all that it had to for `iteration`.
      starts_episode: The first observation is the one of `reset`.
      ends_episode: The last observation is the episode's last.
      observation: Leaves `[history + T + 1, ...]`.
      action: Leaves `[T, ...]`, in [-1, 1].
      reward: `[T]` float32, of each transition.
      discount: `[T]` float32: 0 where the episode terminated, 1 elsewhere, also where a time limit cut it.
      held_out: Of an episode that is kept for validation and never trained on.
      history: Observations of the same episode before the first transition; 0 where it starts the episode.
      returns: `[T]` float32, of each transition, where the layout has them.
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
    returns: np.ndarray | None = None

    @property
    def num_rows(self) -> int:
        """Observations."""
        return self.history + self.num_steps + 1

    @property
    def num_steps(self) -> int:
        """Transitions: environment steps taken."""
        return len(self.reward)

    def to_wire(self) -> list[np.ndarray]:
        """The flat list of arrays that travels."""
        flags = self.end_of_iteration | self.starts_episode << 1 | self.ends_episode << 2 | self.held_out << 3
        header = [
            WIRE_VERSION,
            self.worker_id,
            self.incarnation,
            self.number,
            self.iteration,
            flags,
            self.num_steps,
            self.history,
        ]
        arrays = [np.array(header, np.int64), self.reward, self.discount, *self.observation, *self.action]
        return arrays if self.returns is None else [*arrays, self.returns]

    @classmethod
    def from_wire(cls, arrays: Sequence[np.ndarray], layout: Layout) -> Segment:
        """Reads what `to_wire` made.

        Raises:
          MalformedSegmentError: Anything does not fit: number, dtype or shape of an array, or a non-finite float.
        """
        count = 3 + len(layout.columns)
        _require(len(arrays) == count, f"expected {count} arrays but found {len(arrays)}")
        header = arrays[0]
        _require(
            header.dtype == np.int64 and header.shape == (_HEADER_FIELDS,),
            f"expected a header int64 ({_HEADER_FIELDS},) but found {header.dtype} {header.shape}",
        )
        version, worker_id, incarnation, number, iteration, flags, steps, history = (int(value) for value in header)
        _require(version == WIRE_VERSION, f"expected version {WIRE_VERSION} but found {version}")
        _require(
            worker_id >= 0 and incarnation >= 1 and number >= 0 and iteration >= -1 and 0 <= flags < 16 and steps >= 1,
            f"impossible header {header.tolist()}",
        )
        _require(
            history == 0 or (history > 0 and not flags & 2),
            f"impossible history of {history} in {header.tolist()}",
        )
        rows = history + steps + 1
        scalar = Column("reward and discount", (), "float32")
        for array, column, rows in [
            (arrays[1], scalar, steps),
            (arrays[2], scalar, steps),
            *((array, column, rows) for array, column in zip(arrays[3:], layout.observation, strict=False)),
            *(
                (array, column, steps)
                for array, column in zip(
                    arrays[3 + len(layout.observation) :], layout.columns[len(layout.observation) :], strict=True
                )
            ),
        ]:
            _check_array(array, column, rows)
        split = 3 + len(layout.observation)
        return cls(
            worker_id=worker_id,
            incarnation=incarnation,
            number=number,
            iteration=iteration,
            end_of_iteration=bool(flags & 1),
            starts_episode=bool(flags & 2),
            ends_episode=bool(flags & 4),
            observation=list(arrays[3:split]),
            action=list(arrays[split : split + len(layout.action)]),
            reward=arrays[1],
            discount=arrays[2],
            held_out=bool(flags & 8),
            history=history,
            returns=arrays[-1] if layout.returns else None,
        )


def _check_array(array: np.ndarray, column: Column, rows: int) -> None:
    expected = (rows, *column.shape)
    _require(
        array.dtype == np.dtype(column.dtype) and array.shape == expected,
        f"{column.name}: expected {column.dtype} {expected} but found {array.dtype} {array.shape}",
    )
    if array.dtype.kind == "f":
        _require(bool(np.isfinite(array).all()), f"{column.name}: not all values are finite")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise MalformedSegmentError(message)


@dataclasses.dataclass(frozen=True)
class WorkerRecord:
    """What the ring holds of one worker.

    Attributes:
      incarnation: Of the last stored segment; 0 if there is none.
      number: Of the last stored segment; -1 if there is none.
      iteration_done: The last iteration that the worker completed, `NEVER` if there is none.
      init_episodes: Episodes of the first random ones that it completed.
    """

    incarnation: int
    number: int
    iteration_done: int
    init_episodes: int


NOTHING_STORED = WorkerRecord(incarnation=0, number=-1, iteration_done=NEVER, init_episodes=0)
