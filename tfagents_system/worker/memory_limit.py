"""SAC_WORKER_MEMORY_MB: which processes of a worker have grown too large."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

from tfagents_system.machine import memory

_LOOK_SECS = 1.0
_MIB = 2**20


class TooLargeError(Exception):
    """The worker's process takes more memory than SAC_WORKER_MEMORY_MB: it should be restarted."""


class MemoryLimit:
    """Notes what has grown too large, for whoever may do something about it between two episodes.

    `look` may be called in another thread than the rest.

    Args:
      worker_id: Named in texts.
      limit_mb: Of each process; None: no limit, and nobody looks.
    """

    def __init__(self, worker_id: int, limit_mb: int | None) -> None:
        self._worker_id = worker_id
        self._limit_mb = limit_mb
        self._too_large: dict[str, str] = {}
        self._excess = ""
        self._look_due = 0.0

    def look(self, apart: Mapping[str, int]) -> None:
        """Looks once a second at most, in less than a millisecond.

        Args:
          apart: Ids of the processes that environments have of their own, by name.
        """
        if self._limit_mb is None or time.monotonic() < self._look_due:
            return
        self._look_due = time.monotonic() + _LOOK_SECS
        for name, pid in apart.items():
            if text := self._excess_of(f"the process of {name}", memory.tree_resident_bytes(pid)):
                self._too_large[name] = text
        own = memory.resident_bytes(os.getpid()) if apart else memory.tree_resident_bytes(os.getpid())
        self._excess = self._excess_of("its process", own)

    def pop(self, name: str) -> str:
        """How much too large an environment's process is; forgotten here. Empty if it is not."""
        return self._too_large.pop(name, "")

    def check_own(self) -> None:
        """Raises:
        TooLargeError: The worker itself has grown too large.
        """
        if self._excess:
            raise TooLargeError(self._excess)

    def _excess_of(self, what: str, resident_bytes: int) -> str:
        assert self._limit_mb is not None
        if resident_bytes <= self._limit_mb * _MIB:
            return ""
        return (
            f"worker {self._worker_id}: {what} takes {resident_bytes / _MIB:,.0f} MiB, "
            f"more than SAC_WORKER_MEMORY_MB={self._limit_mb}"
        )
