"""Roles as processes: they are forked, watched, restarted with backoff and stopped, and their logs are read."""

from __future__ import annotations

import contextlib
import datetime
import functools
import importlib
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from tfagents_system.errors import EXIT_FAILED, EXIT_RESUMABLE, exit_with
from tfagents_system.launch import forks
from tfagents_system.launch.forks import MARK_VARIABLE, ForkedProcess
from tfagents_system.machine import processes
from tfagents_system.machine.processes import processes_of_run
from tfagents_system.machine.signals import role_stop_signal
from tfagents_system.run_files.run_lock import owner_of_run
from tfagents_system.run_files.run_paths import GATEWAY, REPLAY, TRACKER, TRAINER, RunPaths

_MODULES = {REPLAY: "sac_replay_buffer", TRAINER: "sac_train", GATEWAY: "cluster.gateway", TRACKER: "sac_tracker"}
_FIRST_BACKOFF_SECS = 1.0
_MAX_BACKOFF_SECS = 30.0
_HEALTHY_SECS = 600.0
_RENEW_SECS = 60.0
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
      failures: Failures in a row; a role that was alive for ten minutes, or was killed at its work by somebody else,
        starts from 0.
      failures_alike: Failures in a row with the same exit code and last words, with nothing new done in between.
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
        self.starts = self.failures = self.failures_alike = 0
        self.exit_code: int | None = None
        self.given_up = False
        self.given_up_because = self.failed_with = self.mark = ""
        self.has_worked = False
        self._failed_like: tuple[int | None, str] | None = None
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

    # What becomes of it once its process has ended.

    def restart_later(self, *, blameless: bool = False) -> float | None:
        """Schedules a restart.

        Args:
          blameless: Somebody else has ended it at its work: that never counts as a failure.

        Returns:
          Seconds until then, None if it is given up.
        """
        if blameless or time.monotonic() - self._started_at > _HEALTHY_SECS:
            self.failures = self.failures_alike = 0
        self.failures += not blameless
        if self.failures > self._max_restarts:
            self.given_up = True
            return None
        delay_secs = min(_MAX_BACKOFF_SECS, _FIRST_BACKOFF_SECS * 2.0 ** min(max(0, self.failures - 1), 10))
        self._start_at = time.monotonic() + delay_secs
        return delay_secs

    def note_failure(self, *, after_work: bool) -> None:
        """Compares a failure with the previous one. Call it before `restart_later`.

        Args:
          after_work: The process had done something new before.
        """
        # Addresses, times and process ids differ between two failures that are alike.
        like = self.exit_code, re.sub(r"0x[0-9a-f]+|[0-9]+", "#", self.last_words())
        is_again = like == self._failed_like and not after_work and self._start_error is None
        self.failures_alike = self.failures_alike + 1 if is_again else 1
        self._failed_like = like

    def renew(self) -> bool:
        """Schedules an immediate restart of a process that has ended in order to restart: not a failure.

        Returns:
          False if it had hardly begun: that is a failure.
        """
        if time.monotonic() - self._started_at < _RENEW_SECS:
            return False
        self._start_at = time.monotonic()
        return True

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


def module_of_role(role: str) -> str:
    """The program of a role; a worker finds its number in SLURM_PROCID."""
    return "tfagents_system." + _MODULES.get(role, "sac_collect")


class RoleStarter:
    """Starts the roles' processes as forks of this one, and adopts what they leave."""

    def __init__(self) -> None:
        self._adopts = False  # Whether this process may have become the parent of processes that it did not start.
        self._others: set[int] = set()  # Children that it has for another reason.

    def adopt(self) -> None:
        """From now on, this process adopts what a role has started when its own parent has ended."""
        self._adopts = forks.become_subreaper()  # Else the mark of what has left a role's session must suffice.
        self._others = set(processes.children(os.getpid())) - processes.started_apart()

    def start(self, role: str, cpus: Sequence[int], environ: Mapping[str, str], log: Path) -> ForkedProcess:
        """Starts the process of a role on these CPUs, or on any if none are given.

        Raises:
          OSError: It can't be started.
        """
        return self.start_module(module_of_role(role), (), cpus, environ, log, name=role)

    def start_module(
        self,
        module: str,
        arguments: Sequence[str],
        cpus: Sequence[int],
        environ: Mapping[str, str],
        log: Path,
        name: str | None = None,
    ) -> ForkedProcess:
        """Starts a module's `main` with these arguments, as `start` does a role's."""
        forks.import_all()
        run = functools.partial(_run_module, module, arguments)
        return forks.fork_program(run, f"sac_{name or module.rpartition('.')[2]}", environ, log=log, cpus=cpus)

    def reap_orphans(self, roles: Collection[int]) -> None:
        """Reaps ended children that are no role: orphans of roles.

        Args:
          roles: Pids of the roles' processes.
        """
        if self._adopts:
            # By their pids: one that has ended would hide all orphans that end after it.
            self._others = {pid for pid in self._others if not forks.has_ended(pid)}
            forks.reap_orphans({*roles, *self._others, *processes.started_apart()})

    def orphans(self, roles: Collection[int]) -> set[int]:
        """Pids of the children that this process has adopted and that have not ended.

        Args:
          roles: Pids of the roles' processes.
        """
        if not self._adopts:
            return set()
        adopted = set(processes.children(os.getpid())) - {*roles, *self._others, *processes.started_apart()}
        return {pid for pid in adopted if processes.is_alive(pid)}

    def end_orphans(self, roles: Sequence[RoleProcess], spared: set[int]) -> list[int]:
        """Ends what roles that are over have left to this process outside their sessions and without their marks:
        what it has adopted since a moment at which they were alive.

        Args:
          roles: All; what is in a living one's session or has its mark is spared.
          spared: What was adopted before. It may belong to a role that continues.

        Returns:
          Pids of those that can't be ended.
        """

        def find() -> list[int]:
            living = [role for role in roles if role.is_running()]
            marks, sessions = {role.mark.encode() for role in living}, {role.pid for role in living}
            return [
                pid
                for pid in self.orphans(pids) - spared
                if not marks & processes.environment_of(pid) and processes.session_of(pid) not in sessions
            ]

        pids = [role.pid for role in roles if role.pid is not None]
        stuck = processes.end_all(find)
        self.reap_orphans(pids)
        return stuck


def _run_module(module: str, arguments: Sequence[str]) -> NoReturn:
    sys.argv = [module, *arguments]
    exit_with(importlib.import_module(module).main)


# Roles that outlive a supervisor that was killed: they save and end by themselves, as with any stop.


def wait_for_orphans(paths: RunPaths, deadline_secs: float) -> None:
    """Waits until they have saved; call it before the run directory is locked.

    Once another start has the lock, they complete no further checkpoint (`run_lock.may_write`).
    """
    _wait_for_orphans(paths, deadline_secs, lambda: owner_of_run(paths) is None)


def end_orphans(paths: RunPaths, deadline_secs: float) -> None:
    """Waits until they have ended, and kills them at the deadline; for the holder of the run directory's lock."""
    if _wait_for_orphans(paths, deadline_secs, lambda: True):
        return
    if stuck := processes.end_all(lambda: processes_of_run(paths.exp_dir)):
        print(f"note: {processes.describe_stuck('an earlier start of this run', stuck)}", flush=True)


def _wait_for_orphans(paths: RunPaths, deadline_secs: float, may_wait: Callable[[], bool]) -> bool:
    """Waits; returns whether none is left. Says once that it waits."""
    deadline, spoke = time.monotonic() + deadline_secs, False
    while orphans := processes_of_run(paths.exp_dir):
        if time.monotonic() > deadline or not may_wait():
            return False
        if not spoke:
            spoke = True
            print(f"waiting for {len(orphans)} processes of an earlier start of this run to save and end", flush=True)
        time.sleep(_ORPHANS_POLL_SECS)
    return True
