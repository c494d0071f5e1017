"""What a run asks of an environment that acts in real time: RealTimeEnvironment, rtgym's, or a user's own.

A user's own has an attribute `real_time = True`, and what of the following it needs: `wait()`, `default_action` or
`get_default_action()`, `ep_max_length`, `is_evaluation`, `take_metrics()`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from typing import Any

import numpy as np
import tree
from absl import logging

from tfagents_system.envs.layers import device_layer, options_of_evaluation
from tfagents_system.envs.step_times import INFERENCE, TIME_STEP, StepTimes, check_time_step, metrics_of
from tfagents_system.errors import UserError


class Device:
    """The layer of an environment that acts in real time.

    Args:
      layer: The environment, or one that it wraps.

    Attributes:
      left_out: Names of what `take_metrics` has left out so far.
    """

    def __init__(self, layer: Any) -> None:
        self._layer = layer
        self.left_out: set[str] = set()
        self._is_evaluation = False

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

    def set_evaluation(self, is_evaluation: bool) -> None:
        """Whether the episodes from the next reset on are of an evaluation; it is told when that changes."""
        if is_evaluation != self._is_evaluation:
            self._is_evaluation = is_evaluation
            if hasattr(self._layer, "is_evaluation"):
                self._layer.is_evaluation = is_evaluation

    def take_metrics(self) -> dict[str, float]:
        """What the steps since the last call were like; see RealTimeEnvironment. Empty where it does not say.

        What is no finite number is left out, and told when that happens first.
        """
        take = getattr(self._layer, "take_metrics", None)
        metrics = {str(name): _as_float(value) for name, value in dict(take() or {}).items()} if callable(take) else {}
        finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
        for name in sorted(metrics.keys() - finite.keys() - self.left_out):
            self.left_out.add(name)
            logging.warning("take_metrics() of the environment: %s is no finite number: it is left out meanwhile", name)
        return finite

    def default_action(self, actions: Any) -> Any:
        """What is harmless, as an agent's action; None where the environment does not say.

        Args:
          actions: Nest of LeafActions.

        Raises:
          UserError: It is not one of the environment's actions.
        """
        found = getattr(self._layer, "default_action", None)
        if found is None and hasattr(self._layer, "get_default_action"):
            found = self._layer.get_default_action()
        if found is None:
            return None
        try:
            return tree.map_structure_up_to(actions, lambda leaf, own: leaf.to_agent(own), actions, found)
        except (TypeError, ValueError) as error:
            raise UserError(
                f"the default action {found!r} is not one of the action space ({error}): correct it"
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
        """The interface (see `real_time.Interface`), for who only looks at it, and the seconds of a time step.

        None: it has none.
        """
        interface, secs = (getattr(self._layer, name, None) for name in ("interface", "time_step_duration"))
        return None if interface is None or secs is None else (interface, float(secs))

    def take_times(self) -> dict[str, list[float]]:
        """Durations of the parts of its steps, see StepTimes; empty where it does not say."""
        times = getattr(self._layer, "times", None)
        return times.take() if isinstance(times, StepTimes) else {}


def _as_float(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return float("nan")


def device_of(layers: Iterable[Any]) -> Device | None:
    """The device of an environment, None where its steps wait for the policy.

    One of rtgym measures its steps from then on, and can be told of evaluations.

    Args:
      layers: The environment and those it wraps.
    """
    layer = device_layer(layers)
    if layer is None:
        return None
    _follow_rtgym(layer)
    return Device(layer)


# rtgym (0.16) has no hooks that tell of its steps or are told of evaluations: methods of the instance are replaced.


def _follow_rtgym(env: Any) -> None:
    """Gives an environment of rtgym `is_evaluation` and `take_metrics()`, and leaves those that have some.

    Raises:
      UserError: It is one of rtgym, and all its steps would be late.
    """
    if not hasattr(env, "take_metrics") and hasattr(env, "_update_timestamps"):
        # Without that key rtgym's time steps have no duration.
        check_time_step(env.time_step_duration, env.start_obs_capture, env.time_step_timeout_factor, may_be_zero=True)
        _RtgymSteps(env)


class _RtgymSteps:
    """Follows the time steps of one environment, by rtgym's own rule of which are late."""

    def __init__(self, env: Any) -> None:
        self._env, self._times = env, StepTimes()
        self._late_steps = self._told_late = 0
        self._end: float | None = None  # Of the running time step.
        self._sent_at: float | None = None
        self._returned_at = 0.0
        self._is_first = False  # The next action is the one of reset(), which may be late.
        self._is_paused = False  # Since the last step.
        self._evaluation_episode: int | None = None
        self._reset, self._step, self._begin_time_step, self._wait = (
            env.reset,
            env.step,
            env._update_timestamps,
            env.wait,
        )
        env.reset, env.step, env._update_timestamps, env.wait = self.reset, self.step, self.begin_time_step, self.wait
        env.is_evaluation, env.take_metrics = False, self.take_metrics
        env.set_evaluation_episode = self.set_evaluation_episode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        options = options_of_evaluation(options, self._env.is_evaluation, self._evaluation_episode)
        self._evaluation_episode = None
        self._is_first = True
        found = self._reset(seed=seed, options=options)
        self._is_paused, self._returned_at = False, time.perf_counter()
        return found

    def step(self, action: Any) -> Any:
        if not self._is_paused:
            self._times.add[INFERENCE](time.perf_counter() - self._returned_at)
        found = self._step(action)
        self._is_paused, self._returned_at = False, time.perf_counter()
        return found

    def wait(self) -> None:
        self._is_paused = True
        self._wait()

    def set_evaluation_episode(self, number: int) -> None:
        """See RealTimeEnvironment."""
        self._evaluation_episode = number

    def begin_time_step(self) -> None:
        """Called by rtgym when an action was sent, in its own thread."""
        now, env = time.perf_counter(), self._env
        is_in_time = self._end is not None and now < self._end + env.time_step_timeout
        if not self._is_first and (is_in_time or not env.is_waiting):
            self._late_steps += not is_in_time
            if self._sent_at is not None:
                self._times.add[TIME_STEP](now - self._sent_at)
        begin = self._end if self._end is not None and is_in_time else now
        self._end, self._sent_at, self._is_first = begin + env.time_step_duration, now, False
        self._begin_time_step()

    def take_metrics(self) -> dict[str, float]:
        """See RealTimeEnvironment."""
        late, self._told_late = self._late_steps - self._told_late, self._late_steps
        return metrics_of(self._times.take(), late)
