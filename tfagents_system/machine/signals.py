"""How every program of a run is told to stop, and how a role ends when its supervisor is gone."""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType

from tfagents_system.errors import EXIT_FAILED

# SLURM sites announce preemption with SIGTERM, SIGUSR1 or SIGUSR2.
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
SUPERVISOR_PID_VARIABLE = "TFAGENTS_SUPERVISOR_PID"
_PR_SET_PDEATHSIG = 1
_ORPHAN_SECS = 1.0  # Between two looks for the supervisor.
# timeout(1), for one, signals its child and then the child's whole process group.
_SAME_SIGNAL_SECS = 0.3


def role_stop_signal(environ: Mapping[str, str] = os.environ) -> signal.Signals:
    """The signal that a supervisor sends to a role to make it save and end.

    SLURM sends its signals to all processes of a job at once. There, roles wait for one that it does not use, so that
    they end in the supervisor's order: if the replay server ended first, the others would have nothing to save to.
    """
    return signal.SIGQUIT if "SLURM_JOB_ID" in environ else signal.SIGTERM


class StopFlag:
    """Set by the first stop signal; must be built in the main thread.

    Args:
      signals: Signals that stop.
      insisting: Signals that count when they are repeated; None: all of them.
      raises: One that counts when it is repeated raises KeyboardInterrupt, in the middle of whatever runs.

    A pipe instead of threading.Event: Event.set() in a signal handler can deadlock with the wait() that it interrupts.

    Attributes:
      signal_number: The first signal received, None before.
      count: Signals received so far; those within a moment of each other count once.
    """

    def __init__(
        self,
        signals: Sequence[signal.Signals] = STOP_SIGNALS,
        *,
        insisting: Sequence[signal.Signals] | None = None,
        raises: bool = False,
    ) -> None:
        self._insisting, self._raises = insisting, raises
        self.signal_number: int | None = None
        self.count = 0
        self._counted_at = -math.inf
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        for number in signals:
            # `nohup` ignores SIGHUP on purpose; every shell's background jobs ignore SIGINT, which means nothing.
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._handle)

    @classmethod
    def of_supervisor(cls, environ: Mapping[str, str] = os.environ, *, raises: bool = False) -> StopFlag:
        """Set by every stop signal, and by a terminal that closes.

        SLURM signals a job's steps and its script, which passes it on: in a job only a person's second signal, a
        Ctrl-C, means haste.
        """
        insisting = [signal.SIGINT] if "SLURM_JOB_ID" in environ else None
        return cls([*STOP_SIGNALS, signal.SIGHUP], insisting=insisting, raises=raises)

    @classmethod
    def of_role(cls, environ: Mapping[str, str] = os.environ) -> StopFlag:
        """Set by every stop signal; in a SLURM job by the supervisor's alone."""
        if (number := role_stop_signal(environ)) in STOP_SIGNALS:
            return cls()
        for ignored in STOP_SIGNALS:
            # Unlike SIG_IGN, which programs that a role starts would inherit.
            signal.signal(ignored, lambda number, frame: None)
        return cls([number])

    def is_set(self) -> bool:
        return self.signal_number is not None

    def set(self, signal_number: int = signal.SIGTERM) -> None:
        """Does what a signal does, for callers that have another reason to stop; safe in any thread."""
        now = time.monotonic()
        is_new = now - self._counted_at > _SAME_SIGNAL_SECS
        if is_new and (self.count == 0 or self._insisting is None or signal_number in self._insisting):
            self.count += 1
        self._counted_at = now
        if self.signal_number is None:
            self.signal_number = signal_number
        with contextlib.suppress(BlockingIOError):  # The pipe is full of earlier signals: readable all the same.
            os.write(self._writer, b"\0")

    def wait(self, timeout_secs: float) -> bool:
        """Sleeps until a stop signal arrives, at most `timeout_secs`; returns whether one has."""
        if not self.is_set():
            select.select([self._reader], [], [], max(0.0, timeout_secs))
        return self.is_set()

    def _handle(self, signal_number: int, frame: FrameType | None) -> None:
        del frame
        counted = self.count
        self.set(signal_number)
        if self._raises and self.count > max(1, counted):
            raise KeyboardInterrupt

    def close(self) -> None:
        """Frees its pipe; its signals must do something else by then."""
        os.close(self._reader)
        os.close(self._writer)


@contextlib.contextmanager
def raising_when_insisted(environ: Mapping[str, str] = os.environ) -> Iterator[StopFlag]:
    """Yields a supervisor's StopFlag that raises; afterwards signals do what they did before. For the main thread."""
    handlers = {number: signal.getsignal(number) for number in (*STOP_SIGNALS, signal.SIGHUP)}
    stop = StopFlag.of_supervisor(environ, raises=True)
    try:
        yield stop
    finally:
        for number, handler in handlers.items():
            if handler is not None:  # Which was not installed by Python.
                signal.signal(number, handler)
        stop.close()


def is_orphan(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether this role's supervisor is gone. What stopped it has then stopped all other roles as well, all at once."""
    supervisor = environ.get(SUPERVISOR_PID_VARIABLE, "")
    return supervisor.isdigit() and int(supervisor) != os.getppid()


def die_with_parent(number: signal.Signals | None = None) -> None:
    """Makes the kernel stop this process when its supervisor dies, however that happens.

    Call it first in main(): it ends the process at once if the supervisor is gone already.

    Args:
      number: The signal that it gets, by default `role_stop_signal`.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(number or role_stop_signal()), 0, 0, 0)
    # A supervisor that died before the line above sends nothing any more.
    if is_orphan():
        print("error: the supervisor of this run is gone: start the run again with run_script.sh", file=sys.stderr)
        sys.exit(EXIT_FAILED)


def end_as_orphan(deadline_secs: float) -> None:
    """Kills this role (SIGALRM) when its supervisor has been gone for so long, also while it blocks in C++.

    A call in C++ that holds the GIL stops all of Python's threads. So the death signal of a thread of its own calls
    alarm(2) in the kernel's signal handling, which ends the process 64 seconds after its supervisor.
    """

    def watch() -> None:
        libc, number = ctypes.CDLL(None), int(signal.SIGRTMAX)  # Its handler gets its number, 64.
        libc.signal(number, ctypes.cast(libc.alarm, ctypes.c_void_p))
        libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
        while not is_orphan():
            time.sleep(_ORPHAN_SECS)
        signal.setitimer(signal.ITIMER_REAL, deadline_secs)  # In place of that alarm.

    threading.Thread(target=watch, name="orphan", daemon=True).start()
