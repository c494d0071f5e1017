"""The declared bounds of observations, and what is done where one is outside."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from absl import logging
from tf_agents.specs import array_spec

from tfagents_system.envs import specs

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

    def tell_count(self) -> None:
        """Logs how many there were."""
        if self.count:
            logging.info("%s: %d observations were outside their bounds", self._name, self.count)

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
