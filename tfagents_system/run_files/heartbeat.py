"""What a role last reported: one small JSON file, replaced atomically."""

from __future__ import annotations

import contextlib
import json
import math
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tfagents_system.machine.files import write_atomically
from tfagents_system.machine.threads import repeated
from tfagents_system.run_files.beats import Beat, read_heartbeat
from tfagents_system.run_files.run_paths import RunPaths

__all__ = ["Beat", "read_heartbeat"]


BEAT_SECS = 2.0  # Between two beats of a role, at least.
STALE_SECS = 60.0  # A role without a beat for so long is gone. Files on other machines may be seen late.
_AT_ONCE = ("done", "stopped")  # Last words.


class BeatFile:
    """A heartbeat file that is written at intervals; what comes in between is written at the next one.

    Args:
      path: The file.
      every_secs: Least time between two writes.
      tell: Also gets what is written.
    """

    def __init__(self, path: Path, every_secs: float, tell: Callable[[dict[str, Any]], None] | None = None) -> None:
        with contextlib.suppress(OSError):  # As with a file that can't be written: reported then, and no error.
            path.parent.mkdir(exist_ok=True)  # No parents: a run directory that was moved away may be put back.
        self._path = path
        self.every_secs = every_secs
        self._lock = threading.Lock()
        self._next = 0.0
        self._pending: dict[str, Any] | None = None
        self._timer: threading.Timer | None = None
        self._failed = False
        self.tell = tell

    @property
    def is_due(self) -> bool:
        """Whether a beat would be written now."""
        return time.monotonic() >= self._next

    def write(self, content: dict[str, Any], *, at_once: bool = False) -> None:
        """Writes it, now or at the next interval. A file that can't be written is reported once and is no error."""
        with self._lock:
            if at_once or self.is_due:
                self._write(content)
                return
            self._pending = content
            if self._timer is None:
                self._timer = threading.Timer(self._next - time.monotonic(), self.flush)
                self._timer.daemon = True
                self._timer.start()

    def flush(self) -> None:
        """Writes now what is waiting."""
        with self._lock:
            if self._pending is not None:
                self._write(self._pending)

    def _write(self, content: dict[str, Any]) -> None:
        self._next, self._pending = time.monotonic() + self.every_secs, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        content = _plain(content)
        try:
            write_json(self._path, content)
            if self.tell is not None:
                self.tell(content)
        except (OSError, ValueError) as error:
            if not self._failed:
                print(f"heartbeat {self._path}: {getattr(error, 'strerror', error)}", file=sys.stderr, flush=True)
            self._failed = True


class Heartbeat:
    """Writes one role's heartbeat.

    Args:
      path: The file.
      role: Name of the role, in every beat.
      min_secs: Least time between two beats that are written.
    """

    def __init__(self, path: Path, role: str, min_secs: float = BEAT_SECS) -> None:
        self._file = BeatFile(path, min_secs)
        self._fixed = {"role": role, "pid": os.getpid(), "host": socket.gethostname()}
        self._state: str | None = None
        self._since = 0.0

    def tell_too(self, tell: Callable[[dict[str, Any]], None] | None) -> None:
        """Passes on every beat that is written from now on."""
        self._file.tell = tell

    def beat(self, state: str, *, force: bool = False, **fields: Any) -> None:
        """Records what the role does now, the time of this beat, and when this state began (Unix seconds).

        The first state, the one after `starting` and last words are written at once, other changes of the state when
        the next beat is due, whatever the role does then. Calling often costs little.

        Args:
          state: `starting`, `waiting`, `updating`, ...
          force: Write at once.
          **fields: Numbers, texts, lists or dictionaries; NaN and infinity are written as null.
        """
        is_news = state != self._state
        if not (is_news or force or self._file.is_due):
            return
        at_once = force or (is_news and (self._state in (None, "starting") or state in _AT_ONCE))
        if is_news:
            self._state, self._since = state, time.time()
        content = {**self._fixed, "state": state, "since": self._since, "time": time.time(), **fields}
        self._file.write(content, at_once=at_once)

    @contextlib.contextmanager
    def during(self, state: str, doing: Callable[[], str] = str) -> Iterator[None]:
        """Beats beside long work that has no place for it, with the text of what it is at."""
        with repeated(lambda: self.beat(state, doing=doing() or None), self._file.every_secs):
            yield


class BeatReader:
    """The heartbeats of roles elsewhere, for loops that never wait for a file system: a thread reads them.

    Args:
      paths: The run directory.
      every_secs: Time between two rounds, which read all that were asked for meanwhile.

    Attributes:
      lag_secs: How much later than the role itself an answer may be.
    """

    def __init__(self, paths: RunPaths, every_secs: float = BEAT_SECS) -> None:
        self._paths = paths
        self._every_secs = every_secs
        self.lag_secs = 2 * self._every_secs  # It is written no more often.
        self._changed = threading.Condition()
        self._wanted: set[str] = set()
        self._beats: dict[str, Beat] = {}
        self._thread: threading.Thread | None = None

    def last(self, role: str) -> Beat | None:
        """The last beat of a role, empty where it has none; None: not read yet, ask again."""
        with self._changed:
            self._want([role])
            return self._beats.get(role)

    def wait(self, roles: Iterable[str], secs: float) -> None:
        """Waits until `last` knows all of these roles: for loops that ask too rarely to find an answer by then."""
        roles = list(roles)
        with self._changed:
            self._want(roles)
            self._changed.wait_for(lambda: all(role in self._beats for role in roles), secs)

    def _want(self, roles: Iterable[str]) -> None:
        self._wanted.update(roles)
        if self._thread is None:
            self._thread = threading.Thread(target=self._read_forever, name="heartbeats", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _read_forever(self) -> None:
        while True:
            with self._changed:
                if not self._wanted:
                    self._beats = {}  # Whoever asks after a pause wants no old answer.
                self._changed.wait_for(lambda: self._wanted)
                wanted, self._wanted = self._wanted, set()
            beats = {role: read_heartbeat(self._paths.heartbeat(role)) or Beat() for role in wanted}
            with self._changed:
                self._beats = beats
                self._changed.notify_all()
            time.sleep(self._every_secs)


def json_text(content: Mapping[str, Any], indent: int | None = None) -> str:
    """JSON that every reader accepts: NaN and infinity become null, objects that JSON lacks their text."""
    return json.dumps(_plain(content), allow_nan=False, indent=indent)


def write_json(path: Path, content: Mapping[str, Any], indent: int | None = None) -> None:
    """Replaces a JSON file atomically.

    Args:
      path: The file, in a folder that exists: none is made, a run directory that was moved away may be put back.
      content: Its content.
      indent: Where people read it.

    Raises:
      OSError: The disk is full, the folder is gone.
    """
    write_atomically(path, json_text(content, indent).encode() + b"\n")


def read_json(path: Path) -> dict[str, Any] | None:
    """A JSON object from a file, None where the file is missing or is anything else."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def _plain(value: Any) -> Any:
    """Only what every JSON reader accepts: no NaN, no infinity, no arrays; anything else as its text."""
    if hasattr(value, "tolist"):  # NumPy's scalars and arrays, without importing NumPy for them.
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)
