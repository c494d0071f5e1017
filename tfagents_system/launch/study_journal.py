"""The file that a study is kept in: Optuna's journal, a line for each change, appended under a lock."""

from __future__ import annotations

import os
from pathlib import Path

from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock

_BLOCK = 64 * 1024


def journal_storage(path: Path) -> JournalStorage:
    """Optuna's storage in a journal, which suits network file systems, too; the file is made where there is none."""
    return JournalStorage(JournalFileBackend(str(path), lock_obj=_LockOfWholeLines(path)))


class _LockOfWholeLines(JournalFileSymlinkLock):
    """Optuna's lock of a journal, which is taken to append to it.

    A writer that is killed, or finds the disk full, may leave half a line. Who has the lock next removes it: appended
    to, it would be a line that nobody can read, and with it the study.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self._path = path

    def acquire(self) -> bool:
        super().acquire()
        try:
            _remove_half_line(self._path)
        except BaseException:
            self.release()
            raise
        return True


def _remove_half_line(path: Path) -> None:
    """Cuts off what follows the last newline."""
    with path.open("r+b") as file:
        end = size = file.seek(0, os.SEEK_END)
        while end > 0:
            start = max(0, end - _BLOCK)
            file.seek(start)
            if (newline := file.read(end - start).rfind(b"\n")) >= 0:
                end = start + newline + 1
                break
            end = start
        if end < size:
            file.truncate(end)
