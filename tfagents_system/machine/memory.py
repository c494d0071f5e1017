"""How much memory processes use, and how they keep it."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from tfagents_system.machine.processes import children

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # of mallopt(3)


def resident_bytes(pid: int) -> int:
    """Resident memory of one process; 0 once it is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError, ValueError):
        return 0


def tree_resident_bytes(pid: int) -> int:
    """Resident memory of a process and of all that it has started. Shared pages are counted for each."""
    return resident_bytes(pid) + sum(map(tree_resident_bytes, children(pid)))


def keep_freed_memory() -> None:
    """Makes malloc keep freed memory: a process that handles megabytes repeatedly does not pay for fresh pages.

    Call it before threads are started. Without it a sixth of a gateway's CPU time for blocks of minibatches goes into
    page faults. Does nothing off glibc.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)
        mallopt(_M_MMAP_THRESHOLD, 32 * 2**20)
        mallopt(_M_TRIM_THRESHOLD, 2**30)
