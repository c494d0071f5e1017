"""The replay server's part of the trainer's checkpoints."""

from __future__ import annotations

from tfagents_system.transport import tables
from tfagents_system.transport.connection import Connection

_ASK_SECS, _LOOK_SECS = 0.2, 1.0


class ReplaySnapshots:
    """Asks the replay server for its part of a checkpoint, and knows whether that one wants a checkpoint.

    Args:
      connection: To the replay server.

    Attributes:
      status: Reads what that one tells of itself.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.status = connection.newest(tables.STATUS)

    def ask(self, name: str) -> None:
        """Has it write its part of the checkpoint with this name; to be repeated until that is there."""
        self._connection.try_put(tables.SNAPSHOTS, tables.Snapshot(name).to_wire(), _ASK_SECS)

    def is_wanted(self) -> bool:
        """Whether the ring is about to overwrite what older checkpoints need."""
        arrays = self.status.get(timeout_secs=_LOOK_SECS)
        return arrays is not None and tables.Stored.from_wire(arrays).checkpoint_wanted
