"""What a run asks of an environment that acts in real time: RealTimeEnvironment, rtgym's, or a user's own.

A user's own has an attribute `real_time = True`, and what of the following it needs: `wait()`, `default_action` or
`get_default_action()`, `ep_max_length`, `set_evaluation_episode(number)`, `take_metrics()`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from typing import Any

import numpy as np
import tree
from absl import logging

from tfagents_system.envs.gym_driver import EVALUATION, EVALUATION_EPISODE, device_layer
from tfagents_system.errors import UserError


class Device:
    """The layer of an environment that acts in real time.

    Args:
      layer: The environment, or one that it wraps.
    """

    def __init__(self, layer: Any) -> None:
        self._layer = layer
        self._left_out: set[str] = set()

    @property
    def has_real_clock(self) -> bool:
        """Whether time passes by itself."""
        return bool(getattr(self._layer, "has_real_clock", True))

    def wait(self) -> None:
        """Lets the device rest until the next reset or step."""
        wait = getattr(self._layer, "wait", None)
        if callable(wait):
            wait()

    def limit_steps(self, horizon: int) -> None:
        """An episode ends after so many steps at the latest, and the last action is not sent."""
        if hasattr(self._layer, "ep_max_length"):
            limit = self._layer.ep_max_length
            self._layer.ep_max_length = horizon if limit is None else min(limit, horizon)

    def take_metrics(self) -> dict[str, float]:
        """What the steps since the last call were like; see RealTimeEnvironment. Empty where it does not say.

        What is no finite number is left out, with a warning the first time.
        """
        take = getattr(self._layer, "take_metrics", None)
        metrics = {str(name): _as_float(value) for name, value in dict(take() or {}).items()} if callable(take) else {}
        finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
        for name in sorted(metrics.keys() - finite.keys() - self._left_out):
            self._left_out.add(name)
            logging.warning("take_metrics() of the environment: %s is no finite number: it is left out meanwhile", name)
        return finite

    def default_action(self, actions: Any) -> Any:
        """What is harmless, as an agent's action; None where the environment does not say.

        Args:
          actions: Nest of LeafActions.

        Raises:
          UserError: It is not one of the environment's actions.
        """
        default = getattr(self._layer, "default_action", None)
        if default is None and hasattr(self._layer, "get_default_action"):
            default = self._layer.get_default_action()
        if default is None:
            return None
        try:
            return tree.map_structure_up_to(actions, lambda leaf, value: leaf.to_agent(value), actions, default)
        except (TypeError, ValueError) as error:
            raise UserError(
                f"the default action {default!r} is not one of the action space ({error}): correct it"
            ) from None

    def trial_action(self, actions: Any) -> Any:
        """What a device may be tried with, as an agent's action: the default one, or the middle of the bounds.

        Raises:
          UserError: It has no default action, and chooses one of n: these have no middle.
        """
        default = self.default_action(actions)
        if default is not None:
            return default
        if any(leaf.rows is not None for leaf in tree.flatten(actions)):
            raise UserError(
                "the environment acts in real time, its actions are one of n, and it does not say which of them is "
                "harmless: give it a default_action or get_default_action() (the interface, if it has one)"
            )
        return tree.map_structure(lambda leaf: np.zeros(leaf.spec.shape, leaf.spec.dtype), actions)

    def watched(self) -> tuple[Any, float] | None:
        """The interface (see RealTimeEnvironment), for who only looks at it, and the seconds of a time step.

        None: it has none.
        """
        interface, secs = (getattr(self._layer, name, None) for name in ("interface", "time_step_duration"))
        return None if interface is None or secs is None else (interface, float(secs))

    def take_times(self) -> dict[str, list[float]]:
        """Durations of the parts of its steps, see RealTimeEnvironment; empty where it does not say."""
        take = getattr(self._layer, "take_times", None)
        return dict(take()) if callable(take) else {}


def _as_float(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def device_of(layers: Iterable[Any]) -> Device | None:
    """The device of an environment, None where its steps wait for the policy.

    Args:
      layers: The environment and those it wraps.

    Raises:
      UserError: It is one of rtgym, and all its steps would be late.
    """
    layer = device_layer(layers)
    if layer is None:
        return None
    if not hasattr(layer, "take_metrics") and hasattr(layer, "_update_timestamps"):
        if layer.time_step_duration != 0:  # Else its steps are taken as fast as they can be.
            check_time_step(layer.time_step_duration, layer.start_obs_capture, layer.time_step_timeout_factor)
        _RtgymSteps(layer)
    return Device(layer)


def evaluation_options(options: dict[str, Any] | None, episode: int | None) -> dict[str, Any] | None:
    """Options of a device's reset, for an evaluation's episode of that number; None: it is of no evaluation."""
    return options if episode is None else {**(options or {}), EVALUATION: True, EVALUATION_EPISODE: episode}


def check_time_step(duration: float, capture: float, factor: float) -> None:
    """Whether steps can be in time.

    Args:
      duration, capture, factor: time_step_duration, start_obs_capture and time_step_timeout_factor, as of
        RealTimeEnvironment.

    Raises:
      UserError: They can't.
    """
    findings = []
    if not duration > 0:
        findings.append(f"time_step_duration={duration:g} must be above 0 seconds: correct it")
    if not factor >= 0:
        findings.append(f"time_step_timeout_factor={factor:g} must be at least 0: correct it")
    if not findings and not 0 <= capture <= duration * (1.0 + factor):
        findings.append(
            f"start_obs_capture={capture:g} must be from 0 to time_step_duration={duration:g} plus its elasticity, "
            f"{duration * (1.0 + factor):g} seconds, or every step would be late: lower it"
        )
    if findings:
        raise UserError(*findings)


class _RtgymSteps:
    """Counts late steps of an environment of rtgym by its own rule, and tells it of evaluations.

    rtgym (0.16) has no hooks for either: methods of the instance are replaced.
    """

    def __init__(self, env: Any) -> None:
        self._env = env
        self._late_steps = self._reported_late_steps = 0
        self._end = -math.inf  # Of the running time step.
        self._is_first = False  # The next action is that of reset(), which may be late.
        self._evaluation_episode: int | None = None
        self._reset, env.reset = env.reset, self.reset
        self._begin_time_step, env._update_timestamps = env._update_timestamps, self.begin_time_step
        env.take_metrics, env.set_evaluation_episode = self.take_metrics, self.set_evaluation_episode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        options, self._evaluation_episode = evaluation_options(options, self._evaluation_episode), None
        self._is_first = True
        observation, info = self._reset(seed=seed, options=options)
        return observation, info

    def begin_time_step(self) -> None:
        """Called by rtgym when an action was sent, in its own thread."""
        now, env = time.perf_counter(), self._env
        is_late = now >= self._end + env.time_step_timeout
        self._late_steps += is_late and not self._is_first and not env.is_waiting
        self._end = (now if is_late else self._end) + env.time_step_duration
        self._is_first = False
        self._begin_time_step()

    def set_evaluation_episode(self, number: int) -> None:
        """See RealTimeEnvironment."""
        self._evaluation_episode = number

    def take_metrics(self) -> dict[str, float]:
        """The late steps since the last call."""
        late_steps, self._reported_late_steps = self._late_steps - self._reported_late_steps, self._late_steps
        return {"late_steps": float(late_steps)}
