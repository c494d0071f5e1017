"""Which worker a remote program is: no slot that lives is given twice, and a restarted worker gets its own back."""

from __future__ import annotations

import dataclasses
import hashlib
import threading
import time
from pathlib import Path

from tfagents_system.launch.claims import Claims
from tfagents_system.report.heartbeat import read_json, write_json

KEEP_SECS = 60.0  # A slot whose worker has vanished waits so long for it.


class NoSlotError(Exception):
    """There is no slot for this worker; says why.

    Args:
      message: For the user.
      final: It would be the same later.
    """

    def __init__(self, message: str, final: bool = True) -> None:
        super().__init__(message)
        self.final = final


@dataclasses.dataclass
class _Slot:
    owner: str = ""  # SHA-256 of its worker's token.
    connection: object | None = None
    left_at: float | None = None  # Since when its worker is not connected.
    has_said_goodbye: bool = False

    def is_free(self, now: float) -> bool:
        """Whether another worker may have it."""
        if self.connection is not None:
            return False
        is_kept = self.left_at is not None and now - self.left_at < KEEP_SECS
        return not self.owner or self.has_said_goodbye or not is_kept


class Slots:
    """The slots of one run that remote workers may have.

    Args:
      local: Slots of workers that the run itself starts: 0 to local - 1.
      planned: Planned workers, for which lock-step waits; only collectors may have their slots.
      most: SAC_MAX_WORKERS.
      port: The replay server's: slots are claimed on this machine by it, so that workers that join here have others.
      path: Who had which slot, for the next process of the gateway.
      claims: Where they are held.
    """

    def __init__(
        self, local: int, planned: int, most: int, port: int, path: Path, claims: Claims | None = None
    ) -> None:
        self._local, self._planned, self._most = local, planned, most
        self._port, self._path = port, path
        self._claims = claims or Claims()
        self._lock = threading.Lock()
        self._slots = {number: _Slot() for number in range(min(local, planned), most)}
        began = time.monotonic()
        for text, owner in (read_json(path) or {}).items():
            if text.isdecimal() and int(text) in self._slots and isinstance(owner, str):
                self._slots[int(text)] = _Slot(owner, left_at=began)

    def take(self, kind: str, wished: int | None, token: str, connection: object) -> tuple[int, object | None]:
        """A slot for a worker.

        Args:
          kind: Of the worker.
          wished: The slot that it had, or would like; None: any.
          token: Its secret: whoever says it again is the same worker.
          connection: Held by the slot until `leave`.

        Returns:
          The slot, and the connection that had it: of the same worker, which is gone.

        Raises:
          NoSlotError: There is none.
        """
        owner, now = hashlib.sha256(token.encode()).hexdigest(), time.monotonic()
        with self._lock:
            fitting = [n for n in self._slots if n >= (self._local if kind == "collect" else self._planned)]
            own = next((n for n in fitting if self._slots[n].owner == owner), None)
            if own is not None:
                return self._give(own, owner, connection)
            candidates = self._in_order(fitting, now) if wished is None else self._wished(wished, fitting, now)
            for number in candidates:
                if self._claims.take(self._claim(number)):
                    return self._give(number, owner, connection)
        counts = f"SAC_MAX_WORKERS={self._most}, SAC_NUM_COLLECT_WORKERS={self._planned}"
        if not fitting:
            raise NoSlotError(
                f"no slot for a worker of kind {kind} ({counts}): start the run with a larger SAC_MAX_WORKERS"
            )
        if wished is not None:
            raise NoSlotError(f"slot {wished} is not free ({counts}): join without asking for it")
        is_kept = any(self._slots[number].connection is None for number in fitting)  # For one that has vanished.
        raise NoSlotError(
            f"all {len(fitting)} slots for workers of kind {kind} are taken ({counts}): end some workers, or start the "
            "run with a larger SAC_MAX_WORKERS",
            final=not is_kept,
        )

    def leave(self, number: int, connection: object, *, for_good: bool) -> bool:
        """A connection has ended; False where its slot has gone to a newer one of the same worker."""
        with self._lock:
            slot = self._slots[number]
            if slot.connection is not connection:
                return False
            slot.connection, slot.left_at, slot.has_said_goodbye = None, time.monotonic(), for_good
            if for_good:
                self._claims.release(self._claim(number))
            return True

    def tend(self) -> None:
        """To be called now and then: lets go of slots that are kept for nobody any more."""
        with self._lock:
            now = time.monotonic()
            for number, slot in self._slots.items():
                if slot.is_free(now):
                    self._claims.release(self._claim(number))
        self._claims.answer()

    @property
    def connected(self) -> int:
        """Workers that are connected now."""
        with self._lock:
            return sum(slot.connection is not None for slot in self._slots.values())

    def _wished(self, wished: int, fitting: list[int], now: float) -> list[int]:
        """A worker that comes back after a gateway's restart says which one it was."""
        return [wished] if wished in fitting and self._slots[wished].is_free(now) else []

    def _in_order(self, fitting: list[int], now: float) -> list[int]:
        """Free ones: those that nobody had come first."""
        free = [number for number in fitting if self._slots[number].is_free(now)]
        return sorted(free, key=lambda number: (bool(self._slots[number].owner), number))

    def _give(self, number: int, owner: str, connection: object) -> tuple[int, object | None]:
        before = self._slots[number].connection
        self._claims.take(self._claim(number))
        self._slots[number] = _Slot(owner, connection)
        write_json(self._path, {str(n): slot.owner for n, slot in self._slots.items() if slot.owner})
        return number, before

    def _claim(self, number: int) -> str:
        return f"slot/{self._port}/{number}"
