"""The tasks of a sweep, and how they are run a few at a time."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tfagents_system.errors import EXIT_DONE, EXIT_FAILED, EXIT_RESUMABLE
from tfagents_system.launch.role_process import pinned
from tfagents_system.machine.gpus import FOUND
from tfagents_system.machine.processes import kill_session
from tfagents_system.machine.signals import STOP_SIGNALS, StopFlag, die_with_parent
from tfagents_system.report.status import read_status
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.settings.grid import in_words

WAITING, RUNNING, DONE, STOPPED, FAILED = "waiting", "running", "done", "stopped", "failed"
_STEP_SECS = 0.2
_SHOW_SECS = 1.0
_STOP_GRACE_SECS = 30.0  # Beyond the time that a run may take to save.


@dataclasses.dataclass
class Task:
    """One run of a sweep.

    Attributes:
      save_secs: How long it may take to save when it is stopped.
      state: WAITING, RUNNING, DONE, STOPPED or FAILED.
      started_at: Unix seconds of its start; what was written before is not its own.
      exit_code: Of the run that has ended; below 0: the number of the signal that killed it.
    """

    number: int
    settings: Mapping[str, Any]
    command: Sequence[str]
    environ: Mapping[str, str]
    paths: RunPaths
    save_secs: float = 60.0
    state: str = WAITING
    reason: str = ""
    started_at: float = math.inf
    exit_code: int | None = None

    @property
    def is_unstarted(self) -> bool:
        """Whether it has FAILED because no process could be started for it: nothing of it has run."""
        return self.state == FAILED and self.exit_code is None

    @property
    def is_refused(self) -> bool:
        """Whether it has FAILED in the checks of its start: for want of disk or memory, or for its settings."""
        return self.state == FAILED and (self.exit_code or 0) > 0 and not self.has_begun

    @property
    def has_begun(self) -> bool:
        """Whether the checks of its start are over: its supervisor writes its status."""
        status = read_status(self.paths.status_json) or {}
        return bool(status.get("run", {}).get("started_at", 0.0) >= self.started_at)

    @property
    def log(self) -> Path:
        """What run_script.sh prints."""
        return self.paths.log("sweep")

    def __str__(self) -> str:
        return f"task {self.number} ({in_words(self.settings)})"


@dataclasses.dataclass(frozen=True)
class Place:
    """What one of the simultaneous runs has for itself.

    Attributes:
      cpus: Its CPU ids; none leaves them to the run.
      gpu: Its GPU, as CUDA_VISIBLE_DEVICES names it; None without one of its own.
    """

    cpus: Sequence[int] = ()
    gpu: str | None = None


class TaskRunner:
    """Runs tasks side by side, each in a place of its own.

    Args:
      tasks: All; those that are not WAITING are left alone. `show` may add some.
      places: One for each simultaneous run.
      stop: Set when the sweep is told to stop; each further signal is passed on to the runs as well.
      show: Called with the tasks, at each change and every second.
      expects_more: Whether `show` may still add some, though all have ended.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        places: Sequence[Place],
        stop: StopFlag,
        show: Callable[[Sequence[Task]], None],
        expects_more: Callable[[], bool] = lambda: False,
    ) -> None:
        self._tasks = tasks
        self._free = list(reversed(places))
        self._stop = stop
        self._show = show
        self._expects_more = expects_more
        self._running: dict[int, _Running] = {}
        self._handed_on = 0
        self._kill_at = float("inf")

    def run(self) -> int:
        """Runs until all tasks have ended, or the sweep was stopped and all of them have; returns the exit code."""
        shown_at = float("-inf")
        try:
            while True:
                changed = self._reap()
                if self._stop.is_set():
                    self._hand_on_stop()
                else:
                    changed |= self._start_waiting()
                if changed or time.monotonic() - shown_at >= _SHOW_SECS:
                    shown_at = time.monotonic()
                    self._show(self._tasks)
                if not self._running and (self._stop.is_set() or not (self._waiting() or self._expects_more())):
                    return self._exit_code()
                if self._stop.is_set():  # Its wait() would return at once.
                    time.sleep(_STEP_SECS)
                else:
                    self._stop.wait(_STEP_SECS)
        finally:
            self._end_all()

    def end(self, task: Task) -> None:
        """Lets the run of a task save and end: it is STOPPED then."""
        if (running := self._running.get(task.number)) is not None:
            running.process.send_signal(signal.SIGTERM)

    def _waiting(self) -> list[Task]:
        return [task for task in self._tasks if task.state == WAITING]

    def _exit_code(self) -> int:
        states = {task.state for task in self._tasks}
        if states & {WAITING, STOPPED}:
            return EXIT_RESUMABLE
        return EXIT_FAILED if FAILED in states else EXIT_DONE

    def _start_waiting(self) -> bool:
        waiting = self._waiting()[: len(self._free)]
        for task in waiting:
            task.started_at = time.time()
            try:
                self._running[task.number] = _Running(task, self._free[-1])
            except OSError as error:  # Such as a full disk: that of its log, or of its whole folder.
                task.state, task.reason = FAILED, f"it can't be started: {error}"
            else:
                self._free.pop()
                task.state = RUNNING
        return bool(waiting)

    def _reap(self) -> bool:
        ended = [running for running in self._running.values() if running.process.poll() is not None]
        for running in ended:
            task, code = running.task, running.process.returncode
            task.state, task.exit_code = self._state_after(code), code
            task.reason = running.reason() if task.state == FAILED else ""
            self._free.append(running.place)
            del self._running[task.number]
        return bool(ended)

    def _state_after(self, code: int) -> str:
        if code == EXIT_DONE:
            return DONE
        # Before its supervisor is up, a run just ends.
        was_stopped = code == EXIT_RESUMABLE or (self._stop.is_set() and -code in STOP_SIGNALS)
        return STOPPED if was_stopped else FAILED

    def _end_all(self) -> None:
        """Lets runs that are left after a fault of the sweep itself save and end; kills those that do not in time."""
        deadline = time.monotonic() + self._stop_secs()
        for running in self._running.values():
            running.process.send_signal(signal.SIGTERM)
        for running in self._running.values():
            try:
                running.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                kill_session(running.process.pid)

    def _stop_secs(self) -> float:
        """How long the runs under way may take to stop."""
        return _STOP_GRACE_SECS + max((running.task.save_secs for running in self._running.values()), default=0.0)

    def _hand_on_stop(self) -> None:
        if self._handed_on == 0:
            self._kill_at = time.monotonic() + self._stop_secs()
        if self._handed_on < self._stop.count:
            # In a SLURM job a run takes no other second signal for a user's hurry.
            number = signal.SIGINT if self._handed_on else signal.SIGTERM
            self._handed_on = self._stop.count
            for running in self._running.values():
                running.process.send_signal(number)
        if time.monotonic() > self._kill_at:
            for running in self._running.values():
                kill_session(running.process.pid)


class _Running:
    """A task's process: in a session of its own, so that a Ctrl-C of the terminal comes to it once, from the sweep."""

    def __init__(self, task: Task, place: Place) -> None:
        self.task, self.place = task, place
        environ = dict(task.environ) | ({} if place.gpu is None else {FOUND: place.gpu})
        task.log.parent.mkdir(parents=True, exist_ok=True)
        with task.log.open("ab") as log:
            self._written_before = log.tell()
            self.process = subprocess.Popen(
                pinned(task.command, place.cpus),
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                # If the sweep is killed, its runs save and end. They are supervisors: in a SLURM job, too.
                preexec_fn=functools.partial(die_with_parent, signal.SIGTERM),
            )

    def reason(self) -> str:
        """How it ended, with its first error or its last line, if its log is still there."""
        written = ""
        with contextlib.suppress(OSError):
            written = self.task.log.read_bytes()[self._written_before :].decode(errors="replace")
        lines = [line.strip() for line in written.splitlines() if line.strip()]
        said = next((line for line in lines if line.startswith("error: ")), lines[-1] if lines else "")
        code = self.process.returncode
        how = f"exit code {code}" if code >= 0 else f"signal {-code}"
        return f"{how}: {said.removeprefix('error: ')}" if said else how
