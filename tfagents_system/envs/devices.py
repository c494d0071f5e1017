"""What a run asks of an environment that acts in real time: RealTimeEnvironment, rtgym's, or a user's own.

A user's own has an attribute `real_time = True`, and what of the following it needs: `wait()`, `default_action` or
`get_default_action()`, `ep_max_length`, `is_evaluation`, `take_metrics()`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import tree
from absl import logging

from tfagents_system.envs import rtgym_steps
from tfagents_system.envs.layers import (
    default_action_of,
    device_layer,
    limit_steps_of,
    set_evaluation_of,
    take_metrics_of,
)
from tfagents_system.envs.step_times import StepTimes
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
        limit_steps_of(self._layer, horizon)

    def set_evaluation(self, is_evaluation: bool) -> None:
        """Whether the episodes from the next reset on are of an evaluation; it is told when that changes."""
        if is_evaluation != self._is_evaluation:
            self._is_evaluation = is_evaluation
            set_evaluation_of(self._layer, is_evaluation)

    def take_metrics(self) -> dict[str, float]:
        """What the steps since the last call were like; see RealTimeEnvironment. Empty where it does not say.

        What is no finite number is left out, and told when that happens first.
        """
        metrics = take_metrics_of(self._layer)
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
        found = default_action_of(self._layer)
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


def device_of(layers: Iterable[Any]) -> Device | None:
    """The device of an environment, None where its steps wait for the policy.

    One of rtgym measures its steps from then on, and can be told of evaluations.

    Args:
      layers: The environment and those it wraps.
    """
    layer = device_layer(layers)
    if layer is None:
        return None
    rtgym_steps.follow(layer)
    return Device(layer)
