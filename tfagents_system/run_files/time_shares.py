"""Where a role's time goes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator


class TimeShares:
    """Seconds spent on each activity, as shares of the whole since counting began.

    Args:
      after_first: Counting begins when this activity first ends: what comes before it is start-up. None: at once.
      clock: Seconds; monotonic.
    """

    def __init__(self, after_first: str | None = "updates", clock: Callable[[], float] = time.monotonic) -> None:
        self._after_first = after_first
        self._clock = clock
        self._began = clock() if after_first is None else None
        self._seconds: dict[str, float] = {}
        self._running: str | None = None
        self._running_since = 0.0
        self._taken_out = 0.0

    @contextlib.contextmanager
    def spend(self, activity: str) -> Iterator[None]:
        """Counts the time inside the `with` block; a block within another counts for the outer one."""
        if self._running is not None:
            yield
            return
        self._running, self._running_since, self._taken_out = activity, self._clock(), 0.0
        try:
            yield
        finally:
            seconds = self._running_seconds()
            self._running = None
            if self._began is not None:
                self._add(activity, seconds)
            elif activity == self._after_first:
                self._began = self._clock()

    def take_out(self, activity: str, seconds: float) -> None:
        """Counts some seconds of the running block for another activity.

        For what is too short and too frequent for blocks of its own: its seconds are summed up elsewhere.
        """
        self._taken_out += seconds
        if self._began is not None:
            self._add(activity, seconds)

    def shares(self) -> dict[str, float]:
        """Share of each activity so far, in [0, 1], the running one included; empty before counting began."""
        if self._began is None:
            return {}
        seconds = dict(self._seconds)
        if self._running is not None:
            seconds[self._running] = seconds.get(self._running, 0.0) + self._running_seconds()
        total = max(1e-9, self._clock() - self._began)
        return {activity: each / total for activity, each in seconds.items()}

    @property
    def counted_secs(self) -> float:
        """Seconds since counting began, of which `shares` are shares."""
        return 0.0 if self._began is None else self._clock() - self._began

    def _running_seconds(self) -> float:
        return max(0.0, self._clock() - self._running_since - self._taken_out)

    def _add(self, activity: str, seconds: float) -> None:
        self._seconds[activity] = self._seconds.get(activity, 0.0) + seconds
