"""A run directory that is removed, or taken over by another start, ends the start that runs in it."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

from tfagents_system.run_files.run_lock import RunLock
from tfagents_system.run_files.run_paths import RunPaths

_LOCK_SECS = 1.0


class DirectoryGuard:
    """Checks whether a run directory still belongs to this start.

    Args:
      paths: Of the run.
      lock: Of the directory; without one nobody can take it over.

    Attributes:
      is_ours: False once another start has taken it over: this one must no longer write into it.
    """

    def __init__(self, paths: RunPaths, lock: RunLock | None) -> None:
        self._paths = paths
        self._lock = lock
        self._lock_due = 0.0
        self._directory: int | None = None  # Open, so that no other one gets its inode number.
        self.is_ours = True

    def open(self) -> None:
        """Takes the directory that exists now as the run's."""
        self._directory = os.open(self._paths.exp_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def close(self) -> None:
        if self._directory is not None:
            os.close(self._directory)

    def why_gone(self) -> str | None:
        """Why nothing can be saved any more: what is written into a removed directory is lost."""
        if self._directory is None or not _is_gone(self._paths.exp_dir, self._directory):
            return None
        return (
            f"the run directory {self._paths.exp_dir} was removed or replaced while the run was going: put it back "
            "and start the same command again, or start over with that command"
        )

    def is_taken(self) -> bool:
        """Whether another start has taken it over: True once, then `is_ours` is False. Looks at intervals."""
        if self._lock is None or not self.is_ours or not self._is_time():
            return False
        if self._lock.is_own():
            self._lock.touch()
            return False
        self.is_ours = False
        return True

    def by_whom(self) -> str:
        """The message for a directory that was taken over."""
        owner = self._lock.describe_owner() if self._lock is not None else "another start"
        what = f"the run directory {self._paths.exp_dir} was taken over by {owner}"
        return f"{what}: this start ends and writes nothing more"

    def _is_time(self) -> bool:
        if time.monotonic() < self._lock_due:
            return False
        self._lock_due = time.monotonic() + _LOCK_SECS
        return True


def _is_gone(directory: Path, opened: int) -> bool:
    """Whether a path no longer leads to the directory that was opened there; a file system's error proves nothing."""
    try:
        return not os.path.samestat(os.stat(directory), os.fstat(opened))
    except OSError as error:
        return error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ESTALE)
