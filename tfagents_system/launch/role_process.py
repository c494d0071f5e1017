"""Roles as processes: they are watched, restarted with backoff and stopped, and their logs are read."""

from __future__ import annotations

import contextlib
import datetime
import functools
import os
import re
import signal
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from tfagents_system.errors import EXIT_FAILED, EXIT_RESUMABLE
from tfagents_system.launch.forks import MARK_VARIABLE, ForkedProcess
from tfagents_system.machine import processes
from tfagents_system.machine.processes import processes_of_run
from tfagents_system.machine.signals import role_stop_signal
from tfagents_system.run_files.run_lock import owner_of_run
from tfagents_system.run_files.run_paths import RunPaths

_FIRST_BACKOFF_SECS = 1.0
_MAX_BACKOFF_SECS = 30.0
_HEALTHY_SECS = 600.0
_ORPHANS_POLL_SECS = 0.2
_SHOWN_LINES = 15
_SHOWN_BYTES = 64 * 1024
_LAST_WORDS_CHARS = 200
_SAYS_WHY = re.compile(r"error: |[A-Za-z_][\w.]*(Error|Exception)(: |$)")


class RoleProcess:
    """A role that `poll` starts, and starts again when it has died and a restart is due.

    Args:
      name: Such as `worker_0`.
      start: Starts its process, with the role's environment and log.
      max_restarts: Number of failures in a row after which it is given up.

    Attributes:
      starts: How often its process was started.
      failures: Failures in a row; a role that was alive for ten minutes starts from 0.
      exit_code: Of the last process that ended, None before; negative: the signal that ended it.
      failed_with: How the last failure ended it, with its last words; empty before the first one.
      has_worked: Whether a worker's process that has ended had taken a step.
      mark: NAME=VALUE in the environment of the newest process, and of no other role or start.
    """

    def __init__(
        self,
        name: str,
        start: Callable[[Mapping[str, str], Path], ForkedProcess],
        environ: Mapping[str, str],
        log: Path,
        max_restarts: int,
    ) -> None:
        self.name = name
        self.environ = dict(environ)
        self.starts = self.failures = 0
        self.exit_code: int | None = None
        self.given_up = False
        self.given_up_because = self.failed_with = self.mark = ""
        self.has_worked = False
        self._pid: int | None = None
        self._start_process = start
        self._log = log
        self._log_start = 0
        self._max_restarts = max_restarts
        self._process: ForkedProcess | None = None
        self._session: int | None = None
        self._started_at = 0.0
        self._start_at: float | None = 0.0
        self._start_error: OSError | None = None

    def poll(self) -> int | None:
        """Starts it when that is due.

        Returns:
          The exit code, once, when the process has ended or could not be started; `end_what_is_left` comes then.
        """
        if self._process is None:
            is_due = self._start_at is not None and time.monotonic() >= self._start_at
            return self._start() if is_due else None
        code = self._process.poll()
        if code is not None:
            self.exit_code, self._process = code, None
        return code

    def _start(self) -> int | None:
        self.starts += 1
        self._start_at = self._start_error = self.exit_code = None
        self._started_at = time.monotonic()
        with contextlib.suppress(OSError):
            self._log_start = self._log.stat().st_size
        value = f"{self.name}.{os.getpid()}.{time.monotonic_ns()}"
        self.mark = f"{MARK_VARIABLE}={value}"
        try:
            self._process = self._start_process(self.environ | {MARK_VARIABLE: value}, self._log)
        except OSError as error:  # Out of file descriptors, processes, memory or disk: that may pass.
            self._start_error, self.exit_code = error, EXIT_FAILED
            return EXIT_FAILED
        self._session = self._pid = self._process.pid
        return None

    @property
    def restarts(self) -> int:
        return max(0, self.starts - 1)

    @property
    def pid(self) -> int | None:
        """The pid of the process whose exit code has not been taken yet."""
        return self._process.pid if self._process is not None else None

    def is_of_newest(self, beat: Mapping[str, Any]) -> bool:
        """Whether a heartbeat is the newest process's, not an earlier one's."""
        return beat.get("pid", self._pid) == self._pid

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def is_over(self) -> bool:
        """Whether it does not run and will not be started again."""
        return self._process is None and self._start_at is None

    @property
    def has_stopped(self) -> bool:
        """Whether it has ended as it was told to, and will not be started again."""
        code = self.exit_code if self._process is None else self._process.poll()
        return code in (EXIT_RESUMABLE, -role_stop_signal()) and self._start_at is None

    def restart_later(self, *, blameless: bool = False) -> float | None:
        """Schedules a restart of a process that has ended.

        Args:
          blameless: That does not count as a failure.

        Returns:
          Seconds until then, None if it is given up.
        """
        if blameless or time.monotonic() - self._started_at > _HEALTHY_SECS:
            self.failures = 0
        self.failures += not blameless
        if self.failures > self._max_restarts:
            self.given_up = True
            return None
        delay_secs = min(_MAX_BACKOFF_SECS, _FIRST_BACKOFF_SECS * 2.0 ** min(max(0, self.failures - 1), 10))
        self._start_at = time.monotonic() + delay_secs
        return delay_secs

    def restart_now(self) -> None:
        """Kills the process and starts another one with the next `poll`: not a failure of its own."""
        kill_roles([self])
        self._start_at = time.monotonic()

    def terminate(self) -> None:
        """Asks the process to save and end; cancels a start that was due."""
        self._start_at = None
        if self._process is not None:
            self._process.send_signal(role_stop_signal())

    def _tell_stuck(self, pids: Sequence[int]) -> None:
        text = self.log_line(processes.describe_stuck(self.name, pids))
        with contextlib.suppress(OSError):
            print(f"note: {text}", flush=True)

    # Its log.

    def log_line(self, text: str) -> str:
        """Appends a supervisor's line to the role's log, if that can be written; returns `text`."""
        now = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
        self.log_text(f"{now} supervisor: {text}")
        return text

    def log_text(self, text: str) -> None:
        """Appends lines to the role's log, if that can be written."""
        with contextlib.suppress(OSError), open(self._log, "ab") as log:
            log.write(f"{text}\n".encode())

    def last_lines(self) -> list[str]:
        """The last lines that the process wrote since its start, or why it could not be started."""
        if self._start_error is not None:
            return [f"it can't be started: {self._start_error}"]
        try:
            with open(self._log, "rb") as log:
                size = log.seek(0, os.SEEK_END)
                log.seek(max(self._log_start, size - _SHOWN_BYTES))
                text = log.read().decode(errors="replace")
        except OSError:
            return []
        return [line for line in text.splitlines() if line.strip()][-_SHOWN_LINES:]

    def error_lines(self) -> list[str]:
        """Why it refused: its lines that start with `error:`, or its last ones if there are none."""
        lines = self.last_lines()
        return [line for line in lines if line.startswith("error:")] or lines

    def last_words(self) -> str:
        """` (ValueError: ...)`, the last line of its log, if there is one.

        Of a program that failed it is the last that says why: what is printed at its exit comes behind an exception.
        """
        lines = self.last_lines()
        says_why = [line for line in lines if _SAYS_WHY.match(line)] if self.exit_code == EXIT_FAILED else []
        return f" ({(says_why or lines)[-1].strip()[:_LAST_WORDS_CHARS]})" if lines else ""


def kill_roles(roles: Sequence[RoleProcess]) -> None:
    """Ends roles, everything in their sessions and all that has their marks, at once, with one wait for all of them."""
    for role in roles:
        role._start_at = None
        if role._process is not None:
            role._process.kill()
    deadline = time.monotonic() + processes.KILL_SECS
    for role in roles:
        process, role._process = role._process, None
        if process is None:
            continue
        if not processes.wait_until(functools.partial(_has_ended, process), deadline - time.monotonic()):
            role._tell_stuck([process.pid])
        role.exit_code = -signal.SIGKILL if process.returncode is None else process.returncode
    end_what_is_left(roles)


def _has_ended(process: ForkedProcess) -> bool:
    return process.poll() is not None


def end_what_is_left(roles: Collection[RoleProcess]) -> None:
    """Ends what roles that have ended left behind, in their sessions or in others with their marks, with one wait."""
    begun = {role._session: role for role in roles if role._session is not None}
    if not begun:
        return
    processes.kill_session(*begun)
    if stuck := processes.end_marked([role.mark for role in begun.values()]):
        next(iter(begun.values()))._tell_stuck(stuck)
    for role in begun.values():
        role._session = None


# Roles that outlive a supervisor that was killed: they save and end by themselves, as with any stop.


def end_orphans(paths: RunPaths, deadline_secs: float, *, has_lock: bool = False) -> None:
    """Waits until they have saved, and kills them at the deadline, unless another start has the run directory.

    Call it before the directory is locked: once another start has the lock, they complete no further checkpoint
    (`run_lock.may_write`). Call it again with `has_lock` once this start has it: another one may have had it before.
    """
    deadline, spoke = time.monotonic() + deadline_secs, False
    while (orphans := processes_of_run(paths.exp_dir)) and (has_lock or owner_of_run(paths) is None):
        if time.monotonic() > deadline:
            if stuck := processes.end_all(lambda: processes_of_run(paths.exp_dir)):
                print(f"note: {processes.describe_stuck('an earlier start of this run', stuck)}", flush=True)
            return
        if not spoke:
            spoke = True
            print(f"waiting for {len(orphans)} processes of an earlier start of this run to save and end", flush=True)
        time.sleep(_ORPHANS_POLL_SECS)
