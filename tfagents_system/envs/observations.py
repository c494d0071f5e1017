"""Converts observations to finite float32 or integer arrays of the right shape; counts those beyond their bounds."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

# np.clip without its Python layers, which take four times as long.
from numpy.core.umath import clip  # type: ignore[attr-defined]
from tf_agents.specs import array_spec

from tfagents_system.envs.observation_bounds import Bounds, OutsideBounds
from tfagents_system.envs.spaces import one_hot_sizes, space_kind

Convert = Callable[[Any], Any]


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
