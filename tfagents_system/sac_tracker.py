"""The tracker program: sends metrics to Weights & Biases or MLflow, in a process that the run can do without."""

from __future__ import annotations

from typing import NoReturn

from absl import logging

from tfagents_system.errors import EXIT_DONE, EXIT_RESUMABLE
from tfagents_system.report.tracking import Tracker, alone, read_tracked
from tfagents_system.role import Role, run_role
from tfagents_system.run_files.run_paths import TRACKER

_LOOK_SECS = 5.0


def follow(role: Role) -> int:
    """Sends rows as they come, until it is told to stop; returns the exit code."""
    tracked = read_tracked(role.paths)
    if tracked is None:
        return EXIT_DONE
    with alone(role.paths):
        tracker = Tracker(role.paths, tracked, logging.warning)
        while not role.stop.is_set():
            tracker.look()
            role.heartbeat.beat("sending", waiting=tracker.waiting())
            role.stop.wait(_LOOK_SECS)
        role.heartbeat.beat("ending", waiting=tracker.waiting())
        tracker.look()
        tracker.close()
        role.heartbeat.beat("stopped", waiting=tracker.waiting())
    return EXIT_RESUMABLE


def main() -> NoReturn:
    run_role(TRACKER, follow)
