"""status.json: the state of a run, for those who watch it from outside.

    python -m tfagents_system.report.status logs/* [--follow] [--json]

Reads these files alone: no connection to the run, no TensorFlow, so it works from a login node.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tfagents_system.launch.run_paths import TRAINER, RunPaths
from tfagents_system.report.heartbeat import read_json, write_json

_STALE_SECS = 30.0
_FOLLOW_SECS = 2.0
_LIVE_STATES = ("starting", "running")
_HEADER = ("run", "state", "iteration", "env steps", "updates/s", "steps/s", "eval return", "best", "left", "restarts")


def write_status(path: Path, status: dict[str, Any]) -> None:
    """Replaces status.json; a full disk is no reason to end a run."""
    try:
        write_json(path, status)
    except OSError as error:
        print(f"{path}: {error.strerror}", file=sys.stderr)


def read_status(path: Path) -> dict[str, Any] | None:
    """The last status of a run, None if there is none."""
    return read_json(path)


def problems(status: dict[str, Any], now: float) -> list[str]:
    """What looks wrong: a supervisor that is gone, roles that do not answer, workers that were given up, waits."""
    run, found = status["run"], []
    if run["state"] not in _LIVE_STATES:
        return [run["message"]] if run["state"] == "failed" and run.get("message") else []
    if (age := now - run["updated_at"]) > _STALE_SECS:
        return [f"not heard of for {format_secs(age)}: the supervisor (pid {run['pid']} on {run['host']}) is gone"]
    for role, beat in status["roles"].items():
        age = now - beat.get("time", run["started_at"])
        if beat.get("state") in ("done", "stopped"):
            continue
        if not beat.get("alive", True):
            found.append(f"{role} is down")
        elif age > _STALE_SECS:
            found.append(f"{role}: no heartbeat for {format_secs(age)}")
        if beat.get("error"):
            found.append(f"{role}: {beat['error']}")
    return found


def summary_row(status: dict[str, Any]) -> tuple[str, ...]:
    """One run as a line of the table."""
    run, trainer = status["run"], status["roles"].get(TRAINER, {})
    state = run["state"] if run["state"] not in _LIVE_STATES else trainer.get("state", run["state"])
    return (
        run["name"],
        state,
        f"{trainer.get('iteration', 0)}/{trainer.get('num_iter', '?')}",
        format_number(trainer.get("env_steps")),
        format_number(trainer.get("updates_per_s")),
        format_number(trainer.get("env_steps_per_s")),
        format_return(trainer),
        format_number(trainer.get("best_eval_return")),
        format_secs(trainer.get("time_left_s")) if run["state"] in _LIVE_STATES else "-",
        str(sum(beat.get("restarts", 0) for beat in status["roles"].values())),
    )


def format_number(value: Any) -> str:
    """`12,345`, `-310.2`, `0.0543`; `-` for None."""
    if value is None:
        return "-"
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3g}"


def format_return(trainer: dict[str, Any]) -> str:
    """`-310.2 ± 40.1`."""
    mean, std = trainer.get("eval_return"), trainer.get("eval_return_std")
    return format_number(mean) if mean is None or std is None else f"{format_number(mean)} ± {format_number(std)}"


def format_secs(secs: float | None) -> str:
    """`01:10`, `2:03:00`; `-` for None."""
    if secs is None:
        return "-"
    minutes, seconds = divmod(int(secs), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes:02}:{seconds:02}"


def _print_table(statuses: Sequence[dict[str, Any]], now: float) -> None:
    rows = [_HEADER, *(summary_row(status) for status in statuses)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_HEADER))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    for status in statuses:
        for problem in problems(status, now):
            print(f"{status['run']['name']}: {problem}")


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the table; 2 where none of the directories is a run."""
    parser = argparse.ArgumentParser(prog="python -m tfagents_system.report.status", description="Shows the state of runs.")
    parser.add_argument("run", nargs="+", type=Path, help="run directories, such as logs/*")
    parser.add_argument("--follow", action="store_true", help="refresh until all runs have ended")
    parser.add_argument("--json", action="store_true", help="print the statuses as JSON")
    args = parser.parse_args(argv)
    while True:
        found = [(folder, read_status(RunPaths(folder).status_json)) for folder in args.run]
        statuses = [status for _, status in found if status is not None and "run" in status]
        if args.json:
            print(json.dumps(statuses))
        elif statuses:
            _print_table(statuses, time.time())
        for folder, status in found:
            if status is None and folder.is_dir():
                print(f"{folder}: no status.json, not started yet or no run directory", file=sys.stderr)
            elif status is None:
                print(f"{folder}: no such directory", file=sys.stderr)
        if not statuses:
            return 2
        alive = [s for s in statuses if s["run"]["state"] in _LIVE_STATES and not _is_dead(s)]
        if not args.follow or not alive:
            return 0
        time.sleep(_FOLLOW_SECS)


def _is_dead(status: dict[str, Any]) -> bool:
    return time.time() - status["run"]["updated_at"] > _STALE_SECS


if __name__ == "__main__":
    sys.exit(main())
