"""On which tracks a race was driven."""

from __future__ import annotations

from typing import Any

import gymnasium


class Tracks(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Notes the track of each episode at its first step."""

    def __init__(self, env: Any, log: list[str]) -> None:
        super().__init__(env)
        self._log, self._is_new = log, False

    def reset(self, **kwargs: Any) -> Any:
        self._is_new = True
        return self.env.reset(**kwargs)

    def step(self, action: Any) -> Any:
        if self._is_new:
            self._log.append(self.env.unwrapped.track.name)  # type: ignore[attr-defined]
        self._is_new = False
        return self.env.step(action)
