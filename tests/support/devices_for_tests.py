"""Devices for tests: rtgym's interface, without anything of rtgym."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from tfagents_system.envs.real_time import VirtualClock


class DummyDevice:
    """Observes the action that acts, and how often it was observed in the episode. All calls are in `log`.

    Args:
      clock: Told when calls are made, and advanced by what they take; None: they take no time.
      send_secs, capture_secs, reset_secs: What calls take.
      delay_steps: Actions before the last one sent that act.
      terminate_at: The episode is over in that observation.
    """

    default = np.array([0.25, -0.5], np.float32)

    def __init__(
        self,
        clock: VirtualClock | None = None,
        send_secs: float = 0.0,
        capture_secs: float = 0.0,
        reset_secs: float = 0.0,
        delay_steps: int = 0,
        terminate_at: int | None = None,
    ) -> None:
        self.clock = clock
        self.send_secs, self.capture_secs, self.reset_secs = send_secs, capture_secs, reset_secs
        self.terminate_at = terminate_at
        self.log: list[tuple[str, float, Any]] = []
        self._delay_steps = delay_steps
        self._count = 0
        self._sent: list[np.ndarray] = []

    def _did(self, what: str, value: Any = None, secs: float = 0.0) -> None:
        self.log.append((what, self.clock.now() if self.clock else 0.0, value))
        if self.clock is not None:
            self.clock.advance(secs)

    def calls(self, what: str) -> list[float]:
        """When this was called."""
        return [when for name, when, _ in self.log if name == what]

    def sent(self) -> list[list[float]]:
        """The actions."""
        return [value for name, _, value in self.log if name == "send"]

    def send_control(self, control: Any) -> None:
        self._sent.append(np.array(control))
        self._did("send", np.asarray(control).tolist(), self.send_secs)

    def get_obs_rew_terminated_info(self) -> tuple[Any, float, bool, dict[str, Any]]:
        self._count += 1
        observation = self._observation()
        self._did("capture", None, self.capture_secs)
        return [observation], float(self._count), self._count == self.terminate_at, {"count": self._count}

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self._count, self._sent = 0, []
        self._did("reset", options, self.reset_secs)
        return [self._observation()], {}

    def _observation(self) -> np.ndarray:
        acting = self._sent[: len(self._sent) - self._delay_steps][-1:] or [self.default]
        return np.array([self._count, *acting[0]], np.float32)

    def wait(self) -> None:
        self._did("wait")

    def get_observation_space(self) -> gymnasium.spaces.Tuple:
        return gymnasium.spaces.Tuple((gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float32),))

    def get_action_space(self) -> gymnasium.spaces.Box:
        return gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def get_default_action(self) -> np.ndarray:
        return self.default

    def render(self) -> np.ndarray:
        return np.zeros((20, 20, 3), np.uint8)


class Forwarding(gymnasium.Wrapper):
    """Has the attributes of what it wraps, as wrappers of gym, and of Gymnasium before 1.0, have."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.env, name)


class OwnDevice(gymnasium.Env):
    """A user's own: it acts in real time, and says of its steps what it is given.

    Args:
      metrics: What `take_metrics` returns; an exception is raised.
    """

    real_time = True
    observation_space = action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, metrics: Any = None) -> None:
        self.metrics = metrics

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.zeros(1, np.float32), 0.0, False, False, {}

    def take_metrics(self) -> Any:
        if isinstance(self.metrics, Exception):
            raise self.metrics
        return self.metrics
