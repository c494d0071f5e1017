"""What a run shows while it runs: a live view on a terminal, a plain line every few seconds elsewhere."""

from __future__ import annotations

import collections
import contextlib
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from tfagents_system.checks.findings import counted
from tfagents_system.machine.cpus import format_cpu_list
from tfagents_system.report.env_faults import fault_words
from tfagents_system.report.status import (
    LEFT_ALIGNED,
    SETTINGS,
    curriculum_values,
    format_number,
    format_results,
    format_secs,
    iteration_of,
    label,
    numbers,
    problems,
    state_of,
    state_problems,
    time_shares,
)
from tfagents_system.run_files.heartbeat import is_offline
from tfagents_system.run_files.run_paths import REPLAY, TRAINER, is_worker

_OFFLINE = "offline updates"
_SAME_LINE_SECS = 60.0
_MAX_WIDTH = 100
_MAX_WORKER_LINES = 8
_LINES_BESIDE_WORKERS = 18
_COLORS = {
    "starting": "cyan",
    "running": "green",
    "updating": "green",
    "serving": "green",
    "collecting": "green",
    "evaluating": "magenta",
    "saving": "cyan",
    "waiting": "yellow",
    "stopped": "yellow",
    "failed": "red",
    "dead": "red",
    "down": "red",
    "given up": "red",
}
_SETTINGS_WIDTH = 30  # They get more where there is room.


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
        self._printed_at = float("-inf")
        self._last_line = ""
        self._has_failed = False

    def start(self) -> None:
        """Begins to show; on a terminal the view stays at the bottom, below what is printed meanwhile."""
        with self._surviving():
            self._start()

    def update(self, status: dict[str, Any]) -> None:
        """Shows a status (see launch/run_status.py)."""
        with self._surviving():
            if self._live is not None:
                self._draw(self._live, status)
            else:
                self._print_line(status)

    def leave(self, status: dict[str, Any]) -> None:
        """Leaves this status on a terminal as the last one, so that something else may be shown below it."""
        if self._live is not None:
            with self._surviving():
                self._draw(self._live, status)
        self.stop([])

    def stop(self, final_lines: Sequence[str]) -> None:
        """Ends the view, whose last state stays, and prints what is left to say."""
        if self._live is not None:
            with self._surviving():
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

    def _start(self) -> None:
        if hasattr(self._console.file, "reconfigure"):
            self._console.file.reconfigure(errors="replace")  # A terminal that knows no ± gets a ?, not an exception.
        if self._console.is_terminal:
            # Without a thread that refreshes: every update does, and comes each second.
            self._live = Live(console=self._console, auto_refresh=False)
            self._live.start()

    def _draw(self, live: Live, status: dict[str, Any]) -> None:
        width, height = self._console.size
        if width != self._width:
            self._console.clear()  # The terminal has torn the lines of the old frame: it can't be replaced.
        self._width = width
        live.update(render(status, width, height), refresh=True)

    def _print_line(self, status: dict[str, Any]) -> None:
        now = time.monotonic()
        if now - self._printed_at < self._line_secs:
            return
        line = progress_line(status)
        content = line.partition("]")[2]  # Without the time, so that what stands still does not fill the log.
        if content != self._last_line or now - self._printed_at >= _SAME_LINE_SECS:
            self._printed_at, self._last_line = now, content
            self._print(line)

    def _print(self, line: str) -> None:
        print(line, file=self._console.file, flush=True)


def progress_line(status: dict[str, Any]) -> str:
    """`[00:42] iteration 12/25  env_steps 4,800  updates/s 181 ...`: what is not known yet is left out."""
    run, trainer = status["run"], status["roles"].get(TRAINER, {})
    head = f"[{format_secs(run['updated_at'] - run['started_at'])}]"
    if trainer.get("updates_per_s") is None:
        return f"{head} {_starting_line(status)}"
    texts = numbers(trainer)
    parts = [
        _OFFLINE if is_offline(trainer) else f"iteration {iteration_of(trainer)}",
        f"env_steps {_of_all(trainer.get('env_steps'), trainer.get('num_env_steps'))}",
        *(f"{name} {texts[name]}" for name in ("updates/s", "steps/s")),
    ]
    if trainer.get("train_return") is not None:
        parts.append(f"train {texts['train return']}")
    parts += format_results(trainer)
    parts += [f"{name} {value}" for name, value in curriculum_values(status).items()]
    if trainer.get("alpha") is not None:
        parts.append(f"alpha {texts['alpha']}")
    parts.append(f"left {format_secs(trainer.get('time_left_s'))}")
    return "  ".join([f"{head} {parts[0]}", *parts[1:], *_warnings(status)])


def _of_all(done: int | None, total: int | None) -> str:
    """`1,200/1,500`; `1,600 (1,500 asked for)`: the last iteration has more steps than are left."""
    if done is None or not total:
        return format_number(done)
    return f"{done:,}/{total:,}" if done <= total else f"{done:,} ({total:,} asked for)"


def _starting_line(status: dict[str, Any]) -> str:
    """`replay serving, trainer waiting, worker_0 collecting  env_steps 400`, before the trainer has numbers."""
    states = ", ".join(f"{role} {_state_in_words(beat)}" for role, beat in _collapsed(status, max_workers=2))
    env_steps = status["roles"].get(REPLAY, {}).get("env_steps")
    parts = [states, f"env_steps {format_number(env_steps)}" if env_steps else ""]
    return "  ".join([*filter(None, parts), *_warnings(status)])


def _warnings(status: dict[str, Any]) -> list[str]:
    """`! worker_0: down`; of what simulators have raised only how often, since a line is one of many."""
    found = [*state_problems(status, status["run"]["updated_at"]), fault_words(status["run"])]
    return [f"! {problem}" for problem in found if problem]


def render(status: dict[str, Any], width: int = 80, height: int = 50) -> RenderableType:
    """The live view of a status, for a terminal of that many columns and lines."""
    run, roles = status["run"], status["roles"]
    trainer = roles.get(TRAINER, {})
    state = state_of(status, run["updated_at"])
    elapsed = format_secs(run["updated_at"] - run["started_at"])
    title = f"[bold]{escape(str(run['name']))}[/]  [{_COLORS.get(state, 'default')}]{escape(state)}[/]  {elapsed}"
    left = trainer.get("time_left_s")
    width = min(width, _MAX_WIDTH)
    problem_texts = [Text(problem, style="red") for problem in problems(status, run["updated_at"])]
    blocks: list[Sequence[RenderableType]] = [
        [_progress(trainer)],
        [_numbers(status, width), *_pairs_line("curriculum", curriculum_values(status))],
        [part for owner, shares in time_shares(status).items() for part in _pairs_line(f"{owner} time", shares)],
        [_roles(status, max(1, min(_MAX_WORKER_LINES, height - _LINES_BESIDE_WORKERS)))],
        problem_texts,
    ]
    parts = [part for block in blocks if block for part in (*block, Text())][:-1]
    return Panel(
        Group(*parts),
        title=title,
        title_align="left",
        subtitle=None if left is None else f"{format_secs(left)} left",
        subtitle_align="right",
        border_style="dim",
        padding=(0, 1),
        width=width,
    )


def _progress(trainer: dict[str, Any]) -> RenderableType:
    unit = "env steps" if trainer.get("num_env_steps") else "iteration"
    done, total = trainer.get("iteration") or 0, trainer.get("num_iter")
    if trainer.get("num_env_steps"):
        done, total = trainer.get("env_steps") or 0, trainer["num_env_steps"]
    grid = Table.grid(padding=(0, 1), expand=True)
    grid.add_column(no_wrap=True)
    grid.add_column(ratio=1)
    grid.add_column(no_wrap=True, justify="right")
    if is_offline(trainer):
        grid.add_row(f"{_OFFLINE}: {format_number(trainer.get('train_step'))}", ProgressBar(total=1, completed=0), "")
    elif not total:
        grid.add_row("iteration -", ProgressBar(total=1, completed=0), "")
    else:
        bar = ProgressBar(total=total, completed=done)
        grid.add_row(f"{unit} {_of_all(done, total)}", bar, f"{min(1, done / total):.0%}")
    return grid


def _numbers(status: dict[str, Any], width: int) -> RenderableType:
    trainer = status["roles"].get(TRAINER, {})
    env_steps = trainer.get("env_steps") or status["roles"].get(REPLAY, {}).get("env_steps")
    texts = numbers({**trainer, "env_steps": env_steps})
    pairs = [("env steps/s" if name == "steps/s" else name, text) for name, text in texts.items()]
    if trainer.get("eval_success") is not None:
        pairs.append(("eval success", f"{trainer['eval_success']:.0%}"))
    columns = 3 if width >= 80 else 2 if width >= 56 else 1
    grid = Table.grid()
    for _ in range(columns):
        grid.add_column(style="dim", no_wrap=True)
        grid.add_column(no_wrap=True)
    for start in range(0, len(pairs), columns):
        row = pairs[start : start + columns]
        grid.add_row(*(cell for name, value in row for cell in (f"{name} ", f"{value}   ")))
    return grid


def _pairs_line(label: str, pairs: dict[str, str]) -> list[RenderableType]:
    """`curriculum  mass 1.5  friction 0.31`, or nothing."""
    words = [f"{name} {value}".replace(" ", "\u00a0") for name, value in pairs.items()]  # A pair is not torn apart.
    return [Text(f"{label}  ", style="dim").append("  ".join(words), "default")] if words else []


def _roles(status: dict[str, Any], max_workers: int) -> RenderableType:
    """One line a role: CPU ids, state, age of the heartbeat, restarts."""
    grid = Table.grid(padding=(0, 2))
    for _ in range(3):
        grid.add_column(no_wrap=True)
    for _ in range(2):
        grid.add_column(no_wrap=True, justify="right", style="dim")
    now = status["run"]["updated_at"]
    for role, beat in _collapsed(status, max_workers):
        state = Text(_state_in_words(beat), style=_COLORS.get(beat["state"], "default"), overflow="ellipsis")
        cpus = f"CPU {format_cpu_list(beat['cpus'])}" if beat["cpus"] else ""
        age = f"{max(0.0, now - beat['time']):.0f} s ago" if beat.get("time") else ""
        restarts = beat.get("restarts") or 0
        grid.add_row(Text(role), Text(cpus, style="dim"), state, age, counted(restarts, "restart") if restarts else "")
    return grid


def _state_in_words(beat: dict[str, Any]) -> str:
    """`starting (ring: 120 of 2,000 MiB (6 %), another size, 8 s)`, `serving (400 steps of prior data)`."""
    prior_steps, waiting = beat.get("prior_steps"), beat.get("waiting")
    told = [
        beat.get("doing"),
        None if prior_steps is None else f"{prior_steps:,} steps of prior data",
        f"{counted(waiting, 'row')} to send" if waiting else None,
    ]
    words = ", ".join(each for each in told if each)
    return f"{beat['state']} ({words})" if words else str(beat["state"])


def _collapsed(status: dict[str, Any], max_workers: int) -> list[tuple[str, dict[str, Any]]]:
    """Roles with their `state` and `cpus`; more than `max_workers` workers in one line that counts their states."""
    plan = status.get("plan") or {}
    roles = {
        role: {**beat, "state": _state(beat), "cpus": plan.get(role) or []} for role, beat in status["roles"].items()
    }
    workers = {role: beat for role, beat in roles.items() if is_worker(role)}
    if len(workers) <= max_workers:
        return [(label(role, beat), beat) for role, beat in roles.items()]
    counts = collections.Counter(beat["state"] for beat in workers.values())
    joined = {
        "state": ", ".join(f"{count} {state}" for state, count in counts.most_common()),
        "cpus": {cpu for beat in workers.values() for cpu in beat["cpus"]},
        "restarts": sum(beat.get("restarts") or 0 for beat in workers.values()),
        "time": min((beat["time"] for beat in workers.values() if beat.get("time")), default=None),  # The oldest.
    }
    others = [(role, beat) for role, beat in roles.items() if role not in workers]
    kinds = collections.Counter(kind for beat in workers.values() if (kind := beat.get("kind")))
    words = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    return [*others, (f"worker_0..{len(workers) - 1}" + (f" ({words})" if words else ""), joined)]


def _state(beat: dict[str, Any]) -> str:
    """`given up`, or `down` if the process is missing although it should run."""
    if beat.get("given_up"):
        return "given up"
    state = str(beat.get("state", "starting"))
    return state if beat.get("alive", True) or state in ("done", "stopped") else "down"


class SurvivingConsole(Console):
    """A console that stops writing when its pipe closes, instead of ending the program."""

    def on_broken_pipe(self) -> None:
        self.quiet = True


def table(
    rows: Sequence[Mapping[str, str]],
    columns: Sequence[str],
    width: int,
    *,
    spared_first: Sequence[str],
    state_styles: Sequence[str],
) -> Table:
    """Rows as a table, without the least important columns if the terminal is too narrow.

    Args:
      spared_first: Columns that a narrow terminal omits.
      state_styles: Of the column `state`, for each row.
    """
    natural = {name: max([len(name), *(len(row[name]) for row in rows)]) for name in columns}
    widths = _fitting(natural, width, spared_first)
    drawn = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for name, longest in widths.items():
        drawn.add_column(name, justify="left" if name in LEFT_ALIGNED else "right", no_wrap=True, width=longest)
    for row, style in zip(rows, state_styles, strict=True):
        drawn.add_row(*(Text(row[name], style=style if name == "state" else "") for name in widths))
    return drawn


def _fitting(natural: Mapping[str, int], width: int, spared_first: Sequence[str]) -> dict[str, int]:
    """Widths of the columns that fit, two characters apart; settings are cut if necessary."""
    widths = dict(natural)
    longest = widths.get(SETTINGS, 0)
    if longest:
        widths[SETTINGS] = min(longest, _SETTINGS_WIDTH)
    for name in spared_first:
        if sum(widths.values()) + 2 * len(widths) > width:
            widths.pop(name, None)
    if longest:
        rest = sum(widths.values()) + 2 * len(widths) - widths[SETTINGS]
        widths[SETTINGS] = min(longest, max(1, width - rest))
    return widths
