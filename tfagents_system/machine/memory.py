"""How much memory processes use."""

from __future__ import annotations

import os
from pathlib import Path

from tfagents_system.machine.processes import children

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def resident_bytes(pid: int) -> int:
    """Resident memory of one process; 0 once it is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError, ValueError):
        return 0


def tree_resident_bytes(pid: int) -> int:
    """Resident memory of a process and of all that it has started. Shared pages are counted for each."""
    return resident_bytes(pid) + sum(map(tree_resident_bytes, children(pid)))
