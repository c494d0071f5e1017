"""A point in a box that is to be moved to a goal; whatever is not the goal has the reward -1."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

_SIDE, _GAP = 192, 16  # Pixels.
_GREEN, _BLUE = (90, 180, 90), (40, 80, 220)


class Reach(gymnasium.Env):
    """A goal environment as those of Gymnasium-Robotics are, NumPy alone; `Reach-v0` for gymnasium.make.

    The point is in [-1, 1]^n, and an action moves it by up to 0.1 along each axis. It begins at a random place, and the
    goal is a random place, too. An episode has no end of its own.

    Args:
      dimensions: n.
      tolerance: The goal is reached within this distance.
      render_mode: "rgb_array", or None.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}
    _STEP = 0.1

    def __init__(self, dimensions: int = 3, tolerance: float = 0.1, render_mode: str | None = None) -> None:
        def box(bound: float) -> gymnasium.spaces.Box:
            return gymnasium.spaces.Box(-bound, bound, (dimensions,), np.float32)

        keys = ("observation", "achieved_goal", "desired_goal")
        self.observation_space = gymnasium.spaces.Dict({key: box(1.0) for key in keys})
        self.action_space = box(1.0)
        self.dimensions, self.tolerance, self.render_mode = dimensions, tolerance, render_mode

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        super().reset(seed=seed)
        self._place, self._goal = self.np_random.uniform(-1.0, 1.0, (2, self.dimensions)).astype(np.float32)
        return self._observe(), {}

    def step(self, action: np.ndarray) -> tuple[dict[str, np.ndarray], float, bool, bool, dict[str, Any]]:
        self._place = np.clip(self._place + np.float32(self._STEP) * np.clip(action, -1.0, 1.0), -1.0, 1.0)
        reward = float(self.compute_reward(self._place, self._goal, {}))
        return self._observe(), reward, False, False, {"is_success": reward == 0.0}

    def compute_reward(self, achieved_goal: np.ndarray, desired_goal: np.ndarray, info: Any) -> np.ndarray:
        """`[...]` of goals `[..., n]`: 0 where the goal is reached, else -1."""
        del info
        return np.where(np.linalg.norm(achieved_goal - desired_goal, axis=-1) < self.tolerance, 0.0, -1.0)

    def render(self) -> np.ndarray:
        """The goal (green) and the point (blue) over the first axis: the second upwards, and beside it the third, if
        there is one; `[192, 192 or 400, 3]` uint8.
        """
        views = [self._view(axis) for axis in range(1, min(max(self.dimensions, 2), 3))]
        gap = np.full((_SIDE, _GAP, 3), 255, np.uint8)
        return views[0] if len(views) == 1 else np.concatenate([views[0], gap, views[1]], axis=1)

    def _view(self, axis: int) -> np.ndarray:
        """The box from one side, with room for discs at its edges."""
        reach = 1.0 + self.tolerance
        ticks = reach * (2.0 * (np.arange(_SIDE) + 0.5) / _SIDE - 1.0)
        x, y = np.meshgrid(ticks, -ticks)
        picture = np.full((_SIDE, _SIDE, 3), 230, np.uint8)
        for place, radius, colour in ((self._goal, self.tolerance, _GREEN), (self._place, 0.5 * self.tolerance, _BLUE)):
            across, up = place[0], place[axis] if axis < self.dimensions else 0.0
            picture[np.hypot(x - across, y - up) <= radius] = colour
        return picture

    def _observe(self) -> dict[str, np.ndarray]:
        return {"observation": self._place, "achieved_goal": self._place, "desired_goal": self._goal}


gymnasium.register("Reach-v0", f"{__name__}:Reach", max_episode_steps=50)
