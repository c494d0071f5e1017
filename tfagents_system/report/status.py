"""status.json: the state of a run, for watching it from outside.

`python -m tfagents_system.report.status logs/* [--follow] [--json]` reads only these files: no connection to the run,
no TensorFlow and no NumPy, so it answers immediately, also on a login node.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tfagents_system.checks.called_as import called_as
from tfagents_system.checks.findings import counted
from tfagents_system.errors import EXIT_BAD_INPUT, EXIT_DONE, EXIT_INTERRUPTED, print_findings
from tfagents_system.machine.files import write_json
from tfagents_system.machine.worker_slots import EVAL, EXPERT
from tfagents_system.report.env_faults import fault_lines
from tfagents_system.report.statuses_of_runs import (
    SETTINGS,
    is_beside_runs,
    missing_runs,
    read_all,
    usual_folder,
    usual_runs,
)
from tfagents_system.run_files.heartbeat import LIVE_STATES, STALE_SECS, clean_text, is_live, is_offline
from tfagents_system.run_files.run_paths import REPLAY, TRAINER, is_worker
from tfagents_system.settings.values import differing, in_words

_LONG_WAIT_SECS = 60.0
_FOLLOW_SECS = 2.0
_ENDED_STATES = ("done", "stopped")
_MAX_NAMES = 4

# Between the first two there is a column of the settings that differ, where several runs are shown.
COLUMNS = ("run", "state", "iteration", "env steps", "updates/s", "steps/s", "eval return", "best", "left", "restarts")
LEFT_ALIGNED = ("run", SETTINGS, "state")

_complained: set[Path] = set()


def write_status(path: Path, status: dict[str, Any]) -> None:
    """Replaces status.json. A full disk is reported once on standard error and does not end the run."""
    try:
        write_json(path, status)
    except (OSError, ValueError) as error:
        if path not in _complained:
            print(f"{path}: {getattr(error, 'strerror', error)}", file=sys.stderr, flush=True)
        _complained.add(path)


def is_dead(status: dict[str, Any], now: float) -> bool:
    """Whether an unfinished run is silent because its supervisor or the machine was killed."""
    run = status["run"]
    return is_live(run) and now - run.get("updated_at", 0.0) > STALE_SECS


def is_under_way(status: dict[str, Any], now: float) -> bool:
    """Whether its processes are at work."""
    return is_live(status["run"]) and not is_dead(status, now)


def state_of(status: dict[str, Any], now: float) -> str:
    """`starting`, `running`, `saving`, `done`, `stopped`, `failed` or `dead`."""
    if is_dead(status, now):
        return "dead"
    state, trainer = str(status["run"].get("state")), status["roles"].get(TRAINER, {}).get("state", "starting")
    shown = {"starting": "starting", "saving": "saving", "stopped": "saving"}  # Stopped: the others are still saving.
    return shown.get(trainer, state) if state in LIVE_STATES else state


def problems(status: dict[str, Any], now: float) -> list[str]:
    """What looks wrong, a sentence each.

    A supervisor that is gone; roles that are down, do not answer, wait for long or report an error; why a run failed;
    simulators that fail.
    """
    return [*state_problems(status, now), *fault_lines(status["run"])]


def state_problems(status: dict[str, Any], now: float) -> list[str]:
    """`problems` without simulators' failures, which are past but stay reported."""
    run = status["run"]
    if not is_live(run):
        message = [str(run["message"])] if run.get("state") == "failed" and run.get("message") else []
        return [*message, *lost_workers(status)]
    if is_dead(status, now):
        age = format_secs(now - run.get("updated_at", 0.0))
        return [f"the supervisor (pid {run.get('pid')} on {run.get('host')}) is gone: last heard of {age} ago"]
    found: dict[tuple[str, str], list[tuple[str, float]]] = {}
    for role, beat in status["roles"].items():
        for before, secs, after in _role_problems(beat, run.get("started_at", now), now):
            found.setdefault((before, after), []).append((label(role, beat), secs))
    sentences = []
    for (before, after), roles in found.items():
        longest = max(secs for _, secs in roles)
        words = [before, format_secs(longest) if longest else "", after]
        sentences.append(f"{_names([role for role, _ in roles])}: {' '.join(filter(None, words))}")
    return sentences


def finished_in_words(name: str, why_early: str | None, num_iter: int | None) -> str:
    """`reach is finished: num_iter=25 is reached`, `reach is finished early: max_hours=2 is reached`.

    Args:
      name: Of the run.
      why_early: Why it has ended before its last iteration; None where it has not.
      num_iter: How many iterations were asked for.
    """
    if why_early is None:
        return f"{name} is finished" + ("" if num_iter is None else f": num_iter={num_iter} is reached")
    early = "" if why_early.startswith("num_env_steps") else " early"
    return f"{name} is finished{early}: {why_early}"


def label(role: str, beat: Mapping[str, Any]) -> str:
    """`worker_1`, `worker_2 (expert)`."""
    return f"{role} ({beat['kind']})" if beat.get("kind") else role


def lost_workers(status: dict[str, Any]) -> list[str]:
    """The workers that failed too often and were not started again, or that a run had nothing of: a sentence each."""
    is_done = status["run"].get("state") == "done"
    return [
        f"{label(role, beat)}: {words}"
        for role, beat in status["roles"].items()
        if (words := _given_up(beat) if beat.get("given_up") else _without_steps(role, beat, is_done))
    ]


def _without_steps(role: str, beat: dict[str, Any], is_done: bool) -> str:
    """What is told of a worker that should have collected and has not; empty of any other.

    Of one that has not failed it is told only if it was an expert, of a run that is done.
    """
    collects = is_worker(role) and beat.get("kind") in (None, EXPERT) and not beat.get("remote")
    if not collects or beat.get("has_worked") or beat.get("steps"):
        return ""
    if beat.get("failed_with"):
        starts = counted(beat.get("restarts", 0) + 1, "start")
        return f"collected nothing in {starts}, last failure: {beat['failed_with']}"
    return "collected nothing" if is_done and beat.get("kind") == EXPERT else ""


def _given_up(beat: dict[str, Any]) -> str:
    because = f": {beat['given_up_because']}" if beat.get("given_up_because") else ""
    return f"given up after {beat.get('restarts', 0)} restarts{because}"


def _role_problems(beat: dict[str, Any], started_at: float, now: float) -> Iterator[tuple[str, float, str]]:
    """Problems as (text, seconds or 0, text)."""
    if beat.get("error"):
        yield str(beat["error"]), 0.0, ""
    if beat.get("given_up"):
        yield _given_up(beat), 0.0, ""
        return
    if beat.get("state") in _ENDED_STATES:
        return
    age, wait = now - beat.get("time", started_at), now - beat.get("since", now)
    if not beat.get("alive", True):
        yield "down", 0.0, ""
    elif age > STALE_SECS:
        yield "no heartbeat for", age, ""
    elif beat.get("state") == "waiting" and wait > _LONG_WAIT_SECS:
        yield "waiting", wait, f"for {beat['waiting_for']}" if beat.get("waiting_for") else ""


def _names(roles: Sequence[str]) -> str:
    rest = len(roles) - _MAX_NAMES
    return ", ".join(roles[:_MAX_NAMES]) + (f" and {rest} more" if rest > 0 else "")


def summaries(statuses: Sequence[dict[str, Any]], now: float) -> list[dict[str, str]]:
    """Several runs as lines of the table, with the settings in which they differ, where they do."""
    rows = [summary(status, now) for status in statuses]
    words = [clean_text(in_words(own)) for own in differing([status.get(SETTINGS) or {} for status in statuses])]
    if len(rows) < 2 or not any(words):
        return rows
    return [{"run": row["run"], SETTINGS: own, **row} for row, own in zip(rows, words, strict=True)]


def summary(status: dict[str, Any], now: float) -> dict[str, str]:
    """One run as a line of the table: texts by column."""
    run, trainer = status["run"], status["roles"].get(TRAINER, {})
    if "iteration" not in trainer:  # It is starting.
        trainer = {**run.get("before", {}), **trainer}
    lives = is_live(run) and not is_dead(status, now)
    cells = numbers(trainer) | {
        "run": str(run.get("name")),
        "state": state_of(status, now),
        "iteration": iteration_of(trainer),
        "left": format_secs(trainer.get("time_left_s")) if lives else "-",
        "restarts": str(sum(beat.get("restarts", 0) for beat in status["roles"].values())),
    }
    return {name: cells[name] for name in COLUMNS}


def iteration_of(trainer: Mapping[str, Any]) -> str:
    """`12/25`, `12` where the run's length is in environment steps, `offline` before the first one."""
    done = trainer.get("iteration", 0)
    if is_offline(trainer):
        return "offline"
    return str(done) if trainer.get("num_env_steps") else f"{done}/{trainer.get('num_iter', '?')}"


def numbers(trainer: Mapping[str, Any]) -> dict[str, str]:
    """The trainer's progress as texts by their names in table and view; `-`: not known yet."""
    return {
        "env steps": format_number(trainer.get("env_steps")),
        "updates/s": format_rate(trainer.get("updates_per_s")),
        "steps/s": format_rate(trainer.get("env_steps_per_s")),
        "train return": format_number(trainer.get("train_return")),
        "eval return": format_return(trainer),
        "best": format_number(trainer.get("best_eval_return")),
        "critic loss": format_number(trainer.get("critic_loss")),
        "actor loss": format_number(trainer.get("actor_loss")),
        "alpha": format_number(trainer.get("alpha")),
    }


def time_shares(status: dict[str, Any]) -> dict[str, dict[str, str]]:
    """Percentages of time by activity for each kind of role, largest first; workers, and those that only evaluate, on
    average.

    For example {"trainer's": {"updates": "93%", "waiting": "4%"}, "workers'": {"simulator": "71%", ...}}.
    """
    roles = status["roles"]
    owners = {
        "trainer's": [roles.get(TRAINER, {})],
        "replay's": [roles.get(REPLAY, {})],
        "workers'": [beat for role, beat in roles.items() if is_worker(role) and beat.get("kind") != EVAL],
        "evaluators'": [beat for role, beat in roles.items() if is_worker(role) and beat.get("kind") == EVAL],
    }
    shown = {owner: _mean_shares([beat.get("time_shares") or {} for beat in beats]) for owner, beats in owners.items()}
    return {owner: shares for owner, shares in shown.items() if shares}


def _mean_shares(all_shares: Sequence[dict[str, float]]) -> dict[str, str]:
    told = [shares for shares in all_shares if shares]
    totals: dict[str, float] = {}
    for shares in told:
        for activity, share in shares.items():
            totals[activity] = totals.get(activity, 0.0) + (share or 0.0) / len(told)
    ordered = sorted(totals.items(), key=lambda item: -item[1])
    return {activity: f"{share:.0%}" for activity, share in ordered if share >= 0.005}


def format_number(value: float | None) -> str:
    """`12,345`, `-310.2`, `0.0543`; `-` for None."""
    if value is None:
        return "-"
    if abs(value) >= 1e15:
        return f"{value:.3g}"
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3g}"


def format_rate(value: float | None) -> str:
    """`1,181`, `2.5`; `-` for None."""
    return format_number(value if value is None or abs(value) < 10 else round(value))


def format_return(trainer: Mapping[str, Any]) -> str:
    """The last evaluation, `-310.2 ± 40.1`."""
    mean, std = trainer.get("eval_return"), trainer.get("eval_return_std")
    return format_number(mean) if mean is None or std is None else f"{format_number(mean)} ± {format_number(std)}"


def format_results(trainer: dict[str, Any], name: str = "eval") -> list[str]:
    """`eval -310.2 ± 40.1`, `best -298.7`, `success 85%`: of those that there are yet."""
    texts = {
        name: None if trainer.get("eval_return") is None else format_return(trainer),
        "best": None if trainer.get("best_eval_return") is None else format_number(trainer["best_eval_return"]),
        "success": None if trainer.get("eval_success") is None else f"{trainer['eval_success']:.0%}",
    }
    return [f"{label} {text}" for label, text in texts.items() if text is not None]


def curriculum_values(status: dict[str, Any]) -> dict[str, str]:
    """The values in force, from the trainer or else from the first worker that reports any."""
    values: dict[str, float] = next(
        (beat["curriculum"] for beat in status["roles"].values() if beat.get("curriculum")), {}
    )
    return {name: format_number(value) for name, value in values.items()}


def format_secs(secs: float | None) -> str:
    """`01:10`, `2:03:00`, `5d 02h`; `-` for None."""
    if secs is None:
        return "-"
    minutes, seconds = divmod(max(0, int(secs)), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 48:
        return f"{hours // 24}d {hours % 24:02}h"
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes:02}:{seconds:02}"


def plain_table(statuses: Sequence[dict[str, Any]], now: float) -> str:
    """The table in aligned columns, and below it what looks wrong."""
    rows = summaries(statuses, now)
    names = list(rows[0]) if rows else list(COLUMNS)
    lines = aligned([names, *([row[name] for name in names] for row in rows)], LEFT_ALIGNED)
    return "\n".join([*lines, *problem_lines(statuses, now)])


def aligned(rows: Sequence[Sequence[str]], left_aligned: Collection[str]) -> list[str]:
    """Rows of equally many cells as lines, the cells of a column below each other; the first row has their names."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    kinds = ["<" if name in left_aligned else ">" for name in rows[0]]
    return [
        "  ".join(f"{text:{kind}{width}}" for text, kind, width in zip(row, kinds, widths, strict=True)).rstrip()
        for row in rows
    ]


def problem_lines(statuses: Sequence[dict[str, Any]], now: float) -> list[str]:
    """`problems` of all runs, each with the run's name."""
    return [f"{status['run'].get('name')}: {problem}" for status in statuses for problem in problems(status, now)]


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the table; returns 2 where none of the directories is a run."""
    parser = argparse.ArgumentParser(
        prog=called_as("python -m tfagents_system.report.status"),
        description="Shows the state of runs from their files alone.",
    )
    parser.add_argument("run", nargs="*", type=Path, help="run directories; without any those in logs/")
    parser.add_argument("--follow", action="store_true", help="refresh every 2 s until all runs have ended")
    parser.add_argument(
        "--json",
        action="store_true",
        help="print a list of the status.json files, with `problems`, `settings`, and the folder's name as the run's",
    )
    args = parser.parse_args(argv)
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # A terminal that knows no ± gets a ?, not an exception.
    runs = args.run or usual_runs(os.environ)
    has_runs = bool(read_all(runs))
    missing = [*missing_runs([folder for folder in runs if not (has_runs and is_beside_runs(folder))], has_runs)]
    if not has_runs:
        nothing = f"there is no run in {usual_folder(os.environ)}: give run directories, such as logs/*"
        print_findings(missing if runs else [nothing])
        return EXIT_BAD_INPUT
    for finding in missing:
        print(f"note: {finding}", file=sys.stderr)
    try:
        _show(runs, follow=args.follow, as_json=args.json)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return EXIT_DONE


def _show(folders: Sequence[Path], *, follow: bool, as_json: bool) -> None:
    """Prints once, or again and again until all runs have ended."""
    show = _show_json if as_json else _show_plain
    while True:
        statuses, now = read_all(folders), time.time()
        if follow and sys.stdout.isatty() and not as_json:
            print("\x1b[H\x1b[2J", end="")  # The table replaces the one before.
        show(statuses, now)
        if not follow or not any(is_under_way(status, now) for status in statuses):
            return
        time.sleep(_FOLLOW_SECS)


def _show_json(statuses: Sequence[dict[str, Any]], now: float) -> None:
    print(json.dumps([{**status, "problems": problems(status, now)} for status in statuses]), flush=True)


def _show_plain(statuses: Sequence[dict[str, Any]], now: float) -> None:
    print(plain_table(statuses, now), flush=True)


if __name__ == "__main__":
    sys.exit(main())
