"""What a sweep tells while it runs."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Sequence

from tfagents_system.launch.sweep_tasks import DONE, FAILED, RUNNING, STOPPED, WAITING, Task
from tfagents_system.report.status import format_number, read_status, summary
from tfagents_system.run_files.run_paths import TRAINER
from tfagents_system.settings.grid import differing, in_words


def own_settings(tasks: Sequence[Task]) -> dict[int, str]:
    """The settings in which the tasks differ, in words, by task number."""
    return {task.number: in_words(own) for task, own in zip(tasks, differing([t.settings for t in tasks]), strict=True)}


def row(task: Task, now: float) -> dict[str, str]:
    """The state of a task's run in words, by the names that a table of runs has."""
    cells = dict.fromkeys(("iteration", "eval return", "best"), "-")
    status = None if task.state == WAITING else read_status(task.paths.status_json)
    state = "starting" if task.state == RUNNING else task.state
    if status is not None:
        shown = summary(status, now)
        cells = {name: shown[name] for name in cells}
        if task.state == RUNNING and status["run"].get("started_at", 0.0) >= task.started_at:
            # A run that is done still draws its plot and makes its video.
            state = "finishing" if shown["state"] == DONE else shown["state"]
    return cells | {"state": state}


def totals(tasks: Sequence[Task]) -> str:
    """`2 running, 3 waiting, 1 done`."""
    counts = Counter(task.state for task in tasks)
    return ", ".join(f"{counts[state]} {state}" for state in (RUNNING, WAITING, DONE, FAILED, STOPPED) if counts[state])


class SweepView:
    """Tells of tasks: each change of state, and a summary now and then; no output that fails ends the sweep.

    Args:
      line_secs: Seconds between two summaries.
    """

    def __init__(self, line_secs: float = 5.0) -> None:
        self._line_secs = line_secs
        self._told: dict[int, str] = {}
        self._line_at = time.monotonic()

    def say(self, text: str) -> None:
        """Tells a line."""
        with contextlib.suppress(OSError):
            print(text, flush=True)

    def show(self, tasks: Sequence[Task]) -> None:
        """Tells what has changed since the call before."""
        settings = own_settings(tasks)
        for task in tasks:
            if self._told.get(task.number, WAITING) != task.state:
                self.say(_line(task, settings[task.number]))
            self._told[task.number] = task.state
        if time.monotonic() - self._line_at >= self._line_secs:
            self._line_at = time.monotonic()
            running = [_progress(task) for task in tasks if task.state == RUNNING]
            self.say("; ".join([totals(tasks), *running]))


def _line(task: Task, settings: str) -> str:
    """`task 3 (SAC_SEED=3): done, eval return -150.2, best -148.0`; without evaluations the last `train return`."""
    cells = row(task, time.time())
    numbers = f", eval return {cells['eval return']}, best {cells['best']}" if task.state == DONE else ""
    trainer = (read_status(task.paths.status_json) or {}).get("roles", {}).get(TRAINER, {})
    if numbers and cells["eval return"] == "-" and trainer.get("train_return") is not None:
        numbers = f", train return {format_number(trainer['train_return'])}"
    where = f" (log in {task.log})" if task.state in (RUNNING, FAILED) else ""
    name = f"task {task.number}{f' ({settings})' if settings else ''}"
    return f"{name}: {task.state}{numbers}{f', {task.reason}' if task.reason else ''}{where}"


def _progress(task: Task) -> str:
    cells = row(task, time.time())
    return f"task {task.number} {cells['state']} {cells['iteration']} eval {cells['eval return']} best {cells['best']}"
