"""Which runs `sac status` shows, and what it reads of each."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tfagents_system.machine.files import read_json
from tfagents_system.run_files.heartbeat import read_status
from tfagents_system.run_files.run_lock import start_of_run
from tfagents_system.run_files.run_paths import INPUTS, OUTPUT, TRAINER, RunPaths
from tfagents_system.settings.values import by_name

_BEST = "best_eval_return"
_HOW_FAR = ("iteration", "num_iter", "num_env_steps", "env_steps", "eval_return", "eval_return_std", _BEST)
# What folders beside runs are called at their end, and what they hold.
_BESIDE = {"_array": "snapshot", "_tasks": "tasks.json", INPUTS: OUTPUT}
_WRITTEN = (".png", ".csv", ".html")
SETTINGS = "settings"  # Of a status: those of the run that differ from its files.


def usual_runs(environ: Mapping[str, str]) -> list[Path]:
    """Those of the user who names none."""
    return sorted(path.parent for path in usual_folder(environ).glob("*/status.json"))


def usual_folder(environ: Mapping[str, str]) -> Path:
    """The folder of all runs."""
    return Path(environ.get("SAC_LOGS_DIR") or "logs").absolute()


def read_all(folders: Sequence[Path]) -> list[dict[str, Any]]:
    """Their statuses, by the names that their folders have now: one may have been moved since."""
    found = [(folder, _read(RunPaths(folder))) for folder in folders]
    names = distinct_names([folder.resolve() for folder, status in found if status is not None])
    return [
        {**status, "run": {**status["run"], "name": names[folder.resolve()]}, SETTINGS: _settings_of(RunPaths(folder))}
        for folder, status in found
        if status is not None
    ]


def _read(paths: RunPaths) -> dict[str, Any] | None:
    """status.json; where it is of an earlier start than the one that is under way, only how far that one had come."""
    status = read_status(paths.status_json)
    if status is None or (begun := start_of_run(paths, status["run"])) is None:
        return status
    start = {"state": "starting", "started_at": begun, "updated_at": time.time(), "exp_dir": str(paths.exp_dir)}
    start["before"] = how_far(paths, status)
    return {**status, "run": start, "roles": {}}


def how_far(paths: RunPaths, status: Mapping[str, Any] | None) -> dict[str, Any]:
    """How far a run had come by the last status of an earlier start."""
    if status is None:
        return {}
    known = {**status["run"].get("before", {}), **status["roles"].get(TRAINER, {})}
    is_told = {_BEST: read_json(paths.best_json) is not None}
    return {name: known[name] for name in _HOW_FAR if known.get(name) is not None and is_told.get(name, True)}


def distinct_names(folders: Collection[Path]) -> dict[Path, str]:
    """The folders' names; where several have the same, with as many folders above them as tell them apart."""
    names = {folder: folder.name for folder in folders}
    for parts in range(2, max((len(folder.parts) for folder in folders), default=0) + 1):
        counts = Counter(names.values())
        names = {
            folder: str(Path(*folder.parts[-parts:])) if counts[name] > 1 else name for folder, name in names.items()
        }
    return names


def _settings_of(paths: RunPaths) -> dict[str, Any]:
    """Settings of a run that differ from its files; empty if they can't be read."""
    content = (read_json(paths.run_json) or {}).get("overrides", {})
    parts = [content.get(kind) for kind in ("params", "config", "variables")]
    return by_name(*(part if isinstance(part, dict) else {} for part in parts))


def is_beside_runs(folder: Path) -> bool:
    """Whether `logs/*` brings it with runs: an array's submissions, a list of tasks, what a call from Python wrote."""
    return any(folder.name.endswith(end) and (folder / mark).exists() for end, mark in _BESIDE.items())


def runs_among(given: Iterable[Path]) -> list[Path]:
    """Each once, without folders beside runs and files of `compare` and `report`; all, if there is nothing else."""
    paths = list(dict.fromkeys(given))
    others = [path for path in paths if not (is_beside_runs(path) or (path.suffix in _WRITTEN and path.is_file()))]
    return others or paths


def missing_runs(folders: Sequence[Path], has_runs: bool) -> Iterator[str]:
    """A sentence on each that is no run.

    Args:
      has_runs: There are others beside them that are.
    """
    for folder in folders:
        if folder.is_file():
            if not has_runs:  # What `compare` writes lies beside the runs.
                yield f"{folder} is a file: give a run directory, such as logs/reacher"
        elif not folder.is_dir():
            yield f"{folder} does not exist: give a run directory, such as logs/reacher"
        elif RunPaths(folder).joined.is_dir() and not RunPaths(folder).status_json.exists():
            yield f"{folder} has only logs of workers that joined a run elsewhere: give the run directory of their run"
        elif read_status(RunPaths(folder).status_json) is None:
            yield f"{folder} has no status.json: give a run directory, or wait until this one's first start is checked"
