"""How much memory processes take, and how they keep it."""

from __future__ import annotations

import contextlib
import ctypes
import os
from pathlib import Path

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_PROC = Path("/proc")
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # of mallopt(3)


def resident_bytes(pid: int) -> int:
    """Resident memory of one process; 0 once it is gone."""
    try:
        return int((_PROC / str(pid) / "statm").read_text().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError, ValueError):
        return 0


def tree_resident_bytes(pid: int) -> int:
    """Resident memory of a process and of all that it has started. What they share is counted for each."""
    return resident_bytes(pid) + sum(map(tree_resident_bytes, children(pid)))


def oom_kills(proc: Path = _PROC, mounts: Path = Path("/sys/fs/cgroup")) -> int:
    """Processes that the kernel has killed for lack of memory in this process's cgroup, as those of a SLURM job are.

    Where it has none that counts them: on this machine.
    """
    try:
        groups = [line.split(":", 2)[1:] for line in (proc / "self/cgroup").read_text().splitlines()]
    except OSError:
        groups = []
    counters = [mounts / group.strip("/") / "memory.events" for names, group in groups if not names]
    counters += [
        mounts / "memory" / group.strip("/") / "memory.oom_control"
        for names, group in groups
        if "memory" in names.split(",")
    ]
    for path in (*counters, proc / "vmstat"):
        with contextlib.suppress(OSError, ValueError):
            counts = dict(line.split() for line in path.read_text().splitlines())
            if "oom_kill" in counts:
                return int(counts["oom_kill"])
    return 0


def children(pid: int) -> list[int]:
    """The children of a process, by /proc alone: looking at every process of the machine would take milliseconds."""
    found: list[int] = []
    try:
        for thread in os.listdir(_PROC / str(pid) / "task"):
            found += map(int, (_PROC / str(pid) / "task" / thread / "children").read_text().split())
    except OSError:
        pass  # It is gone, or just going.
    return found


def keep_freed_memory() -> None:
    """Has malloc keep what is freed: a process that handles megabytes again and again does not pay for fresh pages.

    Call it before threads are started. Without it a sixth of a gateway's CPU time for blocks of minibatches goes into
    page faults. Does nothing off glibc.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)
        mallopt(_M_MMAP_THRESHOLD, 32 * 2**20)
        mallopt(_M_TRIM_THRESHOLD, 2**30)
