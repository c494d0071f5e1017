"""What a sweep shows while it runs: a table on a terminal, lines elsewhere."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Sequence
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from tfagents_system.launch.sweep_tasks import DONE, FAILED, RUNNING, STOPPED, WAITING, Task
from tfagents_system.report.status import format_number, read_status, summary
from tfagents_system.report.tables import SurvivingConsole, table
from tfagents_system.run_files.run_paths import TRAINER
from tfagents_system.settings.grid import differing, in_words

COLUMNS = ("task", "settings", "state", "iteration", "env steps", "eval return", "best", "left")
_COLORS = {RUNNING: "green", DONE: "bold green", FAILED: "red", STOPPED: "yellow", WAITING: "dim"}
_ORDER = (RUNNING, FAILED, STOPPED, WAITING, DONE)  # The first ones are shown if a terminal has too few lines.
_SPARED_FIRST = ("left", "env steps", "best", "iteration", "eval return")  # Dropped first in a narrow terminal.
_LINES_BESIDE = 6


def own_settings(tasks: Sequence[Task]) -> dict[int, str]:
    """The settings in which the tasks differ, in words, by task number."""
    return {task.number: in_words(own) for task, own in zip(tasks, differing([t.settings for t in tasks]), strict=True)}


def row(task: Task, settings: str, now: float) -> dict[str, str]:
    """One task as a line of the table: texts by column."""
    cells = dict.fromkeys(COLUMNS, "-")
    status = None if task.state == WAITING else read_status(task.paths.status_json)
    state = "starting" if task.state == RUNNING else task.state
    if status is not None:
        shown = summary(status, now)
        cells |= {name: shown[name] for name in ("iteration", "env steps", "eval return", "best", "left")}
        is_of_now = status["run"].get("started_at", 0.0) >= task.started_at
        if task.state == RUNNING and is_of_now:
            # A run that is done still draws its plot and makes its video.
            state = "finishing" if shown["state"] == DONE else shown["state"]
        if task.state != RUNNING or not is_of_now:
            cells["left"] = "-"
    return cells | {"task": str(task.number), "settings": settings, "state": state}


def totals(tasks: Sequence[Task]) -> str:
    """`2 running, 3 waiting, 1 done`."""
    counts = Counter(task.state for task in tasks)
    return ", ".join(f"{counts[state]} {state}" for state in (RUNNING, WAITING, DONE, FAILED, STOPPED) if counts[state])


class SweepView:
    """Shows tasks repeatedly; nothing that happens to the output ends the sweep.

    Args:
      line_secs: Seconds between two summaries if that is no terminal.
    """

    def __init__(self, console: Console | None = None, line_secs: float = 5.0) -> None:
        self._line_secs = line_secs
        self._console = console or SurvivingConsole(highlight=False)
        self._live = Live(console=self._console, auto_refresh=False) if self._console.is_terminal else None
        self._told: dict[int, str] = {}
        self._line_at = time.monotonic()

    def __enter__(self) -> SweepView:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            with contextlib.suppress(OSError):
                self._live.stop()

    def show(self, tasks: Sequence[Task]) -> None:
        """Shows the tasks as they are now."""
        with contextlib.suppress(OSError):
            if self._live is not None:
                self._live.update(self._table(tasks), refresh=True)
            else:
                self._print_changes(tasks)

    def say(self, text: str) -> None:
        """Tells a line beside the table."""
        with contextlib.suppress(OSError):
            self._console.print(text, markup=False)

    def _table(self, tasks: Sequence[Task]) -> Group:
        most = max(1, self._console.height - _LINES_BESIDE)
        settings = own_settings(tasks)
        chosen = sorted(tasks, key=lambda task: _ORDER.index(task.state))[:most]
        chosen.sort(key=lambda task: task.number)
        rows = [row(task, settings[task.number], time.time()) for task in chosen]
        styles = [_COLORS[task.state] for task in chosen]
        shown = table(rows, COLUMNS, self._console.width, spared_first=_SPARED_FIRST, state_styles=styles)
        return Group(shown, Text(totals(tasks), style="dim"))

    def _print_changes(self, tasks: Sequence[Task]) -> None:
        settings = own_settings(tasks)
        for task in tasks:
            if self._told.get(task.number, WAITING) != task.state:
                print(_line(task, settings[task.number]), file=self._console.file, flush=True)
            self._told[task.number] = task.state
        if time.monotonic() - self._line_at >= self._line_secs:
            self._line_at = time.monotonic()
            running = [_progress(row(task, "", time.time())) for task in tasks if task.state == RUNNING]
            print("; ".join([totals(tasks), *running]), file=self._console.file, flush=True)


def _line(task: Task, settings: str) -> str:
    """`task 3 (SAC_SEED=3): done, eval return -150.2, best -148.0`; without evaluations the last `train return`."""
    cells = row(task, settings, time.time())
    numbers = f", eval return {cells['eval return']}, best {cells['best']}" if task.state == DONE else ""
    trainer = (read_status(task.paths.status_json) or {}).get("roles", {}).get(TRAINER, {})
    if numbers and cells["eval return"] == "-" and trainer.get("train_return") is not None:
        numbers = f", train return {format_number(trainer['train_return'])}"
    where = f" (log in {task.log})" if task.state in (RUNNING, FAILED) else ""
    name = f"task {task.number}{f' ({settings})' if settings else ''}"
    return f"{name}: {task.state}{numbers}{f', {task.reason}' if task.reason else ''}{where}"


def _progress(cells: dict[str, str]) -> str:
    return (
        f"task {cells['task']} {cells['state']} {cells['iteration']} eval {cells['eval return']} best {cells['best']}"
    )
