"""A run as its directory tells it, for whatever shows runs; and which directories are runs.

Importing this needs neither NumPy nor TensorFlow, so `sac status` answers immediately, also on a login node.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from tfagents_system.machine.files import read_json
from tfagents_system.run_files.heartbeat import LIVE_STATES, STALE_SECS, is_live, read_status
from tfagents_system.run_files.metrics import read_episodes, read_rows
from tfagents_system.run_files.run_lock import start_of_run
from tfagents_system.run_files.run_paths import INPUTS, OUTPUT, TRAINER, RunPaths
from tfagents_system.settings.values import by_name

DONE, UNKNOWN = "done", "-"
RETURN, SUCCESS = "eval_return", "eval_success"
TRAIN_RETURN = "train_return"
HIGHEST = (RETURN, SUCCESS, TRAIN_RETURN, "train_success")  # Columns whose best value is the highest.
_BEST = "best_eval_return"
_HOW_FAR = ("iteration", "num_iter", "num_env_steps", "env_steps", RETURN, "eval_return_std", _BEST)
# How the names of folders beside runs end, and what these folders hold.
_BESIDE = {"_array": "snapshot", "_tasks": "tasks.json", INPUTS: OUTPUT}
_WRITTEN = (".png", ".csv", ".html")


class RunModel:
    """One run. Each file is read once, when it is first asked for; what a run does not have yet is empty."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.paths, self.read_at = folder, RunPaths(folder), time.time()
        self.name = folder.resolve().name

    @cached_property
    def status(self) -> dict[str, Any] | None:
        """status.json; where it is of an earlier start than the one under way, only how far that one had come."""
        status = read_status(self.paths.status_json)
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
        named = [parts.get(kind) for kind in ("params", "config", "variables")]
        return by_name(*(part if isinstance(part, dict) else {} for part in named))

    @cached_property
    def settings(self) -> dict[str, Any]:
        """All settings that others may see: `params`, `config`, and as texts `variables`, which include neither paths
        nor keys. Empty before the first start.
        """
        from tfagents_system.settings.resolved import FIXED
        from tfagents_system.settings.variables import VARIABLES, as_text

        if "attributes" not in self.run_json:
            return {}
        values = {**self.run_json["start"]["variables"], **{name: self.run_json[name] for name in FIXED}}
        variables = {
            variable.name: as_text(values[variable.field])
            for variable in VARIABLES
            if variable.kind.is_for_others and values.get(variable.field) is not None
        }
        return {"params": self.run_json["attributes"], "config": self.run_json["config"], "variables": variables}

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


def usual_folder() -> Path:
    """The folder of all runs."""
    return Path(os.environ.get("SAC_LOGS_DIR") or "logs").absolute()


def usual_runs() -> list[Path]:
    """The runs of a user who names none."""
    return sorted(path.parent for path in usual_folder().glob("*/status.json"))


def is_beside_runs(folder: Path) -> bool:
    """Whether it is beside runs in `logs/*`: an array's submissions, a list of tasks, inputs of a call from Python."""
    return any(folder.name.endswith(end) and (folder / mark).exists() for end, mark in _BESIDE.items())


def runs_among(given: Iterable[Path]) -> list[Path]:
    """Each once, without folders beside runs and files of `compare` and `report`; all, if there is nothing else."""
    paths = list(dict.fromkeys(given))
    others = [path for path in paths if not (is_beside_runs(path) or (path.suffix in _WRITTEN and path.is_file()))]
    return others or paths


def missing_runs(folders: Sequence[Path]) -> Iterator[str]:
    """A sentence on each that is no run."""
    for folder in folders:
        if folder.is_file():
            yield f"{folder} is a file: give a run directory, such as logs/reacher"
        elif not folder.is_dir():
            yield f"{folder} does not exist: give a run directory, such as logs/reacher"
        elif RunPaths(folder).joined.is_dir() and not RunPaths(folder).status_json.exists():
            yield f"{folder} has only logs of workers that joined a run elsewhere: give the run directory of their run"
        elif read_status(RunPaths(folder).status_json) is None:
            yield f"{folder} has no status.json: give a run directory, or wait until this one's first start is checked"
