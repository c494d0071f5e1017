"""The replay server's part of the trainer's checkpoints."""

from __future__ import annotations

import time

from tfagents_system.transport import tables
from tfagents_system.transport.connection import Connection

_ASK_SECS, _LOOK_SECS, _FETCH_SECS = 0.2, 1.0, 0.1


class ReplaySnapshots:
    """Asks the replay server for its part of a checkpoint, and knows whether that one wants a checkpoint.

    Args:
      connection: To the replay server.
      is_far: It does not see the trainer's run directory, and sends its part.

    Attributes:
      status: Reads what that one tells of itself.
    """

    def __init__(self, connection: Connection, *, is_far: bool = False) -> None:
        self._connection = connection
        self.status = connection.newest(tables.STATUS)
        self._headers = connection.newest(tables.HEADERS) if is_far else None
        self._asked, self._number = "", 0
        self._fetch_at = 0.0

    def ask(self, name: str) -> None:
        """Has it write its part of the checkpoint with this name; to be repeated until that is there."""
        if self._headers is not None and name != self._asked:
            self._asked, self._number = name, time.time_ns()
        self._connection.try_put(tables.SNAPSHOTS, tables.Snapshot(name, self._number).to_wire(), _ASK_SECS)

    def fetch(self, name: str) -> bytes | None:
        """That part, if it has been sent here by now; None where the replay server writes it to the checkpoint."""
        if self._headers is None or name != self._asked or time.monotonic() < self._fetch_at:
            return None
        self._fetch_at = time.monotonic() + _FETCH_SECS
        if (arrays := self._headers.get(timeout_secs=_LOOK_SECS)) is None:
            return None
        header = tables.Header.from_wire(arrays)
        return header.content if header.number == self._number else None

    def is_wanted(self) -> bool:
        """Whether the ring is about to overwrite what older checkpoints need."""
        arrays = self.status.get(timeout_secs=_LOOK_SECS)
        return arrays is not None and tables.Stored.from_wire(arrays).checkpoint_wanted
