"""The number of a trainer's session, by which workers and the replay server tell an earlier one from a later one."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from absl import logging

from tfagents_system.machine.files import read_json, write_json


def next_session(path: Path, last: int, clock: Callable[[], int] = time.time_ns) -> int:
    """A number above those of all sessions of the run, also where the clock was set back since.

    Args:
      path: Remembers the newest one; in the run directory.
      last: The newest one of this process, 0 before the first.
      clock: Nanoseconds since the epoch.
    """
    remembered = (read_json(path) or {}).get("session")
    session = max(clock(), last + 1, remembered + 1 if isinstance(remembered, int) else 0)
    try:
        write_json(path, {"session": session})
    except OSError as error:  # A full disk must not end the run; the clock alone has to do.
        logging.warning("%s can't be written: %s", path, error.strerror)
    return session
