"""Heartbeats: small JSON files in which each role reports what it does; and status.json, which is made of them."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypedDict

import msgspec

from tfagents_system.machine.files import read_json, write_json

BEAT_SECS = 2.0  # Between two beats of a role, at least.
STALE_SECS = 60.0  # A role without a beat for so long is gone. Files on other machines may be seen late.
_AT_ONCE = ("done", "stopped")  # Last words.
LIVE_STATES = ("starting", "running")  # Of a run.
MOST_BYTES = 256 * 1024  # Of a heartbeat; a gateway takes no longer messages either.
_MOST_CHARS = 500
# Counts that continue where an earlier process of the role has ended.
COUNTED = ("env_faults", "eval_env_faults", "episodes")
_LAST_FAULT = ("last_env_fault", "last_env_fault_at")
_complained = set[Path]()


class Beat(TypedDict, total=False):
    """The fields that something relies on; each may be missing. Others are numbers, flags or texts."""

    role: str
    host: str
    pid: int
    state: str
    since: float
    time: float
    remote: bool
    waiting_for: str | None
    doing: str | None
    save_error: str | None
    snapshot_error: str | None
    iteration: int
    num_iter: int
    num_env_steps: int | None
    train_step: int
    env_steps: int | None
    episodes: int
    steps: int
    env_faults: int
    eval_env_faults: int
    last_env_fault: str
    last_env_fault_at: float
    updates_per_s: float | None
    env_steps_per_s: float | None
    train_return: float | None
    eval_return: float | None
    eval_return_std: float | None
    best_eval_return: float | None
    eval_success: float | None
    critic_loss: float | None
    actor_loss: float | None
    alpha: float | None
    time_left_s: float | None
    prior_steps: int | None
    waiting: int | None
    curriculum: dict[str, float | None] | None
    time_shares: dict[str, float | None] | None
    # What a supervisor adds in status.json.
    alive: bool
    restarts: int
    given_up: bool
    failed_with: str | None
    has_worked: bool


def parse_beat(content: bytes) -> Beat | None:
    """Reads a heartbeat from JSON; None if it is not one. Texts are cut, and hold no control characters."""
    if len(content) > MOST_BYTES:
        return None
    try:
        beat = msgspec.json.decode(content)
        msgspec.convert(beat, Beat)
        cleaned: Beat = _clean(beat)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return cleaned if cleaned.get("state") is not None else None


def read_heartbeat(path: Path) -> Beat | None:
    """The last beat in a file, None if there is none."""
    try:
        return parse_beat(path.read_bytes())
    except OSError:
        return None


def is_offline(trainer: Mapping[str, Any]) -> bool:
    """Whether the trainer does its offline updates: they are iteration -1."""
    return (trainer.get("iteration") or 0) < 0


def is_live(run: Mapping[str, Any]) -> bool:
    """Whether a run has not ended, according to its part of status.json."""
    return run.get("state") in LIVE_STATES


def read_status(path: Path) -> dict[str, Any] | None:
    """status.json as a supervisor writes it, its texts like those of heartbeats; None if there is none."""
    status: dict[str, Any] = _clean(read_json(path) or {})
    return {"plan": {}, **status} if status.get("run") and "roles" in status else None


def clean_text(text: str, most_chars: int = _MOST_CHARS) -> str:
    """The text in one line, cut, without control characters."""
    cut = text if len(text) <= most_chars else text[: most_chars - 3] + "..."
    if cut.isprintable():
        return cut
    return "".join(c if c.isprintable() else " " if c.isspace() else "?" for c in cut)


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, int):  # Numbers of other machines; one of 64 bits can be shown and computed with.
        return max(-(2**63), min(2**63 - 1, value))
    if isinstance(value, list):
        return [_clean(item) for item in value]
    if isinstance(value, dict):
        return {clean_text(name): _clean(item) for name, item in value.items()}
    return value


def write_status(path: Path, content: Mapping[str, Any]) -> str:
    """Replaces a heartbeat or status.json. Returns why it can't be written, or an empty text; that is reported once on
    standard error, and no run ends for it.
    """
    try:
        write_json(path, content, is_durable=False)  # The next one is due in seconds.
    except (OSError, ValueError) as error:
        why = str(getattr(error, "strerror", error))
        if path not in _complained:
            print(f"{path}: {why}", file=sys.stderr, flush=True)
        _complained.add(path)
        return why
    return ""


class Heartbeat:
    """Writes one role's heartbeat at intervals; what comes in between is written at the next one.

    Args:
      min_secs: Least time between two beats that are written.
    """

    def __init__(self, path: Path, role: str, min_secs: float = BEAT_SECS) -> None:
        with contextlib.suppress(OSError):
            path.parent.mkdir(exist_ok=True)  # No parents: a run directory that was moved away may be put back.
        self._path, self._min_secs = path, min_secs
        self._fixed = {"role": role, "pid": os.getpid(), "host": socket.gethostname()}
        before: Mapping[str, Any] = read_heartbeat(path) or {}
        self._counted: dict[str, int] = {name: before.get(name) or 0 for name in COUNTED}
        self._last_fault: dict[str, Any] = {name: before[name] for name in _LAST_FAULT if before.get(name)}
        self._state: str | None = None
        self._since = self._next = 0.0
        self._lock = threading.Lock()
        self._pending: dict[str, Any] | None = None
        self._timer: threading.Timer | None = None

    def beat(self, state: str, *, force: bool = False, **fields: Any) -> None:
        """Records what the role does now, the time of this beat, and when this state began (Unix seconds).

        The first state, the one after `starting` and last words are written at once, other changes of the state when
        the next beat is due, whatever the role does then. Calling often costs little.

        Args:
          force: Write at once.
          **fields: Numbers, texts, lists or dictionaries; NaN and infinity are written as null.
        """
        is_news = state != self._state
        if not (is_news or force or time.monotonic() >= self._next):
            return
        at_once = force or (is_news and (self._state in (None, "starting") or state in _AT_ONCE))
        if is_news:
            self._state, self._since = state, time.time()
        content = {**self._fixed, "state": state, "since": self._since, "time": time.time(), **fields}
        content |= {
            name: count + fields.get(name, 0) for name, count in self._counted.items() if count or name in fields
        }
        self._last_fault |= {name: fields[name] for name in _LAST_FAULT if fields.get(name)}
        content |= self._last_fault
        with self._lock:
            if at_once or time.monotonic() >= self._next:
                self._write(content)
                return
            self._pending = content
            if self._timer is None:
                self._timer = threading.Timer(self._next - time.monotonic(), self._write_pending)
                self._timer.daemon = True
                self._timer.start()

    def _write_pending(self) -> None:
        with self._lock:
            if self._pending is not None:
                self._write(self._pending)

    def _write(self, content: dict[str, Any]) -> None:
        self._next, self._pending = time.monotonic() + self._min_secs, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        write_status(self._path, content)

    @contextlib.contextmanager
    def during(self, state: str, doing: Callable[[], str] = str) -> Iterator[None]:
        """Beats beside long work that has no place for it, with the text of what it is at."""
        is_over = threading.Event()

        def repeat() -> None:
            while not is_over.wait(self._min_secs):
                self.beat(state, doing=doing() or None)

        thread = threading.Thread(target=repeat, name="heartbeat", daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()


class TimeShares:
    """Seconds spent on each activity, as shares of the whole since counting began.

    Args:
      after_first: Counting begins when this activity first ends: what comes before it is start-up. None: at once.
      clock: Seconds; monotonic.
    """

    def __init__(self, after_first: str | None = "updates", clock: Callable[[], float] = time.monotonic) -> None:
        self._after_first, self._clock = after_first, clock
        self._began = clock() if after_first is None else None
        self._seconds = defaultdict[str, float](float)
        self._running, self._running_since = "", 0.0  # No activity has an empty name.

    @contextlib.contextmanager
    def spend(self, activity: str) -> Iterator[None]:
        """Counts the time inside the `with` block; a block within another counts for the outer one."""
        if self._running:
            yield
            return
        self._running, self._running_since = activity, self._clock()
        try:
            yield
        finally:
            self._count_running()
            self._running = ""
            if self._began is None and activity == self._after_first:
                self._began = self._clock()
                self._seconds.clear()

    def take_out(self, activity: str, seconds: float) -> None:
        """Counts some seconds of the running block for another activity.

        For what is too short and too frequent for blocks of its own: its seconds are summed up elsewhere.
        """
        self._seconds[activity] += seconds
        self._running_since += seconds

    def shares(self) -> dict[str, float]:
        """Share of each activity so far, in [0, 1], the running one included; empty before counting began."""
        if self._began is None:
            return {}
        if self._running:
            self._count_running()
        return {activity: each / max(1e-9, self.counted_secs) for activity, each in self._seconds.items()}

    @property
    def counted_secs(self) -> float:
        """Seconds since counting began, of which `shares` are shares."""
        return 0.0 if self._began is None else self._clock() - self._began

    def _count_running(self) -> None:
        now = self._clock()
        self._seconds[self._running] += max(0.0, now - self._running_since)
        self._running_since = max(now, self._running_since)
