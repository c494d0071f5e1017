"""Converts batches of observations: all lanes of a vector environment at once, in NumPy.

The rules are those of `observations.py` for one environment. A batch that breaks one of them is looked at again lane by
lane, so that the error names the lane and says what a single environment's error says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tree

# np.clip without its Python layers, which take four times as long.
from numpy.core.umath import clip  # type: ignore[attr-defined]
from tf_agents.specs import array_spec

from tfagents_system.envs.observation_bounds import Bounds, OutsideBounds
from tfagents_system.envs.observations import observation_converter
from tfagents_system.envs.spaces import one_hot_sizes, space_kind

# Writes a batch [M, ...] into an array of the same shape; returns whether all of it is as its space says.
Write = Callable[[np.ndarray, np.ndarray], bool]


class ObservationWriter:
    """Writes batches of observations into arrays, one for each leaf of the spec in flattened order.

    Args:
      spec: Nest of ArraySpecs, of one lane.
      own: Nest of the environment's own spaces or specs, of one lane.
      outside: Takes what is beyond its bounds; None: it is a fault.

    Attributes:
      specs: The flattened spec.
    """

    def __init__(self, spec: Any, own: Any, outside: OutsideBounds | None = None) -> None:
        outside = outside or OutsideBounds(is_fault=True)
        self.specs = tree.flatten(spec)
        paths = [path for path, _ in tree.flatten_with_path(spec)]
        self._getters = [_getter(path) for path in paths]
        leaves = [(leaf, _getter(path)(own)) for path, leaf in zip(paths, self.specs, strict=True)]
        self._writes = [_leaf_write(leaf, of_leaf, outside) for leaf, of_leaf in leaves]
        self._of_one_lane = [observation_converter(leaf, of_leaf, outside) for leaf, of_leaf in leaves]

    def empty(self, count: int) -> list[np.ndarray]:
        """Arrays for so many observations."""
        return [np.zeros((count, *spec.shape), spec.dtype) for spec in self.specs]

    def write(self, batch: Any, out: Sequence[np.ndarray]) -> None:
        """Writes a batch of as many observations as `out` has rows.

        Raises:
          ValueError, TypeError: An observation is not as its space says.
        """
        for get, write, one, array in zip(self._getters, self._writes, self._of_one_lane, out, strict=True):
            leaf = np.asarray(get(batch))
            if len(leaf) != len(array):
                raise ValueError(f"expected observations of {len(array)} lanes but found {len(leaf)}")
            if not write(leaf, array):
                _explain(leaf, one)

    def rows(self, batch: Any, lanes: np.ndarray) -> list[np.ndarray]:
        """Some lanes' rows of a batch, or of an array of objects with an observation for each lane."""
        if isinstance(batch, np.ndarray) and batch.dtype == object:
            return [np.stack([np.asarray(get(batch[lane])) for lane in lanes]) for get in self._getters]
        return [_rows(get(batch), lanes) for get in self._getters]

    def write_rows(self, rows: Sequence[np.ndarray], lanes: np.ndarray, out: Sequence[np.ndarray]) -> None:
        """Writes what `rows` returned into these lanes of `out`. Raises as `write` does."""
        for leaf, write, one, array in zip(rows, self._writes, self._of_one_lane, out, strict=True):
            checked = np.empty((len(lanes), *array.shape[1:]), array.dtype)
            if len(leaf) != len(lanes):
                raise ValueError(f"expected observations of {len(lanes)} lanes but found {len(leaf)}")
            if not write(leaf, checked):
                _explain(leaf, one, lanes)
            array[lanes] = checked


def _rows(leaf: Any, lanes: np.ndarray) -> np.ndarray:
    array = np.asarray(leaf)
    if array.dtype == object:
        return np.stack([np.asarray(array[lane]) for lane in lanes])
    return array[lanes]


def _getter(path: tuple[Any, ...]) -> Callable[[Any], Any]:
    """From a nest to its leaf at this path."""

    def get(nest: Any) -> Any:
        for key in path:
            nest = getattr(nest, key) if isinstance(key, str) and hasattr(nest, "_fields") else nest[key]
        return nest

    return get


def _explain(batch: np.ndarray, one: Callable[[Any], Any], lanes: np.ndarray | None = None) -> None:
    """Raises the error of the first lane that has one."""
    for row, value in enumerate(batch):
        lane = row if lanes is None else int(lanes[row])
        try:
            one(value)
        except (ValueError, TypeError) as error:
            raise type(error)(f"lane {lane}: {error}") from None
    raise ValueError("the observations are not as their space says")


def _leaf_write(spec: array_spec.ArraySpec, own: Any, outside: OutsideBounds) -> Write:
    kind = space_kind(own)
    if kind in ("Discrete", "MultiDiscrete"):
        return _one_hot_write(one_hot_sizes(own), np.asarray(getattr(own, "start", 0)).reshape(-1))
    names = ("low", "high") if kind == "Box" else ("minimum", "maximum")
    low, high = (getattr(own, name, bound) for name, bound in zip(names, (-np.inf, np.inf), strict=True))
    bounds = Bounds.of(spec, low, high)
    is_integer = np.issubdtype(np.dtype(spec.dtype), np.integer)
    write = _integer_write(np.dtype(spec.dtype)) if is_integer else _float_write
    return write if bounds is None else _bounded(write, spec, bounds, outside)


def _float_write(batch: np.ndarray, out: np.ndarray) -> bool:
    if batch.shape != out.shape:
        return False
    np.copyto(out, batch, casting="unsafe")
    # The inner product is the quickest test; it may overflow where all numbers are finite.
    flat = out.reshape(-1)
    return math.isfinite(flat.dot(flat)) or bool(np.isfinite(out).all())


def _integer_write(dtype: np.dtype) -> Write:
    def write(batch: np.ndarray, out: np.ndarray) -> bool:
        if batch.shape != out.shape or batch.dtype.kind not in "iub":
            return False
        np.copyto(out, batch, casting="unsafe")
        return batch.dtype == dtype or bool((out == batch).all())

    return write


def _bounded(write: Write, spec: array_spec.ArraySpec, bounds: Bounds, outside: OutsideBounds) -> Write:
    low, high = bounds.in_dtype(np.dtype(spec.dtype))

    def write_within_bounds(batch: np.ndarray, out: np.ndarray) -> bool:
        if not write(batch, out):
            return False
        if not (clip(out, low, high) == out).all():
            if outside.is_fault:
                return False
            outside.take(spec.name, out, bounds)
        return True

    return write_within_bounds


def _one_hot_write(sizes: np.ndarray, first: np.ndarray) -> Write:
    offsets = np.concatenate([[0], np.cumsum(sizes)[:-1]])

    def write(batch: np.ndarray, out: np.ndarray) -> bool:
        index = np.asarray(batch, np.int64).reshape(len(batch), -1) - first
        if index.shape[1:] != sizes.shape or (index < 0).any() or (index >= sizes).any():
            return False
        out[:] = 0.0
        np.put_along_axis(out, offsets + index, np.float32(1.0), axis=1)
        return True

    return write
