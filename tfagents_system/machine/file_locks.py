"""Locks among processes: flock, which the kernel releases when its holder dies, however it dies."""

from __future__ import annotations

import errno
import fcntl
from typing import IO, Any

from tfagents_system.errors import UserError

_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


def lock(file: IO[Any], *, waits: bool = True) -> bool:
    """Locks an open file until it is closed.

    Args:
      waits: For a process that has it. Without, False is returned then.

    Raises:
      UserError: Its file system has no locks.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        raise UserError(
            f"{file.name} can't be locked, its file system has no locks ({error.strerror}): put it on one that has "
            "(SAC_LOGS_DIR; NFS needs version 4, or the lock service and no `nolock`)"
        ) from None
    return True
