"""What a run shows while it runs: a live view on a terminal, a plain line every few seconds elsewhere."""

from __future__ import annotations

import collections
import os
import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from tfagents_system.launch.run_paths import TRAINER
from tfagents_system.report.status import format_number, format_return, format_secs, problems

_DEFAULT_LINE_SECS = 5.0
_MAX_WORKER_LINES = 8


class ProgressView:
    """Shows status after status.

    Args:
      console: Where to; the standard output by default.
      line_secs: Seconds between two lines where that is no terminal; SAC_LOG_SECS by default.
    """

    def __init__(self, console: Console | None = None, line_secs: float | None = None) -> None:
        self._console = console or Console(highlight=False)
        self._line_secs = line_secs or float(os.environ.get("SAC_LOG_SECS") or _DEFAULT_LINE_SECS)
        self._live: Live | None = None
        self._line_due = 0.0
        self._last_line = ""

    def start(self) -> None:
        """Begins to show; on a terminal the view stays at the bottom, below what is printed meanwhile."""
        if self._console.is_terminal:
            self._live = Live(console=self._console, refresh_per_second=2, redirect_stdout=True, redirect_stderr=True)
            self._live.start()

    def update(self, status: dict[str, Any]) -> None:
        """Shows a status (see launch/supervise.py)."""
        if self._live is not None:
            self._live.update(render(status))
        elif time.monotonic() >= self._line_due:
            self._line_due = time.monotonic() + self._line_secs
            line = progress_line(status)
            if line.partition("]")[2] != self._last_line:
                self._last_line = line.partition("]")[2]
                print(line, flush=True)

    def stop(self, final_lines: Sequence[str]) -> None:
        """Ends the view and prints what is left to say."""
        if self._live is not None:
            self._live.stop()
            self._live = None
        for line in final_lines:
            print(line, flush=True)


def progress_line(status: dict[str, Any]) -> str:
    """`[00:42] iteration 12/25  env_steps 4,800  updates/s 181 ...`: what is not known yet is left out."""
    run, trainer = status["run"], status["roles"].get(TRAINER, {})
    head = f"[{format_secs(run['updated_at'] - run['started_at'])}]"
    if trainer.get("updates_per_s") is None:
        return f"{head} {_starting(status)}"
    parts = [
        f"iteration {trainer.get('iteration')}/{trainer.get('num_iter')}",
        f"env_steps {format_number(trainer.get('env_steps'))}",
        f"updates/s {format_number(trainer.get('updates_per_s'))}",
        f"steps/s {format_number(trainer.get('env_steps_per_s'))}",
    ]
    if trainer.get("train_return") is not None:
        parts.append(f"train {format_number(trainer['train_return'])}")
    if trainer.get("eval_return") is not None:
        parts.append(f"eval {format_return(trainer)}")
    if trainer.get("alpha") is not None:
        parts.append(f"alpha {format_number(trainer['alpha'])}")
    parts.append(f"left {format_secs(trainer.get('time_left_s'))}")
    return f"{head} {'  '.join(parts)}"


def _starting(status: dict[str, Any]) -> str:
    states = [f"{role} {beat.get('state', 'starting')}" for role, beat in _collapsed(status["roles"])]
    return ", ".join(states)


def render(status: dict[str, Any]) -> Panel:
    """The live view of a status."""
    run, roles = status["run"], status["roles"]
    trainer = roles.get(TRAINER, {})
    elapsed = format_secs(run["updated_at"] - run["started_at"])
    parts: list[Any] = [_progress(trainer), _numbers(trainer), _roles(status)]
    parts += [Text(problem, style="bold red") for problem in problems(status, run["updated_at"])]
    title = f"[bold]{run['name']}[/bold]  {run['state']}  {elapsed}"
    return Panel(Group(*parts), title=title, title_align="left", border_style="cyan")


def _progress(trainer: dict[str, Any]) -> Table:
    done, total = trainer.get("iteration") or 0, trainer.get("num_iter") or 1
    grid = Table.grid(padding=(0, 1), expand=True)
    grid.add_column(no_wrap=True)
    grid.add_column(ratio=1)
    grid.add_column(no_wrap=True, justify="right")
    left = format_secs(trainer.get("time_left_s"))
    grid.add_row(f"iteration {done}/{trainer.get('num_iter', '?')}", ProgressBar(total=total, completed=done), f"{left} left")
    return grid


def _numbers(trainer: dict[str, Any]) -> Table:
    pairs = [
        ("env steps", format_number(trainer.get("env_steps"))),
        ("updates/s", format_number(trainer.get("updates_per_s"))),
        ("env steps/s", format_number(trainer.get("env_steps_per_s"))),
        ("train return", format_number(trainer.get("train_return"))),
        ("eval return", format_return(trainer)),
        ("best", format_number(trainer.get("best_eval_return"))),
        ("critic loss", format_number(trainer.get("critic_loss"))),
        ("actor loss", format_number(trainer.get("actor_loss"))),
        ("alpha", format_number(trainer.get("alpha"))),
    ]
    if trainer.get("eval_success") is not None:
        pairs.append(("success", f"{trainer['eval_success']:.0%}"))
    pairs += [(f"{name} (curriculum)", format_number(value)) for name, value in (trainer.get("curriculum") or {}).items()]
    grid = Table.grid(padding=(0, 2))
    for _ in range(3):
        grid.add_column(style="dim", no_wrap=True)
        grid.add_column(justify="right", no_wrap=True)
    for start in range(0, len(pairs), 3):
        grid.add_row(*(cell for pair in pairs[start : start + 3] for cell in pair))
    return grid


def _roles(status: dict[str, Any]) -> Table:
    grid = Table.grid(padding=(0, 2))
    for _ in range(4):
        grid.add_column(no_wrap=True)
    plan, now = status.get("plan", {}), status["run"]["updated_at"]
    for role, beat in _collapsed(status["roles"]):
        cpus = plan.get(role)
        where = f"CPU {','.join(map(str, cpus))}" if cpus else ""
        age = f"{max(0.0, now - beat['time']):.0f} s ago" if beat.get("time") else ""
        restarts = f"{beat['restarts']} restarts" if beat.get("restarts") else ""
        shares = beat.get("time_shares") or {}
        spent = ", ".join(f"{name} {share:.0%}" for name, share in shares.items() if share >= 0.005)
        grid.add_row(Text(role, style="bold"), where, str(beat.get("state", "starting")), spent or restarts or age)
    return grid


def _collapsed(roles: dict[str, dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    """Roles by name; many workers in one line that counts their states."""
    workers = {role: beat for role, beat in roles.items() if role.startswith("worker_")}
    if len(workers) <= _MAX_WORKER_LINES:
        return list(roles.items())
    counts = collections.Counter(str(beat.get("state", "starting")) for beat in workers.values())
    joined = {
        "state": ", ".join(f"{count} {state}" for state, count in counts.most_common()),
        "restarts": sum(beat.get("restarts", 0) for beat in workers.values()),
    }
    others = [(role, beat) for role, beat in roles.items() if role not in workers]
    return [*others, (f"worker_0..{len(workers) - 1}", joined)]
