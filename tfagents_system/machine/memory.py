"""How much memory processes use, and how they keep it."""

from __future__ import annotations

import contextlib
import math
import os
import time
from pathlib import Path

from tfagents_system.machine.processes import cgroups, children

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_LOOK_SECS, _RECENT_SECS = 1.0, 30.0  # A process with much memory takes seconds to end.
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


def oom_kills(proc: Path = Path("/proc"), mounts: Path = Path("/sys/fs/cgroup")) -> int:
    """Counts the processes that the kernel killed for lack of memory in this process's cgroup, such as a SLURM job's.

    Without a cgroup that counts them: on this machine.
    """
    groups = cgroups("memory", proc / "self/cgroup", mounts)
    counters = [own / ("memory.events" if is_v2 else "memory.oom_control") for is_v2, (own, *_) in groups]
    for path in (*counters, proc / "vmstat"):
        with contextlib.suppress(OSError, ValueError):
            counts = dict(line.split() for line in path.read_text().splitlines())
            if "oom_kill" in counts:
                return int(counts["oom_kill"])
    return 0


class OomWatch:
    """Whether the kernel has just killed a process for lack of memory, see `oom_kills`."""

    def __init__(self) -> None:
        self._kills, self._seen_at, self._look_at = oom_kills(), -math.inf, 0.0

    def look(self) -> None:
        """To be called again and again: a kill counts from when it is seen."""
        if time.monotonic() >= self._look_at:
            self.has_killed()

    def has_killed(self) -> bool:
        now, kills = time.monotonic(), oom_kills()
        self._look_at = now + _LOOK_SECS
        if kills > self._kills:
            self._kills, self._seen_at = kills, now
        return now - self._seen_at < _RECENT_SECS
