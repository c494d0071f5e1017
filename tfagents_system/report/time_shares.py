"""Where a role's time goes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator


class TimeShares:
    """Seconds spent on each activity, as shares of the whole since the first one named `after_first`.

    Args:
      after_first: Counting begins when this activity first ends; what comes before it is start-up.
      clock: Seconds; monotonic.
    """

    def __init__(self, after_first: str = "updates", clock: Callable[[], float] = time.monotonic) -> None:
        self._after_first = after_first
        self._clock = clock
        self._began: float | None = None
        self._seconds: dict[str, float] = {}
        self._nested = False

    @contextlib.contextmanager
    def spend(self, activity: str) -> Iterator[None]:
        """Counts the time inside the `with` block; a block within another counts for the outer one."""
        outermost, self._nested = not self._nested, True
        started = self._clock()
        try:
            yield
        finally:
            if outermost:
                self._nested = False
                self._add(activity, self._clock() - started)

    def shares(self) -> dict[str, float]:
        """Share of each activity, in [0, 1]; empty before counting began."""
        if self._began is None:
            return {}
        total = max(1e-9, self._clock() - self._began)
        return {activity: seconds / total for activity, seconds in self._seconds.items()}

    def _add(self, activity: str, seconds: float) -> None:
        if self._began is not None:
            self._seconds[activity] = self._seconds.get(activity, 0.0) + seconds
        elif activity == self._after_first:
            self._began = self._clock()
