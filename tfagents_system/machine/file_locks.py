"""Locks among processes: flock, which the kernel releases when its holder dies, however it dies."""

from __future__ import annotations

import errno
import fcntl
from pathlib import Path

from tfagents_system.errors import UserError

_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


def lock(descriptor: int, path: Path, *, waits: bool = True) -> bool:
    """Locks an open file until it is closed.

    Args:
      descriptor, path: Of the file.
      waits: For a process that has it. Without, False is returned then.

    Raises:
      UserError: Its file system has no locks.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        raise UserError(
            f"{path} can't be locked, its file system has no locks ({error.strerror}): put it on one that has "
            "(SAC_LOGS_DIR; NFS needs version 4, or the lock service and no `nolock`)"
        ) from None
    return True
