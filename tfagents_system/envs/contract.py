"""Checks what `reset` and `step` of a gym-like environment return, before anything is converted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tfagents_system.checks.findings import Findings
from tfagents_system.envs import gym_driver
from tfagents_system.envs.spaces import space_kind
from tfagents_system.errors import shown

CONTRACT = "reset and step"
_STEPS = 5
_SHAPES_OF_STEP = "observation, reward, terminated, truncated and info (or observation, reward, done and info)"


def check_contract(env: Any, findings: Findings, action: Callable[[], Any] | None = None) -> None:
    """Resets the environment and takes a few steps; adds an error for each mistake.

    Args:
      env: A gym or Gymnasium environment, or a class that looks like one. Its exceptions are not caught.
      findings: Get facts and errors.
      action: Gives the steps' actions; None: samples of the action space.
    """
    action = action or (lambda: env.action_space.sample())
    result = env.reset()
    has_info = gym_driver.has_info(env, result)
    observation = result[0] if has_info else result
    form = "observation and info" if has_info else "the observation alone"
    faults = _observation_faults("reset()", env.observation_space, observation)
    is_one_buffer, step = False, 0
    for _ in range(_STEPS):
        if faults:
            break
        before = observation
        result, step = env.step(action()), step + 1
        faults = _step_faults(result, step)
        if not faults:
            observation = result[0]
            faults = _observation_faults(f"step {step}", env.observation_space, observation)
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


def _observation_faults(what: str, space: Any, value: Any, path: str = "") -> list[str]:
    """How an observation violates its space; the parts of nests one by one."""
    where = f"the observation of {what}" + (f' at "{path}"' if path else "")
    kind = space_kind(space)
    if kind == "Dict":
        if not isinstance(value, Mapping):
            return [f"{where} must be a dictionary as its space is, found {shown(value)}"]
        missing = [str(key) for key in space.spaces if key not in value]
        if missing:
            return [f"{where} has no {', '.join(missing)}, which its space has: return all keys of observation_space"]
        parts = [(str(key), sub, value[key]) for key, sub in space.spaces.items()]
    elif kind == "Tuple":
        if not isinstance(value, tuple | list) or len(value) != len(space.spaces):
            return [f"{where} must be a tuple of {len(space.spaces)} as its space is, found {shown(value)}"]
        parts = [(str(k), sub, part) for k, (sub, part) in enumerate(zip(space.spaces, value, strict=True))]
    else:
        return _box_faults(where, space, value) if kind == "Box" else []
    return [
        fault for key, sub, part in parts for fault in _observation_faults(what, sub, part, f"{path}/{key}".strip("/"))
    ]


def _box_faults(where: str, space: Any, value: Any) -> list[str]:
    try:
        array = np.asarray(value)
    except ValueError:  # Rows differ in length.
        return [f"{where} is no array, found {shown(value)}: return one of shape {tuple(space.shape)}"]
    if array.dtype.kind not in "iufb":
        return [f"{where} must be numbers, found {shown(value)} (dtype {array.dtype}): return a NumPy array"]
    if array.shape != tuple(space.shape):
        return [
            f"{where} must have shape {tuple(space.shape)} as its space has, found {array.shape}: "
            "correct the one or the other"
        ]
    if np.dtype(space.dtype).kind in "iu" and array.dtype.kind == "f":
        return [f"{where} is {array.dtype} where its space is {np.dtype(space.dtype)}: give the space a float dtype"]
    if not np.isfinite(array).all():
        place = np.argwhere(~np.isfinite(array))[0].tolist()
        at = f" at {place}" if place else ""
        return [f"{where} is not finite, {array[tuple(place)]}{at}: correct what computes it"]
    return []
