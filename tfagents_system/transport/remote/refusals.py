"""Who was turned away, and why: counted by reason, and told in the log, but not as often as an attacker likes."""

from __future__ import annotations

import collections
import threading
import time

from absl import logging

_TELL_SECS = 10.0


class Refusals:
    """Counts refusals by reason; safe in any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: collections.Counter[str] = collections.Counter()
        self._tell_at: dict[str, float] = {}
        self._untold: collections.Counter[str] = collections.Counter()

    def add(self, reason: str, peer: str, message: str) -> None:
        """Counts one refusal; of each reason one is logged every ten seconds, with the number of those in between.

        Args:
          reason: One word.
          peer: Address of the other side.
          message: What to tell.
        """
        with self._lock:
            self._counts[reason] += 1
            now = time.monotonic()
            if now < self._tell_at.get(reason, 0.0):
                self._untold[reason] += 1
                return
            self._tell_at[reason] = now + _TELL_SECS
            untold = self._untold.pop(reason, 0)
        more = f" ({untold} more of that kind before)" if untold else ""
        logging.warning("refused %s: %s: %s%s", peer, reason, message, more)

    @property
    def counts(self) -> dict[str, int]:
        """By reason."""
        with self._lock:
            return dict(self._counts)
