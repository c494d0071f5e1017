"""Handles a role that has ended by itself: it is started again, given up, or its end is the run's."""

from __future__ import annotations

import math
import signal
import time
from typing import TYPE_CHECKING

from tfagents_system.errors import EXIT_BAD_INPUT, EXIT_DONE, EXIT_FAILED, EXIT_HOPELESS, EXIT_RENEW
from tfagents_system.launch.role_process import RoleProcess
from tfagents_system.machine import watchdog
from tfagents_system.machine.memory import OomWatch
from tfagents_system.run_files.heartbeat import read_heartbeat
from tfagents_system.run_files.run_paths import DISPENSABLE, GATEWAY, REPLAY, TRACKER, TRAINER, is_worker

if TYPE_CHECKING:
    from tfagents_system.launch.supervisor import Supervisor

_FAILURES_ALIKE = 3
_ABORT_SECS = 10.0  # Within these, gRPC may abort the clients of a server that was killed.


class RoleRestarts:
    """Judges the ends of a supervisor's roles."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._variables, self._paths = supervisor.variables, supervisor.paths
        self._most_done: dict[str, float] = {}  # By role: its progress at a failure.
        self._replay_died_at = -math.inf
        self._oom = OomWatch()

    def look(self) -> None:
        """To be called again and again while the roles run."""
        self._oom.look()

    def take(self, role: RoleProcess, code: int) -> None:
        """A role has ended with this code, by itself or while all are being stopped."""
        if role.name == REPLAY:
            self._replay_died_at = time.monotonic()
        role.has_worked |= is_worker(role.name) and self._has_done_new(role)
        if role.name == TRAINER and code == EXIT_DONE:
            self._supervisor.finish(EXIT_DONE)
        elif self._supervisor.is_ending:
            pass  # The run is over, or a signal to the whole job reached the role before us.
        elif code == EXIT_BAD_INPUT and role.name != TRACKER and (role.name != GATEWAY or not role.restarts):
            self._supervisor.fail(EXIT_BAD_INPUT, f"{role.name} refused its input", role.error_lines())
        elif code == EXIT_HOPELESS:
            self._supervisor.fail(EXIT_FAILED, f"{role.name} can't go on", role.error_lines())
        elif is_worker(role.name) and code == EXIT_DONE:
            self._supervisor.say(f"{role.name} is done")
        elif code == EXIT_RENEW and role.renew():
            self._supervisor.say(role.log_line(f"{role.name} restarts{role.last_words()}"))
        elif self._is_blameless(role, code):
            delay_secs = role.restart_later(blameless=True)
            self._supervisor.say(
                role.log_line(f"{role.name} ended with {describe_exit(code)}: restart in {delay_secs:g} s")
            )
        else:
            self._failed(role, code)
        if self._variables.deterministic and role.name in (REPLAY, TRAINER) and not role.is_over:
            self._restart_all_with(role)

    def _restart_all_with(self, ended: RoleProcess) -> None:
        """All continue from the last checkpoint: none may see what another did since then."""
        for role in self._supervisor.roles.values():
            if role is not ended and not role.is_over and role.name not in DISPENSABLE:
                role.restart_now()
                role.log_line(f"{role.name} restarts with {ended.name}: SAC_DETERMINISTIC=1")

    def _failed(self, role: RoleProcess, code: int) -> None:
        """Restarts a role, or gives it up."""
        hang = watchdog.take_report(self._paths.hang(role.name))
        words = f" ({hang[0]})" if hang else role.last_words()
        if hang:
            role.log_text("\n".join(hang))
        if code == -signal.SIGKILL and self._oom.has_killed():
            words = " (the kernel has killed a process for lack of memory)"
        else:
            role.note_failure(after_work=self._has_done_new(role))
        role.failed_with = f"{describe_exit(code)}{words}"
        delay_secs = role.restart_later()
        if delay_secs is not None and self._fails_for_ever(role):
            count = f"{role.failures_alike} times in the same way"
            text = f"{role.name} has ended {count}, with {describe_exit(code)}, and has done nothing new in between"
            self._supervisor.fail(EXIT_FAILED, text, role.last_lines())
        elif delay_secs is not None:
            self._supervisor.say(
                role.log_line(
                    f"{role.name} ended with {describe_exit(code)}{words}: restart {role.failures} "
                    f"of at most {self._variables.max_restarts} in a row, in {delay_secs:g} s"
                )
            )
        elif role.name in (REPLAY, TRAINER):
            self._supervisor.fail(EXIT_FAILED, _given_up(role, code), role.last_lines())
        else:
            role.given_up_because = role.failed_with
            if role.name in DISPENSABLE:
                without = "other machines" if role.name == GATEWAY else "sending its metrics"
                self._supervisor.say(role.log_line(f"{_given_up(role, code)}; the run goes on without {without}"))
                return
            if self._variables.deterministic:  # The others wait for it as long as it takes.
                self._supervisor.fail(EXIT_FAILED, f"{_given_up(role, code)}: SAC_DETERMINISTIC=1", role.last_lines())
                return
            self._supervisor.say(role.log_line(f"{_given_up(role, code)}; the other workers go on"))

    def _fails_for_ever(self, role: RoleProcess) -> bool:
        """Whether a role has repeatedly failed in the same way, and the run can't do without it.

        A worker is retried while another one is at its work: its trouble may pass.
        """
        if role.failures_alike < _FAILURES_ALIKE or role.name in DISPENSABLE:
            return False
        if role.name in (REPLAY, TRAINER) or self._variables.deterministic:
            return True
        others = [worker for worker in self._supervisor.collectors if worker is not role and not worker.given_up]
        all_fail = all(worker.failures_alike >= _FAILURES_ALIKE and not self._works(worker) for worker in others)
        return all_fail and not self._supervisor.has_joined_workers()

    def _works(self, role: RoleProcess) -> bool:
        beat = read_heartbeat(self._paths.heartbeat(role.name)) or {}
        return role.is_running() and role.is_of_newest(beat) and beat.get("state") not in (None, "starting")

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

    def _is_blameless(self, role: RoleProcess, code: int) -> bool:
        """Whether somebody else has ended a role that was at its work, perhaps by the replay server's death."""
        if code == -signal.SIGABRT and role.name != REPLAY:
            by_others = time.monotonic() - self._replay_died_at < _ABORT_SECS
        else:
            by_others = code == -signal.SIGKILL and not self._oom.has_killed()
        return by_others and self._supervisor.is_at_work(role.name)


def describe_exit(code: int) -> str:
    """`exit code 1`, `SIGKILL`."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def _given_up(role: RoleProcess, code: int) -> str:
    return f"{role.name} ended with {describe_exit(code)} and is given up after {role.failures - 1} restarts in a row"
