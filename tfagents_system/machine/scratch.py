"""The folder of a ring on scratch (SAC_REPLAY_DIR): used only if it is its user's alone.

Scratch may be shared, and the folder's name follows from the run directory's: anybody may have made it, or a link.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from tfagents_system.errors import UserError

# What a ring was made for; only we leave it in such a folder.
DESCRIPTION = "layout.json"
_REMEDY = "remove it, or set SAC_REPLAY_DIR to a folder that is yours alone"


def make_private(folder: Path) -> None:
    """Makes a folder that only its user can enter; closes one with a ring of an earlier start to others.

    Raises:
      UserError: It can't be made, or see `fault_of`.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        is_new = _make(folder)
        if (fault := fault_of(folder)) is not None:
            raise UserError(fault)
        descriptor = _open(folder)
        try:
            if is_new or DESCRIPTION in os.listdir(descriptor):
                os.fchmod(descriptor, 0o700)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise UserError(f"{folder} can't be made ({error.strerror}): set SAC_REPLAY_DIR to another folder") from None


def fault_of(folder: Path) -> str | None:
    """Why a ring can't be kept in a folder; None if it can, or nothing is there. Writes nothing."""
    try:
        descriptor = _open(folder)
    except FileNotFoundError:
        return None
    except OSError:
        return f"{folder} is a link, no folder, or another user's: {_REMEDY}"
    try:
        found, names = os.fstat(descriptor), os.listdir(descriptor)
        if found.st_uid != os.geteuid():
            return f"{folder} is another user's (user {found.st_uid}): {_REMEDY}"
        is_rings_own = DESCRIPTION in names and not found.st_mode & stat.S_ISVTX
        if not is_rings_own and found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return f"{folder} can be written by other users: close it to them (chmod 700), or {_REMEDY}"
        for name in names:
            entry = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
            if entry.st_uid != os.geteuid() or stat.S_ISLNK(entry.st_mode):
                return f"{folder / name} is a link, or another user's: {_REMEDY}"
        return None
    finally:
        os.close(descriptor)


def _make(folder: Path) -> bool:
    """Makes the folder; returns whether there was none."""
    try:
        os.mkdir(folder, 0o700)
        return True
    except FileExistsError:
        return False


def _open(folder: Path) -> int:
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
