"""A run as its directory tells it, and in words: problems, numbers, a line and a table.

`sac status logs/* [--follow] [--json]` prints them. It reads only files: no connection to the run, no TensorFlow and no
NumPy, so it answers immediately, also on a login node.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from tfagents_system.checks.findings import counted
from tfagents_system.errors import EXIT_BAD_INPUT, EXIT_DONE, EXIT_INTERRUPTED, OptionParser, print_findings
from tfagents_system.machine.claims import EVAL, EXPERT
from tfagents_system.machine.files import read_json
from tfagents_system.run_files.heartbeat import (
    COUNTED,
    LIVE_STATES,
    STALE_SECS,
    clean_text,
    is_live,
    is_offline,
    read_status,
)
from tfagents_system.run_files.metrics import read_episodes, read_rows
from tfagents_system.run_files.run_lock import start_of_run
from tfagents_system.run_files.run_paths import INPUTS, REPLAY, TRAINER, RunPaths, is_worker
from tfagents_system.settings.values import as_text, by_name, differing, in_words

Status = Mapping[str, Any]

SETTINGS = "settings"
COLUMNS = ("run", "state", "iteration", "env steps", "updates/s", "steps/s", "eval return", "best", "left", "restarts")
_LEFT_ALIGNED = ("run", SETTINGS, "state")
_LONG_WAIT_SECS = 60.0
_FOLLOW_SECS = 2.0
_ENDED_STATES = ("done", "stopped")
_MAX_NAMES = 4
_CUT_SHARE, _FEW_CUTS = 0.05, 3

DONE, UNKNOWN = "done", "-"
RETURN, SUCCESS = "eval_return", "eval_success"
TRAIN_RETURN = "train_return"
HIGHEST = (RETURN, SUCCESS, TRAIN_RETURN, "train_success")  # Columns whose best value is the highest.
_BEST = "best_eval_return"
_HOW_FAR = ("iteration", "num_iter", "num_env_steps", "env_steps", RETURN, "eval_return_std", "eval_env_steps", _BEST)
# How names end of what is beside runs in `logs/*`: submissions of arrays, lists of tasks, inputs of calls from Python,
# files of `compare` and `report`.
_BESIDE = ("_array", "_tasks", INPUTS, ".png", ".csv", ".html")


# A run.


class RunModel:
    """One run. Each file is read once, when it is first asked for; what a run does not have yet is empty."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.paths, self.read_at = folder, RunPaths(folder), time.time()
        self.name = folder.resolve().name

    @cached_property
    def status(self) -> dict[str, Any] | None:
        """status.json; where it is of an earlier start than the one under way, only how far that one had come."""
        status = read_status(self.paths.status_json)
        if status is not None and is_dead(status, self.read_at):
            with contextlib.suppress(OSError):  # Of a full disk: the lock's time is its supervisor's heartbeat, too.
                if self.read_at - (alive_at := self.paths.lock.stat().st_mtime) < STALE_SECS / 2:
                    silence = format_secs(self.read_at - status["run"].get("updated_at", 0.0))
                    status["run"] |= {"updated_at": alive_at, "unwritable": f"no status for {silence}"}
        if status is None or (began := start_of_run(self.paths, status["run"])) is None:
            return status
        start = {"state": "starting", "started_at": began, "updated_at": time.time(), "exp_dir": str(self.folder)}
        return {**status, "run": {**start, "before": how_far(self.paths, status)}, "roles": {}}

    @cached_property
    def rows(self) -> list[dict[str, float | None]]:
        """Of metrics.csv."""
        return read_rows(self.paths.metrics_csv)

    @cached_property
    def episodes(self) -> list[dict[str, float]]:
        """Of episodes.csv."""
        return read_episodes(self.paths.episodes_csv)

    @cached_property
    def run_json(self) -> dict[str, Any]:
        return read_json(self.paths.run_json) or {}

    @cached_property
    def best_json(self) -> dict[str, Any]:
        return read_json(self.paths.best_json) or {}

    @property
    def is_ours(self) -> bool:
        """Whether this toolkit has written the directory."""
        return self.paths.run_json.exists() or self.paths.metrics_csv.exists()

    @cached_property
    def state(self) -> str:
        """As `sac status` names it, or `not started`. A run is `done` once it has trained as long as its settings say:
        one that is resumed with more iterations has `stopped`.
        """
        from tfagents_system.run_files.run_directory import is_finished

        if is_finished(self.paths):
            return DONE
        state = state_of(self.status, self.read_at) if self.status else "not started"
        return "stopped" if state == DONE else state

    @property
    def overrides(self) -> dict[str, Any]:
        """Settings that `--set` or a grid gave, by name."""
        parts = self.run_json.get("overrides", {})
        return by_name(*(parts.get(kind, {}) for kind in ("params", "config", "variables")))

    @cached_property
    def settings(self) -> dict[str, Any]:
        """All settings that others may see: `params`, `config`, and as texts `variables`, which include neither paths
        nor keys. Empty before the first start.
        """
        from tfagents_system.settings.resolved import FIXED
        from tfagents_system.settings.variables import VARIABLES

        if "attributes" not in self.run_json:
            return {}
        values = {**self.run_json["start"]["variables"], **{name: self.run_json[name] for name in FIXED}}
        variables = {
            variable.name: as_text(values[variable.field])
            for variable in VARIABLES
            if variable.kind.is_for_others and values.get(variable.field) is not None
        }
        return {"params": self.run_json["attributes"], "config": self.run_json["config"], "variables": variables}

    def series(self, name: str, *beside: str) -> list[list[float]]:
        """The environment steps at which a metric has a finite value, ascending, these values, and those of the columns
        `beside` it in the same rows: 0 where there is none.
        """
        rows = [row for row in self.rows if (value := row.get(name)) is not None and math.isfinite(value)]
        rows.sort(key=lambda row: row.get("env_steps") or 0.0)
        return [[row.get(column) or 0.0 for row in rows] for column in ("env_steps", name, *beside)]

    def best(self, metric: str = RETURN) -> float | None:
        """The value of the policy that is kept as the best one; else the highest after the first update.

        An untrained policy is never the best one. Metrics that need not be high have no best value.
        """
        if metric in (RETURN, SUCCESS) and self.best_json.get(metric) is not None:
            return float(self.best_json[metric])
        if metric not in HIGHEST:
            return None
        values = [value for row in self.rows if row.get("train_step") and (value := row.get(metric)) is not None]
        return max(values, default=None)


# States, of the content of a status.json.


def is_dead(status: Mapping[str, Any], now: float) -> bool:
    """Whether an unfinished run is silent because its supervisor or the machine was killed."""
    return is_live(status["run"]) and now - status["run"].get("updated_at", 0.0) > STALE_SECS


def is_under_way(status: Mapping[str, Any], now: float) -> bool:
    """Whether the processes of a run are at work."""
    return is_live(status["run"]) and not is_dead(status, now)


def state_of(status: Mapping[str, Any], now: float) -> str:
    """`starting`, `running`, `saving`, `done`, `stopped`, `failed` or `dead`."""
    if is_dead(status, now):
        return "dead"
    state, trainer = str(status["run"].get("state")), status["roles"].get(TRAINER, {}).get("state", "starting")
    shown = {"starting": "starting", "saving": "saving", "stopped": "saving"}  # Stopped: the others are still saving.
    return shown.get(trainer, state) if state in LIVE_STATES else state


def how_far(paths: RunPaths, status: Mapping[str, Any] | None) -> dict[str, Any]:
    """How far a run had come by the last status of an earlier start."""
    if status is None:
        return {}
    known = {**status["run"].get("before", {}), **status["roles"].get(TRAINER, {})}
    if read_json(paths.best_json) is None:
        known.pop(_BEST, None)
    return {name: known[name] for name in _HOW_FAR if known.get(name) is not None}


# Which directories are runs.


def runs_among(given: Iterable[Path]) -> list[Path]:
    """Each once, without what is beside runs; all, if there is nothing else."""
    paths = list(dict.fromkeys(given))
    return [path for path in paths if not path.name.endswith(_BESIDE) or RunPaths(path).run_json.exists()] or paths


def missing_runs(folders: Sequence[Path]) -> Iterator[str]:
    """A sentence on each that is no run."""
    for folder in folders:
        if not folder.is_dir():
            what = "is a file" if folder.is_file() else "does not exist"
            yield f"{folder} {what}: give a run directory, such as logs/reacher"
        elif RunPaths(folder).joined.is_dir() and not RunPaths(folder).status_json.exists():
            yield f"{folder} has only logs of workers that joined a run elsewhere: give the run directory of their run"
        elif read_status(RunPaths(folder).status_json) is None:
            yield f"{folder} has no status.json: give a run directory, or wait until this one's first start is checked"


# What looks wrong.


def problems(status: Status, now: float) -> list[str]:
    """What looks wrong, a sentence each.

    A supervisor that is gone; roles that are down, do not answer, wait for long or report an error; why a run failed;
    simulators that fail.
    """
    return [*state_problems(status, now), *fault_lines(status, now)]


def state_problems(status: Status, now: float) -> list[str]:
    """`problems` without simulators' failures, which are past but stay reported."""
    run = status["run"]
    if not is_live(run):
        message = [str(run["message"])] if run.get("state") == "failed" and run.get("message") else []
        return [*message, *lost_workers(status)]
    if is_dead(status, now):
        age = format_secs(now - run.get("updated_at", 0.0))
        return [f"the supervisor (pid {run.get('pid')} on {run.get('host')}) is gone: last heard of {age} ago"]
    by_problem: dict[tuple[str, str], list[tuple[str, float]]] = {}
    why = run.get("unwritable")
    silent = {"time": now, "since": now} if why else {}  # No role can write its heartbeat.
    for role, beat in status["roles"].items():
        for before, secs, after in _role_problems({**beat, **silent}, run.get("started_at", now), now):
            by_problem.setdefault((before, after), []).append((label(role, beat), secs))
    remedy = "free space, or make it writable; until then nothing is saved"
    sentences = [f"{run.get('exp_dir')} can't be written ({why}): {remedy}"] if why else []
    for (before, after), roles in by_problem.items():
        longest, rest = max(secs for _, secs in roles), len(roles) - _MAX_NAMES
        names = ", ".join(role for role, _ in roles[:_MAX_NAMES]) + (f" and {rest} more" if rest > 0 else "")
        words = [before, format_secs(longest) if longest else "", after]
        sentences.append(f"{names}: {' '.join(filter(None, words))}")
    return sentences


def _role_problems(beat: Mapping[str, Any], started_at: float, now: float) -> Iterator[tuple[str, float, str]]:
    """Problems as (text, seconds or 0, text)."""
    for name in ("save_error", "snapshot_error"):
        if beat.get(name):
            yield str(beat[name]), 0.0, ""
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


def label(role: str, beat: Mapping[str, Any]) -> str:
    """`worker_1`, `worker_2 (expert)`."""
    return f"{role} ({beat['kind']})" if beat.get("kind") else role


def lost_workers(status: Status) -> list[str]:
    """The workers that failed too often and were not started again, or that collected nothing: a sentence each."""
    is_done = status["run"].get("state") == "done"
    return [
        f"{label(role, beat)}: {words}"
        for role, beat in status["roles"].items()
        if (words := _given_up(beat) if beat.get("given_up") else _without_steps(role, beat, is_done))
    ]


def _without_steps(role: str, beat: Mapping[str, Any], is_done: bool) -> str:
    """That a worker failed before its first step, or that an expert of a run that is done had none; else empty."""
    collects = is_worker(role) and beat.get("kind") in (None, EXPERT) and not beat.get("remote")
    if not collects or beat.get("has_worked") or beat.get("steps"):
        return ""
    if beat.get("failed_with"):
        starts = counted(beat.get("restarts", 0) + 1, "start")
        return f"collected nothing in {starts}, last failure: {beat['failed_with']}"
    return "collected nothing" if is_done and beat.get("kind") == EXPERT else ""


def _given_up(beat: Mapping[str, Any]) -> str:
    because = f": {beat['failed_with']}" if beat.get("failed_with") else ""
    return f"given up after {beat.get('restarts', 0)} restarts{because}"


# Failures of simulators, of all starts of the workers that this start of the run has had.


def fault_count(status: Status) -> int:
    """How many faults the environments of all workers had."""
    return sum(int(beat.get(COUNTED[0]) or 0) for role, beat in status["roles"].items() if is_worker(role))


def fault_words(status: Status) -> str:
    """`8 environment faults`, with the share of cut episodes if that is large; empty if there are none."""
    beats = [beat for role, beat in status["roles"].items() if is_worker(role)]
    faults, of_evaluation, episodes = (sum(int(beat.get(name) or 0) for beat in beats) for name in COUNTED)
    if not faults:
        return ""
    words, cut = counted(faults, "environment fault"), faults - of_evaluation
    share = cut / max(1, episodes, cut)  # Episodes that are cut short count, but for those without a step.
    if cut < _FEW_CUTS or share < _CUT_SHARE:
        return words
    return f"{words} (they have cut {share:.0%} of its episodes)"


def last_fault(status: Status) -> tuple[float, str]:
    """When the last one was (Unix seconds, 0 if unknown), and its text."""
    beats = status["roles"].values()
    return max((beat.get("last_env_fault_at") or 0.0, beat.get("last_env_fault") or "") for beat in [*beats, {}])


def fault_lines(status: Status, now: float | None = None) -> list[str]:
    """`fault_words` with the text of the last one, and with its age at `now`, as a line; none where there are none."""
    if not (words := fault_words(status)):
        return []
    at, text = last_fault(status)
    age = f" {format_secs(now - at)} ago" if at and now is not None else ""
    return [f"{words}, last{age}: {text}" if text else words]


# Numbers.


def summary(status: Status, now: float) -> dict[str, str]:
    """One run as a line of the table: texts by column."""
    run, trainer = status["run"], status["roles"].get(TRAINER, {})
    if "iteration" not in trainer:  # It is starting.
        trainer = {**run.get("before", {}), **trainer}
    cells = numbers(trainer) | {
        "run": str(run.get("name")),
        "state": state_of(status, now),
        "iteration": iteration_of(trainer),
        "left": format_secs(trainer.get("time_left_s")) if is_under_way(status, now) else "-",
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
        "env steps": of_all(trainer.get("env_steps"), trainer.get("num_env_steps")),
        "updates/s": format_rate(trainer.get("updates_per_s")),
        "steps/s": format_rate(trainer.get("env_steps_per_s")),
        "train return": format_number(trainer.get("train_return")),
        "eval return": format_return(trainer),
        "best": format_number(trainer.get("best_eval_return")),
        "success": "-" if trainer.get("eval_success") is None else f"{trainer['eval_success']:.0%}",
        "critic loss": format_number(trainer.get("critic_loss")),
        "actor loss": format_number(trainer.get("actor_loss")),
        "alpha": format_number(trainer.get("alpha")),
    }


def time_shares(status: Status) -> dict[str, dict[str, str]]:
    """Percentages of time by activity for each kind of role, largest first; those of several workers on average.

    For example {"trainer's": {"updates": "93%", "waiting": "4%"}, "workers'": {"simulator": "71%", ...}}.
    """
    roles = status["roles"]
    workers = [beat for role, beat in roles.items() if is_worker(role)]
    owners = {
        "trainer's": [roles.get(TRAINER, {})],
        "replay's": [roles.get(REPLAY, {})],
        "workers'": [beat for beat in workers if beat.get("kind") != EVAL],
        "evaluators'": [beat for beat in workers if beat.get("kind") == EVAL],
    }
    shown = {}
    for owner, beats in owners.items():
        known, means = [shares for beat in beats if (shares := beat.get("time_shares"))], dict[str, float]()
        for activity, share in (item for shares in known for item in shares.items()):
            means[activity] = means.get(activity, 0.0) + (share or 0.0) / len(known)
        ordered = sorted(means.items(), key=lambda item: -item[1])
        if percentages := {activity: f"{share:.0%}" for activity, share in ordered if share >= 0.005}:
            shown[owner] = percentages
    return shown


def curriculum_values(status: Status) -> dict[str, str]:
    """The values in force, from the trainer or else from the first worker that reports any."""
    values: dict[str, float] = next(
        (beat["curriculum"] for beat in status["roles"].values() if beat.get("curriculum")), {}
    )
    return {name: format_number(value) for name, value in values.items()}


def format_number(value: float | None) -> str:
    """`12,345`, `-310.2`, `0.0543`; `-` for None."""
    if value is None:
        return "-"
    if abs(value) >= 1e15:
        return f"{value:.3g}"
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3g}"


def of_all(done: int | None, total: int | None) -> str:
    """`1,200/1,500`; `1,600 (1,500 asked for)`: the last iteration has more steps than are left."""
    if done is None or not total:
        return format_number(done)
    return f"{done:,}/{total:,}" if done <= total else f"{done:,} ({total:,} asked for)"


def format_rate(value: float | None) -> str:
    """`1,181`, `2.5`; `-` for None."""
    return format_number(value if value is None or abs(value) < 10 else round(value))


def format_return(trainer: Mapping[str, Any]) -> str:
    """The last evaluation, `-310.2 ± 40.1`; `-310.2 ± 40.1 at step 3,600` where the run has come farther since."""
    mean, std, env_steps = (trainer.get(name) for name in (RETURN, "eval_return_std", "eval_env_steps"))
    spread = "" if mean is None or std is None else f" ± {format_number(std)}"
    at = "" if mean is None or env_steps in (None, trainer.get("env_steps")) else f" at step {env_steps:,}"
    return f"{format_number(mean)}{spread}{at}"


def format_secs(secs: float | None) -> str:
    """`01:10`, `2:03:00`, `5d 02h`; `-` for None."""
    if secs is None:
        return "-"
    minutes, seconds = divmod(max(0, int(secs)), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 48:
        return f"{hours // 24}d {hours % 24:02}h"
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes:02}:{seconds:02}"


def finished_in_words(name: str, why_early: str | None, num_iter: int | None) -> str:
    """`reach is finished: num_iter=25 is reached`, `reach is finished early: max_hours=2 is reached`."""
    if why_early is None:
        return f"{name} is finished" + ("" if num_iter is None else f": num_iter={num_iter} is reached")
    early = "" if why_early.startswith("num_env_steps") else " early"
    return f"{name} is finished{early}: {why_early}"


# The command.


def read_all(folders: Sequence[Path]) -> list[dict[str, Any]]:
    """Their statuses, with the settings that differ from the runs' files.

    Each run is named by its folder below the one that has all of them: it may have been moved since it began.
    """
    read = [(folder.resolve(), model, status) for folder in folders if (status := (model := RunModel(folder)).status)]
    parent = os.path.commonpath([folder.parent for folder, *_ in read] or [Path("/")])
    return [
        {**status, "run": {**status["run"], "name": os.path.relpath(folder, parent)}, SETTINGS: model.overrides}
        for folder, model, status in read
    ]


def plain_table(statuses: Sequence[Status], now: float) -> str:
    """The table in aligned columns, with the settings in which several runs differ, and below it what looks wrong."""
    rows = [summary(status, now) for status in statuses]
    words = [clean_text(in_words(own)) for own in differing([status.get(SETTINGS) or {} for status in statuses])]
    if len(rows) > 1 and any(words):
        rows = [{"run": row["run"], SETTINGS: own, **row} for row, own in zip(rows, words, strict=True)]
    lines = aligned([list(rows[0]), *(list(row.values()) for row in rows)], _LEFT_ALIGNED)
    lines += [f"{status['run'].get('name')}: {problem}" for status in statuses for problem in problems(status, now)]
    return "\n".join(lines)


def aligned(rows: Sequence[Sequence[str]], left_aligned: Collection[str]) -> list[str]:
    """Rows of equally many cells as lines, the cells of a column below each other; the first row has their names."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    kinds = ["<" if name in left_aligned else ">" for name in rows[0]]
    return [
        "  ".join(f"{text:{kind}{width}}" for text, kind, width in zip(row, kinds, widths, strict=True)).rstrip()
        for row in rows
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the table; returns 2 where none of the directories is a run."""
    parser = OptionParser()
    parser.add_argument("run", nargs="*", type=Path, metavar="RUN", help="run directories (default: those in logs/)")
    parser.add_argument("--follow", action="store_true", help="refresh every 2 s until all runs have ended")
    parser.add_argument(
        "--json",
        action="store_true",
        help="print a list of the status.json files, with `problems`, `settings`, and as the name the path below "
        "the runs' common folder",
    )
    args = parser.parse_args(argv)
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # A terminal that knows no ± gets a ?, not an exception.
    logs = Path(os.environ.get("SAC_LOGS_DIR") or "logs").absolute()
    folders = runs_among(args.run) or sorted(path.parent for path in logs.glob("*/status.json"))
    missing, statuses = list(missing_runs(folders)), read_all(folders)
    if not statuses:
        print_findings(missing or [f"there is no run in {logs}: give run directories, such as logs/*"])
        return EXIT_BAD_INPUT
    for finding in missing:
        print(f"note: {finding}", file=sys.stderr)
    try:
        while True:
            now = time.time()
            if args.follow and sys.stdout.isatty() and not args.json:
                print("\x1b[H\x1b[2J", end="")  # The table replaces the one before.
            with_problems = [{**status, "problems": problems(status, now)} for status in statuses]
            print(json.dumps(with_problems) if args.json else plain_table(statuses, now), flush=True)
            if not args.follow or not any(is_under_way(status, now) for status in statuses):
                return EXIT_DONE
            time.sleep(_FOLLOW_SECS)
            statuses = read_all(folders)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
