"""What a run asks of an environment that acts in real time: RealTimeEnvironment, rtgym's, or a user's own.

A user's own has an attribute `real_time = True`, and what of the following it needs: `wait()`, `default_action` or
`get_default_action()`, `ep_max_length`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import tree

from tfagents_system.envs.env_process import EnvProcess
from tfagents_system.envs.real_time import RealTimeEnvironment
from tfagents_system.envs.specs import to_agent_units
from tfagents_system.envs.step_times import INFERENCE, STEP, percentile
from tfagents_system.errors import UserError

LATE_STEPS, STEP_MS, INFERENCE_MS = "late_steps", "step_ms_p99", "inference_ms_p99"
_SHARE, _MS = 0.99, 1e3


class Device:
    """The layer of an environment that acts in real time.

    Args:
      layer: The environment, or one that it wraps.
    """

    def __init__(self, layer: Any) -> None:
        self._layer = layer
        self._late_steps = 0  # Told so far.

    @property
    def environment(self) -> RealTimeEnvironment | None:
        """The layer, if it is the toolkit's own."""
        return self._layer if isinstance(self._layer, RealTimeEnvironment) else None

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
        own = getattr(self._layer, "ep_max_length", None)
        if hasattr(self._layer, "ep_max_length"):
            self._layer.ep_max_length = horizon if own is None else min(own, horizon)

    def default_action(self, action_spec: Any) -> Any:
        """What is harmless: a nest in [-1, 1]; the middle of the bounds where the environment does not say.

        Args:
          action_spec: Nest of the environment's own action specs, each of one dimension.

        Raises:
          UserError: It is not one of the environment's actions.
        """
        found = getattr(self._layer, "default_action", None)
        if found is None and hasattr(self._layer, "get_default_action"):
            found = self._layer.get_default_action()
        if found is None:
            return tree.map_structure(lambda spec: np.zeros(spec.shape, np.float32), action_spec)
        try:
            return tree.map_structure_up_to(action_spec, to_agent_units, found, action_spec)
        except (TypeError, ValueError) as error:
            raise UserError(
                f"the default action {found!r} is not one of the action space ({error}): correct it"
            ) from None

    def take_figures(self) -> dict[str, float]:
        """What its steps since the last call were like, as train/... shows it; empty where nobody measures them."""
        env = self.environment
        if env is None:
            return {}
        times, late = env.times.take(), env.late_steps
        figures = {
            LATE_STEPS: float(late - self._late_steps),
            STEP_MS: _MS * percentile(times[STEP], _SHARE),
            INFERENCE_MS: _MS * percentile(times[INFERENCE], _SHARE),
        }
        self._late_steps = late
        return figures


def device_of(env: Any, layers: Iterable[Any]) -> Device | None:
    """The device of an environment, None where its steps wait for the policy.

    Args:
      env: What `env_ctor` returned.
      layers: The environment and those it wraps.
    """
    if isinstance(env, EnvProcess):
        return None
    for layer in layers:
        if getattr(layer, "real_time", False) is True or type(layer).__module__.partition(".")[0] == "rtgym":
            return Device(layer)
    return None


def join_figures(figures: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Those of several workers together: late steps are counted, of times the largest."""
    joined: dict[str, float] = {}
    for each in figures:
        for name, value in each.items():
            before = joined.get(name, 0.0)
            joined[name] = max(before, value) if name.endswith("p99") else before + value
    return joined
