"""Starts a prepared run's roles, restarts those that die, and stops all of them in order.

A `RoleProcess` is started, and started again, by `poll`. `Rules` decide what a role's end means, in which order roles
stop and what is reported in the end; those of a run are `RunRules`, those of workers that have joined one are in
cluster/join.py. The `Supervisor` looks at all roles five times a second and holds the run's lock, CPUs and port.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import errno
import functools
import os
import re
import resource
import secrets
import signal
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from tfagents_system.errors import (
    EXIT_BAD_INPUT,
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_HOPELESS,
    EXIT_RENEW,
    EXIT_RESUMABLE,
    UserError,
)
from tfagents_system.launch import run_status
from tfagents_system.launch.cpus import CpuPlan, plan_for
from tfagents_system.launch.forks import MARK_VARIABLE, ForkedProcess, RoleStarter
from tfagents_system.launch.run_status import RunStatus, or_why_not, say
from tfagents_system.launch.vars_file import run_python_path
from tfagents_system.machine import processes, watchdog
from tfagents_system.machine.claims import Claims, held_cpus
from tfagents_system.machine.cpus import usable_gpus
from tfagents_system.machine.files import read_json, write_json
from tfagents_system.machine.processes import processes_of_run
from tfagents_system.machine.signals import SUPERVISOR_PID_VARIABLE, StopFlag, role_stop_signal
from tfagents_system.report.tracking import is_tracked, keep_tracked
from tfagents_system.run_files import run_directory
from tfagents_system.run_files.heartbeat import STALE_SECS, read_heartbeat
from tfagents_system.run_files.run_lock import TOKEN_VARIABLE, RunLock, owner_of_run
from tfagents_system.run_files.run_paths import (
    DISPENSABLE,
    GATEWAY,
    REPLAY,
    TRACKER,
    TRAINER,
    RunPaths,
    is_worker,
    worker_role,
)
from tfagents_system.settings.variables import RunVariables

_FIRST_BACKOFF_SECS = 1.0
_MAX_BACKOFF_SECS = 30.0
_HEALTHY_SECS = 600.0
_ORPHANS_POLL_SECS = 0.2
_SHOWN_LINES = 15
_SHOWN_BYTES = 64 * 1024
_LAST_WORDS_CHARS = 200
_SAYS_WHY = re.compile(r"error: |[A-Za-z_][\w.]*(Error|Exception)(: |$)")
# Open files: the replay server has 28 with 2 workers and 32 with 8, all others fewer.
_FILES, _FILES_A_WORKER = 64, 4
_PLAN_TRIES = 5
_STEP_SECS = 0.2
_LOCK_SECS = 1.0  # Between two looks at the lock.
_SPEAK_SECS = 10.0
_ALL_WORKERS_GONE_SECS = 120.0
# Of the time to save. Workers have only their current segment to save.
_WORKERS_SHARE, _REPLAY_SHARE, _REPLAY_SECS = 0.5, 0.25, 10.0
_BY_SIGKILL = " (by somebody, or by the kernel for lack of memory)"
_TRACKER_SECS = 5.0  # Nobody's experience or updates wait for what it sends.


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
        value = f"{self.name}.{secrets.token_hex(8)}"
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

    # Its log.

    def log_line(self, text: str) -> str:
        """Appends what the supervisor has to say to the role's log, if that can be written; returns `text`."""
        now = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
        with contextlib.suppress(OSError), open(self._log, "ab") as log:
            log.write(f"{now} supervisor: {text}\n".encode())
        return text

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
    processes.wait_until(lambda: not any(role.is_running() for role in roles), processes.KILL_SECS)
    for role in roles:
        if role._process is not None:
            code = role._process.poll()
            role.exit_code = -signal.SIGKILL if code is None else code
            role._process = None
    end_what_is_left(roles)


def end_what_is_left(roles: Collection[RoleProcess]) -> None:
    """Ends what roles that have ended left behind, in their sessions or in others with their marks, with one wait."""
    begun = {role._session: role for role in roles if role._session is not None}
    if not begun:
        return
    processes.kill_session(*begun)
    processes.end_marked([role.mark for role in begun.values()])
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
            processes.end_all(lambda: processes_of_run(paths.exp_dir))
            return
        if not spoke:
            spoke = True
            say(f"waiting for {len(orphans)} processes of an earlier start of this run to save and end")
        time.sleep(_ORPHANS_POLL_SECS)


def supervise(variables: RunVariables, stop: StopFlag, starter: RoleStarter, lock: RunLock) -> int:
    """Runs a prepared run to its end, for the holder of the lock of its directory, which is released then.

    Returns:
      The exit code: 0 the run is finished, 1 it failed, 75 it was stopped and everything is saved.

    Raises:
      UserError: Its CPUs or its port are in use.
    """
    paths = RunPaths(variables.exp_dir)
    with lock:
        _allow_open_files(_FILES + _FILES_A_WORKER * variables.slots.most)
        claims = Claims()
        plan = claim_cpus(variables, claims)
        port = claims.take_port(variables.reverb_port) if variables.trainer_server is None else 0
        run_directory.write_start(paths, dataclasses.replace(variables, reverb_port=port))
        if is_tracked(vars(variables)):
            keep_tracked(paths, vars(variables))
        now = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
        where = f"port {port}" if port else f"the trainer of the run at {variables.trainer_server}"
        print(f"{now} starting {variables.exp_name} in {paths.exp_dir}, {where}", flush=True)
        print(plan.table(), flush=True)
        return Supervisor(variables, plan, claims, port, stop, starter, RunRules, lock=lock).run()


def _allow_open_files(needed: int) -> None:
    """Raises the soft limit of this process and its forks, as far as the hard one lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if resource.RLIM_INFINITY != soft < needed:
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (needed if hard == resource.RLIM_INFINITY else min(needed, hard), hard)
        )


def claim_cpus(variables: RunVariables, claims: Claims) -> CpuPlan:
    """Plans and claims CPU ids; plans again if another run was faster.

    Raises:
      UserError: Too few are left.
    """
    for _ in range(_PLAN_TRIES):
        plan = plan_for(vars(variables), held=held_cpus())
        if not claims.take_cpus(plan.ids(), exclusive=not variables.share_cpus):
            return plan
        time.sleep(0.05)
    raise UserError(
        f"CPUs were taken by other runs {_PLAN_TRIES} times in a row while this one was planned: start again"
    )


class Supervisor:
    """Runs roles until one of them, a rule or a signal ends it.

    Args:
      claims: This process's claims.
      starter: Starts the roles; in tests, small programs.
      rules: Makes the rules for this supervisor.
      lock: Of the run directory; without one nobody can take it over.
    """

    def __init__(
        self,
        variables: RunVariables,
        plan: CpuPlan,
        claims: Claims,
        port: int,
        stop: StopFlag,
        starter: RoleStarter,
        rules: Callable[[Supervisor], Rules],
        step_secs: float = _STEP_SECS,
        lock: RunLock | None = None,
    ) -> None:
        self.variables = variables
        self.plan = plan
        self.paths = RunPaths(variables.exp_dir)
        self.stop = stop
        self.starter = starter
        self._claims = claims  # Held as long as this object.
        self._step_secs = step_secs
        self._lock, self._lock_due = lock, 0.0
        self._directory: int | None = None  # The run directory, open, so that no other one gets its inode number.
        token = {} if lock is None else {TOKEN_VARIABLE: lock.token}
        beside = [] if variables.gateway_port is None else [GATEWAY]
        if TRAINER in plan.by_role and is_tracked(vars(variables)):
            beside.append(TRACKER)
        cpus: Mapping[str, tuple[int, ...]] = {**plan.by_role, **dict.fromkeys(beside, ())}  # These run anywhere.
        self.roles = {
            role: RoleProcess(
                name=role,
                start=functools.partial(starter.start, role, ids),
                environ=_environ_of(role, plan, variables, port) | token,
                log=self.paths.log(role),
                max_restarts=variables.max_restarts,
            )
            for role, ids in cpus.items()
        }
        self.status = RunStatus(variables, self.paths, plan, port, self.roles)
        self._rules = rules(self)

    @property
    def workers(self) -> list[RoleProcess]:
        return [role for name, role in self.roles.items() if is_worker(name)]

    @property
    def collectors(self) -> list[RoleProcess]:
        """The workers that the run needs: experts and evaluators alone do not keep it going, nor end it."""
        beside = {worker_role(number) for number in self.variables.kinds_beside}
        return [worker for worker in self.workers if worker.name not in beside]

    @property
    def exit_code(self) -> int | None:
        """None while the run continues."""
        return self.status.exit_code

    @property
    def is_ending(self) -> bool:
        return self.exit_code is not None or self.stop.is_set()

    def run(self) -> int:
        """Supervises until the trainer is done, the run fails, or it is told to stop; returns the exit code.

        Raises:
          OSError: The supervisor itself has no file descriptors or disk left.
        """
        final_lines: list[str] = []
        try:
            self._begin()
            while not self.is_ending:
                self.step()
                self.stop.wait(self._step_secs)
            code = self.exit_code if self.exit_code is not None else self._rules.stop()
            self._rules.end_roles()
            self.kill_all()
            code = code if self.status.is_ours else EXIT_FAILED
            if code == EXIT_DONE:
                self.status.tell("done", "finished")
                self.status.view.leave(self.status.to_json())
                final_lines = or_why_not(self._rules.results)
            self.starter.end_orphans()
        except BaseException as error:
            # Whatever went wrong in here: no process is left, and the status says so.
            self.kill_all()
            self.starter.end_orphans()
            self.status.view.stop([])
            self.status.exit_code = EXIT_FAILED
            self.status.tell("failed", f"the supervisor itself failed: {error}")
            raise
        finally:
            if self._directory is not None:
                os.close(self._directory)
        self.status.exit_code = code
        state = {EXIT_DONE: "done", EXIT_RESUMABLE: "stopped"}.get(code, "failed")
        self.status.tell(state, self.status.message)
        self.status.view.stop([*final_lines, *or_why_not(lambda: self._rules.closing_lines(code))])
        return code

    def _begin(self) -> None:
        for folder in (self.paths.logs, self.paths.heartbeats):
            folder.mkdir(parents=True, exist_ok=True)
        self._directory = os.open(self.paths.exp_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        for heartbeat in self.paths.heartbeats.glob("*.json"):
            heartbeat.unlink(missing_ok=True)  # An earlier start's is outdated.
        if (gateway := read_json(self.paths.gateway_json)) is not None:
            # Its address leads nowhere until the new gateway is up, which takes the same port again if it can.
            write_json(self.paths.gateway_json, {"port": gateway.get("port")})
        self.status.view.start()
        self.starter.adopt()

    def step(self) -> None:
        """Looks at every role once: starts and restarts them, sees the end."""
        ended = {role: code for role in self.roles.values() if (code := role.poll()) is not None}
        if ended:
            end_what_is_left(ended)  # It must not run beside their successors.
            for role, code in ended.items():
                self._rules.role_ended(role, code)
        self.starter.reap_orphans(self._pids())
        self._check_directory()
        self._rules.look()
        if self.status.state == "starting":
            self.status.tell("running", "")
        self.status.show()

    def _pids(self) -> list[int]:
        return [role.pid for role in self.roles.values() if role.pid is not None]

    def _check_directory(self) -> None:
        """Ends a run whose directory is gone: nothing can be saved. Ends one that another start has taken over, and
        writes nothing more: that would spoil the other's files.
        """
        exp_dir = self.paths.exp_dir
        if self.exit_code is None and self._directory is not None and _is_gone(exp_dir, self._directory):
            self.kill_all()
            self.fail(
                EXIT_FAILED,
                f"the run directory {exp_dir} was removed or replaced while the run was going: put it back and start "
                "the same command again, or start over with that command",
            )
        if self._lock is None or not self.status.is_ours or time.monotonic() < self._lock_due:
            return
        self._lock_due = time.monotonic() + _LOCK_SECS
        if self._lock.is_own():
            self._lock.touch()
            return
        self.status.is_ours = False
        self.kill_all()
        what = f"the run directory {exp_dir} was taken over by {self._lock.describe_owner()}"
        self.fail(EXIT_FAILED, f"{what}: this start ends and writes nothing more")

    # For the rules.

    def has_joined_workers(self) -> bool:
        """Whether workers that this supervisor did not start are at work."""
        others = (path for path in self.paths.heartbeats.glob("*.json") if path.stem not in self.roles)
        beats = [read_heartbeat(path) or {} for path in others if is_worker(path.stem)]
        oldest = time.time() - STALE_SECS
        return any(beat.get("time", 0.0) > oldest and beat.get("state") != "stopped" for beat in beats)

    def is_at_work(self, role: str) -> bool:
        """Whether a role has come so far that ending it unsaved would lose something."""
        heartbeat = read_heartbeat(self.paths.heartbeat(role)) or {}
        return heartbeat.get("state") not in (None, "starting")

    def finish(self, code: int, message: str = "") -> None:
        """Ends the run with this exit code, for the reason in `message`; "" keeps the previous message."""
        self.status.exit_code = code
        self.status.message = message or self.status.message

    def fail(self, code: int, message: str, lines: Sequence[str] = ()) -> None:
        """Ends the run for the reason in `message`; `lines` are the words of the role whose fault it is."""
        self.finish(code, message)
        say("\n".join([f"error: {message}", *(f"  {line}" for line in lines)]))

    def stopping(self) -> str:
        """Reports in the status which signal stops the run, so that joined workers leave; returns its name."""
        name = signal.Signals(self.stop.signal_number or signal.SIGTERM).name
        self.status.tell(self.status.state, f"stopped by {name}")
        return name

    def end(self, deadlines_secs: Mapping[RoleProcess, float]) -> None:
        """Sends a stop signal, then SIGKILL after each role's deadline or at a second signal."""
        start = spoke = time.monotonic()
        for role in deadlines_secs:
            role.terminate()
        while running := [role for role in deadlines_secs if role.is_running()]:
            waited_secs = time.monotonic() - start
            late = [role for role in running if waited_secs > deadlines_secs[role] or self.stop.count > 1]
            if late:
                lost = "" if all(role.name in DISPENSABLE for role in late) else ", unsaved"
                say(f"killing {', '.join(role.name for role in late)} after {waited_secs:.0f} s{lost}")
                kill_roles(late)
            if time.monotonic() - spoke > _SPEAK_SECS:
                spoke = time.monotonic()
                names = ", ".join(role.name for role in running)
                most_secs = max(deadlines_secs[role] for role in running)
                say(f"waiting for {names} to save: {waited_secs:.0f} of at most {most_secs:g} s")
            self._check_directory()
            self.status.show()
            time.sleep(min(self._step_secs, 0.1))
        kill_roles(list(deadlines_secs))  # What they left behind, such as processes of their environments.

    def kill_all(self) -> None:
        kill_roles(list(self.roles.values()))


def _is_gone(directory: Path, opened: int) -> bool:
    """Whether a path no longer leads to the directory that was opened there; a file system's error proves nothing."""
    try:
        return not os.path.samestat(os.stat(directory), os.fstat(opened))
    except OSError as error:
        return error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ESTALE)


class Rules:
    """What roles' ends mean, and how roles are stopped: restarts of roles that fail, and what else a subclass says."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._variables, self._paths = supervisor.variables, supervisor.paths
        self._most_done: dict[str, float] = {}  # By role: its progress at a failure.

    def look(self) -> None:
        """Looks at all roles together: the run may be over without any of them saying so."""

    def stop(self) -> int:
        """Stops all roles because a signal says so; returns the exit code."""
        raise NotImplementedError

    def end_roles(self) -> None:
        """Stops what is still running once the outcome is known."""
        raise NotImplementedError

    def results(self) -> list[str]:
        """Writes the results of a finished run; returns lines for the user."""
        return []

    def closing_lines(self, code: int) -> list[str]:
        """The last lines for the user."""
        return self._supervisor.status.closing_lines(code)

    def role_ended(self, role: RoleProcess, code: int) -> None:
        """Handles a role that has ended by itself: starts it again, gives it up, or ends all."""
        has_done_new = self._has_done_new(role)
        role.has_worked |= is_worker(role.name) and has_done_new
        if role.name == TRAINER and code == EXIT_DONE:
            self._supervisor.finish(EXIT_DONE)
        elif self._supervisor.is_ending:
            pass  # The run is over, or a signal to the whole job reached the role before us.
        elif code == EXIT_BAD_INPUT and role.name != TRACKER and (role.name != GATEWAY or not role.restarts):
            self._supervisor.fail(EXIT_BAD_INPUT, f"{role.name} refused its input", role.error_lines())
        elif code == EXIT_HOPELESS:
            self._supervisor.fail(EXIT_FAILED, f"{role.name} can't go on", role.error_lines())
        elif is_worker(role.name) and code == EXIT_DONE:
            say(f"{role.name} is done")
        elif has_done_new and code in (EXIT_RENEW, -signal.SIGKILL, -signal.SIGTERM):
            delay_secs = role.restart_later(blameless=True)
            words = {EXIT_RENEW: role.last_words(), -signal.SIGKILL: _BY_SIGKILL}.get(code, "")
            say(role.log_line(f"{role.name} ended with {_in_words(code)}{words}: restart in {delay_secs:g} s"))
        else:
            self._failed(role, code)
        if self._variables.deterministic and role.name in (REPLAY, TRAINER) and not role.is_over:
            # All continue from the last checkpoint: none may see what another did since then.
            for other in self._supervisor.roles.values():
                if other is not role and not other.is_over and other.name not in DISPENSABLE:
                    other.restart_now()
                    other.log_line(f"{other.name} restarts with {role.name}: SAC_DETERMINISTIC=1")

    def _failed(self, role: RoleProcess, code: int) -> None:
        """Restarts a role, or gives it up."""
        supervisor, hang = self._supervisor, watchdog.take_report(self._paths.hang(role.name))
        words = f" ({hang[0]})" if hang else role.last_words()
        if hang:
            role.log_line("\n".join(hang))
        if code == -signal.SIGKILL:
            words = _BY_SIGKILL
        role.failed_with = f"{_in_words(code)}{words}"
        delay_secs = role.restart_later()
        if delay_secs is not None:
            most = f"{role.failures} of at most {self._variables.max_restarts} in a row"
            say(role.log_line(f"{role.name} ended with {_in_words(code)}{words}: restart {most}, in {delay_secs:g} s"))
            return
        text = f"{role.name} ended with {_in_words(code)} and is given up after {role.failures - 1} restarts in a row"
        if role.name in (REPLAY, TRAINER):
            supervisor.fail(EXIT_FAILED, text, role.last_lines())
            return
        role.given_up_because = role.failed_with
        if role.name in DISPENSABLE:
            without = "other machines" if role.name == GATEWAY else "sending its metrics"
            say(role.log_line(f"{text}; the run goes on without {without}"))
        elif self._variables.deterministic:  # The others wait for it as long as it takes.
            supervisor.fail(EXIT_FAILED, f"{text}: SAC_DETERMINISTIC=1", role.last_lines())
        else:
            say(role.log_line(f"{text}; the other workers go on"))

    def _has_done_new(self, role: RoleProcess) -> bool:
        """Whether a process that has just ended had got further than any before it: updates, steps stored or taken."""
        beat = read_heartbeat(self._paths.heartbeat(role.name)) or {}
        done = beat.get({TRAINER: "train_step", REPLAY: "env_steps"}.get(role.name, "steps"))
        if not role.is_of_newest(beat) or not isinstance(done, int | float):
            return False
        most = self._most_done.get(role.name, 0)
        if not is_worker(role.name):  # Workers count from zero at each start.
            self._most_done[role.name] = max(most, done)
        return done > most


def _in_words(code: int) -> str:
    """`exit code 1`, `SIGKILL`."""
    names = {-number: number.name for number in signal.Signals}
    return f"exit code {code}" if code >= 0 else names.get(code, f"signal {-code}")


class RunRules(Rules):
    """The rules of a run that this supervisor has started."""

    def __init__(self, supervisor: Supervisor) -> None:
        super().__init__(supervisor)
        self._workers_gone_at: float | None = None

    def role_ended(self, role: RoleProcess, code: int) -> None:
        is_far = self._variables.trainer_server is not None and role.name not in DISPENSABLE
        if code == EXIT_RESUMABLE and is_far and not self._supervisor.is_ending:
            self._supervisor.finish(EXIT_RESUMABLE, "the run was stopped where its replay server is")
            return
        super().role_ended(role, code)

    def look(self) -> None:
        """A run without a worker that collects would wait forever: it fails, unless the trainer is just finishing.

        A run without workers of its own (SAC_LOCAL_WORKERS=0) waits for those that join.
        """
        super().look()
        supervisor, collectors = self._supervisor, self._supervisor.collectors
        beat = {} if TRAINER in supervisor.roles else read_heartbeat(self._paths.heartbeat(TRAINER)) or {}
        if supervisor.exit_code is None and beat.get("state") == "done":  # Elsewhere.
            supervisor.finish(EXIT_DONE)
        is_alone = bool(collectors) and all(worker.is_over for worker in collectors)
        if supervisor.exit_code is not None or not is_alone or supervisor.has_joined_workers():
            self._workers_gone_at = None
        elif all(worker.given_up for worker in collectors):
            supervisor.fail(EXIT_FAILED, "every worker was given up", collectors[-1].last_lines())
        elif self._workers_gone_at is None:
            self._workers_gone_at = time.monotonic()
        elif time.monotonic() - self._workers_gone_at > _ALL_WORKERS_GONE_SECS:
            supervisor.fail(EXIT_FAILED, "every worker has ended, but the trainer is not done")

    def stop(self) -> int:
        """The trainer and the workers save first; the replay server stores what they still send, then saves too."""
        supervisor, name = self._supervisor, self._supervisor.stopping()
        deadline_secs = self._variables.save_deadline_secs
        say(f"{name}: saving, within {deadline_secs:g} s; a second signal stops at once, unsaved")
        savers = [role for name, role in supervisor.roles.items() if name in (TRAINER, REPLAY)]
        had_work = any(supervisor.is_at_work(role.name) for role in savers[-1:])
        self.end_roles()
        if supervisor.exit_code is not None:  # Another start has taken the run directory over.
            return supervisor.exit_code
        if TRAINER in supervisor.roles and supervisor.roles[TRAINER].exit_code == EXIT_DONE:
            return EXIT_DONE
        saved = (EXIT_RESUMABLE, EXIT_DONE)
        if not had_work or all(role.exit_code in saved for role in savers):
            return EXIT_RESUMABLE
        supervisor.status.message += ", not everything was saved: the same command goes on from the last checkpoint"
        return EXIT_FAILED

    def end_roles(self) -> None:
        """Ends the trainer and the workers, then the replay server and the tracker, all of them within the deadline."""
        roles, deadline_secs, began = self._supervisor.roles, self._variables.save_deadline_secs, time.monotonic()
        worker_secs = _WORKERS_SHARE * deadline_secs
        deadlines = dict.fromkeys(self._supervisor.workers, worker_secs)
        if TRAINER in roles:
            deadlines[roles[TRAINER]] = deadline_secs - min(_REPLAY_SECS, _REPLAY_SHARE * deadline_secs)
        if GATEWAY in roles:
            deadlines[roles[GATEWAY]] = worker_secs  # It informs workers elsewhere, and takes what they still send.
        self._supervisor.end(deadlines)
        left_secs = deadline_secs - (time.monotonic() - began)
        # What the tracker has not sent by then is in metrics.csv.
        last = {REPLAY: left_secs, TRACKER: min(_TRACKER_SECS, left_secs)}
        self._supervisor.end({roles[name]: secs for name, secs in last.items() if name in roles})

    def results(self) -> list[str]:
        supervisor = self._supervisor
        if TRAINER not in supervisor.roles:
            return []  # They are where the trainer is.
        return run_status.write_results(
            self._paths,
            supervisor.starter,
            cpus=supervisor.plan.trainer,
            environ=supervisor.roles[TRAINER].environ,
            stop=supervisor.stop,
            report=self._variables.report,
            tracking=is_tracked(vars(self._variables)),
        )


def _environ_of(role: str, plan: CpuPlan, variables: RunVariables, port: int) -> dict[str, str]:
    """All variables of one role."""
    own = {
        "SAC_REVERB_PORT": str(port),
        "PYTHONPATH": run_python_path(os.environ),
        "PYTHONUNBUFFERED": "1",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "CUDA_VISIBLE_DEVICES": "-1",
        SUPERVISOR_PID_VARIABLE: str(os.getpid()),
        **plan.thread_environ(REPLAY if role in DISPENSABLE else role),
    }
    if is_worker(role):
        own["SLURM_PROCID"] = role.removeprefix("worker_")
    if role == TRAINER and variables.train_gpus and (gpus := usable_gpus(os.environ)):
        own["CUDA_VISIBLE_DEVICES"] = gpus[0]
    return {**os.environ, **variables.to_environ(), **own}
