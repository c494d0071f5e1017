"""Environments whose values, best actions and entropies are known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np

CUE_STEPS = 6


class _Task(gymnasium.Env):
    observation_space: gymnasium.Space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self.observe(), {}

    def observe(self) -> Any:
        return np.array([1.0, 0.0], np.float32)


class _Distracted(_Task):
    """Observations that say nothing: statistics over a batch need some that differ."""

    def observe(self) -> Any:
        return self.np_random.uniform(-1.0, 1.0, 2).astype(np.float32)


class Bandit(_Distracted):
    """One step.

    Args:
      reward: Of the action, a number in [-1, 1].
    """

    def __init__(self, reward: Callable[[float], float]) -> None:
        self._reward = reward

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.observe(), self._reward(float(action[0])), True, False, {}


class _Marked(_Distracted):
    """Episodes of two kinds: the sign of the first number of all observations of an episode tells which it is."""

    kinds: Sequence[float] = (-1.0, 1.0)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.kind = 1.0
        super().reset(seed=seed)
        self.kind = float(self.np_random.choice(self.kinds))
        return self.observe(), {}

    def observe(self) -> Any:
        return marked(super().observe(), self.kind)


def marked(observation: Any, kind: float) -> Any:
    """An observation of that kind, with a first number between 0.5 and 1, or -1 and -0.5; the rest stays."""
    return np.array([kind * (0.75 + 0.25 * observation[0]), *observation[1:]], np.float32)


class IndifferentBandit(_Marked):
    """One step: its reward is the action where the mark is positive, and nothing otherwise."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.observe(), float(action[0]) if self.kind > 0.0 else 0.0, True, False, {}


class Arms(_Distracted):
    """One step with one of some arms.

    Args:
      rewards: Of each.
    """

    def __init__(self, rewards: Sequence[float]) -> None:
        self._rewards = rewards
        self.action_space = gymnasium.spaces.Discrete(len(rewards))  # type: ignore[assignment]

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.observe(), self._rewards[int(action)], True, False, {}


class Steady(_Marked):
    """The same reward in each step, whatever is done.

    Where the mark is positive, an episode ends by its horizon alone. Otherwise its first step terminates.

    Args:
      reward: Of a step of an episode that goes on.
      last_reward: Of a step that terminates; None: all episodes go on.
    """

    def __init__(self, reward: float = 1.0, last_reward: float | None = 8.0) -> None:
        self._rewards = {1.0: reward, -1.0: last_reward or 0.0}
        self.kinds = (1.0,) if last_reward is None else (-1.0, 1.0)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.observe(), self._rewards[self.kind], self.kind < 0.0, False, {}


class SteadyArms(Steady):
    """The same with either of two arms."""

    action_space = gymnasium.spaces.Discrete(2)  # type: ignore[assignment]


class Cue(_Task):
    """A number of -1 or 1 is seen in the first step only; the last step's reward is that number times the action.

    Whoever has forgotten it gets 0 on average, whoever remembers nearly 1.
    """

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.cue = float(self.np_random.choice([-1.0, 1.0]))
        return self.observe(), {}

    def observe(self) -> Any:
        cue = getattr(self, "cue", 0.0) if self.steps == 0 else 0.0
        return np.array([cue, float(self.steps == CUE_STEPS - 1)], np.float32)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = self.cue * float(action[0]) if self.steps == CUE_STEPS - 1 else 0.0
        self.steps += 1
        return self.observe(), reward, self.steps == CUE_STEPS, False, {}


class CueImage(Cue):
    """The same, seen as an image: bright or dark, and grey later."""

    observation_space = gymnasium.spaces.Box(0, 255, (2, 2, 1), np.uint8)

    def observe(self) -> Any:
        cue, is_last = super().observe()
        image = np.full((2, 2, 1), 128 + int(100 * cue), np.uint8)
        image[0, 0] = 255 * is_last
        return image


class Walk(gymnasium.Env):
    """A line of places, and a goal beyond all that is walked to; each step goes one place down or up.

    Observations are places by 10. The value of the best way to a goal d places away, at discount gamma, is
    -(1 + ... + gamma^(d - 2)): the step that reaches it costs nothing, and the episode is over.
    """

    observation_space = gymnasium.spaces.Dict(
        {
            key: gymnasium.spaces.Box(-9.0, 9.0, (1,), np.float32)
            for key in ("observation", "achieved_goal", "desired_goal")
        }
    )
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place = int(self.np_random.integers(-4, 5))
        return self.at(self.place, 40), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.place += 2 * int(action) - 1
        return self.at(self.place, 40), -1.0, False, False, {}

    @staticmethod
    def at(place: int, goal: int) -> dict[str, np.ndarray]:
        numbers = {"observation": place, "achieved_goal": place, "desired_goal": goal}
        return {name: np.array([number / 10], np.float32) for name, number in numbers.items()}

    def compute_reward(self, achieved_goal: np.ndarray, desired_goal: np.ndarray, info: Any) -> np.ndarray:
        return np.where(self.compute_terminated(achieved_goal, desired_goal, info), 0.0, -1.0)

    def compute_terminated(self, achieved_goal: np.ndarray, desired_goal: np.ndarray, info: Any) -> np.ndarray:
        return np.abs(achieved_goal - desired_goal).max(axis=-1) < 0.05
