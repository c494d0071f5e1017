"""Waits for what other processes do, each with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path


def until(condition: Callable[[], object], secs: float, what: str) -> None:
    """Waits for the condition; it fails with `what` if that takes longer."""
    deadline = time.monotonic() + secs
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {secs:g} s"
        time.sleep(0.005)


def gone(pid: int, within_secs: float) -> bool:
    deadline = time.monotonic() + within_secs
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.05)
    return False
