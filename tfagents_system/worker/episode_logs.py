"""What the episodes of a worker's lanes are like: return, length and success, and the environment's own numbers."""

from __future__ import annotations

import math
import numbers
from typing import Any

import numpy as np

from tfagents_system.envs.info_keys import LOG_PREFIX, SUCCESS_KEYS
from tfagents_system.envs.training_environment import Infos
from tfagents_system.transport.episode_reports import Episode

_UNKNOWN = -1


class EpisodeLogs:
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
        self._return[lane], self._length[lane] = 0.0, 0
        self._success[lane] = _UNKNOWN
        for sums, counts in self._sums.values():
            sums[lane] = counts[lane] = 0

    def add(self, rewards: np.ndarray) -> None:
        """Steps of all lanes, with their rewards `[steps, N]`: many at once, since each call costs a microsecond."""
        self._return += rewards.sum(axis=0, dtype=np.float64)
        self._length += len(rewards)

    def add_infos(self, infos: Infos) -> None:
        """What the environment has said in a step."""
        for info, lanes in infos:
            for key in info:
                if key not in self._ignored:
                    self._add_entry(key, info, lanes)

    def _add_entry(self, key: Any, info: Any, lanes: np.ndarray | int | None) -> None:
        values = info[key]
        if isinstance(key, str) and key.startswith(LOG_PREFIX):
            sums, counts = self._sums.setdefault(
                key, (np.zeros_like(self._return), np.zeros(len(self._return), np.int64))
            )
            if isinstance(lanes, int):
                if _is_finite_number(values):
                    sums[lanes] += float(values)
                    counts[lanes] += 1
                return
            values = np.asarray(values)
            if values.shape != self._return.shape or values.dtype.kind not in "iufb":
                return  # Of another form, or words.
            is_number = _both(np.isfinite(values), _both(lanes, info.get(f"_{key}")))
            np.add(sums, values, out=sums, where=is_number)
            np.add(counts, 1, out=counts, where=is_number)
        elif key not in SUCCESS_KEYS:
            self._ignored.add(key)
        elif isinstance(lanes, int):
            self._success[lanes] = bool(values)
        else:
            mask = _both(lanes, info.get(f"_{key}"))
            np.copyto(self._success, np.asarray(values).astype(bool), where=True if mask is None else mask)

    def episode(self, lane: int, *, has_failed: bool = False) -> Episode:
        """The lane's episode, which has ended."""
        means = {
            key.removeprefix(LOG_PREFIX): float(sums[lane] / counts[lane])
            for key, (sums, counts) in self._sums.items()
            if counts[lane]
        }
        success = None if self._success[lane] == _UNKNOWN else bool(self._success[lane])
        return Episode(float(self._return[lane]), int(self._length[lane]), success, means, has_failed)


def _is_finite_number(value: Any) -> bool:
    is_number = isinstance(value, numbers.Real) or (isinstance(value, np.ndarray) and value.ndim == 0)
    return is_number and math.isfinite(value)


def _both(one: Any, other: Any) -> Any:
    """Where two masks are true; None is true everywhere."""
    if one is None or other is None:
        return other if one is None else one
    return np.logical_and(np.asarray(one), np.asarray(other))
