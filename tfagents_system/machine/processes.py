"""Other processes of this machine: what they are, and how they are ended for good.

Some simulators start a player in a session of its own (Unity's does), which no signal to a session or process group
reaches. It inherits the environment, though, and with it the mark of what started it.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from tfagents_system.machine.signals import SUPERVISOR_PID_VARIABLE

# SIGKILL takes effect when a process leaves the kernel: one that waits there for a dead file server may never do so.
KILL_SECS = 10.0
_FIRST_SLEEP_SECS, _LONGEST_SLEEP_SECS = 0.001, 0.05
_PROC = Path("/proc")
_MEMBERSHIP, _CGROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


def kill_all(pids: Collection[int]) -> None:
    """Sends SIGKILL to each; skips those that are gone or another user's."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def kill_session(*sessions: int) -> None:
    """Sends SIGKILL to every process of these sessions, and to the process groups of their leaders."""
    for session in sessions:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(session, signal.SIGKILL)
    kill_all([pid for pid in _all_pids() if session_of(pid) in sessions])


def end_marked(marks: Collection[str]) -> list[int]:
    """Kills every process but this one that has one of these NAME=VALUE in its environment.

    Returns:
      Those that have not ended within KILL_SECS.
    """
    wanted = {mark.encode() for mark in marks}
    return end_all(lambda: [pid for pid in _all_pids() if pid != os.getpid() and wanted & environment_of(pid)])


def end_all(find: Callable[[], Collection[int]]) -> list[int]:
    """Kills what `find` returns until it returns nothing: while one is killed, another may still start a third.

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


def wait_until(is_so: Callable[[], bool], secs: float) -> bool:
    """Polls, quickly at first, until `is_so()`; False when that takes longer than `secs`."""
    deadline, sleep_secs = time.monotonic() + secs, _FIRST_SLEEP_SECS
    while not is_so():
        if time.monotonic() > deadline:
            return False
        time.sleep(sleep_secs)
        sleep_secs = min(2.0 * sleep_secs, _LONGEST_SLEEP_SECS)
    return True


def describe_stuck(what: str, pids: Sequence[int]) -> str:
    """The message for processes that SIGKILL has not ended."""
    return (
        f"{what} has not ended {KILL_SECS:g} s after SIGKILL: the kernel holds on to pid {', '.join(map(str, pids))}, "
        "perhaps for a disk or file server that does not answer; nothing waits for it any longer"
    )


def _all_pids() -> Iterator[int]:
    with contextlib.suppress(OSError):  # /proc can't be listed without a file descriptor to spare.
        yield from (int(entry) for entry in os.listdir(_PROC) if entry.isdigit())


def environment_of(pid: int) -> set[bytes]:
    """A process's initial environment, each NAME=VALUE; empty for one that has ended or is another user's."""
    try:
        return set((_PROC / str(pid) / "environ").read_bytes().split(b"\0"))
    except OSError:
        return set()


def processes_of_run(exp_dir: Path) -> list[int]:
    """Processes on this machine that work in `exp_dir` for a supervisor that has died.

    Those of another one that is alive descend from it.
    """
    wanted, mark = f"SAC_EXP_DIR={exp_dir}".encode(), f"{SUPERVISOR_PID_VARIABLE}=".encode()
    orphans = []
    for pid in _all_pids():
        environ = environment_of(pid)
        if wanted in environ:
            texts = (entry.removeprefix(mark) for entry in environ if entry.startswith(mark))
            supervisors = {int(text) for text in texts if text.isdigit()}  # What is no number is none of ours.
            ancestors = list(_ancestors(pid))  # None: it has ended meanwhile.
            if supervisors and ancestors and supervisors.isdisjoint({os.getpid(), pid, *ancestors}):
                orphans.append(pid)
    return orphans


def children(pid: int) -> list[int]:
    """The children of a process, by /proc alone: looking at every process of the machine would take milliseconds."""
    pids: list[int] = []
    with contextlib.suppress(OSError):  # It has ended, or is ending.
        for thread in os.listdir(_PROC / str(pid) / "task"):
            pids += map(int, (_PROC / str(pid) / "task" / thread / "children").read_text().split())
    return pids


def resident_bytes(pid: int) -> int:
    """Resident memory of one process; 0 once it is gone."""
    try:
        return int((_PROC / str(pid) / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0


def tree_resident_bytes(pid: int) -> int:
    """Resident memory of a process and of all that it has started. Shared pages are counted for each."""
    return resident_bytes(pid) + sum(map(tree_resident_bytes, children(pid)))


def _ancestors(pid: int) -> Iterator[int]:
    while (fields := _stat(pid)) is not None and (pid := int(fields[4 - 3])) > 0:
        yield pid


def session_of(pid: int) -> int | None:
    """The session that a process is in; None for one that is gone."""
    try:
        return os.getsid(pid)
    except OSError:
        return None


def begun(pid: int) -> str | None:
    """When a process began, unique for its pid across boots of this machine; None for one that has ended.

    A zombie has ended, too.
    """
    fields = _stat(pid)
    return None if fields is None or fields[0] in "ZX" else f"{_boot_id()} {fields[22 - 3]}"


def is_alive(pid: int, since: str | None = None) -> bool:
    """Whether a process exists and has not ended; with `since` (see `begun`), a later one of its pid does not count."""
    began = begun(pid)
    return began is not None and since in (None, began)


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/<pid>/stat from the third on, see proc_pid_stat(5); None for a process that is gone."""
    try:
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return fields if len(fields) > 22 - 3 else None


@functools.cache
def _boot_id() -> str:
    with contextlib.suppress(OSError):
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    return ""


def cgroups(controller: str) -> Iterator[tuple[bool, Sequence[Path]]]:
    """For each hierarchy with a controller: (whether it is version 2, folders of the group and of its ancestors)."""
    try:
        lines = _MEMBERSHIP.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        tops = (_CGROUPS / controllers, _CGROUPS / controller) if controllers else ()
        top = next((folder for folder in tops if folder.is_dir()), _CGROUPS)
        own = top / group.strip("/")
        # Inside a container the path may be the host's, which is missing here: the container's own group is the top.
        yield not controllers, (own, *(folder for folder in own.parents if folder.is_relative_to(top)))


_apart: set[int] = set()


def start_apart(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Starts a child that is nobody's orphan: other code than the supervisor's looks after it. Options go to Popen."""
    process = subprocess.Popen(command, **options)
    _apart.add(process.pid)
    return process


def started_apart() -> set[int]:
    """Pids of all children that `start_apart` has started, those that have ended included."""
    return set(_apart)
