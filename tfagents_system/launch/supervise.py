"""Starts the roles of a run on their CPUs, restarts what dies, stops all, and tells how it went.

    python -m tfagents_system.launch.supervise --vars_file VARS.sh

Started by train_script.sh once the run directory is prepared. Exit codes: 0 the run is finished, 1 it failed, 2 bad
input, 75 it was stopped and everything is saved: the same command goes on.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import errno
import functools
import math
import os
import signal
import socket
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
    exit_with,
)
from tfagents_system.launch import wrap_up
from tfagents_system.launch.cpus import CpuPlan, plan_for
from tfagents_system.launch.fork_server import ForkServer
from tfagents_system.launch.orphans import end_orphans, wait_for_orphans
from tfagents_system.launch.python_path import ROOT, run_python_path
from tfagents_system.launch.role_process import RoleProcess, end_what_is_left, kill_roles
from tfagents_system.launch.role_starter import RoleStarter
from tfagents_system.machine import memory, processes, watchdog
from tfagents_system.machine.claims import Claims, held_cpus
from tfagents_system.machine.gpus import gpu_of_trainer
from tfagents_system.machine.signals import SUPERVISOR_PID_VARIABLE, StopFlag
from tfagents_system.machine.slots import EXPERT, claim_of
from tfagents_system.report.env_faults import FaultTally, fault_lines
from tfagents_system.report.status import format_results, given_up_lines, read_status, time_shares, write_status
from tfagents_system.report.terminal import ProgressView
from tfagents_system.run_files import run_directory
from tfagents_system.run_files.heartbeat import beat_secs, read_heartbeat, stale_secs
from tfagents_system.run_files.run_lock import TOKEN_VARIABLE, RunLock
from tfagents_system.run_files.run_paths import GATEWAY, REPLAY, TRAINER, RunPaths, is_worker, worker_role
from tfagents_system.settings.variables import RunVariables

_STEP_SECS = 0.2
_VIEW_SECS = 1.0
_LOCK_SECS = 1.0
_ALL_WORKERS_GONE_SECS = 120.0
_PLAN_TRIES = 5
_FAILURES_ALIKE = 3
_SPEAK_SECS = 10.0
_ABORT_SECS = 10.0  # Within these, gRPC may abort the clients of a server that was killed.
# Of the time to save. Workers have nothing to save but the segment that they are in.
_WORKERS_SHARE, _REPLAY_SHARE, _REPLAY_SECS = 0.5, 0.25, 10.0


class Supervisor:
    """Runs the roles of one run.

    Args:
      variables: The run's variables.
      plan: Which role runs where.
      claims: What this process holds; kept answering while the run lasts.
      port: TCP port of the replay server.
      seed: The run's seed.
      stop: Set when the run is told to stop.
      starter: Starts the roles; tests have it start small programs.
      step_secs: Seconds between two looks at the roles.
      lock: Of the run directory; without one nobody can take it over.
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
        step_secs: float = _STEP_SECS,
        lock: RunLock | None = None,
    ) -> None:
        self.paths = RunPaths(variables.exp_dir)
        self._lock = lock
        self._is_ours = True  # The run directory.
        self._lock_due = 0.0
        self._faults = FaultTally(read_status(self.paths.status_json))
        self._most_done: dict[str, float] = {}  # By role: how far it had come at a failure.
        self._orphans: set[int] = set()  # That have been there at the last step's beginning.
        self._variables = variables
        self._plan = plan
        self._claims = claims
        self._port = port
        self._stop = stop
        self._starter = starter
        self._step_secs = step_secs
        self._view = ProgressView()
        self._state, self._message, self._exit_code = "starting", "", None  # type: tuple[str, str, int | None]
        self._started_at = time.time()
        self._view_due = self._status_due = 0.0
        self._beat_secs, self._stale_secs = beat_secs(self.paths.exp_dir), stale_secs(self.paths.exp_dir)
        self._workers_gone_at: float | None = None
        self._replay_died_at = -math.inf
        self._oom_kills = memory.oom_kills()  # Those that are known.
        self._directory: int | None = None  # Open, so that no other one gets its inode number.
        self._experts = {worker_role(number) for number in variables.expert_ids}
        common = role_environ(variables, port, seed) | ({} if lock is None else {TOKEN_VARIABLE: lock.token})
        self._roles = {
            role: RoleProcess(
                name=role,
                start=functools.partial(starter.start, role, ids),
                environ=common
                | plan.thread_environ(REPLAY if role == GATEWAY else role)
                | _worker_environ(role, self._experts)
                | _gpu_environ(role, variables),
                log=self.paths.log(role),
                max_restarts=variables.max_restarts,
            )
            for role, ids in self._cpus_by_role().items()
        }

    def _cpus_by_role(self) -> dict[str, tuple[int, ...]]:
        planned = self._plan.by_role()
        return planned if self._variables.gateway_port is None else {**planned, GATEWAY: self._plan.gateway}

    @property
    def _workers(self) -> list[RoleProcess]:
        return [role for name, role in self._roles.items() if is_worker(name)]

    @property
    def _collectors(self) -> list[RoleProcess]:
        """The workers without which the run is nothing: experts alone do not keep it going, nor end it."""
        return [worker for worker in self._workers if worker.name not in self._experts]

    def run(self) -> int:
        """Supervises until the trainer is done, the run fails, or it is told to stop; returns the exit code.

        Raises:
          OSError: The supervisor itself has no file descriptors or disk left.
        """
        try:
            return self._run()
        finally:
            if self._directory is not None:
                os.close(self._directory)

    def _run(self) -> int:
        final_lines: list[str] = []
        try:
            self._start()
            while self._exit_code is None and not self._stop.is_set():
                self.step()
                self._stop.wait(self._step_secs)
            code = self._exit_code if self._exit_code is not None else self._stop_all()
            self._end_roles()
            self._starter.close()
            code = code if self._is_ours else EXIT_FAILED
            if code == EXIT_DONE:
                self._tell("done", "finished")
                final_lines = _or_why_not(self._wrap_up)
            self._end_orphans(spared=set())
        except BaseException as error:
            # Whatever went wrong in here: no process is left, and the status says so.
            self._kill_all()
            self._starter.close()
            self._end_orphans(spared=set())
            self._view.stop([])
            self._exit_code = EXIT_FAILED
            self._tell("failed", f"the supervisor itself failed: {error}")
            raise
        self._exit_code = code
        state = {EXIT_DONE: "done", EXIT_RESUMABLE: "stopped"}.get(code, "failed")
        self._tell(state, self._message)
        self._view.stop([*final_lines, *_or_why_not(lambda: self._closing_lines(code))])
        return code

    def _wrap_up(self) -> list[str]:
        return wrap_up.write_results(
            self.paths,
            ROOT,
            cpus=self._plan.trainer,
            environ=self._roles[TRAINER].environ,
            stop=self._stop,
            video=self._variables.video,
        )

    def step(self) -> None:
        """Looks at every role once: restarts what died, sees the end."""
        orphans = self._starter.orphans(self._pids())
        ended = {role: code for role in self._roles.values() if (code := role.poll()) is not None}
        if ended:
            end_what_is_left(ended)  # It must not meet their successors.
            for role, code in ended.items():
                self._faults.take(role.name, read_heartbeat(self.paths.heartbeat(role.name)) or {})  # Its last words.
                self._ended(role, code)
            self._end_orphans(spared=self._orphans)
        self._orphans = orphans
        self._starter.reap_orphans(self._pids())
        self._check_workers()
        self._check_directory()
        self._check_lock()
        self._claims.answer()
        self._show_status()

    def _pids(self) -> list[int]:
        return [role.pid for role in self._roles.values() if role.pid is not None]

    def _end_orphans(self, spared: set[int]) -> None:
        """Ends what roles that are over have left to this process, though it neither was in their sessions nor has
        their marks: what has come to it since a moment at which they were alive.

        Args:
          spared: What was there before. It may be of a role that goes on, as what is in a living role's session or
            has its mark is.
        """

        def find() -> list[int]:
            living = [role for role in self._roles.values() if role.is_running()]
            marks, sessions = {role.mark.encode() for role in living}, {role.pid for role in living}
            found = self._starter.orphans(self._pids()) - spared
            return [
                pid
                for pid in found
                if not marks & processes.environment_of(pid) and processes.session_of(pid) not in sessions
            ]

        if stuck := processes.end_all(find):
            self._say(f"note: {processes.describe_stuck('what a role has left', stuck)}")
        self._starter.reap_orphans(self._pids())

    # Starting.

    def _start(self) -> None:
        for folder in (self.paths.logs, self.paths.heartbeats):
            folder.mkdir(parents=True, exist_ok=True)
        self._directory = os.open(self.paths.exp_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        for heartbeat in self.paths.heartbeats.glob("*.json"):
            heartbeat.unlink(missing_ok=True)  # What an earlier start said is no news.
        self._view.start()
        self._starter.adopt()
        self._starter.wait_until_ready(self._is_stopped_meanwhile)
        if self._stop.is_set():
            return
        for role in self._roles.values():
            role.start()
        self._tell("running", "")

    def _is_stopped_meanwhile(self) -> bool:
        """While imports take their time: another start must see that this one is alive, and there is no status yet."""
        if self._lock is not None and time.monotonic() >= self._lock_due:
            self._lock_due = time.monotonic() + _LOCK_SECS
            self._lock.touch()
        return self._stop.is_set()

    # Roles that end by themselves.

    def _ended(self, role: RoleProcess, code: int) -> None:
        if role.name == REPLAY:
            self._replay_died_at = time.monotonic()
        if role.name == TRAINER and code == EXIT_DONE:
            self._exit_code = EXIT_DONE
        elif self._exit_code is not None or self._stop.is_set():
            pass  # It is over, or a signal to the whole job reached the role before it reached us.
        elif code == EXIT_BAD_INPUT and (role.name != GATEWAY or not role.restarts):
            self._fail(EXIT_BAD_INPUT, f"{role.name} refused its input", role.error_lines())
        elif code == EXIT_HOPELESS:
            self._fail(EXIT_FAILED, f"{role.name} can't go on", role.error_lines())
        elif is_worker(role.name) and code == EXIT_DONE:
            self._say(f"{role.name} is done")
        elif code == EXIT_RENEW and role.renew():
            self._say(role.log_line(f"{role.name} starts anew{role.last_words()}"))
        elif self._is_blameless(role, code):
            delay_secs = role.restart_later(blameless=True)
            self._say(role.log_line(f"{role.name} ended with {describe_exit(code)}: restart in {delay_secs:g} s"))
        else:
            self._failed(role, code)
        if self._variables.deterministic and role.name in (REPLAY, TRAINER) and not role.is_over:
            self._restart_all_with(role)

    def _restart_all_with(self, ended: RoleProcess) -> None:
        """All go on from the last checkpoint: what one of them did since then must not be seen by another."""
        for role in self._roles.values():
            if role is not ended and not role.is_over and role.name != GATEWAY:
                role.restart_now()
                role.log_line(f"{role.name} starts anew with {ended.name}: SAC_DETERMINISTIC=1")

    def _failed(self, role: RoleProcess, code: int) -> None:
        """Restarts a role, or gives it up."""
        hang = watchdog.take_report(self.paths.hang(role.name))
        words = f" ({hang[0]})" if hang else role.last_words()
        if hang:
            role.log_text("\n".join(hang))
        if code == -signal.SIGKILL and memory.oom_kills() > self._oom_kills:
            self._oom_kills = memory.oom_kills()
            words = " (the kernel has killed a process for lack of memory)"
        else:
            role.note_failure(after_work=self._has_done_new(role))
        delay_secs = role.restart_later()
        if delay_secs is not None and self._fails_for_ever(role):
            count = f"{role.failures_alike} times in the same way"
            text = f"{role.name} has ended {count}, with {describe_exit(code)}, and has done nothing new in between"
            self._fail(EXIT_FAILED, text, role.last_lines())
        elif delay_secs is not None:
            self._say(
                role.log_line(
                    f"{role.name} ended with {describe_exit(code)}{words}: restart {role.failures} "
                    f"of at most {self._variables.max_restarts} in a row, in {delay_secs:g} s"
                )
            )
        elif role.name in (REPLAY, TRAINER):
            self._fail(EXIT_FAILED, _given_up(role, code), role.last_lines())
        else:
            role.given_up_because = f"{describe_exit(code)}{words}"
            if role.name == GATEWAY:
                self._say(role.log_line(f"{_given_up(role, code)}; the run goes on without other machines"))
                return
            if self._variables.deterministic:  # The others wait for it as long as it takes.
                self._fail(EXIT_FAILED, f"{_given_up(role, code)}: SAC_DETERMINISTIC=1", role.last_lines())
                return
            self._say(role.log_line(f"{_given_up(role, code)}; the other workers go on"))

    def _fails_for_ever(self, role: RoleProcess) -> bool:
        """Whether a role has failed in the same way again and again, and the run is nothing without it.

        A worker is tried on while another one is at its work: its trouble may pass.
        """
        if role.failures_alike < _FAILURES_ALIKE or role.name == GATEWAY:
            return False
        if role.name in (REPLAY, TRAINER) or self._variables.deterministic:
            return True
        others = [worker for worker in self._collectors if worker is not role and not worker.given_up]
        all_fail = all(worker.failures_alike >= _FAILURES_ALIKE and not self._works(worker) for worker in others)
        return all_fail and not self._has_joined_workers()

    def _works(self, role: RoleProcess) -> bool:
        beat = read_heartbeat(self.paths.heartbeat(role.name)) or {}
        return role.is_running() and role.is_of_newest(beat) and beat.get("state") not in (None, "starting")

    def _has_done_new(self, role: RoleProcess) -> bool:
        """Whether a process that has just ended had done what none before it had: updates, steps stored or taken."""
        beat = read_heartbeat(self.paths.heartbeat(role.name)) or {}
        done = beat.get({TRAINER: "train_step", REPLAY: "env_steps"}.get(role.name, "steps"))
        if not role.is_of_newest(beat) or not isinstance(done, int | float):
            return False
        most = self._most_done.get(role.name, 0)
        if not is_worker(role.name):  # Workers count from each start of theirs.
            self._most_done[role.name] = max(most, done)
        return done > most

    def _is_blameless(self, role: RoleProcess, code: int) -> bool:
        """Whether somebody else has ended a role that was at its work, be it through the replay server's death."""
        if code == -signal.SIGABRT and role.name != REPLAY:
            by_others = time.monotonic() - self._replay_died_at < _ABORT_SECS
        else:
            by_others = code == -signal.SIGKILL and memory.oom_kills() == self._oom_kills
        return by_others and self._is_at_work(role.name)

    def _check_workers(self) -> None:
        """A run without any worker but experts waits forever: it fails, unless the trainer is just finishing.

        Where it has none of its own (SAC_LOCAL_WORKERS=0) it waits for those that join.
        """
        if (
            self._exit_code is not None
            or not self._collectors
            or not all(worker.is_over for worker in self._collectors)
            or self._has_joined_workers()
        ):
            self._workers_gone_at = None
            return
        given_up = [worker for worker in self._collectors if worker.given_up]
        if given_up and len(given_up) == len(self._collectors):
            self._fail(EXIT_FAILED, "every worker was given up", given_up[-1].last_lines())
        elif self._workers_gone_at is None:
            self._workers_gone_at = time.monotonic()
        elif time.monotonic() - self._workers_gone_at > _ALL_WORKERS_GONE_SECS:
            self._fail(EXIT_FAILED, "every worker has ended, but the trainer is not done", [])

    def _has_joined_workers(self) -> bool:
        """Whether workers that this supervisor has not started are at work."""
        others = (path for path in self.paths.heartbeats.glob("worker_*.json") if path.stem not in self._roles)
        beats = [beat for path in others if (beat := read_heartbeat(path)) is not None]
        oldest = time.time() - self._stale_secs
        return any(beat["state"] != "stopped" and beat.get("time", 0.0) > oldest for beat in beats)

    def _check_directory(self) -> None:
        """What is written into a directory that was removed is lost: that is told now, not when the run is done."""
        if self._exit_code is None and self._directory is not None and _is_gone(self.paths.exp_dir, self._directory):
            self._kill_all()  # They have nowhere to save to.
            self._fail(
                EXIT_FAILED,
                f"the run directory {self.paths.exp_dir} was removed or replaced while the run was going: put it back "
                "and start the same command again, or begin anew with it",
                [],
            )

    def _check_lock(self) -> None:
        """A run that another start has taken over ends, and writes nothing more: it would spoil the other's files."""
        if self._lock is None or not self._is_ours or time.monotonic() < self._lock_due:
            return
        self._lock_due = time.monotonic() + _LOCK_SECS
        if self._lock.is_own():
            return
        self._is_ours = False
        self._kill_all()
        self._fail(
            EXIT_FAILED,
            f"the run directory {self.paths.exp_dir} was taken over by {self._lock.describe_owner()}: this start ends "
            "and writes nothing more",
            [],
        )

    def _fail(self, code: int, message: str, lines: Sequence[str]) -> None:
        if code == EXIT_FAILED and self._is_ours and (problem := _write_problem(self.paths.logs)):
            message += f" ({problem})"  # The role's own words may not have come to its log.
        self._exit_code = code
        self._message = message
        self._say("\n".join([f"error: {message}", *(f"  {line}" for line in lines)]))

    # Stopping.

    def _stop_all(self) -> int:
        """The trainer and the workers save first; the replay server stores what they still send, then saves too."""
        signal_name = signal.Signals(self._stop.signal_number or signal.SIGTERM).name
        self._tell(self._state, f"stopped by {signal_name}")  # Now: who has joined leaves, and says why.
        deadline_secs = self._variables.save_deadline_secs
        self._say(f"{signal_name}: saving, within {deadline_secs:g} s; a second signal stops at once, unsaved")
        trainer, replay = self._roles[TRAINER], self._roles[REPLAY]
        had_work = self._is_at_work(TRAINER)
        self._end_in_order(deadline_secs)
        if self._exit_code is not None:  # Somebody has taken the run directory over.
            return self._exit_code
        if trainer.exit_code == EXIT_DONE:
            return EXIT_DONE
        saved = (EXIT_RESUMABLE, EXIT_DONE)
        if not had_work or (trainer.exit_code in saved and replay.exit_code in saved):
            return EXIT_RESUMABLE
        self._message += ", not everything was saved: the same command goes on from the last checkpoint"
        return EXIT_FAILED

    def _is_at_work(self, role: str) -> bool:
        """Whether a role came so far that ending it without its saving would lose something."""
        heartbeat = read_heartbeat(self.paths.heartbeat(role)) or {}
        return heartbeat.get("state") not in (None, "starting")

    def _end_roles(self) -> None:
        """What still runs once the outcome is known; the trainer is over."""
        self._end_in_order(self._variables.save_deadline_secs)
        self._kill_all()

    def _end_in_order(self, deadline_secs: float) -> None:
        """The trainer and the workers, then the replay server, all of them within the deadline."""
        began = time.monotonic()
        trainer_secs = deadline_secs - min(_REPLAY_SECS, _REPLAY_SHARE * deadline_secs)
        worker_secs = _WORKERS_SHARE * deadline_secs
        deadlines = {role: worker_secs for role in self._workers} | {self._roles[TRAINER]: trainer_secs}
        if gateway := self._roles.get(GATEWAY):
            deadlines[gateway] = worker_secs  # It tells the workers on other machines, and takes what they still send.
        self._end(deadlines)
        self._end({self._roles[REPLAY]: deadline_secs - (time.monotonic() - began)})

    def _end(self, deadlines_secs: Mapping[RoleProcess, float]) -> None:
        """A stop signal, then SIGKILL after each role's deadline or at a second signal."""
        start = spoke = time.monotonic()
        for role in deadlines_secs:
            role.terminate()
        while running := [role for role in deadlines_secs if role.is_running()]:
            waited_secs = time.monotonic() - start
            late = [role for role in running if waited_secs > deadlines_secs[role] or self._stop.count > 1]
            if late:
                self._say(f"killing {', '.join(role.name for role in late)} after {waited_secs:.0f} s, unsaved")
            kill_roles(late)
            if time.monotonic() - spoke > _SPEAK_SECS:
                spoke = time.monotonic()
                names = ", ".join(role.name for role in running)
                most_secs = max(deadlines_secs[role] for role in running)
                self._say(f"waiting for {names} to save: {waited_secs:.0f} of at most {most_secs:g} s")
            self._claims.answer()
            self._check_lock()
            self._show_status()
            time.sleep(min(self._step_secs, 0.1))
        kill_roles(list(deadlines_secs))  # What they left behind, such as processes of their environments.

    def _kill_all(self) -> None:
        kill_roles(list(self._roles.values()))

    # Telling.

    def _say(self, text: str) -> None:
        # A closed terminal or a full disk behind the output is no reason to end a run.
        with contextlib.suppress(OSError):
            print(text, flush=True)

    def _tell(self, state: str, message: str) -> None:
        self._state, self._message = state, message
        self._view_due = self._status_due = 0.0
        self._show_status()

    def _show_status(self) -> None:
        """Shows the status when its time has come, and writes it as seldom as heartbeats; both at once from `_tell`."""
        now = time.monotonic()
        if now < self._view_due or not self._is_ours:
            return
        self._view_due = now + _VIEW_SECS
        status = self.status()
        if now >= self._status_due:
            self._status_due = now + self._beat_secs
            write_status(self.paths.status_json, status)
        if self._state in ("starting", "running"):
            self._view.update(status)

    def status(self) -> dict[str, Any]:
        """What status.json says: the run, its plan, and every role's last heartbeat."""
        roles = {
            name: {**(read_heartbeat(self.paths.heartbeat(name)) or {})}
            | {"alive": role.is_running(), "restarts": role.restarts, "given_up": role.given_up}
            | ({"given_up_because": role.given_up_because} if role.given_up_because else {})
            | ({"state": "stopped"} if role.has_stopped else {})
            | ({"kind": EXPERT} if name in self._experts else {})
            for name, role in self._roles.items()
        }
        roles |= remote_roles(self.paths, known=roles, stale_secs=self._stale_secs)
        for name, beat in roles.items():
            self._faults.take(name, beat)
        run = {
            "name": self._variables.exp_name,
            "exp_dir": str(self.paths.exp_dir),
            "state": self._state,
            "started_at": self._started_at,
            "updated_at": time.time(),
            "stale_secs": self._stale_secs,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "port": self._port,
            "exit_code": self._exit_code,
            "message": self._message,
            **self._faults.to_json(),
        }
        return {"run": run, "plan": self._plan.to_json(), "pinned": self._plan.pinned, "roles": roles}

    def _closing_lines(self, code: int) -> list[str]:
        name, logs, status = self._variables.exp_name, self.paths.logs, self.status()
        lost = [*given_up_lines(status), *fault_lines(status["run"])]
        if code == EXIT_DONE:
            why = status["roles"][TRAINER].get("ended_early")
            finished = f"{name} is finished{f' early: {why}' if why else ''}"
            return [*_time_lines(status), *lost, *_result_lines("final", status), finished]
        if code == EXIT_RESUMABLE:
            saved = f"{name}: {self._message}; everything is saved, the same command goes on from here"
            return [*_time_lines(status), *lost, *_result_lines("last", status), saved]
        return [*lost, *_result_lines("last", status), f"{name} failed: {self._message} (logs in {logs})"]


def _time_lines(status: dict[str, Any]) -> list[str]:
    """`trainer's time: updates 93%, waiting 4%`, a line for each kind of role."""
    shares = time_shares(status)
    pairs = {owner: [f"{name} {share}" for name, share in each.items()] for owner, each in shares.items()}
    return [f"{owner} time: {', '.join(each)}" for owner, each in pairs.items()]


def _result_lines(which: str, status: dict[str, Any]) -> list[str]:
    """`final evaluation: return -310.2 ± 40.1, best -298.7, success 85%`; none before the first one."""
    results = format_results(status["roles"].get(TRAINER, {}), "return")
    return [f"{which} evaluation: {', '.join(results)}"] if results else []


def remote_roles(paths: RunPaths, known: Collection[str], stale_secs: float) -> dict[str, dict[str, Any]]:
    """Heartbeats of roles on other machines, as the gateway writes them; those `known` are the run's own."""
    beats = {path.stem: read_heartbeat(path) for path in paths.heartbeats.glob("*.json") if path.stem not in known}
    found = {name: beat for name, beat in sorted(beats.items()) if beat is not None and beat.get("remote")}
    oldest = time.time() - stale_secs
    return {name: {**beat, "alive": beat.get("time", 0.0) > oldest, "restarts": 0} for name, beat in found.items()}


def _or_why_not(lines: Callable[[], list[str]]) -> list[str]:
    """Lines for the user; what goes wrong with them is one, and never what becomes of the run."""
    try:
        return lines()
    except Exception as error:
        return [f"note: {type(error).__name__}: {error}"]


def role_environ(variables: RunVariables, port: int, seed: int) -> dict[str, str]:
    """The environment that all roles have in common."""
    own = {
        "SAC_REVERB_PORT": str(port),
        "SAC_SEED": str(seed),
        "PYTHONPATH": run_python_path(os.environ),
        "PYTHONUNBUFFERED": "1",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "CUDA_VISIBLE_DEVICES": "-1",
        SUPERVISOR_PID_VARIABLE: str(os.getpid()),
    }
    return {**os.environ, **variables.to_environ(), **own}


def _worker_environ(role: str, experts: Collection[str]) -> dict[str, str]:
    if not is_worker(role):
        return {}
    return {"SLURM_PROCID": role.removeprefix("worker_")} | ({"SAC_WORKER_ROLE": EXPERT} if role in experts else {})


def _gpu_environ(role: str, variables: RunVariables) -> dict[str, str]:
    gpu = gpu_of_trainer(os.environ) if role == TRAINER and variables.train_gpus else None
    return {"CUDA_VISIBLE_DEVICES": gpu} if gpu is not None else {}


def describe_exit(code: int) -> str:
    """`exit code 1`, `SIGKILL`."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def _write_problem(folder: Path) -> str | None:
    """Why nothing can be written into a folder, such as a full disk; None where it can."""
    probe = folder / f".probe.{os.getpid()}"
    try:
        probe.write_bytes(bytes(4096))
        return None
    except OSError as error:
        return f"{folder} can't be written: {error.strerror}"
    finally:
        with contextlib.suppress(OSError):
            probe.unlink(missing_ok=True)


def _is_gone(directory: Path, opened: int) -> bool:
    """Whether a path no longer leads to the directory that was opened there; trouble of a file system is no proof."""
    try:
        return not os.path.samestat(os.stat(directory), os.fstat(opened))
    except OSError as error:
        return error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ESTALE)


def _given_up(role: RoleProcess, code: int) -> str:
    return f"{role.name} ended with {describe_exit(code)} and is given up after {role.failures - 1} restarts in a row"


def claim_cpus(variables: RunVariables, claims: Claims) -> CpuPlan:
    """Plans and claims CPU ids; plans anew when another run was faster.

    Raises:
      UserError: Too few are left.
    """
    for _ in range(_PLAN_TRIES):
        plan = plan_for(variables, held=held_cpus(), trainers=held_cpus("trainer"))
        if not claims.take_cpus(plan.ids(), exclusive=not variables.share_cpus):
            for cpu in plan.trainer:
                claims.take(f"trainer/{cpu}")
            return plan
        time.sleep(0.05)
    raise UserError(
        f"CPUs were taken by other runs {_PLAN_TRIES} times in a row while this one was planned: start again"
    )


def claim_expert_slots(variables: RunVariables, claims: Claims, port: int) -> None:
    """Takes the slots of the run's experts, which a worker may have that has joined an earlier start.

    Raises:
      UserError: One does.
    """
    taken = [str(number) for number in variables.expert_ids if not claims.take(claim_of(port, number))]
    if taken:
        raise UserError(
            f"SAC_EXPERT_WORKERS={variables.expert_workers} needs slots {variables.expert_ids[0]} to "
            f"{variables.expert_ids[-1]}, a worker that has joined an earlier start of the run has {', '.join(taken)}: "
            "end it, and start again"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description="Supervise a prepared run.")
    parser.add_argument("--vars_file", type=Path, default=None, help="the sourced vars file, for messages and paths")
    args = parser.parse_args()
    stop = StopFlag.of_supervisor()
    variables = RunVariables.from_environ(os.environ, vars_file=args.vars_file, root=ROOT)
    start_server = functools.partial(ForkServer.start, {**os.environ, **variables.to_environ()})
    fork_server = ForkServer.inherited()
    if fork_server is None and variables.fork_roles:
        fork_server = start_server()
    return supervise(variables, stop, RoleStarter(fork_server=fork_server, start_server=start_server))


def supervise(variables: RunVariables, stop: StopFlag, starter: RoleStarter) -> int:
    """Holds what the run needs and runs it to its end.

    Raises:
      UserError: Its directory, its CPUs or its port are in use.
    """
    paths = RunPaths(variables.exp_dir)
    wait_for_orphans(paths, variables.save_deadline_secs)
    with RunLock(paths) as lock:
        if run_directory.is_finished(paths):
            return EXIT_DONE
        end_orphans(paths, variables.save_deadline_secs)
        claims = Claims()
        plan = claim_cpus(variables, claims)
        port = claims.take_port(variables.reverb_port)
        claim_expert_slots(variables, claims, port)
        seed = run_directory.read_run_json(paths).get("seed", variables.seed)
        now = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
        print(f"{now} starting {variables.exp_name} in {paths.exp_dir}, port {port}", flush=True)
        print(plan.table(), flush=True)
        return Supervisor(variables, plan, claims, port, seed, stop, starter, lock=lock).run()


if __name__ == "__main__":
    exit_with(main)
