"""From what an environment observes to float32 or integer arrays of the right shape, finite and within their bounds."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

# np.clip without its Python layers, which take four times as long.
from numpy.core.umath import clip  # type: ignore[attr-defined]
from tf_agents.specs import array_spec

from tfagents_system.envs import specs
from tfagents_system.envs.spaces import one_hot_sizes, space_kind

Convert = Callable[[Any], Any]

# A float may leave its bounds by this share of their range: rounding and the softness of a simulator's joint limits are
# no fault. Where only one side is bounded, by this share of the bound, or of 1 if that is more.
BOUNDS_TOLERANCE = 0.01


@dataclasses.dataclass(frozen=True)
class Bounds:
    """The declared bounds of one leaf of an observation, infinite where there are none.

    Attributes:
      low, high: float64, of the observation's shape.
      tolerance: By how much it may leave them, of the same shape; 0 for integers.
    """

    low: np.ndarray
    high: np.ndarray
    tolerance: np.ndarray

    @classmethod
    def of(cls, spec: array_spec.ArraySpec, low: Any, high: Any) -> Bounds | None:
        """The bounds that a value of that dtype can leave at all; None where there are none."""
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
            f"correct the observation, or widen the bound of the space"
        )


def observation_converter(spec: Any, space: Any, array_specs: Any = None) -> Convert:
    """The function from observations of an environment to nests of arrays as `spec` says.

    Args:
      spec: Nest of ArraySpecs.
      space: The environment's space; None for a PyEnvironment.
      array_specs: The PyEnvironment's own specs, which may have bounds.
    """
    if space is None:
        return nest_converter(_spec_converter, spec, specs.plain_nest(array_specs))
    return nest_converter(_space_converter, spec, _space_nest(space))


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


def _space_nest(space: Any) -> Any:
    kind = space_kind(space)
    if kind == "Dict":
        return {str(key): _space_nest(sub) for key, sub in space.spaces.items()}
    if kind == "Tuple":
        return tuple(_space_nest(sub) for sub in space.spaces)
    return space


def _space_converter(spec: array_spec.ArraySpec, space: Any) -> Convert:
    kind = space_kind(space)
    if kind in ("Discrete", "MultiDiscrete"):
        return _one_hot_converter(one_hot_sizes(space), getattr(space, "start", 0))
    return array_converter(spec, Bounds.of(spec, space.low, space.high) if kind == "Box" else None)


def _spec_converter(spec: array_spec.ArraySpec, own: Any) -> Convert:
    return array_converter(spec, Bounds.of(spec, getattr(own, "minimum", -np.inf), getattr(own, "maximum", np.inf)))


def array_converter(spec: array_spec.ArraySpec, bounds: Bounds | None = None) -> Convert:
    """The function from one leaf of an observation to an array of its own.

    It raises ValueError or TypeError for a wrong shape or kind, for NaN and infinity, and outside the bounds.
    """
    convert = _integer_converter(spec) if np.issubdtype(np.dtype(spec.dtype), np.integer) else _float_converter(spec)
    return convert if bounds is None else _bounded(convert, spec, bounds)


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


def _bounded(convert: Convert, spec: array_spec.ArraySpec, bounds: Bounds) -> Convert:
    """`convert`, then a look at the bounds."""
    dtype = np.dtype(spec.dtype)
    low, high = bounds.tolerated()
    if np.issubdtype(dtype, np.integer):  # Whole numbers: the nearest ones inside.
        low = np.where(np.isfinite(low), np.ceil(low), np.iinfo(dtype).min).astype(dtype)
        high = np.where(np.isfinite(high), np.floor(high), np.iinfo(dtype).max).astype(dtype)
    else:
        low, high = low.astype(dtype), high.astype(dtype)
    within = np.empty(tuple(spec.shape), dtype)

    def convert_within_bounds(value: Any) -> np.ndarray:
        array = convert(value)
        clip(array, low, high, within)
        # The quickest comparison there is. It may differ in the sign of a zero, so it is asked a second time.
        if within.tobytes() != array.tobytes() and (within != array).any():
            raise ValueError(bounds.explain(spec.name, array))
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
