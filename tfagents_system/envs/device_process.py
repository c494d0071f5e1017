"""The worker's side of a device in a process of its own: what env_process.py does not have for other environments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


class DeviceProcess:
    """What devices.py asks of a layer that acts in real time.

    Args:
      call: Calls a method of the device, by name and arguments, within seconds; returns the answer, and bytes.
      timeout_secs: What it may take.
      told: What the process told of the device.
      default_action: In the environment's own units; None: it has none.
    """

    real_time = True

    def __init__(
        self, call: Callable[..., tuple[Any, bytes]], timeout_secs: float, told: Mapping[str, Any], default_action: Any
    ) -> None:
        self._call = call
        self._timeout_secs = timeout_secs
        self.has_real_clock = bool(told["has_real_clock"])
        self._is_evaluation = False
        self.default_action = default_action if told["has_default_action"] else None

    def wait(self) -> None:
        """Lets the device rest until the next reset or step."""
        self._call("wait", self._timeout_secs)

    def limit_steps(self, horizon: int) -> None:
        """An episode ends after so many steps at the latest, and the last action is not sent."""
        self._call("limit_steps", self._timeout_secs, steps=horizon)

    @property
    def is_evaluation(self) -> bool:
        """Whether the episodes from the next reset on are of an evaluation."""
        return self._is_evaluation

    @is_evaluation.setter
    def is_evaluation(self, value: bool) -> None:
        self._call("set_evaluation", self._timeout_secs, is_evaluation=value)
        self._is_evaluation = value

    def take_metrics(self) -> dict[str, float]:
        """See RealTimeEnvironment; empty where the device has none."""
        return self._call("take_metrics", self._timeout_secs)[0]["metrics"]
