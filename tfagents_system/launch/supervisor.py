"""Starts the roles of a run on their CPUs, restarts what dies, stops all, and leaves nothing behind.

`Rules` decide what a role's end means, in which order roles stop and what is reported in the end: a run has others
than workers that have joined one.
"""

from __future__ import annotations

import contextlib
import functools
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from tfagents_system.errors import EXIT_DONE, EXIT_FAILED, EXIT_RESUMABLE
from tfagents_system.launch.cpus import CpuPlan
from tfagents_system.launch.directory_guard import DirectoryGuard
from tfagents_system.launch.role_environment import common_environ, role_environ
from tfagents_system.launch.role_process import RoleProcess, end_what_is_left, kill_roles
from tfagents_system.launch.role_starter import RoleStarter
from tfagents_system.launch.run_status import RunStatus, or_why_not
from tfagents_system.machine import processes
from tfagents_system.machine.claims import Claims
from tfagents_system.machine.signals import StopFlag
from tfagents_system.report.tracking.settings import TrackingSettings
from tfagents_system.run_files.gateway_address import forget_address
from tfagents_system.run_files.heartbeat import STALE_SECS, read_heartbeat
from tfagents_system.run_files.run_lock import TOKEN_VARIABLE, RunLock
from tfagents_system.run_files.run_paths import DISPENSABLE, GATEWAY, TRACKER, TRAINER, RunPaths, is_worker, worker_role
from tfagents_system.settings.variables import RunVariables

_STEP_SECS = 0.2
_SPEAK_SECS = 10.0


class Rules(Protocol):
    """What the roles' ends mean, and how they are stopped."""

    def role_ended(self, role: RoleProcess, code: int) -> None:
        """Handles a role that has ended by itself: starts it again, gives it up, or ends all."""

    def look(self) -> None:
        """Looks at all roles together: the run may be over without any of them saying so."""

    def stop(self) -> int:
        """Stops all roles because a signal says so; returns the exit code."""

    def end_roles(self) -> None:
        """Stops what is still running once the outcome is known."""

    def results(self, starter: RoleStarter) -> list[str]:
        """Writes the results of a finished run; returns lines for the user."""

    def closing_lines(self, code: int) -> list[str]:
        """The last lines for the user."""


class Supervisor:
    """Runs roles until one of them, a rule or a signal ends it.

    Args:
      claims: This process's claims; they keep answering while the run lasts.
      starter: Starts the roles; in tests, small programs.
      lock: Of the run directory; without one nobody can take it over.
      environ: Further variables of all roles; they win over a role's own.
    """

    def __init__(
        self,
        variables: RunVariables,
        plan: CpuPlan,
        claims: Claims,
        port: int,
        seed: int,
        stop: StopFlag,
        starter: RoleStarter,
        rules: Callable[[Supervisor], Rules],
        step_secs: float = _STEP_SECS,
        lock: RunLock | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.variables = variables
        self.plan = plan
        self.paths = RunPaths(variables.exp_dir)
        self.stop = stop
        self._claims = claims
        self._starter = starter
        self._step_secs = step_secs
        self._guard = DirectoryGuard(self.paths, lock)
        self._orphans: set[int] = set()  # Those at the beginning of the last step.
        common = common_environ(variables, port, seed) | ({} if lock is None else {TOKEN_VARIABLE: lock.token})
        beside = [] if variables.gateway_port is None else [GATEWAY]
        cpus = plan.by_role()
        if TRAINER in cpus and TrackingSettings.of(vars(variables)).is_wanted:
            beside.append(TRACKER)
        cpus |= {role: plan.beside for role in beside}
        self.roles = {
            role: RoleProcess(
                name=role,
                start=functools.partial(starter.start, role, ids),
                environ=role_environ(role, common, plan, variables) | dict(environ or {}),
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
        try:
            return self._run()
        finally:
            self._guard.close()

    def _run(self) -> int:
        final_lines: list[str] = []
        try:
            self._start()
            while self.exit_code is None and not self.stop.is_set():
                self.step()
                self.stop.wait(self._step_secs)
            code = self.exit_code if self.exit_code is not None else self._rules.stop()
            self._rules.end_roles()
            self.kill_all()
            code = code if self._guard.is_ours else EXIT_FAILED
            if code == EXIT_DONE:
                self._tell("done", "finished")
                self.status.leave()
                final_lines = or_why_not(lambda: self._rules.results(self._starter))
            self._starter.close()
            self._end_orphans(spared=set())
        except BaseException as error:
            # Whatever went wrong in here: no process is left, and the status says so.
            self.kill_all()
            self._starter.close()
            self._end_orphans(spared=set())
            self.status.stop([])
            self.status.exit_code = EXIT_FAILED
            self._tell("failed", f"the supervisor itself failed: {error}")
            raise
        self.status.exit_code = code
        state = {EXIT_DONE: "done", EXIT_RESUMABLE: "stopped"}.get(code, "failed")
        self._tell(state, self.status.message)
        self.status.stop([*final_lines, *or_why_not(lambda: self._rules.closing_lines(code))])
        return code

    def step(self) -> None:
        """Looks at every role once: restarts what died, sees the end."""
        orphans = self._starter.orphans(self._pids())
        ended = {role: code for role in self.roles.values() if (code := role.poll()) is not None}
        if ended:
            end_what_is_left(ended)  # It must not run beside their successors.
            for role, code in ended.items():
                self.status.take_last_words(role.name)
                self._rules.role_ended(role, code)
            self._end_orphans(spared=self._orphans)
        self._orphans = orphans
        self._starter.reap_orphans(self._pids())
        if self.exit_code is None and (problem := self._guard.why_gone()):
            self.kill_all()  # They have nowhere to save to.
            self.fail(EXIT_FAILED, problem, [])
        self._check_lock()
        self._rules.look()
        self._claims.answer()
        self._show()

    def _pids(self) -> list[int]:
        return [role.pid for role in self.roles.values() if role.pid is not None]

    def _end_orphans(self, spared: set[int]) -> None:
        if stuck := self._starter.end_orphans(list(self.roles.values()), spared):
            self.say(f"note: {processes.describe_stuck('what a role has left', stuck)}")

    def _start(self) -> None:
        for folder in (self.paths.logs, self.paths.heartbeats):
            folder.mkdir(parents=True, exist_ok=True)
        self._guard.open()
        for heartbeat in self.paths.heartbeats.glob("*.json"):
            heartbeat.unlink(missing_ok=True)  # An earlier start's is outdated.
        forget_address(self.paths)
        self.status.start()
        self._starter.adopt()
        self._starter.wait_until_ready(self._is_stopped_meanwhile)
        if self.stop.is_set():
            return
        for role in self.roles.values():
            role.start()
        self._tell("running", "")

    def _is_stopped_meanwhile(self) -> bool:
        """Called while the fork server imports: keeps the lock fresh, and says whether to stop."""
        self._guard.touch()
        return self.stop.is_set()

    def _check_lock(self) -> None:
        """Ends a run that another start has taken over, and writes nothing more: that would spoil the other's files."""
        if self._guard.is_taken():
            self.kill_all()
            self.fail(EXIT_FAILED, self._guard.by_whom(), [])

    # For the rules.

    def has_joined_workers(self) -> bool:
        """Whether workers that this supervisor did not start are at work."""
        others = (path for path in self.paths.heartbeats.glob("worker_*.json") if path.stem not in self.roles)
        beats = [beat for path in others if (beat := read_heartbeat(path)) is not None]
        oldest = time.time() - STALE_SECS
        return any(beat["state"] != "stopped" and beat.get("time", 0.0) > oldest for beat in beats)

    def is_at_work(self, role: str) -> bool:
        """Whether a role has come so far that ending it unsaved would lose something."""
        heartbeat = read_heartbeat(self.paths.heartbeat(role)) or {}
        return heartbeat.get("state") not in (None, "starting")

    def finish(self, code: int, message: str = "") -> None:
        """Ends the run with this exit code, for the reason in `message`; "" keeps the previous message."""
        self.status.exit_code = code
        self.status.message = message or self.status.message

    def fail(self, code: int, message: str, lines: Sequence[str]) -> None:
        """Ends the run for the reason in `message`; `lines` are the words of the role whose fault it is."""
        self.finish(code, message)
        self.say("\n".join([f"error: {message}", *(f"  {line}" for line in lines)]))

    def stopping(self) -> str:
        """Reports in the status which signal stops the run, so that joined workers leave; returns its name."""
        name = signal.Signals(self.stop.signal_number or signal.SIGTERM).name
        self._tell(self.status.state, f"stopped by {name}")
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
                self.say(f"killing {', '.join(role.name for role in late)} after {waited_secs:.0f} s{lost}")
            kill_roles(late)
            if time.monotonic() - spoke > _SPEAK_SECS:
                spoke = time.monotonic()
                names = ", ".join(role.name for role in running)
                most_secs = max(deadlines_secs[role] for role in running)
                self.say(f"waiting for {names} to save: {waited_secs:.0f} of at most {most_secs:g} s")
            self._claims.answer()
            self._check_lock()
            self._show()
            time.sleep(min(self._step_secs, 0.1))
        kill_roles(list(deadlines_secs))  # What they left behind, such as processes of their environments.

    def kill_all(self) -> None:
        kill_roles(list(self.roles.values()))

    def say(self, text: str) -> None:
        """Prints a line or more for the user."""
        # A closed terminal or a full disk behind the output is no reason to end a run.
        with contextlib.suppress(OSError):
            print(text, flush=True)

    def _tell(self, state: str, message: str) -> None:
        if self._guard.is_ours:
            self.status.tell(state, message)
        else:
            self.status.state, self.status.message = state, message

    def _show(self) -> None:
        if self._guard.is_ours:
            self.status.show()
