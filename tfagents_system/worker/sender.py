"""The worker's end of experience: segments are kept, and sent again where needed, until they are stored."""

from __future__ import annotations

import collections
import dataclasses
import math
import time
from collections.abc import Callable, Sequence

from absl import logging

from tfagents_system.transport import tables
from tfagents_system.transport.connection import Connection, Waiting
from tfagents_system.transport.segments import Segment, bundled, to_wire

_RESEND_SECS = 10.0
_MAX_SENDS = 6  # Of one segment, to a server that takes in segments meanwhile.
_POLL_SECS = 0.02
_ASK_BYTES = 16 * 2**20  # With more than that unconfirmed, each further segment asks what is stored.


class RefusedError(Exception):
    """The replay server does not store a segment, however often it is sent."""


class SegmentSender:
    """Sends one worker's segments, in order, each stored exactly once.

    Args:
      connection: To the replay server.
      worker_id: The worker.
      incarnation: Of this process: larger than that of any earlier one of the same worker.
      is_patient: Segments may wait for those of other workers: one that is not stored for long was not refused. What
        an earlier process of the worker has brought of an iteration may be stored instead of the same from this one.
      max_bundle_rows: Segments wait until so many rows go together in one item, or for `confirm`; 0: they do not wait.
    """

    def __init__(
        self,
        connection: Connection,
        worker_id: int,
        incarnation: int,
        *,
        is_patient: bool = False,
        max_bundle_rows: int = 0,
    ) -> None:
        self._connection = connection
        self._status = connection.newest(tables.STATUS)
        self._worker_id = worker_id
        self._incarnation = incarnation
        self._is_patient = is_patient
        self._max_bundle_rows = max_bundle_rows
        self._held: list[Segment] = []  # The last unconfirmed ones: not sent yet.
        self._held_rows = 0
        self._next_number = 0
        self._is_known = not is_patient  # To the server, as the worker's process.
        self._unconfirmed: collections.deque[Segment] = collections.deque()
        self._unconfirmed_bytes = 0
        self._server: int | None = None
        self._received = 0  # Segments that the server had taken in when it was last heard of before sending again.
        self._first_sends: tuple[int, int] = (-1, 0)  # The oldest unconfirmed segment, and how often it was sent again.
        self._last_sent = 0.0

    @property
    def unconfirmed_segments(self) -> int:
        """Segments that are not known to be stored."""
        return len(self._unconfirmed)

    @property
    def unconfirmed_bytes(self) -> int:
        """What these take."""
        return self._unconfirmed_bytes

    def send(self, segment: Segment) -> None:
        """Numbers a segment and sends it, at once or together with others.

        Raises:
          RefusedError: See `confirm`.
          StoppedError: The worker is to stop.
        """
        if not self._is_known and self._unconfirmed and segment.iteration > self._unconfirmed[-1].iteration:
            # Whether the numbers go on depends on whose segments are stored.
            self.flush(Waiting("the iteration before to be stored", math.inf, self._connection.stop))
        segment = dataclasses.replace(
            segment, worker_id=self._worker_id, incarnation=self._incarnation, number=self._next_number
        )
        self._next_number += 1
        self._unconfirmed.append(segment)
        self._unconfirmed_bytes += num_bytes(segment)
        if self._held_rows + segment.num_rows > self._max_bundle_rows:
            self._send_held()
        self._held.append(segment)
        self._held_rows += segment.num_rows
        if self._held_rows >= self._max_bundle_rows:
            self._send_held()
        if self._unconfirmed_bytes > _ASK_BYTES:
            self.confirm()

    def confirm(self) -> tables.Stored | None:
        """Forgets what is stored; sends the rest again if the server was restarted or has not stored it in time.

        Segments that wait for others are sent. Asks the server only while there is anything to hear: many workers
        wait, and a question costs it 0.4 ms.

        Raises:
          RefusedError: A segment was sent again and again to a server that takes in segments, but not this one.
        """
        self._send_held()
        arrays = self._status.get() if self._unconfirmed else None
        if arrays is None:
            return None
        stored = tables.Stored.from_wire(arrays)
        record = stored.worker(self._worker_id)
        if record.incarnation == self._incarnation:
            self._is_known = True
            while self._unconfirmed and self._unconfirmed[0].number <= record.number:
                self._unconfirmed_bytes -= num_bytes(self._unconfirmed.popleft())
        elif not self._is_known and self._unconfirmed[-1].iteration <= record.iteration_done:
            self._unconfirmed.clear()
            self._unconfirmed_bytes = self._next_number = 0
        restarted = self._server not in (None, stored.server)
        self._server = stored.server
        if self._unconfirmed and (restarted or time.monotonic() - self._last_sent > _RESEND_SECS):
            self._count_sends(stored, restarted)
            logging.info("sending %d segments again", len(self._unconfirmed))
            for bundle in bundled(self._unconfirmed, self._max_bundle_rows):
                self._put(bundle)
        return stored

    def call(self, function: Callable[[], object]) -> None:
        """Calls a function that sends something else."""
        function()

    def take_metrics(self) -> dict[str, float]:
        """None: it drops nothing."""
        return {}

    def flush(self, waiting: Waiting) -> None:
        """Waits until everything is stored."""
        while self._unconfirmed:
            self.confirm()
            if self._unconfirmed:
                waiting.check()
                time.sleep(_POLL_SECS)

    def _count_sends(self, stored: tables.Stored, restarted: bool) -> None:
        """Counts how often the oldest segment was sent in vain: a server that takes in none does not count."""
        oldest = self._unconfirmed[0]
        number, sends = self._first_sends
        if restarted or number != oldest.number:
            self._first_sends = (oldest.number, 1)
        elif stored.received > self._received:
            self._first_sends = (number, sends + 1)
        self._received = stored.received
        if self._first_sends[1] >= _MAX_SENDS and not self._is_patient:
            raise RefusedError(
                f"the replay server has not stored segment {oldest.number} ({oldest.num_steps} steps of iteration "
                f"{oldest.iteration}), sent {_MAX_SENDS} times, though it takes in segments: its log "
                "(logs/replay.log) says what it refused. The steps that it has not stored are given up"
            )

    def _send_held(self) -> None:
        held, self._held, self._held_rows = self._held, [], 0
        if held:
            self._put(held)

    def _put(self, segments: Sequence[Segment]) -> None:
        self._connection.put(tables.SEGMENTS, to_wire(segments))
        self._last_sent = time.monotonic()


def num_bytes(segment: Segment) -> int:
    """What a segment takes, bytes."""
    return sum(array.nbytes for array in segment.to_wire())
