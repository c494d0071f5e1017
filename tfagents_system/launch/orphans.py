"""Roles that outlive a supervisor that was killed: they save and end by themselves, as with any stop."""

from __future__ import annotations

import time
from collections.abc import Callable

from tfagents_system.machine import processes
from tfagents_system.machine.processes import processes_of_run
from tfagents_system.run_files.run_lock import owner_of_run
from tfagents_system.run_files.run_paths import RunPaths

_POLL_SECS = 0.2


def wait_for_orphans(paths: RunPaths, deadline_secs: float) -> None:
    """Waits until they have saved; call it before the run directory is locked.

    Once another start has the lock, they complete no further checkpoint (`run_lock.may_write`).
    """
    _wait(paths, deadline_secs, lambda: owner_of_run(paths) is None)


def end_orphans(paths: RunPaths, deadline_secs: float) -> None:
    """Waits until they have ended, and kills them at the deadline; for the holder of the run directory's lock."""
    if _wait(paths, deadline_secs, lambda: True):
        return
    if stuck := processes.end_all(lambda: processes_of_run(paths.exp_dir)):
        print(f"note: {processes.describe_stuck('an earlier start of this run', stuck)}", flush=True)


def _wait(paths: RunPaths, deadline_secs: float, may_wait: Callable[[], bool]) -> bool:
    """Waits; returns whether none is left. Says once that it waits."""
    deadline = time.monotonic() + deadline_secs
    told = False
    while orphans := processes_of_run(paths.exp_dir):
        if time.monotonic() > deadline or not may_wait():
            return False
        if not told:
            told = True
            print(f"waiting for {len(orphans)} processes of an earlier start of this run to save and end", flush=True)
        time.sleep(_POLL_SECS)
    return True
