"""A run's rules: it needs its trainer, its replay server and a worker, and they save in a fixed order.

A trainer elsewhere has a supervisor of its own (SAC_LOCAL_TRAINER=0 here, SAC_TRAINER_SERVER there).
"""

from __future__ import annotations

import time

from tfagents_system.errors import EXIT_DONE, EXIT_FAILED, EXIT_RESUMABLE
from tfagents_system.launch import wrap_up
from tfagents_system.launch.role_process import RoleProcess
from tfagents_system.launch.role_restarts import RoleRestarts
from tfagents_system.launch.role_starter import RoleStarter
from tfagents_system.launch.supervisor import Supervisor
from tfagents_system.report.tracking.settings import TrackingSettings
from tfagents_system.run_files.heartbeat import read_heartbeat
from tfagents_system.run_files.run_paths import DISPENSABLE, GATEWAY, REPLAY, TRACKER, TRAINER

_ALL_WORKERS_GONE_SECS = 120.0
# Of the time to save. Workers have only their current segment to save.
_WORKERS_SHARE, _REPLAY_SHARE, _REPLAY_SECS = 0.5, 0.25, 10.0
_TRACKER_SECS = 5.0  # Nobody's experience or updates wait for what it sends.


class RunRules:
    """The rules of a run that this supervisor has started."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._failures = RoleRestarts(supervisor)
        self._workers_gone_at: float | None = None

    def role_ended(self, role: RoleProcess, code: int) -> None:
        supervisor = self._supervisor
        is_far = supervisor.variables.trainer_server is not None and role.name not in DISPENSABLE
        if code == EXIT_RESUMABLE and is_far and not supervisor.is_ending:
            supervisor.finish(EXIT_RESUMABLE, "the run was stopped where its replay server is")
            return
        self._failures.take(role, code)

    def look(self) -> None:
        """A run without a worker that collects would wait forever: it fails, unless the trainer is just finishing.

        Experts and evaluators alone do not keep it going.

        A run without workers of its own (SAC_LOCAL_WORKERS=0) waits for those that join.
        """
        self._failures.look()
        if self._supervisor.exit_code is None and self._is_done_elsewhere():
            self._supervisor.finish(EXIT_DONE)
        if (
            self._supervisor.exit_code is not None
            or not self._supervisor.collectors
            or not all(worker.is_over for worker in self._supervisor.collectors)
            or self._supervisor.has_joined_workers()
        ):
            self._workers_gone_at = None
            return
        given_up = [worker for worker in self._supervisor.collectors if worker.given_up]
        if given_up and len(given_up) == len(self._supervisor.collectors):
            self._supervisor.fail(EXIT_FAILED, "every worker was given up", given_up[-1].last_lines())
        elif self._workers_gone_at is None:
            self._workers_gone_at = time.monotonic()
        elif time.monotonic() - self._workers_gone_at > _ALL_WORKERS_GONE_SECS:
            self._supervisor.fail(EXIT_FAILED, "every worker has ended, but the trainer is not done", [])

    def _is_done_elsewhere(self) -> bool:
        if TRAINER in self._supervisor.roles:
            return False
        return (read_heartbeat(self._supervisor.paths.heartbeat(TRAINER)) or {}).get("state") == "done"

    def stop(self) -> int:
        """The trainer and the workers save first; the replay server stores what they still send, then saves too."""
        supervisor, deadline_secs = self._supervisor, self._supervisor.variables.save_deadline_secs
        name = supervisor.stopping()
        supervisor.say(f"{name}: saving, within {deadline_secs:g} s; a second signal stops at once, unsaved")
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
        supervisor, deadline_secs = self._supervisor, self._supervisor.variables.save_deadline_secs
        began = time.monotonic()
        trainer_secs = deadline_secs - min(_REPLAY_SECS, _REPLAY_SHARE * deadline_secs)
        worker_secs = _WORKERS_SHARE * deadline_secs
        deadlines = dict.fromkeys(supervisor.workers, worker_secs)
        if trainer := supervisor.roles.get(TRAINER):
            deadlines[trainer] = trainer_secs
        if gateway := supervisor.roles.get(GATEWAY):
            deadlines[gateway] = worker_secs  # It informs workers on other machines, and takes what they still send.
        supervisor.end(deadlines)
        left_secs = deadline_secs - (time.monotonic() - began)
        # What the tracker has not sent by then is in metrics.csv.
        last = {REPLAY: left_secs, TRACKER: min(_TRACKER_SECS, left_secs)}
        supervisor.end({supervisor.roles[name]: secs for name, secs in last.items() if name in supervisor.roles})

    def results(self, starter: RoleStarter) -> list[str]:
        variables, trainer = self._supervisor.variables, self._supervisor.roles.get(TRAINER)
        if trainer is None:
            return []  # They are where the trainer is.
        return wrap_up.write_results(
            self._supervisor.paths,
            starter,
            cpus=self._supervisor.plan.trainer,
            environ=trainer.environ,
            stop=self._supervisor.stop,
            report=variables.report,
            tracking=TrackingSettings.of(vars(variables)),
        )

    def closing_lines(self, code: int) -> list[str]:
        return self._supervisor.status.closing_lines(code)
