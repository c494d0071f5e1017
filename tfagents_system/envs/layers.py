"""Wrappers around gym and Gymnasium environments."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from typing import Any

from tfagents_system.envs.info_keys import EVALUATION, EVALUATION_EPISODE


def gym_layers(env: Any) -> Iterator[Any]:
    """The environment and those it wraps, outermost first."""
    while env is not None:
        yield env
        # Not getattr: gym's wrappers forward attributes that they lack.
        inner = getattr(env, "__dict__", {}).get("env")
        env = inner if hasattr(inner, "step") and hasattr(inner, "reset") else None


def time_limit_of(env: Any) -> int | None:
    """Most steps of an episode by a time limit of gym, Gymnasium, EnvPool, TF-Agents or rtgym; None without one."""
    while env is not None:
        spec = getattr(env, "spec", None)
        limits = [getattr(of, "max_episode_steps", None) for of in (spec, getattr(spec, "config", None))]
        limits += [getattr(env, name, None) for name in ("_max_episode_steps", "ep_max_length")]
        if type(env).__module__.partition(".")[0] == "tf_agents":
            limits.append(getattr(env, "_duration", None))  # Of wrappers.TimeLimit.
        if known := [int(limit) for limit in limits if isinstance(limit, int) and limit > 0]:
            return min(known)
        inside = getattr(env, "__dict__", {})
        lanes = inside.get("envs") or [None]
        env = inside.get("env") or inside.get("_env") or inside.get("_gym_env") or lanes[0]
    return None


def device_layer(layers: Iterable[Any]) -> Any:
    """The first of the layers that acts in real time: rtgym's, or one with `real_time = True`; None without one.

    A wrapper that forwards attributes to what it wraps is passed over: what is set there would not arrive.
    """
    found = None
    for layer in layers:
        if type(layer).__module__.partition(".")[0] == "rtgym":
            return layer
        if getattr(layer, "real_time", False) is True:
            found = layer
            if inspect.getattr_static(layer, "real_time", None) is not None:
                break  # Else it is forwarded, most likely from one of the next layers.
    return found


def set_evaluation_episode(layers: Iterable[Any], number: int) -> None:
    """Which of an evaluation's episodes the next reset begins; nothing where nobody wants to know.

    Args:
      layers: The environment and those it wraps; the outermost one that has `set_evaluation_episode(number)` is told.
      number: From 0.
    """
    for layer in layers:
        if callable(tell := getattr(layer, "set_evaluation_episode", None)):
            tell(number)
            return


def options_of_evaluation(
    options: dict[str, Any] | None, is_evaluation: bool, episode: int | None
) -> dict[str, Any] | None:
    """Options of a device's reset, with what is known of the evaluation that the episode is of."""
    told: dict[str, Any] = {EVALUATION: True} if is_evaluation else {}
    told |= {} if episode is None else {EVALUATION_EPISODE: episode}
    return {**(options or {}), **told} if told else options
