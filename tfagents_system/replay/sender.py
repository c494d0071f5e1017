"""The worker's end of experience: segments are kept, and sent again where needed, until they are stored."""

from __future__ import annotations

import collections
import dataclasses
import time

from absl import logging

from tfagents_system.replay import tables
from tfagents_system.replay.connection import Connection, Waiting
from tfagents_system.replay.segments import Segment

_RESEND_SECS = 10.0
_POLL_SECS = 0.02


class SegmentSender:
    """Sends one worker's segments, in order, each stored exactly once.

    Args:
      connection: To the replay server.
      worker_id: The worker.
      incarnation: Of this process: larger than that of any earlier one of the same worker.
    """

    def __init__(self, connection: Connection, worker_id: int, incarnation: int) -> None:
        self._connection = connection
        self._status = connection.newest(tables.STATUS)
        self._worker_id = worker_id
        self._incarnation = incarnation
        self._next_number = 0
        self._unconfirmed: collections.deque[Segment] = collections.deque()
        self._server: int | None = None
        self._last_sent = 0.0

    @property
    def unconfirmed_segments(self) -> int:
        """Segments that are not known to be stored."""
        return len(self._unconfirmed)

    def send(self, segment: Segment) -> None:
        """Numbers a segment and sends it."""
        segment = dataclasses.replace(
            segment, worker_id=self._worker_id, incarnation=self._incarnation, number=self._next_number
        )
        self._next_number += 1
        self._unconfirmed.append(segment)
        self._put(segment)

    def confirm(self) -> tables.Stored | None:
        """Forgets what is stored; sends the rest again if the server was restarted or has not stored it in time."""
        arrays = self._status.get()
        if arrays is None:
            return None
        stored = tables.Stored.from_wire(arrays)
        record = stored.workers[self._worker_id]
        if record.incarnation == self._incarnation:
            while self._unconfirmed and self._unconfirmed[0].number <= record.number:
                self._unconfirmed.popleft()
        restarted = self._server not in (None, stored.server)
        self._server = stored.server
        if self._unconfirmed and (restarted or time.monotonic() - self._last_sent > _RESEND_SECS):
            logging.info("sending %d segments again", len(self._unconfirmed))
            for segment in self._unconfirmed:
                self._put(segment)
        return stored

    def flush(self, waiting: Waiting) -> None:
        """Waits until everything is stored."""
        while self._unconfirmed:
            self.confirm()
            if self._unconfirmed:
                waiting.check()
                time.sleep(_POLL_SECS)

    def _put(self, segment: Segment) -> None:
        self._connection.put(tables.SEGMENTS, segment.to_wire())
        self._last_sent = time.monotonic()
