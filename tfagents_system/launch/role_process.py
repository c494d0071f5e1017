"""A role's process: started when that is due, again with a growing delay when it has failed, and ended for good."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import os
import re
import secrets
import signal
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from tfagents_system.errors import EXIT_FAILED, EXIT_RESUMABLE
from tfagents_system.launch.forks import MARK_VARIABLE, ForkedProcess
from tfagents_system.machine import processes
from tfagents_system.machine.signals import role_stop_signal
from tfagents_system.run_files.run_lock import owner_of_run
from tfagents_system.run_files.run_paths import RunPaths

_FIRST_BACKOFF_SECS, _MAX_BACKOFF_SECS = 1.0, 30.0
_HEALTHY_SECS = 600.0
_ORPHANS_POLL_SECS = 0.2
KEPT_BYTES = 2**20  # Of a log, at its begin and at its end.
LEFT_OUT = b"\n... what was printed here is left out ...\n"
_MOST_CHUNKS = 16
_SHOWN_LINES, _SHOWN_BYTES = 15, 64 * 1024
_LINE_CHARS, _LAST_WORDS_CHARS = 2000, 200
_SAYS_WHY = re.compile(r"error: |[A-Za-z_][\w.]*(Error|Exception)(: |$)")


@dataclasses.dataclass(eq=False)
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
      newest_pid: Of the process that was started last, which may have ended.
    """

    name: str
    start: Callable[[Mapping[str, str], Path], ForkedProcess]
    environ: Mapping[str, str]
    log: Path
    max_restarts: int
    starts: int = 0
    failures: int = 0
    exit_code: int | None = None
    given_up: bool = False
    has_worked: bool = False
    failed_with: str = ""
    newest_pid: int = 0
    _log_start: int = 0
    _process: ForkedProcess | None = None
    _mark: str = ""  # NAME=VALUE in the environment of the newest process, until what that has left is ended.
    _started_at: float = 0.0
    _start_at: float | None = 0.0
    _start_error: OSError | None = None

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
            self._log_start = self.log.stat().st_size
        mark = f"{self.name}.{secrets.token_hex(8)}"
        try:
            self._process = self.start({**self.environ, MARK_VARIABLE: mark}, self.log)
        except OSError as error:  # Out of file descriptors, processes, memory or disk: that may pass.
            self._start_error, self.exit_code = error, EXIT_FAILED
            return EXIT_FAILED
        self.newest_pid, self._mark = self._process.pid, f"{MARK_VARIABLE}={mark}"
        return None

    @property
    def restarts(self) -> int:
        return max(0, self.starts - 1)

    @property
    def pid(self) -> int | None:
        """The pid of the process whose exit code has not been taken yet."""
        return self._process.pid if self._process is not None else None

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
        if self.failures > self.max_restarts:
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

    # Its log.

    def log_line(self, text: str) -> str:
        """Appends what the supervisor has to say to the role's log, if that can be written; returns `text`."""
        now = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
        with contextlib.suppress(OSError), open(self.log, "ab") as log:
            log.write(f"{now} supervisor: {text}\n".encode())
        return text

    def bound_log(self) -> None:
        self._log_start = bound_log(self.log, self._log_start)

    def last_lines(self) -> list[str]:
        """The last lines that the process wrote since its start, shortened, or why it could not be started."""
        if self._start_error is not None:
            return [f"it can't be started: {self._start_error}"]
        try:
            with open(self.log, "rb") as log:
                size = log.seek(0, os.SEEK_END)
                log.seek(max(self._log_start, size - _SHOWN_BYTES))
                text = log.read().decode(errors="replace")
        except OSError:
            return []
        lines = [line for line in text.splitlines() if line.strip()]
        return [line if len(line) <= _LINE_CHARS else f"{line[:_LINE_CHARS]}..." for line in lines[-_SHOWN_LINES:]]

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


def bound_log(log: Path, start: int = 0) -> int:
    """Cuts a log of more than 3 KEPT_BYTES to its first and its last KEPT_BYTES.

    A simulator, its C code and its child processes append to the file themselves, so it is cut in place, and a crash
    loses none of their last words. Of what is written while it is cut, some may be left out as well.

    Returns:
      Where what was at `start` is now: at the cut if it is left out. A log that can't be cut stays as it is.
    """
    try:
        size = log.stat().st_size
        if size <= 3 * KEPT_BYTES:
            return start
        with open(log, "r+b", buffering=0) as file:
            number, cut = file.fileno(), KEPT_BYTES + len(LEFT_OUT)
            shift, end = size - KEPT_BYTES - cut, cut
            os.pwrite(number, LEFT_OUT, KEPT_BYTES)
            for _ in range(_MOST_CHUNKS):  # With what is appended meanwhile, which may come as fast as it is copied.
                if not (chunk := os.pread(number, KEPT_BYTES, end + shift)):
                    break
                end += os.pwrite(number, chunk, end)
            os.ftruncate(number, end)
            return start if start <= KEPT_BYTES else max(cut, start - shift)
    except OSError:
        return start


def kill_roles(roles: Collection[RoleProcess]) -> None:
    """Ends roles, everything in their sessions and all that has their marks, at once, with one wait for all of them."""
    running = {role: process for role in roles if (process := role._process) is not None}
    for role in roles:
        role._start_at = None
    for process in running.values():
        process.kill()
    processes.wait_until(lambda: all(process.poll() is not None for process in running.values()), processes.KILL_SECS)
    for role, process in running.items():
        code = process.poll()
        role.exit_code, role._process = -signal.SIGKILL if code is None else code, None
    end_what_is_left(roles)


def end_what_is_left(roles: Collection[RoleProcess]) -> None:
    """Ends what roles that have ended left behind, in their sessions or in others with their marks, with one wait."""
    marked = [role for role in roles if role._mark]
    if marked:
        processes.kill_session(*(role.newest_pid for role in marked))
        processes.end_marked([role._mark for role in marked])
    for role in marked:
        role._mark = ""


def end_orphans(paths: RunPaths, deadline_secs: float, *, has_lock: bool = False) -> None:
    """Waits until roles whose supervisor was killed have saved, as they do by themselves; kills them at the deadline.

    Not where another start has the run directory. Call it before the directory is locked: once another start has the
    lock, they complete no further checkpoint (`run_lock.may_write`). Call it again with `has_lock` once this start has
    it: another one may have had it before.
    """
    deadline, spoke = time.monotonic() + deadline_secs, False
    while (orphans := processes.processes_of_run(paths.exp_dir)) and (has_lock or owner_of_run(paths) is None):
        if time.monotonic() > deadline:
            processes.end_all(lambda: processes.processes_of_run(paths.exp_dir))
            return
        if not spoke:
            spoke = True
            say(f"waiting for {len(orphans)} processes of an earlier start of this run to save and end")
        time.sleep(_ORPHANS_POLL_SECS)


def say(text: str) -> None:
    """Prints a line or more: a closed terminal or a full disk behind the output is no reason to end a run."""
    with contextlib.suppress(OSError):
        print(text, flush=True)
