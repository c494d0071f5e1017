"""Returns over environment steps, read from run directories: ours, and those of Stable-Baselines3."""

from __future__ import annotations

import csv
import dataclasses
import math
import re
import time
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfagents_system.errors import UserError
from tfagents_system.machine.files import read_json
from tfagents_system.report.long_work import followed
from tfagents_system.report.status import state_of
from tfagents_system.run_files import run_directory
from tfagents_system.run_files.heartbeat import read_status
from tfagents_system.run_files.metrics import read_rows
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.settings.overrides import Overrides

DONE, UNKNOWN = "done", "-"
RETURN, SUCCESS = "eval_return", "eval_success"
METRICS, TRAINING, MONITOR = "metrics.csv", "metrics.csv (training)", "monitor.csv"
_TRAIN_RETURN = "train_return"
HIGHEST = (RETURN, SUCCESS, _TRAIN_RETURN, "train_success")  # Columns whose best value is the highest.
_EVALUATIONS, _MONITORS = "evaluations.npz", "*monitor.csv"
_MONITOR_WINDOW_EPISODES = 10
_ALIKE = ("SAC_SEED", "SAC_REPORT")  # Runs that differ in these alone are runs of one setting.
# Suffixes that distinguish the runs of one experiment: exp_task_3, exp_seed_3, SAC_3.
_OURS, _PEERS = r"_(task|seed)_?[0-9]+$", r"[-_](task|seed|run)?[-_]?[0-9]+$"


@dataclasses.dataclass(frozen=True)
class Run:
    """One run's curve.

    Attributes:
      experiment: Its name without the suffix of its seed.
      settings: Settings that differ from its files, except the seed; by name.
      state: `done`, `running`, `stopped`, `failed`, ... as in status.py; `-` if unknown.
      steps: [n] float64, environment steps, ascending.
      values: [n] float64, of the requested metric: by default the mean return of each evaluation, or of training
        episodes if there are only those.
      best: Of its policies, see `best_of`; None: none has learned anything yet.
    """

    folder: Path
    experiment: str
    settings: Mapping[str, Any]
    state: str
    steps: np.ndarray
    values: np.ndarray
    source: str
    best: float | None

    @property
    def is_ours(self) -> bool:
        return self.source in (METRICS, TRAINING)

    @property
    def is_of_training(self) -> bool:
        """Whether the values are returns of training episodes instead of evaluations."""
        return self.source in (TRAINING, MONITOR)

    @property
    def is_unfinished(self) -> bool:
        return self.state not in (DONE, UNKNOWN)


def read_runs(folders: Sequence[Path], metric: str = RETURN) -> list[Run]:
    """Reads all; a run that is not finished may have no evaluation yet.

    Args:
      metric: A column of metrics.csv. Other libraries' runs have returns, and success if their environment reports it.

    Raises:
      UserError: Some are not run directories, or can't be read; with all findings.
    """
    runs: list[Run] = []
    findings: list[str] = []
    for folder in followed(folders, "reading", "runs", len(folders)):
        try:
            runs.append(_read(folder, metric))
        except UserError as error:
            findings += error.findings
    if findings:
        raise UserError(*findings)
    return runs


def _read(folder: Path, metric: str) -> Run:
    if not folder.is_dir():
        raise UserError(f"{folder} is no directory: give run directories, such as logs/exp_task_*")
    paths = RunPaths(folder)
    if paths.run_json.exists() or paths.metrics_csv.exists():
        return _read_ours(paths, metric)
    if (folder / _EVALUATIONS).exists():
        steps, values, source = *_read_evaluations(folder / _EVALUATIONS, metric), _EVALUATIONS
    elif monitors := sorted(folder.glob(_MONITORS)):
        if metric != RETURN:
            raise UserError(f"{monitors[0]} has returns alone, no {metric}: leave it out, or compare returns")
        steps, values, source = *_read_monitors(monitors), MONITOR
    else:
        raise UserError(
            f"{folder} has no metrics.csv, {_EVALUATIONS} or monitor.csv: give directories of runs of this toolkit or "
            "of Stable-Baselines3"
        )
    experiment = re.sub(_PEERS, "", folder.resolve().name) or folder.resolve().name
    return Run(folder, experiment, {}, UNKNOWN, steps, values, source, float(values.max()))


def _read_ours(paths: RunPaths, metric: str) -> Run:
    status = read_status(paths.status_json)
    state = DONE if run_directory.is_finished(paths) else "not started"
    if status is not None and state != DONE:
        state = state_of(status, time.time())
        # A run resumed with more iterations is done only when those are.
        state = "stopped" if state == DONE else state
    all_rows = read_rows(paths.metrics_csv)
    source, told = METRICS, [row for row in all_rows if row.get(RETURN) is not None]
    if not told and _evaluates_nothing(paths):
        told = [row for row in all_rows if row.get(_TRAIN_RETURN) is not None]
        source, metric = (TRAINING, _TRAIN_RETURN) if metric == RETURN else (METRICS, metric)
    if state == DONE and not told:
        fault = "has no evaluation" if paths.metrics_csv.exists() else "is missing"
        raise UserError(f"{paths.metrics_csv} {fault}, although the run is done: restore it, or leave this run out")
    rows = [row for row in all_rows if row.get(metric) is not None]
    if told and not rows:
        known = ", ".join(sorted({name for row in all_rows for name, value in row.items() if value is not None}))
        raise UserError(f"{paths.metrics_csv} has no {metric}: leave it out, or compare what it has ({known})")
    overridden = Overrides.of_run(read_json(paths.run_json) or {}).settings()
    settings = {name: value for name, value in overridden.items() if name not in _ALIKE}
    steps, values = _ordered([(row.get("env_steps") or 0.0, row[metric] or 0.0) for row in rows])
    name, best = paths.exp_dir.resolve().name, best_of(paths, rows, metric)
    return Run(paths.exp_dir, re.sub(_OURS, "", name) or name, settings, state, steps, values, source, best)


def best_of(paths: RunPaths, rows: Sequence[Mapping[str, Any]], metric: str = RETURN) -> float | None:
    """What is best of a run: the value of the policy that it keeps as the best one; else of any after an update.

    An untrained policy is never the best one.

    Args:
      rows: Of metrics.csv.
      metric: A column. Of those that need not be better where they are higher there is no best one.
    """
    kept = read_json(paths.best_json) or {}
    if metric in (RETURN, SUCCESS) and kept.get(metric) is not None:
        return float(kept[metric])
    if metric not in HIGHEST:
        return None
    return max((row[metric] for row in rows if row.get("train_step") and row.get(metric) is not None), default=None)


def _evaluates_nothing(paths: RunPaths) -> bool:
    """Whether the run has `num_eval_episodes = 0`."""
    return (read_json(paths.run_json) or {}).get("attributes", {}).get("num_eval_episodes") == 0


def _read_evaluations(path: Path, metric: str) -> tuple[np.ndarray, np.ndarray]:
    """Of EvalCallback: `timesteps` [n], `results` and, where the environment tells it, `successes` [n, episodes]."""
    try:
        with np.load(path, allow_pickle=False) as content:
            name = {RETURN: "results", SUCCESS: "successes"}.get(metric)
            if name not in content:
                raise UserError(f"{path} has no {metric}: leave it out, or compare {RETURN}")
            steps, results = content["timesteps"], content[name]
            pairs = list(zip(steps.tolist(), results.mean(axis=tuple(range(1, results.ndim))).tolist(), strict=True))
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise UserError(f"{path} cannot be read ({type(error).__name__}: {error}): leave it out") from None
    found = _ordered(pairs)
    if not len(found[0]):
        raise UserError(f"{path} has no evaluation" + (" with a finite return" * bool(pairs)) + ": leave it out")
    return found


def _read_monitors(paths: Sequence[Path]) -> tuple[np.ndarray, np.ndarray]:
    """Of Monitor, one file an environment: a line of JSON, then return, length and time of each episode.

    Returns are means over the last episodes.
    """
    episodes: list[tuple[float, float, float]] = []  # Seconds, length, return.
    for path in paths:
        try:
            with path.open(encoding="utf-8", newline="") as file:
                file.readline()
                rows = [(float(row["t"]), float(row["l"]), float(row["r"])) for row in csv.DictReader(file)]
            episodes += [row for row in rows if math.isfinite(row[0]) and math.isfinite(row[1])]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path} cannot be read ({type(error).__name__}: {error}): leave it out") from None
    if not episodes:
        raise UserError(f"{paths[0]} has no episode: leave it out")
    _, lengths, returns = np.array(sorted(episodes)).T
    known = np.isfinite(returns)
    if not known.any():
        raise UserError(f"{paths[0]} has no episode with a finite return: leave it out")
    steps, returns = np.cumsum(lengths)[known], returns[known]
    sums = np.concatenate([[0.0], np.cumsum(returns)])
    last = np.arange(1, len(sums))
    first = np.maximum(0, last - _MONITOR_WINDOW_EPISODES)
    return steps, (sums[last] - sums[first]) / (last - first)


def _ordered(pairs: Sequence[tuple[float, float]]) -> tuple[np.ndarray, np.ndarray]:
    """Ascending; of several evaluations after the same number of steps the last one counts, and of NaN none."""
    by_step = {step: value for step, value in pairs if math.isfinite(step) and math.isfinite(value)}
    steps = np.array(sorted(by_step), np.float64)
    return steps, np.array([by_step[step] for step in steps], np.float64)
