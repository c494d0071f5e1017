"""What a run shows while it runs: a live view on a terminal, a plain line every few seconds elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from tfagents_system.checks.findings import counted
from tfagents_system.machine.cpus import format_cpu_list
from tfagents_system.report.status import (
    Status,
    curriculum_values,
    fault_count,
    fault_words,
    format_number,
    format_secs,
    iteration_of,
    label,
    numbers,
    of_all,
    problems,
    state_of,
    state_problems,
    time_shares,
)
from tfagents_system.run_files.heartbeat import is_offline
from tfagents_system.run_files.run_paths import REPLAY, TRAINER, is_worker

_OFFLINE = "offline updates"
# Numbers of a row of metrics.csv, which one line shows, by when that was written.
_OF_ROWS = {"logged_at": ("updates/s", "steps/s", "train return", "alpha"), "evaluated_at": ("eval return", "success")}
_SAME_LINE_SECS = 60.0
_MAX_WIDTH = 100
_MAX_WORKER_LINES = 8
_LINES_BESIDE_WORKERS = 18
_COLORS = {
    **dict.fromkeys(("running", "updating", "serving", "collecting"), "green"),
    **dict.fromkeys(("starting", "saving"), "cyan"),
    **dict.fromkeys(("waiting", "stopped"), "yellow"),
    **dict.fromkeys(("failed", "dead", "down", "given up"), "red"),
    "evaluating": "magenta",
}


class SurvivingConsole(Console):
    """A console that stops writing when its pipe closes, instead of ending the program."""

    def on_broken_pipe(self) -> None:
        self.quiet = True


class ProgressView:
    """Shows status after status.

    No error here ends the run. Output that can't be written (a closed pipe, a full disk) is dropped; a status that
    can't be drawn is reported once on standard error.

    Args:
      line_secs: Seconds between two lines if the output is not a terminal.
    """

    def __init__(self, console: Console | None = None, line_secs: float = 5.0) -> None:
        self._console = console or SurvivingConsole(highlight=False)
        self._line_secs = line_secs
        self._live: Live | None = None
        self._width = self._console.width
        self._printed_at, self._last_line = float("-inf"), ""
        self._last_status: Status | None = None
        self._has_failed = False

    def start(self) -> None:
        """Begins to show; on a terminal the view stays at the bottom, below what is printed meanwhile."""
        with self._surviving():
            if hasattr(self._console.file, "reconfigure"):
                self._console.file.reconfigure(errors="replace")  # A terminal without ± gets a ?, not an exception.
            if self._console.is_terminal:
                # Without a thread that refreshes: every update does, and comes each second.
                self._live = Live(console=self._console, auto_refresh=False)
                self._live.start()

    def update(self, status: Status) -> None:
        """Shows a status (see launch/supervisor.py)."""
        with self._surviving():
            if self._live is None:
                self._print_line(status)
                return
            width, height = self._console.size
            if width != self._width:
                self._console.clear()  # The terminal has torn the lines of the old frame: it can't be replaced.
            self._width = width
            self._live.update(render(status, width, height), refresh=True)

    def leave(self, status: Status) -> None:
        """Leaves this status on a terminal as the last one, so that something else may be shown below it."""
        if self._live is not None:
            self.update(status)
        self.stop([])

    def stop(self, final_lines: Sequence[str]) -> None:
        """Ends the view, whose last state stays, and prints what is left to say."""
        with self._surviving():
            if self._live is not None:
                self._live.stop()
        self._live = None
        for line in final_lines:
            with self._surviving():
                self._print(line)

    @contextlib.contextmanager
    def _surviving(self) -> Iterator[None]:
        try:
            yield
        except OSError:
            pass
        except Exception as error:
            if not self._has_failed:
                with contextlib.suppress(OSError):
                    print(f"the view fails: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            self._has_failed = True

    def _print_line(self, status: Status) -> None:
        now = time.monotonic()
        if now - self._printed_at < self._line_secs:
            return
        content = progress_line(status).partition("]")[2]  # Without the time: what stands still does not fill the log.
        if content != self._last_line or now - self._printed_at >= _SAME_LINE_SECS:
            line = progress_line(status, self._last_status)
            self._printed_at, self._last_line, self._last_status = now, content, status
            self._print(line)

    def _print(self, line: str) -> None:
        print(line, file=self._console.file, flush=True)


def progress_line(status: Status, last: Status | None = None) -> str:
    """`[00:42] iteration 12/25  env steps 4,800  updates/s 181 ...`: what is not known yet is left out.

    Args:
      last: What the line before has shown: numbers of its rows of metrics.csv, and its faults, are not news any more.
    """
    run, trainer = status["run"], status["roles"].get(TRAINER, {})
    head = f"[{format_secs(run['updated_at'] - run['started_at'])}]"
    if trainer.get("updates_per_s") is None:  # `replay serving, trainer waiting, worker_0 collecting  env steps 400`.
        parts = [", ".join(f"{role} {_state_in_words(beat)}" for role, beat in _roles(status, max_workers=2))]
        if env_steps := status["roles"].get(REPLAY, {}).get("env_steps"):
            parts.append(f"env steps {format_number(env_steps)}")
    else:
        before = last["roles"].get(TRAINER, {}) if last else {}
        old = {name for row, names in _OF_ROWS.items() if trainer.get(row) == before.get(row, -1) for name in names}
        known = {name: text for name, text in numbers(trainer).items() if text != "-" and "loss" not in name}
        known = {name: text for name, text in known.items() if name not in old}
        known |= {**curriculum_values(status), "left": format_secs(trainer.get("time_left_s"))}
        parts = [_OFFLINE if is_offline(trainer) else f"iteration {iteration_of(trainer)}"]
        parts += [f"{name} {text}" for name, text in known.items()]
    # Of what simulators have raised only how often, since a line is one of many.
    is_news = last is None or fault_count(status) != fault_count(last)
    warnings = [*state_problems(status, run["updated_at"]), fault_words(status) if is_news else ""]
    parts += [f"! {problem}" for problem in warnings if problem]
    return f"{head} {'  '.join(parts)}"


def render(status: Status, width: int = 80, height: int = 50) -> RenderableType:
    """The live view of a status, for a terminal of that many columns and lines."""
    run, trainer = status["run"], status["roles"].get(TRAINER, {})
    state, now = state_of(status, run["updated_at"]), run["updated_at"]
    elapsed = format_secs(now - run["started_at"])
    left, width = trainer.get("time_left_s"), min(width, _MAX_WIDTH)
    blocks: list[Sequence[RenderableType]] = [
        [_progress(trainer)],
        [_numbers(status), *_pairs_line("curriculum", curriculum_values(status))],
        [part for owner, shares in time_shares(status).items() for part in _pairs_line(f"{owner} time", shares)],
        [_roles_table(status, max(1, min(_MAX_WORKER_LINES, height - _LINES_BESIDE_WORKERS)))],
        [Text(problem, style="red") for problem in problems(status, now)],
    ]
    parts = [part for block in blocks if block for part in (*block, Text())][:-1]
    return Panel(
        Group(*parts),
        title=f"[bold]{escape(str(run['name']))}[/]  [{_COLORS.get(state, 'default')}]{escape(state)}[/]  {elapsed}",
        title_align="left",
        subtitle=None if left is None else f"{format_secs(left)} left",
        subtitle_align="right",
        border_style="dim",
        padding=(0, 1),
        width=width,
    )


def _progress(trainer: Mapping[str, Any]) -> RenderableType:
    unit, done, total = "iteration", trainer.get("iteration") or 0, trainer.get("num_iter")
    if trainer.get("num_env_steps"):
        unit, done, total = "env steps", trainer.get("env_steps") or 0, trainer["num_env_steps"]
    words, share = f"{unit} {of_all(done, total)}", f"{min(1, done / total):.0%}" if total else ""
    if is_offline(trainer):
        words, share, done = f"{_OFFLINE}: {format_number(trainer.get('train_step'))}", "", 0
    grid = Table.grid(padding=(0, 1), expand=True)
    grid.add_column(no_wrap=True)
    grid.add_column(ratio=1)
    grid.add_column(no_wrap=True, justify="right")
    grid.add_row(words, ProgressBar(total=total or 1, completed=done if total else 0), share)
    return grid


def _numbers(status: Status) -> RenderableType:
    trainer = status["roles"].get(TRAINER, {})
    env_steps = trainer.get("env_steps") or status["roles"].get(REPLAY, {}).get("env_steps")
    texts = numbers({**trainer, "env_steps": env_steps})
    pairs = [Text.assemble((f"{name} ", "dim"), text) for name, text in texts.items()]
    return Columns(pairs, padding=(0, 3))


def _pairs_line(name: str, pairs: Mapping[str, str]) -> list[RenderableType]:
    """`curriculum  mass 1.5  friction 0.31`, or nothing."""
    words = [f"{key} {value}".replace(" ", "\u00a0") for key, value in pairs.items()]  # A pair is not torn apart.
    return [Text.assemble((f"{name}  ", "dim"), "  ".join(words))] if words else []


def _roles_table(status: Status, max_workers: int) -> RenderableType:
    """One line a role: CPU ids, state, age of the heartbeat, restarts."""
    grid = Table.grid(padding=(0, 2))
    for number in range(5):
        grid.add_column(no_wrap=True, justify="left" if number < 3 else "right", style="" if number < 3 else "dim")
    for role, beat in _roles(status, max_workers):
        state = Text(_state_in_words(beat), style=_COLORS.get(beat["state"], "default"), overflow="ellipsis")
        cpus = f"CPU {format_cpu_list(beat['cpus'])}" if beat["cpus"] else ""
        age = f"{max(0.0, status['run']['updated_at'] - beat['time']):.0f} s ago" if beat.get("time") else ""
        restarts = beat.get("restarts") or 0
        grid.add_row(Text(role), Text(cpus, style="dim"), state, age, counted(restarts, "restart") if restarts else "")
    return grid


def _state_in_words(beat: Mapping[str, Any]) -> str:
    """`starting (ring: 120 of 2,000 MiB (6 %), another size, 8 s)`, `serving (400 steps of prior data)`."""
    prior_steps, waiting = beat.get("prior_steps"), beat.get("waiting")
    details = [
        beat.get("doing"),
        None if prior_steps is None else f"{prior_steps:,} steps of prior data",
        f"{counted(waiting, 'row')} to send" if waiting else None,
    ]
    words = ", ".join(filter(None, details))
    return f"{beat['state']} ({words})" if words else str(beat["state"])


def _roles(status: Status, max_workers: int) -> list[tuple[str, dict[str, Any]]]:
    """Roles with their `state` and `cpus`; more than `max_workers` workers in one line that counts their states."""
    plan = status.get("plan") or {}
    roles = {
        role: {**beat, "state": _state(beat), "cpus": plan.get(role) or []} for role, beat in status["roles"].items()
    }
    workers = {role: beat for role, beat in roles.items() if is_worker(role)}
    if len(workers) <= max_workers:
        return [(label(role, beat), beat) for role, beat in roles.items()]
    counts = Counter(beat["state"] for beat in workers.values())
    joined = {
        "state": ", ".join(f"{count} {state}" for state, count in counts.most_common()),
        "cpus": {cpu for beat in workers.values() for cpu in beat["cpus"]},
        "restarts": sum(beat.get("restarts") or 0 for beat in workers.values()),
        "time": min((beat["time"] for beat in workers.values() if beat.get("time")), default=None),  # The oldest.
    }
    kinds = Counter(kind for beat in workers.values() if (kind := beat.get("kind")))
    words = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    others = [(role, beat) for role, beat in roles.items() if role not in workers]
    return [*others, (f"worker_0..{len(workers) - 1}" + (f" ({words})" if words else ""), joined)]


def _state(beat: Mapping[str, Any]) -> str:
    """`given up`, or `down` if the process is missing although it should run."""
    if beat.get("given_up"):
        return "given up"
    state = str(beat.get("state", "starting"))
    return state if beat.get("alive", True) or state in ("done", "stopped") else "down"
