"""Vector environments whose every number is known, and the same lanes as single environments."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv


class NumberedLane(gymnasium.Env):
    """Observes where it is: [lane, episode, step], from 0, and rewards the step that was taken, from 1.

    Args:
      lane: First number of every observation.
      lengths: Of the first episodes; the last one is that of all others.
      terminates: Whether episodes terminate, by turns; the others are truncated.
      fails: (episode, step) in which it raises.
    """

    observation_space: spaces.Space = spaces.Box(-10.0, 1000.0, (3,), np.float64)
    action_space: spaces.Space = spaces.Box(np.array([-1.0, 0.0]), np.array([1.0, 10.0]), dtype=np.float64)

    def __init__(
        self,
        lane: int,
        lengths: tuple[int, ...],
        terminates: tuple[bool, ...] = (True, False),
        fails: tuple[int, int] | None = None,
    ) -> None:
        self.lane, self.lengths, self.terminates, self.fails = lane, lengths, terminates, fails
        self.mass = 1.0
        self.episode, self.steps = -1, 0
        self.actions: list[np.ndarray] = []
        self.seeds: list[int | None] = []

    def _observation(self) -> np.ndarray:
        return np.array([self.lane, self.episode, self.steps], np.float64)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.seeds.append(seed)
        self.episode += 1
        self.steps = 0
        return self._observation(), {"log/step": 1000.0, "is_success": True, "of the reset": 1}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.actions.append(np.array(action))
        self.steps += 1
        if (self.episode, self.steps) == self.fails:
            raise ZeroDivisionError("the motor is off")
        length = self.lengths[min(self.episode, len(self.lengths) - 1)]
        is_over, terminates = self.steps >= length, self.terminates[self.episode % len(self.terminates)]
        info: dict[str, Any] = {"log/step": self.steps, "other": "words"}
        if is_over:
            info["is_success"] = self.episode % 2 == 0
        return self._observation(), self.steps * 0.5, is_over and terminates, is_over and not terminates, info


def vector_of(lanes: Sequence[gymnasium.Env], mode: AutoresetMode = AutoresetMode.NEXT_STEP) -> SyncVectorEnv:
    """The lanes as one environment."""
    ctors = [functools.partial(_itself, lane) for lane in lanes]
    return SyncVectorEnv(ctors, autoreset_mode=mode)


def _itself(lane: gymnasium.Env) -> gymnasium.Env:
    return lane
