"""What the episodes of all lanes are like: EpisodeLog for a vector environment."""

from __future__ import annotations

from typing import Any

import numpy as np

from tfagents_system.envs.batched_environment import BatchStep
from tfagents_system.envs.info_keys import LOG_PREFIX, SUCCESS_KEYS
from tfagents_system.report.episodes import Episode

_UNKNOWN = -1


class LaneLogs:
    """Return, length, success and `log/...` means of the episode under way in each lane.

    Args:
      num_lanes: N.
    """

    def __init__(self, num_lanes: int) -> None:
        self._return = np.zeros(num_lanes)
        self._length = np.zeros(num_lanes, np.int64)
        self._success = np.full(num_lanes, _UNKNOWN, np.int8)
        self._sums: dict[str, tuple[np.ndarray, np.ndarray]] = {}  # and how many numbers they are of.
        self._ignored: set[Any] = set()

    def begin(self, lane: int) -> None:
        """An episode begins."""
        self._return[lane] = self._length[lane] = 0
        self._success[lane] = _UNKNOWN
        for sums, counts in self._sums.values():
            sums[lane] = counts[lane] = 0

    def add(self, step: BatchStep) -> None:
        """One step of all lanes."""
        self._return += step.reward
        self._length += 1
        for info, lanes in step.infos:
            for key in info:
                if key not in self._ignored:
                    mask = info.get(f"_{key}") if isinstance(key, str) else None
                    self._add_entry(key, info[key], _both(lanes, mask))

    def _add_entry(self, key: Any, values: Any, mask: np.ndarray | None) -> None:
        if isinstance(key, str) and key.startswith(LOG_PREFIX):
            numbers = np.asarray(values)
            if numbers.shape != self._return.shape or numbers.dtype.kind not in "iufb":
                return  # Of another form, or words.
            sums, counts = self._sums.setdefault(key, (np.zeros_like(self._return), np.zeros_like(self._length)))
            is_number = _both(np.isfinite(numbers), mask)
            np.add(sums, numbers, out=sums, where=is_number)
            np.add(counts, 1, out=counts, where=is_number)
        elif key in SUCCESS_KEYS:
            np.copyto(self._success, np.asarray(values).astype(bool), where=True if mask is None else mask)
        else:
            self._ignored.add(key)

    def episode(self, lane: int) -> Episode:
        """The lane's episode, which has ended."""
        means = {
            key.removeprefix(LOG_PREFIX): float(sums[lane] / counts[lane])
            for key, (sums, counts) in self._sums.items()
            if counts[lane]
        }
        success = None if self._success[lane] == _UNKNOWN else bool(self._success[lane])
        return Episode(float(self._return[lane]), int(self._length[lane]), success, means)


def _both(one: Any, other: Any) -> Any:
    """Where two masks are true; None is true everywhere."""
    if one is None or other is None:
        return other if one is None else one
    return np.logical_and(np.asarray(one), np.asarray(other))
