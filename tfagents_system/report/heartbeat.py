"""What a role last said of itself: one small JSON file, replaced atomically."""

from __future__ import annotations

import contextlib
import json
import math
import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Heartbeat:
    """Writes one role's heartbeat.

    Args:
      path: The file.
      role: Name of the role, in every beat.
      min_secs: Beats that come sooner and do not change the state are left out: calling often costs little.

    Attributes:
      tell: Gets every beat as well, None: nobody does.
    """

    def __init__(self, path: Path, role: str, min_secs: float = 0.5) -> None:
        self._path = path
        self._min_secs = min_secs
        self._fixed = {"role": role, "pid": os.getpid(), "host": socket.gethostname()}
        self._state: str | None = None
        self._since = 0.0
        self._next = 0.0
        self._failed = False
        self.tell: Callable[[dict[str, Any]], None] | None = None

    def beat(self, state: str, *, force: bool = False, **fields: Any) -> None:
        """Says what the role does now, with the time of this beat and since when it is in that state (Unix seconds).

        A beat that can't be written (a full disk) is told once on standard error and is no error.

        Args:
          state: `starting`, `waiting`, `updating`, ...
          force: Write whatever the time.
          **fields: Numbers, texts, lists or dictionaries; NaN and infinity are written as null.
        """
        now = time.monotonic()
        if state == self._state and now < self._next and not force:
            return
        if state != self._state:
            self._state, self._since = state, time.time()
        self._next = now + self._min_secs
        content = {**self._fixed, "state": state, "since": self._since, "time": time.time(), **fields}
        try:
            write_json(self._path, content)
            if self.tell is not None:
                self.tell(content)
        except OSError as error:
            if not self._failed:
                print(f"heartbeat {self._path}: {error.strerror}", file=sys.stderr, flush=True)
            self._failed = True


def read_heartbeat(path: Path) -> dict[str, Any] | None:
    """The last beat, None if there is none."""
    return read_json(path)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Replaces a JSON file atomically.

    Raises:
      OSError: The disk is full, the folder is gone.
    """
    text = json.dumps(_plain(content), allow_nan=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def read_json(path: Path) -> dict[str, Any] | None:
    """A JSON object from a file, None where the file is missing or is anything else."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def _plain(value: Any) -> Any:
    """Only what every JSON reader takes: no NaN, no infinity, no arrays; anything else as its text."""
    if hasattr(value, "tolist"):  # NumPy's scalars and arrays, without importing NumPy for them.
        value = value.tolist()
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)
