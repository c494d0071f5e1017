"""The actions of an environment: what an agent chooses, and what the environment takes.

For each leaf of an action space one object knows both. An agent's actions are either vectors in [-1, 1], float32
(`ContinuousActions`, of a Box), or the number of one of n actions, an int32 scalar (`IndexedActions`): of a Discrete,
MultiDiscrete or MultiBinary space, of a Box of integers, or of the rows of an `action_table` for a Box.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tree

# np.clip without its Python layers, which take four times as long.
from numpy.core.umath import clip  # type: ignore[attr-defined]
from tf_agents.specs import array_spec

from tfagents_system.errors import UserError

MAX_ACTIONS = 4096
_WHY_NOT_FINITE = "training has diverged, lower the learning rates"
_MOST_NAMED = 5


class LeafActions(abc.ABC):
    """One leaf of an action space.

    Attributes:
      environment_spec: The environment's own bounds: of no dimension for a single choice, else of one.
      spec: The agent's.
      rows: The environment's action for each of the agent's, `[n, *environment_spec.shape]`; None where the agent's
        actions are continuous.
      encoded_size: Numbers of an action in an action history.
      to_environment: From an agent's action, or those of all lanes, to the environment's, in its own shape. Raises
        FloatingPointError where one is not finite, ValueError where it is none of the n.
      as_taken: From an action in the environment's units to its own shape and dtype, within the bounds.
    """

    environment_spec: array_spec.BoundedArraySpec
    spec: array_spec.BoundedArraySpec
    rows: np.ndarray | None = None
    encoded_size: int
    to_environment: Callable[[Any], Any]
    as_taken: Callable[[Any], Any]

    @abc.abstractmethod
    def to_agent(self, action: Any) -> np.ndarray:
        """The agent's action for one in the environment's units: the nearest one, if it has not this one.

        Raises:
          ValueError: The environment itself has not this one.
        """

    @abc.abstractmethod
    def is_exact(self, action: Any) -> bool:
        """Whether the agent has this action, given in the environment's units."""

    @abc.abstractmethod
    def encode(self, actions: np.ndarray) -> np.ndarray:
        """Agent's actions `[..., *spec.shape]` as an action history has them, `[..., encoded_size]` float32."""

    def describe(self) -> dict[str, Any]:
        """The environment's action in a policy's file: shape, dtype and bounds, and `rows` where there are some."""
        spec = self.environment_spec
        shape = _sizes(spec.shape)
        low, high = (np.broadcast_to(bound, shape).tolist() for bound in (spec.minimum, spec.maximum))
        rows = {} if self.rows is None else {"rows": self.rows.tolist()}
        return {"shape": list(shape), "dtype": np.dtype(spec.dtype).name, "low": low, "high": high, **rows}


class ContinuousActions(LeafActions):
    """A Box: the agent's actions are in [-1, 1], scaled to its bounds.

    Args:
      spec: The environment's own bounds, of one dimension.
      shape: In which the environment takes it; None: that of `spec`.
    """

    def __init__(self, spec: array_spec.BoundedArraySpec, shape: Sequence[int] | None = None) -> None:
        self.environment_spec = spec
        self.spec = array_spec.BoundedArraySpec(spec.shape, np.float32, -1.0, 1.0, spec.name)
        self._varies = np.broadcast_to(spec.maximum > spec.minimum, spec.shape).ravel()
        self.encoded_size = len(self._varies)
        within_bounds = _within_bounds(spec, shape)
        self.as_taken = lambda action: within_bounds(np.ravel(action))
        self.to_environment = _scaler(spec, within_bounds)

    def to_agent(self, action: Any) -> np.ndarray:
        """Clipped; 0 where both bounds are the same."""
        spec = self.environment_spec
        low, high = np.asarray(spec.minimum, np.float64), np.asarray(spec.maximum, np.float64)
        span = np.where(high > low, high - low, 1.0)
        scaled = 2.0 * (np.asarray(action, np.float64).reshape(tuple(spec.shape)) - low) / span - 1.0
        return np.where(high > low, np.clip(scaled, -1.0, 1.0), 0.0).astype(np.float32)

    def is_exact(self, action: Any) -> bool:
        del action
        return True

    def encode(self, actions: np.ndarray) -> np.ndarray:
        """Clipped, as the environment's own action is; 0 where that can have only one value, as in `to_agent`."""
        return np.where(self._varies, np.clip(actions, -1.0, 1.0), 0.0)


class IndexedActions(LeafActions):
    """n actions: the agent's is the number of one, from 0.

    Args:
      spec: The environment's own bounds.
      rows: Its actions, `[n, *spec.shape]`, none of them twice.
      shape: In which the environment takes one; None: that of `spec`.
      takes_others: The environment has actions between the rows, which are those of a table.
    """

    rows: np.ndarray

    def __init__(
        self,
        spec: array_spec.BoundedArraySpec,
        rows: np.ndarray,
        shape: Sequence[int] | None = None,
        *,
        takes_others: bool = False,
    ) -> None:
        self.environment_spec = spec
        self.spec = array_spec.BoundedArraySpec((), np.int32, 0, len(rows) - 1, spec.name)
        self.rows = rows
        self.encoded_size = len(rows)
        self._takes_others = takes_others
        low, high = (np.asarray(bound, np.float64) for bound in (spec.minimum, spec.maximum))
        self._scale = 1.0 / np.where(high > low, high - low, 1.0)
        self._scaled_rows = (rows * self._scale).reshape(len(rows), -1)
        self._shaped_rows = rows.reshape(len(rows), *_sizes(spec.shape if shape is None else shape))
        self.to_environment = self._chosen
        within_bounds = _within_bounds(spec, shape) if takes_others else self._one_of_rows
        self.as_taken = lambda action: within_bounds(np.ravel(action))

    def _chosen(self, action: Any) -> Any:
        rows, count = self._shaped_rows, len(self.rows)
        # A copy: an environment may change what it gets.
        if getattr(action, "ndim", 0) == 0 and 0 <= (number := int(action)) < count:
            return rows[number] if rows.ndim == 1 else rows[number].copy()
        index = np.asarray(action)
        is_wrong = (index < 0) | (index >= count)
        if is_wrong.any():
            wrong = np.atleast_1d(index)[np.atleast_1d(is_wrong)][0]
            raise ValueError(f"{self.spec.name}: the agent's action is {wrong}: it must be from 0 to {count - 1}")
        return rows[index]

    def to_agent(self, action: Any) -> np.ndarray:
        """The nearest row's number, of equals the lowest: numbers count as shares of their range."""
        index, distance = self._nearest(action)
        if distance and not self._takes_others:
            low, high = self.environment_spec.minimum, self.environment_spec.maximum
            raise ValueError(f"the action is {action!r}: the environment takes integers from {low} to {high}")
        return np.asarray(index, np.int32)

    def is_exact(self, action: Any) -> bool:
        return self._nearest(action)[1] == 0.0

    def encode(self, actions: np.ndarray) -> np.ndarray:
        """One-hot."""
        return (np.asarray(actions)[..., None] == np.arange(len(self.rows))).astype(np.float32)

    def _nearest(self, action: Any) -> tuple[int, float]:
        """The row's number, and the square of its distance; a row itself has 0."""
        numbers = np.asarray(action)
        is_one = numbers.dtype.kind in "iubf" and numbers.size == self._scaled_rows.shape[1]
        if not (is_one and np.isfinite(numbers).all()):
            raise ValueError(f"{self.spec.name}: expected an action such as {self.rows[0]} but found {action!r}")
        numbers = numbers.astype(self.rows.dtype) if self._takes_others else numbers
        distances = np.square(self._scaled_rows - np.ravel(numbers) * np.ravel(self._scale)).sum(axis=1)
        index = int(np.argmin(distances))
        return index, float(distances[index])

    def _one_of_rows(self, action: Any) -> Any:
        return self.to_environment(self.to_agent(action))


def actions_of(environment_action_spec: Any, table: Sequence[Sequence[float]] | None = None, own: Any = None) -> Any:
    """The nest of LeafActions of an environment.

    Args:
      environment_action_spec: Nest of BoundedArraySpecs or BoundedTensorSpecs; integers are to be chosen from.
      table: Rows of `TrainParams.action_table`, which become the actions of the only leaf, a Box.
      own: Nest of the environment's own spaces or specs, with their shapes; None: actions are taken as in the spec.

    Raises:
      UserError: A leaf has too many actions, or the table does not fit.
    """
    leaves = tree.flatten(environment_action_spec)
    if table is not None:
        _check_is_one_box(leaves)
    shapes: list[Any] = (
        [None] * len(leaves) if own is None else [getattr(leaf, "shape", ()) for leaf in tree.flatten(own)]
    )
    made = [_leaf(as_array_spec(leaf), table, shape) for leaf, shape in zip(leaves, shapes, strict=True)]
    return tree.unflatten_as(environment_action_spec, made)


def as_array_spec(spec: Any) -> array_spec.BoundedArraySpec:
    """A BoundedTensorSpec or BoundedArraySpec as the latter."""
    if isinstance(spec, array_spec.BoundedArraySpec):
        return spec
    dtype = np.dtype(getattr(spec.dtype, "as_numpy_dtype", spec.dtype))
    return array_spec.BoundedArraySpec(_sizes(spec.shape), dtype, spec.minimum, spec.maximum, spec.name)


def random_actions(spec: Any, rng: np.random.Generator, *lanes: int) -> np.ndarray:
    """Uniformly drawn actions of an agent, `[*lanes, *spec.shape]`.

    Args:
      spec: The agent's, of one leaf.
      rng: Source of the actions.
      *lanes: Dimensions before an action's own.
    """
    shape = (*lanes, *_sizes(spec.shape))
    if is_discrete(spec):
        return np.asarray(rng.integers(int(spec.maximum) + 1, size=shape, dtype=np.int32))
    return rng.uniform(-1.0, 1.0, shape).astype(np.float32)


def is_discrete(spec: Any) -> bool:
    """Whether an agent's or an environment's spec of one leaf is one of integers."""
    return np.dtype(getattr(spec.dtype, "as_numpy_dtype", spec.dtype)).kind in "iu"


def is_finite(action: Any) -> bool:
    """Whether one leaf of an action has no NaN or infinity; what holds no numbers is for others to refuse."""
    array = np.asarray(action)
    return array.dtype.kind != "f" or bool(np.isfinite(array).all())


def in_words(actions: LeafActions) -> str:
    """For a message: `(3,) in [-1, 1]`, or the number of actions."""
    spec = actions.environment_spec
    box = f"{tuple(spec.shape)} in [{np.min(spec.minimum):g}, {np.max(spec.maximum):g}]"
    if actions.rows is None:
        return box
    return f"{len(actions.rows)} actions of {box}" if len(spec.shape) else f"{len(actions.rows)} actions"


def _leaf(
    spec: array_spec.BoundedArraySpec, table: Sequence[Sequence[float]] | None, shape: Sequence[int] | None
) -> LeafActions:
    if table is not None:
        rows = check_table(table, spec, MAX_ACTIONS)
        return IndexedActions(spec, rows, shape, takes_others=True)
    return IndexedActions(spec, _all_rows(spec), shape) if is_discrete(spec) else ContinuousActions(spec, shape)


def _all_rows(spec: array_spec.BoundedArraySpec) -> np.ndarray:
    """All actions of a leaf of integers, the last number changing fastest."""
    low, high = (np.broadcast_to(bound, spec.shape).ravel().tolist() for bound in (spec.minimum, spec.maximum))
    count = math.prod(most - least + 1 for least, most in zip(low, high, strict=True))
    if count > MAX_ACTIONS:
        raise UserError(
            f"the {spec.name} space has {count:,} actions, at most {MAX_ACTIONS:,} are taken: make it coarser, or a "
            "Box with a float dtype"
        )
    ranges = [np.arange(least, most + 1) for least, most in zip(low, high, strict=True)]
    rows = np.stack(np.meshgrid(*ranges, indexing="ij"), axis=-1)
    return rows.reshape(count, *spec.shape).astype(spec.dtype)


def _check_is_one_box(leaves: Sequence[Any]) -> None:
    if len(leaves) != 1 or is_discrete(leaves[0]):
        found = "several parts" if len(leaves) != 1 else "discrete actions of its own"
        raise UserError(f"TrainParams.action_table is for one Box of numbers, the action space has {found}: remove it")


def _sizes(shape: Any) -> tuple[int, ...]:
    return tuple(int(size) for size in shape)


def _scaler(spec: array_spec.BoundedArraySpec, within_bounds: Callable[[Any], np.ndarray]) -> Callable[[Any], Any]:
    low, high = spec.minimum.astype(np.float32), spec.maximum.astype(np.float32)
    half_range, middle = (high - low) * np.float32(0.5), (high + low) * np.float32(0.5)
    is_scaled = not (np.all(low == -1.0) and np.all(high == 1.0))

    def scale(actions: Any) -> np.ndarray:
        actions = np.asarray(actions, np.float32)
        flat = actions.ravel()
        if not math.isfinite(flat.dot(flat)) and not np.isfinite(flat).all():
            lanes = actions.reshape(-1, actions.shape[-1])
            wrong = lanes[~np.isfinite(lanes).all(axis=1)][0]
            raise FloatingPointError(f"the policy's action is not finite ({wrong}): {_WHY_NOT_FINITE}")
        if is_scaled:
            actions = actions * half_range
            np.add(actions, middle, actions)
        return within_bounds(actions)

    return scale


def _within_bounds(spec: array_spec.BoundedArraySpec, shape: Sequence[int] | None) -> Callable[[Any], np.ndarray]:
    """From actions `[..., n]` to the environment's shape and dtype."""
    dtype, low, high = np.dtype(spec.dtype), spec.minimum, spec.maximum
    flat_shape = _sizes(spec.shape)
    sizes = flat_shape if shape is None else _sizes(shape)

    def convert(actions: Any) -> np.ndarray:
        actions = np.asarray(actions, dtype)
        if actions.shape[-1:] != flat_shape:
            raise ValueError(f"{spec.name}: expected {flat_shape[0]} numbers but found shape {actions.shape}")
        # Rounding may exceed the bounds by one unit in the last place, which some environments refuse.
        clipped = clip(actions, low, high)
        return clipped if sizes == flat_shape else clipped.reshape((*actions.shape[:-1], *sizes))

    return convert


def check_table(table: Sequence[Sequence[float]], spec: Any, most: int) -> np.ndarray:
    """The rows as the environment takes them, `[n, numbers of an action]` of its dtype.

    Args:
      table: Rows in the environment's units.
      spec: The environment's own bounds of its only action, of one dimension.
      most: Rows at most.

    Raises:
      UserError: Rows are of the wrong length, outside the bounds, not finite or there twice, or too many.
    """
    size = int(spec.shape[0])
    findings = [] if 2 <= len(table) <= most else [f"it has {len(table):,} rows: it must have 2 to {most:,}"]
    low, high = (np.broadcast_to(bound, (size,)) for bound in (spec.minimum, spec.maximum))
    seen: dict[bytes, int] = {}
    for number, row in enumerate(table):
        try:
            numbers = np.asarray(row, np.float64)
        except (TypeError, ValueError):
            numbers = np.empty(())
        taken = numbers.astype(spec.dtype) + np.zeros((), spec.dtype)  # As the environment takes it; -0.0 is 0.0.
        if numbers.shape != (size,):
            findings.append(f"row {number} is {row!r}: the environment's action has {size} numbers")
        elif not np.isfinite(numbers).all():
            findings.append(f"row {number} is {list(row)}: its numbers must be finite")
        elif ((taken < low) | (taken > high)).any():
            findings.append(f"row {number} is {list(row)}: the environment's bounds are {low} and {high}")
        elif (first := seen.setdefault(taken.tobytes(), number)) != number:
            findings.append(f"row {number} is row {first} again")
    if findings:
        raise UserError(*(f"TrainParams.action_table: {finding}" for finding in findings[:_MOST_NAMED]))
    return np.array(table, spec.dtype)
