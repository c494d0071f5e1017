"""What comes back from the trainer: TD errors of drawn steps, which become their priorities."""

from __future__ import annotations

from absl import logging

from tfagents_system.replay.priorities import Priorities
from tfagents_system.replay.ring import Ring
from tfagents_system.transport import tables
from tfagents_system.transport.connection import QueueReader


class PriorityUpdates:
    """Takes TD errors from the trainer's queue.

    As a rule they count at once. In order, they count from the next iteration on, and that is not drawn before all of
    them have come: what is drawn does not depend on timing.

    Args:
      reader: Of the queue `priorities`.
      ring: Whose lock is taken.
      priorities: Of its rows.
      in_order: See above.
    """

    def __init__(self, reader: QueueReader, ring: Ring, priorities: Priorities, *, in_order: bool) -> None:
        self._reader, self._ring, self._priorities, self._in_order = reader, ring, priorities, in_order
        self._waiting: list[tables.TdErrors] = []
        self._session, self._measured_updates = 0, 0

    def take(self) -> int:
        """Takes what has come; returns how many messages were refused."""
        refused = 0
        while (arrays := self._reader.get(0)) is not None:
            try:
                found = tables.TdErrors.from_wire(arrays)
            except tables.MalformedMessageError as error:
                refused += 1
                logging.error("refused TD errors: %s", error)
                continue
            if found.session < self._session:
                continue  # Of an earlier trainer, whose updates are done again.
            if found.session > self._session:
                self._session, self._measured_updates, self._waiting = found.session, 0, []
            self._measured_updates = max(self._measured_updates, found.end)
            self._waiting.append(found)
            if not self._in_order:
                self._apply(found.end)
        return refused

    def precede(self, request: tables.Request) -> bool:
        """Whether all that its draws depend on counts: in order, the errors of the updates before its iteration."""
        if not self._in_order:
            return True
        start = request.updates - request.first
        if self._session != request.session or self._measured_updates < start:
            return False
        self._apply(start)
        return True

    def _apply(self, updates: int) -> None:
        """Those of the first so many updates of the run."""
        with self._ring.lock:
            for found in self._waiting:
                if found.end <= updates:
                    self._priorities.measure(found.rows.reshape(-1), found.errors.reshape(-1))
        self._waiting = [found for found in self._waiting if found.end > updates]
