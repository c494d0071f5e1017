"""A process that another one has forked for this one, and the children that this one adopts."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Collection

from tfagents_system.errors import EXIT_FAILED
from tfagents_system.launch.fork_messages import ForkServerError

_PR_SET_CHILD_SUBREAPER = 36


class ForkedProcess:
    """A forked role, a child of this process: the part of subprocess.Popen that its supervisor needs."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        return self._wait(os.WNOHANG)

    def wait(self) -> int | None:
        return self._wait(0)

    def send_signal(self, number: int) -> None:
        """Sends a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _wait(self, options: int) -> int | None:
        if self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, options)
            except ChildProcessError:
                self.returncode = EXIT_FAILED  # Something else has taken its exit code.
            else:
                self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode


def become_subreaper() -> None:
    """From now on, descendants whose parent has ended become children of this process.

    Raises:
      ForkServerError: The kernel refuses.
    """
    if set_subreaper(True):
        reason = os.strerror(ctypes.get_errno())
        raise ForkServerError(f"this process can't become the parent of what is forked for it ({reason})")


def set_subreaper(value: bool) -> bool:
    """Returns whether the kernel refuses."""
    return bool(ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, int(value), 0, 0, 0))


def has_ended(pid: int) -> bool:
    """Whether a child of this process has ended; if so, takes its exit code: its pid may then be another's."""
    try:
        return os.waitpid(pid, os.WNOHANG) != (0, 0)
    except ChildProcessError:
        return True


def reap_orphans(own: Collection[int]) -> None:
    """Reaps ended children that this process adopted but did not start.

    Args:
      own: Pids of those that other code here waits for. While one of them has ended and nobody has taken its exit
        code, it may hide others: call this again.
    """
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and ended.si_pid not in own:
            os.waitpid(ended.si_pid, os.WNOHANG)
