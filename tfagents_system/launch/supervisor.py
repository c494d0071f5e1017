"""Supervises a prepared run: starts its roles, restarts those that die, tells its status, and stops all in order.

The `Supervisor` looks at all roles five times a second and holds the run's lock, CPUs and port. Workers that have
joined a run have one with other rules: what a role's end means, how roles stop, what is told (cluster/join.py).
"""

from __future__ import annotations

import dataclasses
import datetime
import errno
import functools
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tfagents_system.errors import (
    CALLED,
    EXIT_BAD_INPUT,
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_HOPELESS,
    EXIT_RENEW,
    EXIT_RESUMABLE,
    UserError,
)
from tfagents_system.launch.cpus import CpuPlan, plan_for
from tfagents_system.launch.forks import ForkedProcess, RoleStarter
from tfagents_system.launch.role_process import RoleProcess, end_what_is_left, kill_roles, say
from tfagents_system.launch.vars_file import run_python_path
from tfagents_system.machine import watchdog
from tfagents_system.machine.claims import Claims, held_cpus
from tfagents_system.machine.cpus import usable_gpus
from tfagents_system.machine.files import read_json, write_json
from tfagents_system.machine.processes import KILL_SECS, kill_session, wait_until
from tfagents_system.machine.signals import SUPERVISOR_PID_VARIABLE, StopFlag
from tfagents_system.report import status as report_status
from tfagents_system.report.terminal import ProgressView
from tfagents_system.report.tracking import is_tracked, keep_tracked
from tfagents_system.run_files import run_directory
from tfagents_system.run_files.heartbeat import BEAT_SECS, STALE_SECS, read_heartbeat, read_status, write_status
from tfagents_system.run_files.run_lock import TOKEN_VARIABLE, RunLock
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
from tfagents_system.settings.resolved import read_run
from tfagents_system.settings.variables import RunVariables

_PLAN_TRIES = 5
_STEP_SECS = 0.2
_LOCK_SECS = 1.0  # Between two looks at the lock.
_VIEW_SECS = 1.0
_SPEAK_SECS = 10.0
_ALL_WORKERS_GONE_SECS = 120.0
# Of the time to save. Workers have only their current segment to save.
_WORKERS_SHARE, _REPLAY_SHARE, _REPLAY_SECS = 0.5, 0.25, 10.0
_BY_SIGKILL = " (by somebody, or by the kernel for lack of memory)"
_TRACKER_SECS = 5.0  # Nobody's experience or updates wait for what it sends.
# Programs that write the results of a finished run.
_DEADLINE_SECS, _VIDEO_DEADLINE_SECS = 120.0, 600.0
_END_SECS = 30.0  # From SIGTERM to SIGKILL, unless the user insists: a device is told to wait.
_ABOUT_A_VIDEO = "episode 1: ", "note: no video: "  # Lines of run.py.


def supervise(variables: RunVariables, stop: StopFlag, starter: RoleStarter, lock: RunLock) -> int:
    """Runs a prepared run to its end, for the holder of the lock of its directory, which is released then.

    Returns:
      The exit code: 0 the run is finished, 1 it failed, 75 it was stopped and everything is saved.

    Raises:
      UserError: Its CPUs or its port are in use.
    """
    paths = RunPaths(variables.exp_dir)
    with lock:
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
        return Supervisor(variables, plan, claims, port, stop, starter, lock=lock).run()


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
      claims: This process's claims, held as long as this object.
      starter: Starts the roles; in tests, small programs.
      lock: Of the run directory; without one nobody can take it over.

    Attributes:
      state: `starting`, `running`, `done`, `stopped` or `failed`.
      exit_code: None while the run continues.
      message: Why it ends.
      view: The live view.
    """

    def __init__(
        self,
        variables: RunVariables,
        plan: CpuPlan,
        claims: Claims,
        port: int,
        stop: StopFlag,
        starter: RoleStarter,
        step_secs: float = _STEP_SECS,
        lock: RunLock | None = None,
    ) -> None:
        self.variables, self.plan, self.port = variables, plan, port
        self.paths = RunPaths(variables.exp_dir)
        self.stop, self.starter = stop, starter
        self._claims, self._step_secs = claims, step_secs
        self._lock, self._lock_due = lock, 0.0
        self._is_ours = True  # False once another start has taken the run directory over: it is not written to then.
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
        self.state, self.message = "starting", ""
        self.exit_code: int | None = None
        self.view = ProgressView()
        self._started_at = time.time()
        self._unwritable, self._unwritable_at = "", float("-inf")  # Why status.json could not be written, and when.
        self._view_due = self._status_due = 0.0
        self._before = report_status.how_far(self.paths, read_status(self.paths.status_json))
        self._most_done: dict[str, float] = {}  # By role: its progress at a failure.
        self._workers_gone_at: float | None = None

    @property
    def workers(self) -> list[RoleProcess]:
        return [role for name, role in self.roles.items() if is_worker(name)]

    @property
    def collectors(self) -> list[RoleProcess]:
        """The workers that the run needs: experts and evaluators alone do not keep it going, nor end it."""
        beside = {worker_role(number) for number in self.variables.kinds_beside}
        return [worker for worker in self.workers if worker.name not in beside]

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
            code = self.exit_code if self.exit_code is not None else self.stop_roles()
            self.end_roles()
            kill_roles(self.roles.values())
            self._bound_logs()
            code = code if self._is_ours else EXIT_FAILED
            if code == EXIT_DONE:
                self.tell("done", self.message or "finished")
                self.view.leave(self.to_json())
                final_lines = _or_why_not(self.results)
            self.starter.end_orphans()
        except BaseException as error:
            # Whatever went wrong in here: no process is left, and the status says so.
            kill_roles(self.roles.values())
            self.starter.end_orphans()
            self.view.stop([])
            self.exit_code = EXIT_FAILED
            self.tell("failed", f"the supervisor itself failed: {error}")
            raise
        finally:
            if self._directory is not None:
                os.close(self._directory)
        self.exit_code = code
        self.tell({EXIT_DONE: "done", EXIT_RESUMABLE: "stopped"}.get(code, "failed"), self.message)
        self.view.stop([*_or_why_not(lambda: self.closing_lines(code)), *final_lines])
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
        self.view.start()

    def step(self) -> None:
        """Looks at every role once: starts and restarts them, sees the end."""
        ended = {role: code for role in self.roles.values() if (code := role.poll()) is not None}
        if ended:
            end_what_is_left(ended)  # It must not run beside their successors.
            for role, code in ended.items():
                self.role_ended(role, code)
        self.starter.reap_orphans([role.pid for role in self.roles.values() if role.pid is not None])
        self._check_directory()
        self._bound_logs()
        self.look()
        if self.state == "starting":
            self.tell("running", "")
        self.show()

    def _check_directory(self) -> None:
        """Ends a run whose directory is gone: nothing can be saved. Ends one that another start has taken over, and
        writes nothing more: that would spoil the other's files.
        """
        is_due, exp_dir = self._is_ours and time.monotonic() >= self._lock_due, self.paths.exp_dir
        lock = self._lock if is_due else None
        is_own = lock is None or lock.is_own()  # Looked at before the directory, with which the lock is gone.
        if self._directory is not None and _is_gone(exp_dir, self._directory):
            if self.exit_code is None:
                kill_roles(self.roles.values())
                what = f"the run directory {exp_dir} was removed or replaced while the run was going"
                remedy = "put it back and start the same command again, or start over with that command"
                self.fail(EXIT_FAILED, f"{what}: {remedy}")
        elif lock is not None:
            self._lock_due = time.monotonic() + _LOCK_SECS
            if is_own:
                lock.touch()
                return
            self._is_ours = False
            kill_roles(self.roles.values())
            what = f"the run directory {exp_dir} was taken over by {lock.describe_owner()}"
            self.fail(EXIT_FAILED, f"{what}: this start ends and writes nothing more")

    def _bound_logs(self) -> None:
        for role in self.roles.values() if self._is_ours else ():
            role.bound_log()

    def finish(self, code: int, message: str = "") -> None:
        """Ends the run with this exit code, for the reason in `message`; "" keeps the previous message."""
        self.exit_code = code
        self.message = message or self.message

    def fail(self, code: int, message: str, lines: Sequence[str] = ()) -> None:
        """Ends the run for the reason in `message`; `lines` are the words of the role whose fault it is."""
        self.finish(code, message)
        say("\n".join([f"error: {message}", *(f"  {line}" for line in lines)]))

    # What the end of a role means.

    def role_ended(self, role: RoleProcess, code: int) -> None:
        """Handles a role that has ended by itself: starts it again, gives it up, or ends all."""
        has_done_new = self._has_done_new(role)
        role.has_worked |= is_worker(role.name) and has_done_new
        is_far = self.variables.trainer_server is not None and role.name not in DISPENSABLE
        if role.name == TRAINER and code == EXIT_DONE:
            self.finish(EXIT_DONE)
        elif self.is_ending:
            pass  # The run is over, or a signal to the whole job reached the role before us.
        elif code == EXIT_RESUMABLE and is_far:
            self.finish(EXIT_RESUMABLE, "the run was stopped where its replay server is")
        elif code == EXIT_BAD_INPUT and role.name != TRACKER and (role.name != GATEWAY or not role.restarts):
            self.fail(EXIT_BAD_INPUT, f"{role.name} refused its input{role.last_words()}", role.error_lines())
        elif code == EXIT_HOPELESS:
            self.fail(EXIT_FAILED, f"{role.name} can't continue{role.last_words()}", role.error_lines())
        elif is_worker(role.name) and code == EXIT_DONE:
            say(f"{role.name} is done")
        elif has_done_new and code in (EXIT_RENEW, -signal.SIGKILL, -signal.SIGTERM):
            delay_secs = role.restart_later(blameless=True)
            why = {EXIT_RENEW: role.last_words(), -signal.SIGKILL: _BY_SIGKILL}.get(code, "")
            say(role.log_line(f"{role.name} ended with {_in_words(code)}{why}: restart in {delay_secs:g} s"))
        else:
            self._failed(role, code)
        if self.variables.deterministic and role.name in (REPLAY, TRAINER) and not role.is_over:
            # All continue from the last checkpoint: none may see what another did since then.
            for other in self.roles.values():
                if other is not role and not other.is_over and other.name not in DISPENSABLE:
                    other.restart_now()
                    other.log_line(f"{other.name} restarts with {role.name}: SAC_DETERMINISTIC=1")

    def _failed(self, role: RoleProcess, code: int) -> None:
        """Restarts a role, or gives it up."""
        hang = watchdog.take_report(self.paths.hang(role.name))
        why = f" ({hang[0]})" if hang else role.last_words()
        if hang:
            role.log_line("\n".join(hang))
        if code == -signal.SIGKILL:
            why = _BY_SIGKILL
        role.failed_with = f"{_in_words(code)}{why}"
        delay_secs = role.restart_later()
        if delay_secs is not None:
            most = f"{role.failures} of at most {self.variables.max_restarts} in a row"
            say(role.log_line(f"{role.name} ended with {role.failed_with}: restart {most}, in {delay_secs:g} s"))
            return
        text = f"{role.name} ended with {role.failed_with} and is given up after {role.failures - 1} restarts in a row"
        if role.name in (REPLAY, TRAINER):
            self.fail(EXIT_FAILED, text, role.last_lines())
        elif role.name in DISPENSABLE:
            without = "other machines" if role.name == GATEWAY else "sending its metrics"
            say(role.log_line(f"{text}; the run continues without {without}"))
        elif self.variables.deterministic:  # The others wait for it as long as it takes.
            self.fail(EXIT_FAILED, f"{text}: SAC_DETERMINISTIC=1", role.last_lines())
        else:
            say(role.log_line(f"{text}; the other workers continue"))

    def _has_done_new(self, role: RoleProcess) -> bool:
        """Whether a process that has just ended had got further than any before it: updates, steps stored or taken."""
        beat = read_heartbeat(self.paths.heartbeat(role.name)) or {}
        done = beat.get({TRAINER: "train_step", REPLAY: "env_steps"}.get(role.name, "steps"))
        if beat.get("pid", role.newest_pid) != role.newest_pid or not isinstance(done, int | float):
            return False  # The heartbeat is that of an earlier process, or says nothing.
        most = self._most_done.get(role.name, 0)
        if not is_worker(role.name):  # Workers count from zero at each start.
            self._most_done[role.name] = max(most, done)
        return done > most

    def look(self) -> None:
        """Looks at all roles together. A run without a worker that collects would wait forever: it fails, unless the
        trainer is just finishing.

        A run without workers of its own (SAC_LOCAL_WORKERS=0) waits for those that join.
        """
        collectors = self.collectors
        beat = {} if TRAINER in self.roles else read_heartbeat(self.paths.heartbeat(TRAINER)) or {}
        if self.exit_code is None and beat.get("state") == "done":  # Elsewhere.
            self.finish(EXIT_DONE)
        is_alone = bool(collectors) and all(worker.is_over for worker in collectors)
        if self.exit_code is not None or not is_alone or self.has_joined_workers():
            self._workers_gone_at = None
        elif all(worker.given_up for worker in collectors):
            last = collectors[-1]
            self.fail(EXIT_FAILED, f"every worker was given up: {last.failed_with}", last.last_lines())
        elif self._workers_gone_at is None:
            self._workers_gone_at = time.monotonic()
        elif time.monotonic() - self._workers_gone_at > _ALL_WORKERS_GONE_SECS:
            self.fail(EXIT_FAILED, "every worker has ended, but the trainer is not done")

    def has_joined_workers(self) -> bool:
        """Whether workers that this supervisor did not start are at work."""
        beats = [beat for name, beat in self._other_beats().items() if is_worker(name)]
        return any(_is_fresh(beat) and beat.get("state") != "stopped" for beat in beats)

    # How roles are stopped.

    def stop_roles(self) -> int:
        """Stops all roles because a signal says so; returns the exit code.

        The trainer and the workers save first; the replay server stores what they still send, then saves too.
        """
        name = signal.Signals(self.stop.signal_number or signal.SIGTERM).name
        self.tell(self.state, f"stopped by {name}")  # Joined workers read it there, and leave.
        deadline_secs = self.variables.save_deadline_secs
        say(f"{name}: saving, within {deadline_secs:g} s; a second signal stops at once, unsaved")
        savers = [role for name, role in self.roles.items() if name in (TRAINER, REPLAY)]
        beats = [read_heartbeat(self.paths.heartbeat(role.name)) or {} for role in savers[-1:]]
        had_work = any(beat.get("state") not in (None, "starting") for beat in beats)  # Else nothing can be lost.
        self.end_roles()
        if self.exit_code is not None:  # Another start has taken the run directory over.
            return self.exit_code
        if TRAINER in self.roles and self.roles[TRAINER].exit_code == EXIT_DONE:
            return EXIT_DONE
        if not had_work or all(role.exit_code in (EXIT_RESUMABLE, EXIT_DONE) for role in savers):
            return EXIT_RESUMABLE
        self.message += ", not everything was saved"
        return EXIT_FAILED

    def end_roles(self) -> None:
        """Ends the trainer and the workers, then the replay server and the tracker, all of them within the deadline."""
        self.tell(self.state, self.message)  # A trainer reads there that a server has ended, and does not wait for it.
        roles, deadline_secs, began = self.roles, self.variables.save_deadline_secs, time.monotonic()
        worker_secs = _WORKERS_SHARE * deadline_secs
        deadlines = dict.fromkeys(self.workers, worker_secs)
        if TRAINER in roles:
            deadlines[roles[TRAINER]] = deadline_secs - min(_REPLAY_SECS, _REPLAY_SHARE * deadline_secs)
        if GATEWAY in roles:
            deadlines[roles[GATEWAY]] = worker_secs  # It informs workers elsewhere, and takes what they still send.
        self.end(deadlines)
        left_secs = deadline_secs - (time.monotonic() - began)
        # What the tracker has not sent by then is in metrics.csv.
        last = {REPLAY: left_secs, TRACKER: min(_TRACKER_SECS, left_secs)}
        self.end({roles[name]: secs for name, secs in last.items() if name in roles})

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
            self._bound_logs()
            self.show()
            time.sleep(min(self._step_secs, 0.1))
        kill_roles(deadlines_secs)  # What they left behind, such as processes of their environments.

    # What is told of the run.

    def tell(self, state: str, message: str) -> None:
        """Sets a new state, which is shown and written at once."""
        self.state, self.message = state, message
        self._view_due = self._status_due = 0.0
        self.show()

    def show(self) -> None:
        """Shows the status when that is due, and writes it no more often than heartbeats."""
        now = time.monotonic()
        if now < self._view_due or not self._is_ours:
            return
        self._view_due = now + _VIEW_SECS
        status = self.to_json()
        if now >= self._status_due:
            self._status_due = now + BEAT_SECS
            if why := write_status(self.paths.status_json, status):
                self._unwritable, self._unwritable_at = why, now
        if self.state in ("starting", "running"):
            self.view.update(status)

    def to_json(self) -> dict[str, Any]:
        """The content of status.json: the run, its plan, and every role's last heartbeat."""
        kinds = {worker_role(number): kind for number, kind in self.variables.kinds_beside.items()}
        roles = dict[str, dict[str, Any]]()
        for name, role in self.roles.items():
            beat = dict(read_heartbeat(self.paths.heartbeat(name)) or {})
            beat |= {"alive": role.is_running(), "restarts": role.restarts, "given_up": role.given_up}
            beat |= {"state": "stopped"} if role.has_stopped else {}
            optional = {"failed_with": role.failed_with, "has_worked": role.has_worked, "kind": kinds.get(name)}
            roles[name] = beat | {key: value for key, value in optional.items() if value}
        remote = {name: beat for name, beat in self._other_beats().items() if beat.get("remote")}
        roles |= {name: {**beat, "alive": _is_fresh(beat), "restarts": 0} for name, beat in remote.items()}
        run = {
            "name": self._name,
            "exp_dir": str(self.paths.exp_dir),
            "state": self.state,
            "started_at": self._started_at,
            "updated_at": time.time(),
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "port": self.port,
            "exit_code": self.exit_code,
            "message": self.message,
            # Until the roles have written their next heartbeats, too.
            **({"unwritable": self._unwritable} if time.monotonic() - self._unwritable_at < 3 * BEAT_SECS else {}),
            **({"before": self._before} if "iteration" not in roles.get(TRAINER, {}) and self._before else {}),
        }
        return {"run": run, "plan": self.plan.to_json(), "pinned": self.plan.pinned, "roles": roles}

    @property
    def _name(self) -> str:
        folder = self.paths.exp_dir.name  # That of a task of an array or a sweep has the task's number at its end.
        exp_name = self.variables.exp_name
        return folder if folder.startswith(f"{exp_name}_task_") else exp_name

    def _other_beats(self) -> dict[str, dict[str, Any]]:
        """Heartbeats of roles that this supervisor has not started; the gateway writes those of other machines."""
        paths = sorted(path for path in self.paths.heartbeats.glob("*.json") if path.stem not in self.roles)
        return {path.stem: dict(read_heartbeat(path) or {}) for path in paths}

    def results(self) -> list[str]:
        """Writes the results of a finished run; returns lines for the user."""
        if TRAINER not in self.roles:
            return []  # They are where the trainer is.
        return write_results(
            self.paths,
            self.starter,
            cpus=self.plan.trainer,
            environ=self.roles[TRAINER].environ,
            stop=self.stop,
            report=self.variables.report,
            tracking=is_tracked(vars(self.variables)),
        )

    def closing_lines(self, code: int) -> list[str]:
        status, lines = self.to_json(), []
        if code in (EXIT_DONE, EXIT_RESUMABLE):  # `trainer's time: updates 93%, waiting 4%`.
            for owner, shares in report_status.time_shares(status).items():
                lines.append(f"{owner} time: {', '.join(f'{name} {share}' for name, share in shares.items())}")
        lines += [*report_status.lost_workers(status), *report_status.fault_lines(status)]
        trainer = status["roles"].get(TRAINER, {})
        lines += _result_lines("final" if code == EXIT_DONE else "last", trainer)
        if code == EXIT_DONE:
            why_early, num_iter = trainer.get("ended_early"), trainer.get("num_iter")
            return [*lines, report_status.finished_in_words(self._name, why_early, num_iter)]
        if self.paths.metrics_csv.exists():
            lines.append(f"a report so far: sac report {self.paths.exp_dir}")
        call = os.environ.get(CALLED, "").replace(" --fresh", "")  # Which would start over.
        again = f"`{call}`" if call else "the same command"
        if code == EXIT_RESUMABLE:
            saved = f"everything is saved, {again} continues from here"
            has_trained = trainer.get("train_step") or run_directory.has_begun(self.paths)
            if TRAINER in self.roles and not has_trained:
                saved = f"nothing had been trained yet, {again} begins the run"
            return [*lines, f"{self._name}: {self.message}; {saved}"]
        step = (read_json(self.paths.saved) or {}).get("train_step")
        remedy = f"{again} " + (f"continues from train step {step:,}" if step else "begins again")
        remedy = f": {remedy}" if self.message.endswith("not everything was saved") else f": correct that, and {remedy}"
        fault = f"{self._name} failed: {self.message} (logs in {self.paths.logs})"
        return [*lines, fault + (remedy if self._is_ours else "")]


def _is_gone(directory: Path, opened: int) -> bool:
    """Whether a path no longer leads to the directory that was opened there; a file system's error proves nothing."""
    try:
        return not os.path.samestat(os.stat(directory), os.fstat(opened))
    except OSError as error:
        return error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ESTALE)


def _is_fresh(beat: Mapping[str, Any]) -> bool:
    return bool(beat.get("time", 0.0) > time.time() - STALE_SECS)


def _in_words(code: int) -> str:
    """`exit code 1`, `SIGKILL`."""
    names = {-number: number.name for number in signal.Signals}
    return f"exit code {code}" if code >= 0 else names.get(code, f"signal {-code}")


def _result_lines(which: str, trainer: Mapping[str, Any]) -> list[str]:
    """`final evaluation: return -310.2 ± 40.1, best -298.7, success 85%`; the training return where there was none."""
    texts = {name: text for name, text in report_status.numbers(trainer).items() if text != "-"}
    evaluated = [f"{name.split()[-1]} {texts[name]}" for name in ("eval return", "best", "success") if name in texts]
    if evaluated:
        faults, episodes = trainer.get("eval_faults"), trainer.get("eval_episodes")
        cut = f" (a fault cut {faults:g} of its {episodes:g} episodes)" if faults and episodes else ""
        return [f"{which} evaluation: {', '.join(evaluated)}{cut}"]
    return [f"{which} training return: {texts['train return']}"] if "train return" in texts else []


def _or_why_not(lines: Callable[[], list[str]]) -> list[str]:
    """Lines for the user; an error in making them becomes one of them, and never ends the run."""
    try:
        return lines()
    except Exception as error:
        return [f"note: {type(error).__name__}: {error}"]


def _environ_of(role: str, plan: CpuPlan, variables: RunVariables, port: int) -> dict[str, str]:
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


def write_results(
    paths: RunPaths,
    starter: RoleStarter,
    *,
    cpus: Sequence[int],
    environ: Mapping[str, str],
    stop: StopFlag,
    report: bool = True,
    tracking: bool = False,
) -> list[str]:
    """Draws the learning curve, plays the best policy for one episode and writes the report, on these CPUs or any.

    Returns:
      Lines for the user: where the plot, the video, the report and the policy are, or why not; what comes next.
    """
    run = str(paths.exp_dir)
    play = ["--params", str(paths.params), "--config", str(paths.config), "--exp-dir", run]
    play += ["--num-episodes", "1", "--seed", str(read_run(paths.run_json).get("seed", 0))]
    programs = {  # In this order: the video is in the report.
        "plot": ("drawing the learning curve", [run], report),
        "video": ("playing one episode of the trained policy for a video", play, report),
        "report": ("writing the report", [run], report),
        "track": ("sending metrics", [run], tracking),
    }
    lines = []
    for name, (doing, arguments, is_wanted) in programs.items():
        if not is_wanted:
            continue
        log = paths.log(name)
        try:
            say(doing)
            code, text = _run_program(
                name, functools.partial(starter.start, name, cpus, environ, log, arguments), log, stop
            )
        except OSError as error:  # A full or read-only disk, no process left.
            code, text = EXIT_FAILED, f"{error.filename or log}: {error.strerror or error}"
        result = text.removeprefix("error: ").removeprefix(f"{name}: ")
        if name == "track" and code != EXIT_DONE:
            result += f"; `sac track {run}` sends the rest"
        lines.append(f"{name + ':':<7} {result}" if code == EXIT_DONE else f"note: {doing} failed: {result}")
    further = f"next:   sac play {run} --num-episodes 5, or sac export {run}"
    return [*lines, f"policy: {paths.policies / 'greedy_policy'}", further]


def _run_program(name: str, start: Callable[[], ForkedProcess], log: Path, stop: StopFlag) -> tuple[int, str]:
    """Runs a program that may fail, take too long, or be cut short by a stop signal.

    Returns:
      The exit code, and what says where its result is, or why there is none.

    Raises:
      OSError: It can't be started, or its log can't be read.
    """
    if stop.is_set():
        return EXIT_FAILED, "stopped by a signal"
    size = log.stat().st_size if log.exists() else 0
    process, deadline_secs = start(), _VIDEO_DEADLINE_SECS if name == "video" else _DEADLINE_SECS
    wait_until(lambda: process.poll() is not None or stop.wait(0.1), deadline_secs)
    if is_late := process.poll() is None:
        process.send_signal(signal.SIGTERM)
        wait_until(lambda: process.poll() is not None or stop.count > 1, _END_SECS)
        process.kill()
        wait_until(lambda: process.poll() is not None, KILL_SECS)
    kill_session(process.pid)
    if is_late:
        words = "stopped by a signal" if stop.is_set() else f"it took more than {deadline_secs:g} s (log in {log})"
        return EXIT_FAILED, words
    code = EXIT_FAILED if process.returncode is None else process.returncode
    written = log.read_bytes()[size:].decode(errors="replace")
    lines = [line.strip() for line in written.splitlines() if line.strip()] or [f"exit code {code}"]
    if code != EXIT_DONE:
        return code, f"{lines[-1]} (log in {log})"
    return code, next((line for line in lines if line.startswith(_ABOUT_A_VIDEO)), lines[-1])
