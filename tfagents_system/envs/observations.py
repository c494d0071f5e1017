"""Converts observations to finite float32 or integer arrays of the right shape; counts those beyond their bounds."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

# np.clip without its Python layers, which take four times as long.
from absl import logging
from numpy.core.umath import clip  # type: ignore[attr-defined]
from tf_agents.specs import array_spec

from tfagents_system.envs import specs
from tfagents_system.envs.spaces import one_hot_sizes, space_kind

Convert = Callable[[Any], Any]

# A float may leave its bounds by this share of their range: rounding and a simulator's soft joint limits are not
# faults. If only one side is bounded, by this share of the bound, or of 1 if that is more.
BOUNDS_TOLERANCE = 0.01


@dataclasses.dataclass(frozen=True)
class Bounds:
    """The declared bounds of one leaf of an observation; infinite if there are none.

    Attributes:
      low, high: float64, of the observation's shape.
      tolerance: By how much it may leave them, of the same shape; 0 for integers.
    """

    low: np.ndarray
    high: np.ndarray
    tolerance: np.ndarray

    @classmethod
    def of(cls, spec: array_spec.ArraySpec, low: Any, high: Any) -> Bounds | None:
        """The bounds that a value of that dtype can violate; None if there are none."""
        low, high = (np.broadcast_to(np.asarray(bound, np.float64), spec.shape) for bound in (low, high))
        dtype = np.dtype(spec.dtype)
        is_integer = np.issubdtype(dtype, np.integer)
        if is_integer:
            least, most = float(np.iinfo(dtype).min), float(np.iinfo(dtype).max)
        else:
            least, most = -specs.UNBOUNDED, specs.UNBOUNDED
        low, high = np.where(low > least, low, -np.inf), np.where(high < most, high, np.inf)
        has_low, has_high = np.isfinite(low), np.isfinite(high)
        if not (has_low.any() or has_high.any()):
            return None
        bound = np.maximum(1.0, np.abs(np.where(has_low, low, np.where(has_high, high, 0.0))))
        span = np.subtract(high, low, out=bound, where=has_low & has_high)
        return cls(low, high, np.zeros_like(span) if is_integer else BOUNDS_TOLERANCE * span)

    def tolerated(self) -> tuple[np.ndarray, np.ndarray]:
        """Low and high with the tolerance added."""
        return self.low - self.tolerance, self.high + self.tolerance

    def in_dtype(self, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
        """Low and high with the tolerance added, to compare arrays of a dtype with."""
        low, high = self.tolerated()
        if np.issubdtype(dtype, np.integer):  # Round the bounds to the nearest integers inside them.
            limits = np.iinfo(dtype)
            return _as_integers(np.ceil(low), dtype, limits.min), _as_integers(np.floor(high), dtype, limits.max)
        return low.astype(dtype), high.astype(dtype)

    def explain(self, name: str, array: np.ndarray) -> str:
        """Names the element that is furthest outside."""
        low, high = self.tolerated()
        excess = np.maximum(low - array, array - high)
        index = np.unravel_index(int(np.argmax(excess)), excess.shape)
        value, is_low = float(array[index]), bool(array[index] < low[index])
        bound = float((self.low if is_low else self.high)[index])
        element = f"{name}[{', '.join(map(str, index))}]" if array.ndim else name
        return (
            f"{element} is {value:.6g}, {'below its low' if is_low else 'above its high'} of {bound:.6g}: "
            "correct the observation, or widen the bound of the space"
        )


class OutsideBounds:
    """What to do with an observation beyond its declared bounds: it is kept, counted, and told of once an element.

    Args:
      name: Which environment; for the warnings.
      is_fault: It raises an error instead (`strict_observation_bounds`).

    Attributes:
      is_fault: As above.
      count: Observations, or batches of them, that were outside.
      first: The first one, in words; empty where there was none.
    """

    def __init__(self, name: str = "the environment", is_fault: bool = False) -> None:
        self.count, self.first = 0, ""
        self._name, self.is_fault = name, is_fault
        self._told = dict[str, np.ndarray]()

    def take(self, leaf: str, array: np.ndarray, bounds: Bounds) -> None:
        """A leaf of an observation is outside, or of a batch: `[..., *shape]`.

        Raises:
          ValueError: It is a fault.
        """
        if self.is_fault:
            raise ValueError(bounds.explain(leaf, array))
        self.count += 1
        low, high = bounds.tolerated()
        outside = ((array < low) | (array > high)).reshape(-1, *low.shape)
        told = self._told.setdefault(leaf, np.zeros(low.shape, bool))
        if (new := outside.any(axis=0) & ~told).any():
            row = int(np.argmax((outside & new).reshape(len(outside), -1).any(axis=1)))
            text = bounds.explain(leaf, np.where(new, array.reshape(outside.shape)[row], np.clip(0.0, low, high)))
            logging.warning("%s: %s. It is kept, and not told of again", self._name, text)
            self.first = self.first or text
            told |= new


def _as_integers(bound: np.ndarray, dtype: np.dtype, where_infinite: int) -> np.ndarray:
    """The limits of 64 bits go in as integers: the nearest float64 to the highest is beyond it."""
    is_finite = np.isfinite(bound)
    integers = np.where(is_finite, bound, 0.0).astype(dtype)
    integers[~is_finite] = where_infinite
    return integers


def observation_converter(spec: Any, own: Any, outside: OutsideBounds | None = None) -> Convert:
    """The function from an environment's observations to nests of arrays that match `spec`.

    Args:
      spec: Nest of ArraySpecs.
      own: Nest of the environment's own spaces or, for a PyEnvironment, specs, which may have bounds.
      outside: Takes those beyond their bounds; None: they are a fault.
    """
    return nest_converter(functools.partial(_leaf_converter, outside or OutsideBounds(is_fault=True)), spec, own)


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


def _leaf_converter(outside: OutsideBounds, spec: array_spec.ArraySpec, own: Any) -> Convert:
    kind = space_kind(own)
    if kind in ("Discrete", "MultiDiscrete"):
        return _one_hot_converter(one_hot_sizes(own), getattr(own, "start", 0))
    names = ("low", "high") if kind == "Box" else ("minimum", "maximum")
    low, high = (getattr(own, name, bound) for name, bound in zip(names, (-np.inf, np.inf), strict=True))
    bounds = Bounds.of(spec, low, high)
    convert = _integer_converter(spec) if np.issubdtype(np.dtype(spec.dtype), np.integer) else _float_converter(spec)
    return convert if bounds is None else _bounded(convert, spec, bounds, outside)


def _float_converter(spec: array_spec.ArraySpec) -> Convert:
    shape, dtype = tuple(spec.shape), np.dtype(spec.dtype)
    is_vector = len(shape) == 1

    def convert(value: Any) -> np.ndarray:
        array = np.array(value, dtype)  # A copy: many environments write every observation into the same buffer.
        if array.shape != shape:
            raise ValueError(f"{spec.name}: expected shape {shape} but found {array.shape}")
        # The inner product is the quickest test; it may overflow where all numbers are finite.
        product = array.dot(array) if is_vector else np.vdot(array, array)
        if not math.isfinite(product) and not np.isfinite(array).all():
            raise ValueError(f"{spec.name} is not finite: {np.array2string(array, threshold=20)}")
        return array

    return convert


def _integer_converter(spec: array_spec.ArraySpec) -> Convert:
    shape, dtype = tuple(spec.shape), np.dtype(spec.dtype)

    def convert(value: Any) -> np.ndarray:
        found = np.asarray(value)
        if found.dtype.kind not in "iub":
            raise TypeError(f"{spec.name}: the space says {dtype}, but the observation is {found.dtype}")
        array = np.array(found, dtype)
        if array.shape != shape:
            raise ValueError(f"{spec.name}: expected shape {shape} but found {array.shape}")
        if found.dtype != dtype and (array != found).any():
            raise ValueError(f"{spec.name} has {found[array != found][0]}, which {dtype} can't hold: correct it")
        return array

    return convert


def _bounded(convert: Convert, spec: array_spec.ArraySpec, bounds: Bounds, outside: OutsideBounds) -> Convert:
    """`convert`, then a check of the bounds."""
    dtype = np.dtype(spec.dtype)
    low, high = bounds.in_dtype(dtype)
    within = np.empty(tuple(spec.shape), dtype)

    def convert_within_bounds(value: Any) -> np.ndarray:
        array = convert(value)
        clip(array, low, high, within)
        # The fastest comparison, but it also finds signs of zeros that differ: hence the second test.
        if within.tobytes() != array.tobytes() and (within != array).any():
            outside.take(spec.name, array, bounds)
        return array

    return convert_within_bounds


def _one_hot_converter(sizes: np.ndarray, start: Any) -> Convert:
    offsets = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    first = np.asarray(start).reshape(-1)
    length = int(sizes.sum())

    def convert(value: Any) -> np.ndarray:
        index = np.asarray(value, np.int64).reshape(-1) - first
        if index.shape != sizes.shape or np.any(index < 0) or np.any(index >= sizes):
            raise ValueError(f"the observation {value!r} is not within its discrete space of sizes {sizes.tolist()}")
        array = np.zeros(length, np.float32)
        array[offsets + index] = 1.0
        return array

    return convert
