"""Assigns slots (machine/worker_slots.py) to remote programs: the gateway claims them, and knows workers by a secret.

A slot in use is never given twice, and a worker that reconnects or was restarted gets its own slot back.
"""

from __future__ import annotations

import dataclasses
import hashlib
import threading
import time
from pathlib import Path

from absl import logging

from tfagents_system.machine.claims import Claims
from tfagents_system.machine.files import read_json, write_json
from tfagents_system.machine.worker_slots import SlotCounts, claim_of
from tfagents_system.transport.remote import messages

KEEP_SECS = 60.0  # How long the slot of a vanished worker is kept for it.


class NoSlotError(Exception):
    """There is no slot for this worker; says why.

    Args:
      message: For the user.
      final: Trying again will not help.
      reason: One word, as the gateway counts it.
    """

    def __init__(self, message: str, final: bool = True, reason: str = "slots") -> None:
        super().__init__(message)
        self.final, self.reason = final, reason


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


class RemoteSlots:
    """The slots of one run that remote workers may have.

    Args:
      counts: How many there are.
      port: The replay server's on this machine. Workers that join locally claim by it, too, and get other slots.
      path: File of the slots' owners, for the next process of the gateway.
      claims: Where they are held.
    """

    def __init__(self, counts: SlotCounts, port: int, path: Path, claims: Claims | None = None) -> None:
        self._counts = counts
        self._port, self._path = port, path
        self._claims = claims or Claims()
        self._lock = threading.Lock()
        self._slots = {number: _Slot() for number in range(min(counts.local, counts.planned), counts.most)}
        began = time.monotonic()
        for text, owner in (read_json(path) or {}).items():
            is_one = text.isdecimal() and int(text) in self._slots and isinstance(owner, str)
            # While the gateway was down, a worker of this machine may have taken it.
            if is_one and self._claims.take(claim_of(port, int(text))):
                self._slots[int(text)] = _Slot(owner, left_at=began)

    def take(self, kind: str, wished: int | None, token: str, connection: object) -> tuple[int, object | None]:
        """A slot for a worker.

        Args:
          kind: Of the worker.
          wished: The slot that it had or requests; None: any.
          token: Its secret: whoever presents it again is the same worker.
          connection: Held by the slot until `leave`.

        Returns:
          The slot, and the same worker's previous, dead connection.

        Raises:
          NoSlotError: There is none.
        """
        owner, now = hashlib.sha256(token.encode()).hexdigest(), time.monotonic()
        with self._lock:
            fitting = self._counts.for_kind(kind)
            own = [number for number in fitting if self._slots[number].owner == owner][:1]
            free = [number for number in fitting if self._slots[number].is_free(now) and number not in own]
            free.sort(key=lambda number: bool(self._slots[number].owner))
            # A worker that comes back says which one it was: it can be no other one.
            for number in [each for each in [*own, *free] if wished in (None, each)]:
                if self._claims.take(claim_of(self._port, number)):
                    before, self._slots[number] = self._slots[number].connection, _Slot(owner, connection)
                    self._remember()
                    return number, before
                self._slots[number] = _Slot()  # It is a worker's of this machine by now.
        if wished in fitting:  # Its process is started again, and takes any.
            text = f"slot {wished} was given to another worker meanwhile ({self._counts})"
            raise NoSlotError(text, reason=messages.SLOT_LOST)
        if fitting and wished is not None:
            raise NoSlotError(f"slot {wished} is not free ({self._counts}): join without asking for it")
        is_kept = any(self._slots[number].connection is None for number in fitting)  # For one that has vanished.
        raise NoSlotError(self._counts.refusal(kind), final=not is_kept)

    def leave(self, number: int, connection: object, *, for_good: bool) -> bool:
        """A connection has ended; False if a newer connection of the same worker has its slot."""
        with self._lock:
            slot = self._slots[number]
            if slot.connection is not connection:
                return False
            slot.connection, slot.left_at, slot.has_said_goodbye = None, time.monotonic(), for_good
            if for_good:
                self._claims.release(claim_of(self._port, number))
                self._remember()
            return True

    def tend(self) -> None:
        """To be called regularly: releases slots whose time of waiting for their worker is over."""
        with self._lock:
            now = time.monotonic()
            for number, slot in self._slots.items():
                if slot.is_free(now):
                    self._claims.release(claim_of(self._port, number))

    @property
    def connected(self) -> int:
        """The workers connected now."""
        with self._lock:
            return sum(slot.connection is not None for slot in self._slots.values())

    def _remember(self) -> None:
        now = time.monotonic()
        try:
            write_json(self._path, {str(n): slot.owner for n, slot in self._slots.items() if not slot.is_free(now)})
        except OSError as error:  # The next process of the gateway lacks it then: its worker may get another slot.
            logging.log_every_n_seconds(logging.WARNING, "%s: %s", 60, self._path, error.strerror)
