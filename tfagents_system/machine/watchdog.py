"""Ends a process whose main thread hangs in a user's code, and reports where it hung."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import time
from pathlib import Path

_HEADER_BYTES = 400
_REARM_SECS = 1.0
# Added to every allowance: without any hang, the main thread may take this long to report that it lives.
_SLACK_SECS = 7.0


class Watchdog:
    """Ends the process, with exit code 1, unless it is armed again in time.

    Python's faulthandler does it in a thread of C, which needs no GIL: a simulator that never gives it back is ended,
    too. The traces go to a file behind a line that says what was being done, for whoever finds the process dead.

    Args:
      path: The file; `take_report` reads it.
      allowance_secs: How long the main thread may usually be away; a few seconds are added.
    """

    def __init__(self, path: Path, allowance_secs: float) -> None:
        path.parent.mkdir(exist_ok=True)  # No parents: a run directory that was moved away may be put back.
        self._file = open(path, "w+b", buffering=0)  # noqa: SIM115 (open as long as the process lives)
        self._allowance_secs = allowance_secs
        self._what, self._armed_secs = "", allowance_secs
        self._line = b""  # In the file.
        self._due = 0.0
        self._is_armed = False

    def is_due(self) -> bool:
        """Whether to `arm` again: it is not armed, or was armed a second ago."""
        return not self._is_armed or time.monotonic() >= self._due

    def keep(self) -> None:
        """Reports that the main thread lives, if it is armed. Costs something once a second at most."""
        if self._is_armed and time.monotonic() >= self._due:
            self.arm(self._what, self._armed_secs)

    def arm(self, what: str, allowance_secs: float | None = None) -> None:
        """Ends the process after that time, unless this or `cancel` is called before. Takes 0.1 ms; the file is written
        only where it is to say something else.

        Args:
          what: What is being done: the subject of "has not returned for 300 s".
          allowance_secs: None: the usual.
        """
        self._what, self._armed_secs = what, self._allowance_secs if allowance_secs is None else allowance_secs
        self._due = time.monotonic() + _REARM_SECS
        self._is_armed = True
        self._file.seek(_HEADER_BYTES)
        faulthandler.dump_traceback_later(self._armed_secs + _SLACK_SECS, exit=True, file=self._file)
        line = f"{self._what} has not returned for {self._armed_secs:g} s".encode()[: _HEADER_BYTES - 2]
        if line == self._line:
            return
        self._line = line
        with contextlib.suppress(OSError):  # A full disk: the process is ended in time all the same.
            os.pwrite(self._file.fileno(), line.ljust(_HEADER_BYTES - 1) + b"\n", 0)

    def cancel(self) -> None:
        """Disarms it: no code of the user's runs now, so the process may take as long as it likes."""
        if self._is_armed:
            self._is_armed = False
            faulthandler.cancel_dump_traceback_later()


def take_report(path: Path) -> list[str]:
    """What a watchdog said when it ended its process: its line, then the traces; empty if it did not. Removes it."""
    try:
        content = path.read_bytes()
        path.unlink()
    except OSError:
        return []
    if len(content) <= _HEADER_BYTES:
        return []
    lines = content.decode(errors="replace").splitlines()
    return [lines[0].rstrip(), *lines[1:]]
