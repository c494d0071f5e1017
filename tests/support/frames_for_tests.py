"""Episodes of random pixels whose stacked frames gymnasium has put together, to compare with."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.wrappers import FrameStackObservation

from tfagents_system.envs.training_environment import TrainingEnvironment

HORIZON = 60


class Frames(gymnasium.Env):
    """A camera of random pixels, and where it is: [environment, episode, step]. Episodes have random lengths."""

    observation_space = gymnasium.spaces.Dict(
        camera=gymnasium.spaces.Box(0, 255, (3, 4, 2), np.uint8),
        place=gymnasium.spaces.Box(0, 1e6, (3,), np.float32),
    )
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, number: int = 0, lengths: tuple[int, int] = (1, HORIZON)) -> None:
        self._rng = np.random.default_rng(number)
        self._lengths = lengths
        self._place = np.array([number, -1, 0], np.float32)

    def _observe(self) -> dict[str, np.ndarray]:
        return {"camera": self._rng.integers(0, 256, (3, 4, 2), np.uint8), "place": self._place.copy()}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._length = int(self._rng.integers(*self._lengths))
        self._place[1:] = self._place[1] + 1, 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._place[2] += 1
        return self._observe(), float(self._place[2]), False, int(self._place[2]) == self._length, {}


class Recorder(gymnasium.Wrapper):
    """Gives the newest frame, as the simulator does, and notes gymnasium's stack of it by its place.

    Args:
      env: A Frames.
      frame_stack: Of gymnasium's wrapper around it.
      stacks: Where stacks `[..., frame_stack * size]` are noted, oldest frame first on the last axis.
      part: Of the observation, whose stacks are noted.
    """

    def __init__(
        self, env: gymnasium.Env, frame_stack: int, stacks: dict[tuple[int, ...], np.ndarray], part: str
    ) -> None:
        super().__init__(FrameStackObservation(env, frame_stack))
        self.observation_space = env.observation_space
        self._stacks = stacks
        self._part = part

    def _noted(self, stacked: Any) -> dict[str, np.ndarray]:
        place = stacked["place"][-1].copy()
        self._stacks[tuple(map(int, place))] = np.concatenate(list(stacked[self._part]), axis=-1)
        return {"camera": stacked["camera"][-1].copy(), "place": place}

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        stacked, info = self.env.reset(**kwargs)
        return self._noted(stacked), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        stacked, reward, terminated, truncated, info = self.env.step(action)
        return self._noted(stacked), float(reward), terminated, truncated, info


def recorded_envs(
    frame_stack: int, count: int = 1, lengths: tuple[int, int] = (1, HORIZON), part: str = "camera"
) -> tuple[list[TrainingEnvironment], dict[tuple[int, ...], np.ndarray]]:
    """Environments, and gymnasium's stacks of what they will show, by [environment, episode, step]."""
    stacks: dict[tuple[int, ...], np.ndarray] = {}
    envs = [Recorder(Frames(number, lengths), frame_stack, stacks, part) for number in range(count)]
    return [TrainingEnvironment(env, HORIZON) for env in envs], stacks
