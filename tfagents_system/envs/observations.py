"""Writes observations into arrays: finite float32 or integers of the right shape; counts those beyond their bounds."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tree

# np.clip without its Python layers, which take four times as long.
from numpy.core.umath import clip  # type: ignore[attr-defined]
from tf_agents.specs import array_spec

from tfagents_system.envs.observation_bounds import Bounds, OutsideBounds
from tfagents_system.envs.spaces import one_hot_sizes, space_kind

Convert = Callable[[Any], Any]


class ObservationWriter:
    """Writes observations of one lane, or batches of them, into arrays: one for each leaf of the spec, flattened.

    Args:
      spec: Nest of ArraySpecs, of one lane.
      space: Nest of the environment's own spaces or, for a PyEnvironment, specs, of one lane.
      outside: Takes what is beyond its bounds; None: it is a fault.
    """

    def __init__(self, spec: Any, space: Any, outside: OutsideBounds | None = None) -> None:
        outside = outside or OutsideBounds(is_fault=True)
        self._leaves = [
            (get := _getter(path), _LeafWriter(leaf, get(space), outside))
            for path, leaf in tree.flatten_with_path(spec)
        ]

    def write(self, observation: Any, out: Sequence[np.ndarray]) -> None:
        """Writes one observation, or a batch of as many as `out` has rows.

        Raises:
          ValueError, TypeError: An observation is not as its space says.
        """
        for (get, leaf), array in zip(self._leaves, out, strict=True):
            leaf.write(get(observation), array)

    def rows(self, batch: Any, lanes: np.ndarray) -> list[np.ndarray]:
        """Some lanes' rows of a batch, or of an array of objects with an observation for each lane."""
        if isinstance(batch, np.ndarray) and batch.dtype == object:
            return [np.stack([np.asarray(get(batch[lane])) for lane in lanes]) for get, _ in self._leaves]
        return [_rows(get(batch), lanes) for get, _ in self._leaves]

    def write_rows(self, rows: Sequence[np.ndarray], lanes: np.ndarray, out: Sequence[np.ndarray]) -> None:
        """Writes what `rows` returned into these lanes of `out`. Raises as `write` does."""
        for values, (_, leaf), array in zip(rows, self._leaves, out, strict=True):
            checked = np.empty((len(lanes), *array.shape[1:]), array.dtype)
            leaf.write(values, checked, lanes)
            array[lanes] = checked


class _LeafWriter:
    """Writes one leaf of an observation, or of a batch.

    Args:
      spec: The leaf's spec.
      space: The environment's own.
      outside: Takes what is beyond the bounds.
    """

    def __init__(self, spec: array_spec.ArraySpec, space: Any, outside: OutsideBounds) -> None:
        self._spec, self._outside = spec, outside
        self._num_dimensions, self._dtype = len(spec.shape), np.dtype(spec.dtype)
        self._bounds: Bounds | None = None
        self._sizes: np.ndarray | None = None
        kind = space_kind(space)
        if kind in ("Discrete", "MultiDiscrete"):
            self._sizes = one_hot_sizes(space)
            first = np.asarray(getattr(space, "start", 0)).reshape(-1)
            self._take: Callable[[np.ndarray, np.ndarray], bool] = functools.partial(_take_one_hot, self._sizes, first)
            return
        names = ("low", "high") if kind == "Box" else ("minimum", "maximum")
        low, high = (getattr(space, name, bound) for name, bound in zip(names, (-np.inf, np.inf), strict=True))
        self._bounds = Bounds.of(spec, low, high)
        if self._bounds is not None:
            self._low, self._high = self._bounds.in_dtype(self._dtype)
            self._within = np.empty(spec.shape, self._dtype)
        self._take = _take_integers if self._dtype.kind in "iu" else _take_floats

    def write(self, values: Any, out: np.ndarray, lanes: np.ndarray | None = None) -> None:
        """Writes `[...]`, or a batch `[M, ...]` of these lanes, into an array of the same shape.

        Raises:
          ValueError, TypeError: The first lane that is not as its space says, and what it has.
        """
        values = np.asarray(values)
        if (values.shape == out.shape or self._sizes is not None) and self._take(values, out):
            if self._bounds is None:
                return
            within = clip(out, self._low, self._high, self._within if out.ndim == self._num_dimensions else None)
            # The fastest comparison, but it also finds signs of zeros that differ: hence the second test.
            if within.tobytes() == out.tobytes() or (within == out).all():
                return
            if not self._outside.is_fault:
                self._outside.take(self._spec.name, out, self._bounds)
                return
        if out.ndim == self._num_dimensions:
            self._refuse(values)
        if values.ndim == 0 or len(values) != len(out):
            raise ValueError(f"expected observations of {len(out)} lanes but found {values.shape}")
        for row, value in enumerate(values):
            try:
                self.write(value, np.empty(out.shape[1:], out.dtype))
            except (ValueError, TypeError) as error:
                raise type(error)(f"lane {row if lanes is None else lanes[row]}: {error}") from None

    def _refuse(self, value: np.ndarray) -> None:
        """Says what is wrong with one observation."""
        spec, dtype = self._spec, self._dtype
        if self._sizes is not None:
            sizes = self._sizes.tolist()
            raise ValueError(f"the observation {value.tolist()} is not within its discrete space of sizes {sizes}")
        if dtype.kind in "iu" and value.dtype.kind not in "iub":
            raise TypeError(f"{spec.name}: the space says {dtype}, but the observation is {value.dtype}")
        if value.shape != spec.shape:
            raise ValueError(f"{spec.name}: expected shape {spec.shape} but found {value.shape}")
        if dtype.kind in "iu" and (changed := value[value.astype(dtype) != value]).size:
            raise ValueError(f"{spec.name} has {changed[0]}, which {dtype} can't hold: correct it")
        with np.errstate(over="ignore"):
            array = value.astype(dtype)
        if not np.isfinite(array).all():
            raise ValueError(f"{spec.name} is not finite: {np.array2string(array, threshold=20)}")
        assert self._bounds is not None
        self._outside.take(spec.name, array, self._bounds)


def _take_one_hot(sizes: np.ndarray, first: np.ndarray, values: np.ndarray, out: np.ndarray) -> bool:
    """Writes the numbers `[..., K]` of K choices one after another, each one-hot; returns whether they are choices."""
    if values.size * out.shape[-1] != out.size * len(sizes):
        return False
    index = values.astype(np.int64).reshape(*out.shape[:-1], len(sizes)) - first
    if (index < 0).any() or (index >= sizes).any():
        return False
    out[:] = 0.0
    offsets = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    np.put_along_axis(out, offsets + index, np.float32(1.0), axis=-1)
    return True


def _take_floats(values: np.ndarray, out: np.ndarray) -> bool:
    """Copies; returns whether all are finite."""
    out[...] = values
    # The inner product is the quickest test; it may overflow where all numbers are finite.
    flat = out if out.ndim == 1 else out.reshape(-1)
    return math.isfinite(flat.dot(flat)) or bool(np.isfinite(out).all())


def _take_integers(values: np.ndarray, out: np.ndarray) -> bool:
    """Copies; returns whether all are integers that the array can hold."""
    if values.dtype.kind not in "iub":
        return False
    out[...] = values
    return values.dtype == out.dtype or bool((out == values).all())


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


def nest_converter(make_leaf: Callable[..., Convert], *nests: Any) -> Convert:
    """A function that converts a nest of the structure of `nests`, leaf by leaf.

    Args:
      make_leaf: Makes the function of one leaf from the leaves of `nests`.
      *nests: Nests of one structure; it is walked once, here, not in every step.
    """
    structure = nests[0]
    if isinstance(structure, Mapping):
        by_key = {key: nest_converter(make_leaf, *(nest[key] for nest in nests)) for key in structure}
        return lambda value: {key: convert(value[key]) for key, convert in by_key.items()}
    if isinstance(structure, tuple | list):
        parts = [nest_converter(make_leaf, *children) for children in zip(*nests, strict=True)]
        kind: Any = type(structure)._make if hasattr(structure, "_make") else type(structure)
        return lambda value: kind([convert(part) for convert, part in zip(parts, value, strict=True)])
    return make_leaf(*nests)
