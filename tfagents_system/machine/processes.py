"""Ends processes for good: whole sessions, and what has left its session but still says in its environment whose it is.

Some simulators start a player in a session of its own (Unity's does), which no signal to a session or process group
reaches. It inherits the environment, though, and with it the mark of what started it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

# SIGKILL takes effect when a process leaves the kernel: one that waits there for a dead file server may never do so.
KILL_SECS = 10.0
_FIRST_SLEEP_SECS, _LONGEST_SLEEP_SECS = 0.001, 0.05


def kill_session(*sessions: int) -> None:
    """SIGKILL for every process of these sessions, and for the process groups of their leaders."""
    for session in sessions:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(session, signal.SIGKILL)
    for pid in _all_pids():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getsid(pid) in sessions:
                os.kill(pid, signal.SIGKILL)


def kill_all(pids: Collection[int]) -> None:
    """SIGKILL for each; those that are gone or another user's are passed over."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def end_marked(marks: Collection[str]) -> list[int]:
    """Kills every process, but for this one, that has one of these NAME=VALUE in its environment.

    Returns:
      Those that have not ended within KILL_SECS.
    """
    wanted = {mark.encode() for mark in marks}
    return end_all(lambda: [pid for pid in _all_pids() if pid != os.getpid() and wanted & environment_of(pid)])


def end_all(find: Callable[[], Collection[int]]) -> list[int]:
    """Kills what `find` gives until it gives nothing: while one is killed, another may still start a third.

    Returns:
      Those that have not ended within KILL_SECS.
    """
    left: list[int] = []
    looks = 0

    def all_ended() -> bool:
        nonlocal looks
        left[:] = find()
        kill_all(left)
        # The kernel's list of children leaves some out while others end: it must be empty twice in a row.
        looks = 0 if left else looks + 1
        return looks == 2

    wait_until(all_ended, KILL_SECS)
    return left


def environment_of(pid: int) -> set[bytes]:
    """What a process was started with, each NAME=VALUE; empty for one that has ended or is another user's."""
    try:
        return set(Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
    except OSError:
        return set()


def session_of(pid: int) -> int | None:
    """The session that a process is in; None for one that is gone."""
    try:
        return os.getsid(pid)
    except OSError:
        return None


def is_alive(pid: int) -> bool:
    """Whether a process is there and has not ended: one that nobody has waited for yet has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (OSError, IndexError):
        return False


def describe_stuck(what: str, pids: Sequence[int]) -> str:
    """What to tell of processes that SIGKILL has not ended."""
    names = ", ".join(f"{pid} ({_waits_in(pid)})" for pid in pids)
    return (
        f"{what} has not ended {KILL_SECS:g} s after SIGKILL: the kernel holds on to pid {names}, for a disk or file "
        "server that does not answer, perhaps; it is not waited for any longer"
    )


def _waits_in(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/wchan").read_text() or "running"
    except OSError:
        return "its place is not told"


def wait_until(is_so: Callable[[], bool], secs: float) -> bool:
    """Asks again and again, soon at first, until it is so; False when that takes longer than `secs`."""
    deadline, sleep_secs = time.monotonic() + secs, _FIRST_SLEEP_SECS
    while not is_so():
        if time.monotonic() > deadline:
            return False
        time.sleep(sleep_secs)
        sleep_secs = min(2.0 * sleep_secs, _LONGEST_SLEEP_SECS)
    return True


def _all_pids() -> Iterator[int]:
    with contextlib.suppress(OSError):  # /proc can't be listed without a file descriptor to spare.
        yield from (int(entry) for entry in os.listdir("/proc") if entry.isdigit())
