"""The actions of an environment: what an agent chooses, what the environment takes, and the last ones as observations.

For each leaf of an action space one object knows both. An agent's actions are either vectors in [-1, 1], float32
(`LeafActions`, of a Box), or the number of one of n actions, an int32 scalar (`IndexedActions`): of a Discrete,
MultiDiscrete or MultiBinary space, of a Box of integers, or of the rows of an `action_table` for a Box.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tree

# np.clip without its Python layers, which take four times as long.
from numpy.core.umath import clip  # type: ignore[attr-defined]
from tf_agents.specs import array_spec, tensor_spec

from tfagents_system.envs.gym_driver import ACTION_MASK, mask_of
from tfagents_system.envs.history import ACTION_HISTORY, OBSERVATION, leaf_names
from tfagents_system.errors import UserError

MAX_ACTIONS = 4096
_MOST_NAMED = 5


class LeafActions:
    """One leaf of an action space: of a Box, whose bounds are -1 and 1 for the agent.

    Args:
      spec: The environment's own bounds: of no dimension for a single choice, else of one.
      shape: In which the environment takes an action.

    Attributes:
      environment_spec: As above.
      spec: The agent's.
      rows: The environment's action for each of the agent's, `[n, *environment_spec.shape]`; None where the agent's
        actions are continuous.
      encoded_size: Numbers of an action in an action history.
    """

    rows: np.ndarray | None = None

    def __init__(self, spec: array_spec.BoundedArraySpec, shape: Sequence[int]) -> None:
        self.environment_spec = spec
        self.spec = array_spec.BoundedArraySpec(spec.shape, np.float32, -1.0, 1.0, spec.name)
        self.encoded_size = math.prod(spec.shape)
        self._dtype, self._shape = np.dtype(spec.dtype), tuple(shape)
        self._low, self._high = (np.full(spec.shape, bound, spec.dtype) for bound in (spec.minimum, spec.maximum))
        self._varies = self._high > self._low
        low, high = self._low.astype(np.float32), self._high.astype(np.float32)
        self._half_range, self._middle = (high - low) * np.float32(0.5), (high + low) * np.float32(0.5)
        self._is_scaled, self._is_shifted = bool((self._half_range != 1.0).any()), bool(self._middle.any())

    def to_environment(self, actions: Any) -> Any:
        """The environment's action, in its own shape, for an agent's; or those of all lanes.

        Raises:
          FloatingPointError: One is not finite.
          ValueError: One is none of the n.
        """
        actions = np.asarray(actions, np.float32)
        # The inner product is the quickest test; it may overflow where all numbers are finite.
        flat = actions.ravel()
        if not math.isfinite(flat.dot(flat)) and not np.isfinite(actions).all():
            lanes = actions.reshape(-1, self.encoded_size)
            wrong = lanes[~np.isfinite(lanes).all(axis=1)][0]
            raise FloatingPointError(
                f"the policy's action is not finite ({wrong}): training has diverged, lower the learning rates"
            )
        if self._is_scaled:
            actions = actions * self._half_range
        if self._is_shifted:
            actions = actions + self._middle
        # Rounding may exceed the bounds by one unit in the last place, which some environments refuse.
        clipped: np.ndarray = clip(np.asarray(actions, self._dtype), self._low, self._high)
        return clipped if len(self._shape) == 1 else clipped.reshape((*actions.shape[:-1], *self._shape))

    def to_agent(self, action: Any) -> np.ndarray:
        """The agent's action for one in the environment's units: the nearest one, if it has not this one.

        It is 0 where both bounds are the same.

        Raises:
          ValueError: It is no action of the environment.
        """
        low, high = self._low.astype(np.float64), self._high.astype(np.float64)
        span = np.where(self._varies, high - low, 1.0)
        scaled = 2.0 * (np.asarray(action, np.float64).reshape(low.shape) - low) / span - 1.0
        return np.where(self._varies, np.clip(scaled, -1.0, 1.0), 0.0).astype(np.float32)

    def encode(self, actions: np.ndarray) -> np.ndarray:
        """Agent's actions `[..., *spec.shape]` as an action history has them, `[..., encoded_size]` float32.

        Clipped, as the environment's own action is; 0 where that can have only one value, as in `to_agent`.
        """
        return np.where(self._varies, np.clip(actions, -1.0, 1.0), 0.0)

    def describe(self) -> dict[str, Any]:
        """The environment's action in a policy's file: shape, dtype and bounds, and `rows` where there are some."""
        spec = self.environment_spec
        low, high = (np.broadcast_to(bound, spec.shape).tolist() for bound in (spec.minimum, spec.maximum))
        rows = {} if self.rows is None else {"rows": self.rows.tolist()}
        return {"shape": list(spec.shape), "dtype": np.dtype(spec.dtype).name, "low": low, "high": high, **rows}


class IndexedActions(LeafActions):
    """n actions: the agent's is the number of one, from 0.

    Args:
      spec, shape: As of LeafActions.
      rows: The environment's actions, `[n, *spec.shape]`, none of them twice.
      is_table: Between the rows the environment has others.
    """

    rows: np.ndarray

    def __init__(
        self, spec: array_spec.BoundedArraySpec, shape: Sequence[int], rows: np.ndarray, *, is_table: bool = False
    ) -> None:
        self.environment_spec = spec
        self.spec = array_spec.BoundedArraySpec((), np.int32, 0, len(rows) - 1, spec.name)
        self.rows = rows
        self.encoded_size = len(rows)
        self._is_table = is_table
        low, high = (np.asarray(bound, np.float64) for bound in (spec.minimum, spec.maximum))
        self._scale = 1.0 / np.where(high > low, high - low, 1.0)
        self._scaled_rows = (rows * self._scale).reshape(len(rows), -1)
        self._shaped_rows = rows.reshape(len(rows), *shape)

    def to_environment(self, actions: Any) -> Any:
        rows, count = self._shaped_rows, len(self.rows)
        # A copy: an environment may change what it gets.
        if getattr(actions, "ndim", 0) == 0 and 0 <= (number := int(actions)) < count:
            return rows[number] if rows.ndim == 1 else rows[number].copy()
        index = np.asarray(actions)
        wrong = index[(index < 0) | (index >= count)]
        if wrong.size:
            raise ValueError(f"{self.spec.name}: the agent's action is {wrong[0]}: it must be from 0 to {count - 1}")
        return rows[index]

    def to_agent(self, action: Any) -> np.ndarray:
        """The nearest row's number, of equals the lowest: numbers count as shares of their range."""
        numbers = np.asarray(action)
        is_one = numbers.dtype.kind in "iubf" and numbers.size == self._scaled_rows.shape[1]
        if not (is_one and np.isfinite(numbers).all()):
            raise ValueError(f"{self.spec.name}: expected an action such as {self.rows[0]} but found {action!r}")
        distances = np.square(self._scaled_rows - np.ravel(numbers) * np.ravel(self._scale)).sum(axis=1)
        index = int(np.argmin(distances))
        if distances[index] and not self._is_table:
            low, high = self.environment_spec.minimum, self.environment_spec.maximum
            raise ValueError(f"the action is {action!r}: the environment takes integers from {low} to {high}")
        return np.asarray(index, np.int32)

    def encode(self, actions: np.ndarray) -> np.ndarray:
        """One-hot."""
        return (np.asarray(actions)[..., None] == np.arange(len(self.rows))).astype(np.float32)


def actions_of(environment_action_spec: Any, table: Sequence[Sequence[float]] | None = None, own: Any = None) -> Any:
    """The nest of LeafActions of an environment.

    Args:
      environment_action_spec: Nest of BoundedArraySpecs or BoundedTensorSpecs; integers are to be chosen from.
      table: Rows of `TrainParams.action_table`, which become the actions of the only leaf, a Box.
      own: Nest of the environment's own spaces or specs, with their shapes; None: actions are taken as in the spec.

    Raises:
      UserError: A leaf has too many actions, or the table does not fit.
    """
    specs = tensor_spec.to_array_spec(environment_action_spec)
    leaves = tree.flatten(specs)
    shapes = [tuple(getattr(leaf, "shape", ())) for leaf in (leaves if own is None else tree.flatten(own))]
    if table is not None:
        made: list[LeafActions] = [IndexedActions(leaves[0], shapes[0], _rows_of_table(table, leaves), is_table=True)]
    else:
        made = [
            IndexedActions(spec, shape, _all_rows(spec)) if is_discrete(spec) else LeafActions(spec, shape)
            for spec, shape in zip(leaves, shapes, strict=True)
        ]
    return tree.unflatten_as(specs, made)


def mask_leaf(observation: Any, action_spec: Any) -> int | None:
    """The number of the mask of n actions, `[n]`, among the leaves of an observation or its spec; None without one.

    Args:
      action_spec: The agent's.
    """
    mask = mask_of(observation)
    if mask is None or tree.is_nested(action_spec) or not is_discrete(action_spec):
        return None
    is_of_them = tuple(getattr(mask, "shape", ())) == (int(action_spec.maximum) + 1,)
    return leaf_names(observation).index(ACTION_MASK) if is_of_them else None


def random_legal(mask: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Uniformly drawn legal actions by masks `[..., n]`: `[...]` int32; 0 where none is legal."""
    return np.where(mask, rng.random(mask.shape), -1.0).argmax(axis=-1).astype(np.int32)


def random_actions(spec: Any, rng: np.random.Generator, *lanes: int) -> np.ndarray:
    """Uniformly drawn actions of an agent, `[*lanes, *spec.shape]`.

    Args:
      spec: The agent's, of one leaf.
      rng: Source of the actions.
      *lanes: Dimensions before an action's own.
    """
    shape = (*lanes, *map(int, spec.shape))
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


def _rows_of_table(table: Sequence[Sequence[float]], leaves: Sequence[array_spec.BoundedArraySpec]) -> np.ndarray:
    """The rows as the environment takes them, `[n, numbers of an action]` of its dtype.

    Raises:
      UserError: The environment's action is not one Box of numbers; rows are of the wrong length, outside the bounds,
        not finite or there twice, or too many.
    """
    if len(leaves) != 1 or is_discrete(leaves[0]):
        kind = "several parts" if len(leaves) != 1 else "discrete actions of its own"
        raise UserError(f"TrainParams.action_table is for one Box of numbers, the action space has {kind}: remove it")
    (spec,) = leaves
    low, high = (np.broadcast_to(bound, spec.shape) for bound in (spec.minimum, spec.maximum))
    findings = []
    if not 2 <= len(table) <= MAX_ACTIONS:
        findings.append(f"it has {len(table):,} rows: it must have 2 to {MAX_ACTIONS:,}")
    seen: dict[bytes, int] = {}
    for number, row in enumerate(table):
        try:
            numbers = np.asarray(row, np.float64)
        except (TypeError, ValueError):
            numbers = np.empty(())
        taken = numbers.astype(spec.dtype) + np.zeros((), spec.dtype)  # As the environment takes it; -0.0 is 0.0.
        if numbers.shape != low.shape:
            findings.append(f"row {number} is {row!r}: the environment's action has {len(low)} numbers")
        elif not np.isfinite(numbers).all():
            findings.append(f"row {number} is {list(row)}: its numbers must be finite")
        elif ((taken < low) | (taken > high)).any():
            findings.append(f"row {number} is {list(row)}: the environment's bounds are {low} and {high}")
        elif (first := seen.setdefault(taken.tobytes(), number)) != number:
            findings.append(f"row {number} is row {first} again: remove one")
    if findings:
        raise UserError(*(f"TrainParams.action_table: {finding}" for finding in findings[:_MOST_NAMED]))
    return np.array(table, spec.dtype)


class ActionHistory:
    """The last actions of each lane's episode, as a part of its observations: oldest first.

    A policy needs them in a system that acts with a delay. An action of numbers is in it as it is, in [-1, 1]; one of n
    is n numbers, 1 for the chosen one and 0 for the others. Before an episode's first action it has zeros, or the
    default action.

    Args:
      length: Number of actions.
      actions: Nest of LeafActions.
      default_action: An agent's: what acts in real time before the first action; None: zeros.
      num_lanes: N.

    Attributes:
      values: `[N, length * size of an action]` float32.
    """

    def __init__(self, length: int, actions: Any, default_action: Any = None, num_lanes: int = 1) -> None:
        self._leaves = tree.flatten(actions)
        self._size = sum(leaf.encoded_size for leaf in self._leaves)
        self.values = np.zeros((num_lanes, length * self._size), np.float32)
        if default_action is not None:
            for _ in range(length):
                self.add(tree.flatten(default_action))
        self._first = self.values.copy()

    def spec(self, observation_spec: Any) -> Any:
        """The spec of observations with the history: `[length * size]` float32 under its own key.

        Raises:
          UserError: The environment's observation already has this key.
        """
        if isinstance(observation_spec, Mapping) and ACTION_HISTORY in observation_spec:
            raise UserError(
                f'the observation has a part "{ACTION_HISTORY}" of its own: rename it, or set '
                "TrainParams.action_history = 0"
            )
        parts = observation_spec if isinstance(observation_spec, Mapping) else {OBSERVATION: observation_spec}
        own = array_spec.ArraySpec(self.values.shape[1:], np.float32, f"{OBSERVATION}/{ACTION_HISTORY}")
        return {**parts, ACTION_HISTORY: own}

    def clear(self, lanes: Any = slice(None)) -> None:
        """Episodes begin in these lanes."""
        self.values[lanes] = self._first[lanes]

    def add(self, leaves: Sequence[Any]) -> None:
        """Adds an agent's actions: leaves `[N, ...]`, or one action of all lanes; see LeafActions.encode."""
        self.values[:, : -self._size] = self.values[:, self._size :]
        parts = [actions.encode(leaf) for actions, leaf in zip(self._leaves, leaves, strict=True)]
        self.values[:, -self._size :] = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-1)
