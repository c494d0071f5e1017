"""Writes observations into arrays: finite float32 or integers of the right shape, and tells of those beyond bounds.

Below, a trial of an environment checks what `reset` and `step` return.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tree
from absl import logging

# np.clip without its Python layers, which take four times as long.
from numpy.core.umath import clip  # type: ignore[attr-defined]
from tf_agents.specs import array_spec

from tfagents_system.checks.findings import Findings
from tfagents_system.envs import gym_driver
from tfagents_system.envs.gym_driver import ACTION_MASK, one_hot_sizes, space_kind
from tfagents_system.envs.specs import UNBOUNDED, observation_spec_of
from tfagents_system.errors import shown

CONTRACT = "reset and step"
_STEPS = 5
_SHAPES_OF_STEP = "observation, reward, terminated, truncated and info (or observation, reward, done and info)"

# A float may leave its bounds by this share of their range: rounding and a simulator's soft joint limits are not
# faults. If only one side is bounded, by this share of the bound, or of 1 if that is more.
_BOUNDS_TOLERANCE = 0.01


class ObservationWriter:
    """Writes observations of one lane, or batches of them, into arrays: one for each leaf of the spec, flattened.

    Args:
      spec: Nest of ArraySpecs, of one lane.
      spaces: Nest of the environment's own, of one lane.
      name: Which environment; for warnings.
      is_strict: An observation beyond the bounds of its space is an error. Otherwise it is kept, and the log names
        the elements that are furthest outside, each once.

    Attributes:
      outside: The first observation beyond its bounds, in words; empty where there was none.
    """

    def __init__(self, spec: Any, spaces: Any, name: str = "the environment", *, is_strict: bool = True) -> None:
        self.outside = ""
        self._name, self._spaces = name, spaces
        tell = None if is_strict else self._tell
        self._leaves = [
            (get := _getter(path), _LeafWriter(leaf, get(spaces), tell)) for path, leaf in tree.flatten_with_path(spec)
        ]

    def write(self, observation: Any, out: Sequence[np.ndarray]) -> None:
        """Writes one observation, or a batch of as many as `out` has rows.

        Raises:
          ValueError: An observation is not as its space says.
        """
        for (get, leaf), array in zip(self._leaves, out, strict=True):
            leaf.write(get(observation), array)

    def faults(self, observation: Any) -> list[str]:
        """All that is wrong with one observation beside its bounds."""
        faults = []
        for get, leaf in self._leaves:
            try:
                faults.append(leaf.fault(get(observation)))
            except ValueError as error:
                faults.append(str(error))

        def look_behind(path: tuple[Any, ...], space: Any) -> None:
            with contextlib.suppress(ValueError):
                if isinstance(space, tuple):
                    _getter((*path, len(space)))(observation)  # Succeeds if there is a part more than in the space.
                    name = "/".join(map(str, ("observation", *path)))
                    faults.append(f"{name} has more parts than the {len(space)} of its space: correct one or the other")

        tree.traverse_with_path(look_behind, self._spaces)
        return list(filter(None, faults))

    def _tell(self, text: str) -> None:
        logging.warning("%s: %s. It is kept, and not told of again", self._name, text)
        self.outside = self.outside or text


class _LeafWriter:
    """Writes one leaf of an observation, or of a batch.

    Args:
      spec: The leaf's spec.
      space: The environment's own.
      tell: Called with the first value beyond the bounds, in words; None: it is an error.
    """

    def __init__(self, spec: array_spec.ArraySpec, space: Any, tell: Callable[[str], None] | None) -> None:
        self._spec, self._tell = spec, tell
        self._num_dimensions, self._dtype = len(spec.shape), np.dtype(spec.dtype)
        self._has_bounds = False
        self._sizes: np.ndarray | None = None
        if space_kind(space) in ("Discrete", "MultiDiscrete"):
            self._sizes = one_hot_sizes(space)
            first = np.asarray(getattr(space, "start", 0)).reshape(-1)
            self._take: Callable[[np.ndarray, np.ndarray], bool] = functools.partial(_take_one_hot, self._sizes, first)
            return
        is_integer = self._dtype.kind in "iu"
        self._take = _take_integers if is_integer else _take_floats
        self._set_bounds(getattr(space, "low", -np.inf), getattr(space, "high", np.inf), is_integer=is_integer)

    def _set_bounds(self, low: Any, high: Any, *, is_integer: bool) -> None:
        """Bounds that no value of the dtype can violate are none."""
        low, high = (np.broadcast_to(np.asarray(bound, np.float64), self._spec.shape) for bound in (low, high))
        limits = np.iinfo(self._dtype) if is_integer else None
        least, most = (-UNBOUNDED, UNBOUNDED) if limits is None else (float(limits.min), float(limits.max))
        low, high = np.where(low > least, low, -np.inf), np.where(high < most, high, np.inf)
        has_low, has_high = np.isfinite(low), np.isfinite(high)
        self._has_bounds = bool((has_low | has_high).any())
        if not self._has_bounds:
            return
        bound = np.asarray(np.maximum(1.0, np.abs(np.where(has_low, low, np.where(has_high, high, 0.0)))))
        span = np.subtract(high, low, out=bound, where=has_low & has_high)
        tolerance = 0.0 * span if is_integer else _BOUNDS_TOLERANCE * span
        self._declared = low, high
        # Limits of integers go in as integers: the nearest float64 to the largest of 64 bits is beyond it.
        self._limits = (-np.inf, np.inf) if limits is None else (int(limits.min), int(limits.max))
        self._low = np.where(has_low, low - tolerance, 0.0).astype(self._dtype)
        self._high = np.where(has_high, high + tolerance, 0.0).astype(self._dtype)
        self._low[~has_low], self._high[~has_high] = self._limits
        self._within = np.empty(self._spec.shape, self._dtype)

    def write(self, values: Any, out: np.ndarray) -> None:
        """Writes `[...]`, or a batch `[N, ...]`, into an array of the same shape.

        Raises:
          ValueError: The first lane that is not as its space says, and what it has.
        """
        try:
            array = np.asarray(values)
            is_taken = (array.shape == out.shape or self._sizes is not None) and self._take(array, out)
        except (ValueError, TypeError):
            array, is_taken = np.asarray(values, object), False  # No numbers.
        if is_taken:
            if not self._has_bounds:
                return
            within = clip(out, self._low, self._high, self._within if out.ndim == self._num_dimensions else None)
            # The fastest comparison, but it also finds signs of zeros that differ: hence the second test.
            if within.tobytes() == out.tobytes() or (within == out).all():
                return
            if self._tell is not None:
                self._tell(self._explain(out))
                outside = (within != out).reshape(-1, *self._spec.shape).any(axis=0)
                self._low[outside], self._high[outside] = self._limits
                return
        if out.ndim == self._num_dimensions:
            raise ValueError(self.fault(values) or self._explain(out))
        if array.ndim == 0 or len(array) != len(out):
            raise ValueError(f"expected observations of {len(out)} lanes but found {array.shape}")
        for lane, value in enumerate(array):
            try:
                self.write(value, np.empty(out.shape[1:], out.dtype))
            except ValueError as error:
                raise ValueError(f"lane {lane}: {error}") from None

    def fault(self, value: Any) -> str:
        """What is wrong with one observation beside its bounds; empty where nothing is."""
        name, shape, dtype = self._spec.name, self._spec.shape, self._dtype
        try:
            array = np.asarray(value)
        except ValueError:  # Rows differ in length.
            return f"{name} is no array, found {shown(value)}: return one of shape {shape}"
        if array.dtype.kind not in "iufb":
            return f"{name} must be numbers, found {shown(value)} (dtype {array.dtype}): return a NumPy array"
        if self._sizes is not None:
            is_choice = self._take(array, np.empty(shape, dtype))
            sizes = self._sizes.tolist()
            return "" if is_choice else f"{name} is {array.tolist()}, which is not within its choices of sizes {sizes}"
        if array.shape != shape:
            return f"{name} must have shape {shape} as its space has, found {array.shape}: correct the one or the other"
        if dtype.kind in "iu" and array.dtype.kind == "f":
            return f"{name} is {array.dtype} where its space is {dtype}: give the space a float dtype"
        with np.errstate(over="ignore"):
            taken = array.astype(dtype)
        if dtype.kind in "iu":
            changed = array[taken != array]
            return f"{name} has {changed[0]}, which {dtype} can't hold: correct it" if changed.size else ""
        if np.isfinite(taken).all():
            return ""
        place = np.argwhere(~np.isfinite(taken))[0].tolist()
        return f"{name} is not finite, {taken[tuple(place)]}{f' at {place}' if place else ''}: correct what computes it"

    def _explain(self, array: np.ndarray) -> str:
        """Names the element that is furthest outside, of one observation or of a batch `[N, ...]`."""
        excess = np.maximum(np.subtract(self._low, array, dtype=float), np.subtract(array, self._high, dtype=float))
        place = np.unravel_index(int(np.argmax(excess)), excess.shape)
        index = place[array.ndim - self._num_dimensions :]
        value, is_low = float(array[place]), bool(array[place] < self._low[index])
        bound = float(self._declared[0 if is_low else 1][index])
        element = f"{self._spec.name}[{', '.join(map(str, index))}]" if index else self._spec.name
        return (
            f"{element} is {value:.6g}, {'below its low' if is_low else 'above its high'} of {bound:.6g}: "
            "correct the observation, or widen the bound of the space"
        )


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


def _getter(path: tuple[Any, ...]) -> Callable[[Any], Any]:
    """From a nest to its leaf at this path."""

    def get(nest: Any) -> Any:
        try:
            for key in path:
                nest = getattr(nest, key) if isinstance(key, str) and hasattr(nest, "_fields") else nest[key]
        except (KeyError, IndexError, TypeError, AttributeError):
            missing = "/".join(map(str, path))
            raise ValueError(
                f"observation has no {missing}, which its space has: return all keys (or parts) of observation_space"
            ) from None
        return nest

    return get


# What `reset` and `step` of a gym-like environment return, before anything is converted.


def check_contract(env: Any, findings: Findings, action: Callable[[], Any] | None = None) -> None:
    """Resets the environment and takes a few steps; adds an error for each mistake.

    Args:
      env: A gym or Gymnasium environment, or a class that looks like one. Its exceptions are not caught.
      findings: Get facts and errors.
      action: Gives the steps' actions; None: samples of the action space.
    """
    action = action or (lambda: env.action_space.sample())
    spaces = gym_driver.space_nest(env.observation_space)
    writer = ObservationWriter(observation_spec_of(spaces), spaces)
    result = env.reset()
    has_info = gym_driver.has_info(env, result)
    observation = result[0] if has_info else result
    form = "observation and info" if has_info else "the observation alone"
    faults = _of("reset()", writer.faults(observation))
    if has_info and np.shape(result[1].get(ACTION_MASK)) == (getattr(env.action_space, "n", None),):
        faults.append(
            f"info has {ACTION_MASK}: return it as a part of the observation, or say that info has it by an attribute "
            f"of the environment, as {ACTION_MASK} = None in its class"
        )
    is_one_buffer, step = False, 0
    for _ in range(_STEPS):
        if faults:
            break
        before = observation
        result, step = env.step(action()), step + 1
        faults = _step_faults(result, step)
        if not faults:
            observation = result[0]
            faults = _of(f"step {step}", writer.faults(observation))
            is_one_buffer |= isinstance(observation, np.ndarray) and observation is before
            if result[2] or (len(result) == 5 and result[3]):
                first, step = env.reset(), 0
                observation = first[0] if gym_driver.has_info(env, first) else first
    findings.error(CONTRACT, *faults)
    if not faults:
        findings.fact(CONTRACT, f"reset() gives {form}, step() {len(result)} values")
        if is_one_buffer:
            findings.fact(CONTRACT, "all observations are one array, written anew: each is copied")


def _step_faults(result: Any, step: int) -> list[str]:
    """`step` counts from 1 in each episode."""
    if not isinstance(result, tuple | list) or len(result) not in (4, 5):
        found = f"{len(result)} values" if isinstance(result, tuple | list) else shown(result)
        return [f"step() must return {_SHAPES_OF_STEP}, found {found}"]
    names = ("terminated", "truncated") if len(result) == 5 else ("done",)
    faults = [
        f"{name} of step() must be True or False, found {shown(value)}"
        for name, value in zip(names, result[2:], strict=False)
        if not _is_truth_value(value)
    ]
    if not _is_finite_number(result[1]):
        faults.append(
            f"the reward of step {step} must be a finite number, found {shown(result[1])}: correct what computes it"
        )
    if not (result[-1] is None or isinstance(result[-1], Mapping)):
        faults.append(
            f"info of step() must be a dictionary, found {shown(result[-1])}: return {{}} if there is nothing"
        )
    return faults


def _is_truth_value(value: Any) -> bool:
    value = np.asarray(value)
    return value.size == 1 and (value.dtype == np.bool_ or (value.dtype.kind in "iuf" and value.item() in (0, 1)))


def _is_finite_number(value: Any) -> bool:
    value = np.asarray(value)
    return value.size == 1 and value.dtype.kind in "iufb" and bool(np.isfinite(value).all())


def _of(what: str, faults: Iterable[str]) -> list[str]:
    """Faults of the observation of a step; the parts of nests have names such as `observation/camera`."""
    words = [fault.split(" ", 1) for fault in faults]
    parts = [(name.partition("/")[2], rest) for name, rest in words]
    return [f"the observation of {what}" + (f' at "{part}"' if part else "") + f" {rest}" for part, rest in parts]
