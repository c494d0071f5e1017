"""What an episode was like: its return, length and success, and the environment's own numbers."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from typing import Any

import numpy as np

from tfagents_system.envs.info_keys import LOG_PREFIX, SUCCESS_KEYS
from tfagents_system.report.episodes import Episode


class EpisodeLog:
    """The return, length, success and `log/...` means of one episode.

    Attributes:
      length: Steps so far.
    """

    def __init__(self) -> None:
        self.length = 0
        self._return = 0.0
        self._sums: dict[str, tuple[float, int]] = {}
        self._success: bool | None = None
        self._ignored: set[Any] = set()

    def add(self, reward: Any, info: Mapping[str, Any]) -> None:
        """One step's reward and info."""
        self._return += float(reward)
        self.length += 1
        for key in info:
            if key not in self._ignored:
                self._add_entry(key, info[key])

    def _add_entry(self, key: Any, value: Any) -> None:
        if isinstance(key, str) and key.startswith(LOG_PREFIX):
            if _is_finite_number(value):
                total, count = self._sums.get(key, (0.0, 0))
                self._sums[key] = (total + float(value), count + 1)
        elif key in SUCCESS_KEYS:
            self._success = bool(value)
        else:
            self._ignored.add(key)

    def episode(self) -> Episode:
        means = {key.removeprefix(LOG_PREFIX): total / count for key, (total, count) in self._sums.items()}
        return Episode(self._return, self.length, self._success, means)


def _is_finite_number(value: Any) -> bool:
    is_number = isinstance(value, numbers.Real) or (isinstance(value, np.ndarray) and value.ndim == 0)
    return is_number and math.isfinite(value)
