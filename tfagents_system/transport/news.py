"""What is new, for whoever waits for it: on this machine as between machines."""

from __future__ import annotations

import threading

import numpy as np


class News:
    """The newest item, once; older ones that nobody asked for are forgotten."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._newest: list[np.ndarray] | None = None

    def get(self, timeout_secs: float) -> list[np.ndarray] | None:
        """What is new since the last call, or None if there is nothing in time."""
        with self._changed:
            self._changed.wait_for(lambda: self._newest is not None, timeout_secs)
            newest, self._newest = self._newest, None
        return newest

    def take(self, arrays: list[np.ndarray]) -> None:
        with self._changed:
            self._newest = arrays
            self._changed.notify_all()
