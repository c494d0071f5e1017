"""The tasks of a pool: their list on disk, the runs of so many of them at a time, and what is shown of them.

A pool has a folder, `<name>_tasks`, beside its runs, `<name>_task_<number>`. Its tasks.json is a grid in the form of a
list: the settings of each task by its number. A run finds its own there as in a job array, by SAC_GRID and
SLURM_ARRAY_TASK_ID. Several programs, on one machine or many, may work on one folder.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import re
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TextIO

from tfagents_system.errors import EXIT_DONE, EXIT_FAILED, EXIT_RESUMABLE, UserError
from tfagents_system.launch.cpus import Place
from tfagents_system.launch.vars_file import LAUNCHERS, ROOT, read_vars_file
from tfagents_system.machine.claims import lock
from tfagents_system.machine.cpus import FOUND_GPUS
from tfagents_system.machine.files import write_json
from tfagents_system.machine.processes import kill_session
from tfagents_system.machine.signals import STOP_SIGNALS, StopFlag, die_with_parent
from tfagents_system.report.status import summary
from tfagents_system.run_files.heartbeat import read_status
from tfagents_system.run_files.run_lock import owner_of_run
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.settings.resolved import Overrides, Setting, parse_assignments
from tfagents_system.settings.values import differing, in_words
from tfagents_system.settings.variables import GRID, TASK, read_variables

WAITING, RUNNING, DONE, STOPPED, FAILED, PRUNED = "waiting", "running", "done", "stopped", "failed", "pruned"
_NO_TASK = 10**9  # A number that no task has.
_STEP_SECS, _LOOK_SECS, _LINE_SECS = 0.2, 1.0, 5.0  # Between looks at processes, at what runs write, and summaries.
_STOP_GRACE_SECS = 30.0  # Beyond the time that a run may take to save.


@dataclasses.dataclass(eq=False)
class Task:
    """One run of a pool.

    Attributes:
      settings: Its entry of tasks.json.
      overrides: These, and what all tasks are given.
      variables: Checked values by field, as far as they could be read.
      findings: What is wrong with its variables. Its own start reports that, and whatever else it checks.
      environ: After the vars file was sourced, with the variables that are overridden.
      started_at: Unix seconds of its start here; what was written before is not its own.
      exit_code: Below 0: the number of the signal that killed it; None: it has not ended, or none was started.
    """

    number: int
    settings: Mapping[str, Any]
    command: Sequence[str]
    paths: RunPaths
    overrides: Overrides = dataclasses.field(default_factory=Overrides)
    variables: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    findings: Sequence[str] = ()
    environ: Mapping[str, str] = dataclasses.field(default_factory=dict)
    state: str = WAITING
    reason: str = ""
    started_at: float = math.inf
    process: subprocess.Popen[bytes] = dataclasses.field(init=False)
    place: Place = Place()
    exit_code: int | None = None
    _written_before: int = 0

    def __str__(self) -> str:
        return f"task {self.number} ({in_words(self.settings)})"

    @property
    def log(self) -> Path:
        """What its start and its supervisor print."""
        return self.paths.log("task")

    def start(self, place: Place) -> None:
        """Starts its run in a session of its own: a Ctrl-C of the terminal reaches it once, from the pool."""

        def become_run() -> None:
            if place.cpus:
                os.sched_setaffinity(0, place.cpus)
            die_with_parent(signal.SIGTERM)  # If the pool is killed, its runs save and end: they are supervisors.

        self.place, self.started_at, self.reason = place, time.time(), ""
        environ = {**os.environ, TASK: str(self.number)} | ({} if place.gpu is None else {FOUND_GPUS: place.gpu})
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._written_before = log.tell()
            self.process = subprocess.Popen(
                self.command,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=become_run,
            )
        self.state = RUNNING

    def failure(self, code: int) -> str:
        """How its run has failed, with its first error or its last line, if its log is still there."""
        text = ""
        with contextlib.suppress(OSError):
            text = self.log.read_bytes()[self._written_before :].decode(errors="replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        message = next((line for line in lines if line.startswith("error: ")), lines[-1] if lines else "")
        how = f"exit code {code}" if code >= 0 else f"signal {-code}"
        return f"{how}: {message.removeprefix('error: ')}" if message else how


class Source:
    """The tasks of a pool, and its folder: tasks.json, and a lock for each task that some program works on.

    Args:
      folder: Made when a lock is taken.
      command: What starts a run, with its options.
      vars_file: Describes every task's run; None: the environment does, as in a job.
      assignments: Texts `NAME=VALUE` that are among the options of `command`.

    Attributes:
      tasks: Those known here, the newest last.
    """

    def __init__(
        self, folder: Path, command: Sequence[str], vars_file: Path | None, assignments: Sequence[str] = ()
    ) -> None:
        self.tasks, self.folder, self.path = list[Task](), folder, folder / "tasks.json"
        self._command, self._vars_file, self._shared = command, vars_file, parse_assignments(assignments)[0]
        self._claims: dict[str, TextIO] = {}

    @classmethod
    def of_vars_file(
        cls, vars_file: Path, assignments: Sequence[str], options: Sequence[str], names: Collection[str] = ()
    ) -> Self:
        """That of the runs that a vars file describes, which run_script.sh starts with these options.

        Raises:
          UserError: The file fails, or an assignment is impossible or of one of `names`, in which tasks differ.
        """
        words = [word for text in assignments for word in ("--set", text)]
        command = [str(LAUNCHERS / "run_script.sh"), *words, *options, str(vars_file)]
        settings, findings = parse_assignments(assignments)
        findings += Overrides.from_settings(settings, read_vars_file(vars_file, {**os.environ, TASK: "0"}))[1]
        twice = [setting.name for setting in settings if setting.name in names]
        findings += [f"{name} is swept over and given by --set as well: give it once" for name in twice]
        if findings:
            raise UserError(*findings)
        probe = cls(Path(), command, vars_file, assignments).new_task(_NO_TASK, {})
        run = probe.paths.exp_dir.with_name(probe.paths.exp_dir.name.removesuffix(f"_task_{_NO_TASK}"))
        if re.search(r"_task_\d+$", run.name):
            raise UserError(*probe.findings)
        return cls(run.with_name(f"{run.name}_tasks"), command, vars_file, assignments)

    def open_numbers(self) -> Iterable[int]:
        """Numbers of tasks that are not over, in their order; for the holder of the folder's lock."""
        return [task.number for task in self.tasks if task.state == WAITING]

    def task(self, number: int) -> Task:
        """One of them; for the holder of the folder's lock."""
        return self.tasks[number]

    def is_hopeless(self, task: Task) -> bool:
        """Whether a running task is to be ended early."""
        return False

    def end(self, task: Task, *, is_stopped: bool) -> None:
        """Records how a task has ended; `is_stopped`: because the whole pool is being stopped."""

    def new_task(self, number: int, settings: Mapping[str, Any]) -> Task:
        """The task of a number; a UserError says that the environment names no run."""
        environ = {**os.environ, TASK: str(number)}
        if self._vars_file is not None:
            environ = read_vars_file(self._vars_file, environ)
        of_task = [Setting(name, value, f"task {number}") for name, value in settings.items()]
        overrides, _ = Overrides.from_settings([*of_task, *self._shared], environ)
        environ |= overrides.variables
        values, findings = read_variables(environ, vars_file=self._vars_file, root=ROOT)
        if "exp_dir" not in values:
            raise UserError(*findings)
        command = [*self._command, "--set", f"{GRID}={self.path}"]
        return Task(number, settings, command, RunPaths(values["exp_dir"]), overrides, values, findings, environ)

    def take(self) -> Task | None:
        """Claims the next task that nobody works on; None if there is none now."""
        with self.locked():
            for number in self.open_numbers():
                if not self.claim(f"task_{number}"):
                    continue
                task = self.task(number)
                if (owner := owner_of_run(task.paths)) is None:
                    return task
                task.reason = f"the run directory {task.paths.exp_dir} is in use by {owner}: stop that first"
                self.release(task)
        return None

    def claim(self, name: str) -> bool:
        """Locks a task, or the whole list, until the end of this process; False if another one has it."""
        file = (self.folder / f"{name}.lock").open("w")
        if lock(file.fileno(), Path(file.name), waits=False):
            self._claims[name] = file
            return True
        file.close()
        return False

    def release(self, task: Task) -> None:
        """Others may claim it."""
        self._claims.pop(f"task_{task.number}").close()

    def write_list(self, entries: Iterable[Mapping[str, Any]]) -> None:
        """For the holder of the folder's lock: replaces tasks.json."""
        write_json(self.path, [*entries], indent=1)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else writes into the folder meanwhile."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "tasks.lock").open("w") as file:
            lock(file.fileno(), Path(file.name))
            yield


class Pool:
    """Runs tasks side by side, each in a place of its own.

    Args:
      places: One for each simultaneous run.
      stop: Set when the pool is told to stop; each further signal is passed on to the runs as well.
      show: Called with the tasks, at each change and every second.
    """

    def __init__(
        self, source: Source, places: Sequence[Place], stop: StopFlag, show: Callable[[Sequence[Task]], None]
    ) -> None:
        self._source, self._stop, self._show = source, stop, show
        self._free = list(reversed(places))
        self._running: list[Task] = []
        self._signals_sent, self._kill_at, self._looked_at = 0, math.inf, -math.inf

    def run(self) -> int:
        """Runs until no task is left to take, or the pool was stopped and all runs have ended; returns an exit code."""
        while True:
            has_changed = self._reap()
            if self._stop.is_set():
                self._pass_on_stop()
            if has_changed or time.monotonic() - self._looked_at >= _LOOK_SECS:
                self._looked_at = time.monotonic()
                self._look()
                self._show(self._source.tasks)
                if not self._running:
                    return self._finish()
            if self._stop.is_set():  # Its wait() would return at once.
                time.sleep(_STEP_SECS)
            else:
                self._stop.wait(_STEP_SECS)

    def _finish(self) -> int:
        for task in self._source.tasks:
            if task.reason:
                print(f"{task}: {task.reason} (log in {task.log})", flush=True)
        states = {task.state for task in self._source.tasks}
        if states & {WAITING, STOPPED}:
            return EXIT_RESUMABLE
        return EXIT_FAILED if FAILED in states else EXIT_DONE

    def _look(self) -> None:
        """Ends hopeless runs and begins others in free places."""
        for running in self._running:
            if self._source.is_hopeless(running):
                running.process.send_signal(signal.SIGTERM)
        while self._free and not self._stop.is_set() and (task := self._source.take()) is not None:
            try:
                task.start(self._free[-1])
            except (OSError, subprocess.SubprocessError) as error:
                task.state, task.reason = FAILED, f"it can't be started: {error}"
                self._source.end(task, is_stopped=False)
                self._source.release(task)
            else:
                self._running.append(task)
                self._free.pop()

    def _reap(self) -> bool:
        ended = [task for task in self._running if task.process.poll() is not None]
        for task in ended:
            task.exit_code = code = task.process.returncode
            was_stopped = self._stop.is_set() and -code in STOP_SIGNALS  # Before its supervisor is up, a run just ends.
            task.state = STOPPED if was_stopped else {EXIT_DONE: DONE, EXIT_RESUMABLE: STOPPED}.get(code, FAILED)
            task.reason = task.failure(code) if task.state == FAILED else ""
            self._free.append(task.place)
            self._running.remove(task)
            self._source.end(task, is_stopped=self._stop.is_set())
            self._source.release(task)
        return bool(ended)

    def _pass_on_stop(self) -> None:
        if self._signals_sent == 0:
            save_secs = [task.variables.get("save_deadline_secs", 60.0) for task in self._running]
            self._kill_at = time.monotonic() + max(save_secs, default=0.0) + _STOP_GRACE_SECS
        if self._signals_sent < self._stop.count:
            # In a SLURM job a run takes no other second signal for a user's hurry.
            number = signal.SIGINT if self._signals_sent else signal.SIGTERM
            self._signals_sent = self._stop.count
            for task in self._running:
                task.process.send_signal(number)
        if time.monotonic() > self._kill_at:
            kill_session(*(task.process.pid for task in self._running))


class View:
    """Prints what changes, and a summary now and then."""

    def __init__(self) -> None:
        self._line_at, self._shown = time.monotonic(), dict[int, str]()

    def show(self, tasks: Sequence[Task]) -> None:
        """Prints what has changed since the call before; output that fails ends no pool."""
        for task, settings in zip(tasks, differing([task.settings for task in tasks]), strict=True):
            if self._shown.get(task.number, WAITING) != task.state:
                _print(_line(task, in_words(settings)))
            self._shown[task.number] = task.state
        if time.monotonic() - self._line_at >= _LINE_SECS:
            self._line_at = time.monotonic()
            counts = Counter(task.state for task in tasks)
            totals = [f"{counts[s]} {s}" for s in (RUNNING, WAITING, DONE, PRUNED, FAILED, STOPPED) if counts[s]]
            running = [f"task {task.number} {progress(task)}" for task in tasks if task.state == RUNNING]
            _print("; ".join([", ".join(totals), *running]))


def progress(task: Task) -> str:
    """`updating 3/9 eval -310.2 best -300.1`: what a task's run is doing, and how far it is."""
    status = read_status(task.paths.status_json)
    if status is None:
        return "starting" if task.state == RUNNING else task.state
    words = summary(status, time.time())
    if task.state != RUNNING:
        words["state"] = task.state
    elif status["run"].get("started_at", 0.0) < task.started_at:
        words["state"] = "starting"  # The status is that of an earlier start.
    elif words["state"] == DONE:
        words["state"] = "finishing"  # It still draws its plot.
    return f"{words['state']} {words['iteration']} eval {words['eval return']} best {words['best']}"


def _line(task: Task, settings: str) -> str:
    """`task 3 (SAC_SEED=3): done 9/9 eval -150.2 best -148.0`, `task 4 (SAC_SEED=4): failed, exit code 1: ...`."""
    where = f" (log in {task.log})" if task.state in (RUNNING, FAILED) else ""
    words = progress(task) if task.state == DONE else task.state
    reason = f", {task.reason}" if task.reason else ""
    return f"task {task.number}{f' ({settings})' if settings else ''}: {words}{reason}{where}"


def _print(text: str) -> None:
    with contextlib.suppress(OSError):
        print(text, flush=True)
