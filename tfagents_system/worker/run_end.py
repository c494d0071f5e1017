"""Whether a worker is to end: it was told to stop, or the run that it has joined is over."""

from __future__ import annotations

import threading

from tfagents_system.role import Role
from tfagents_system.transport import tables
from tfagents_system.transport.connection import Connection, StoppedError
from tfagents_system.worker.environment_guard import EnvironmentGuard
from tfagents_system.worker.progress import ProgressReader


class RunEnd:
    """Asked by whatever waits.

    Args:
      role: The worker's process.
      guard: Told that the worker waits.

    Attributes:
      progress: Of the trainer, as soon as it is read.
      connection: To the replay server, as soon as there is one.
    """

    def __init__(self, role: Role, guard: EnvironmentGuard) -> None:
        self._role = role
        self._guard = guard
        self.connection: Connection | None = None
        self.progress: ProgressReader | None = None

    def is_stopped(self) -> bool:
        """Asked by whatever waits for the replay server: the worker itself, or a thread beside its steps."""
        if threading.current_thread() is threading.main_thread():
            self._guard.waiting()
        return self._role.stop.is_set() or self.is_over()

    def is_told_to_stop(self) -> bool:
        """Asked while an environment's own process is waited for: that one has deadlines of its own."""
        self._guard.waiting()
        return self._role.stop.is_set()

    def is_over(self) -> bool:
        """Whether the run that this worker has joined is: it says so, or all is trained and its server is gone.

        The run's own workers are stopped by their supervisor.
        """
        if self._role.joined is None:
            return False
        if self._role.joined.ended() is not None:
            return True
        progress = self.progress.newest if self.progress is not None else None
        is_trained = progress is not None and progress.iteration >= self._role.params.num_iter
        return is_trained and self.connection is not None and self.connection.size(tables.PROGRESS) is None

    def check(self) -> None:
        """Raises:
        StoppedError: The run that this worker has joined is over.
        """
        if self.is_over():
            raise StoppedError
