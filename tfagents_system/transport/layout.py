"""The columns of experience: what a step consists of, on the wire and in the ring's files."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tree

from tfagents_system.hyperparameters import FrameStack, frames_of_leaves, leaf_name
from tfagents_system.policies.names import fit_names

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
        """What a ring says of it."""
        return dataclasses.asdict(self)

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
      episode: None, or one more of each observation: of which episode it is, and where in it (replay/episode_index.py).
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
    def from_specs(
        cls,
        observation_spec: Any,
        action_spec: Any,
        *,
        has_returns: bool = False,
        has_explored: bool = False,
        has_potential: bool = False,
        has_episode: bool = False,
    ) -> Layout:
        """Builds the layout from nests of specs (ArraySpec or TensorSpec, without batch dimension)."""
        wanted = {
            "returns": has_returns,
            "explored": has_explored,
            "potential": has_potential,
            "episode": has_episode,
        }
        optional: dict[str, Any] = {name: column for name, column in OPTIONAL_COLUMNS.items() if wanted[name]}
        leaves = tuple(leaf_name(path) for path, _ in tree.flatten_with_path(observation_spec))
        columns = _columns("observation", observation_spec), _columns("action", action_spec, _count)
        return cls(*columns, **optional, leaves=leaves)

    @classmethod
    def from_columns(cls, columns: Sequence[Column]) -> Layout:
        """That of a ring which has these columns."""

        def of(root: str) -> tuple[Column, ...]:
            return tuple(each for each in columns if each.name == root or each.name.startswith(f"{root}/"))

        own: dict[str, Any] = {name: column for name, column in OPTIONAL_COLUMNS.items() if of(column.name)}
        return cls(of("observation"), of("action"), **own)

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


def file_stem(name: str) -> str:
    """Of the column's file in the ring."""
    return name.replace("/", ".")


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
    return (
        int(action.maximum) + 1
        if np.dtype(getattr(action.dtype, "as_numpy_dtype", action.dtype)).kind in "iu"
        else None
    )
