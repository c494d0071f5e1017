"""What the report shows of one run, as plain data for its page."""

from __future__ import annotations

import dataclasses
import json
import math
import time
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tfagents_system.agents.algorithms import PARTS, optimizer_settings
from tfagents_system.hyperparameters import Hyperparameter, Hyperparameters, described_by
from tfagents_system.machine.files import read_json
from tfagents_system.policies.names import checkpoint_name
from tfagents_system.report.curves import UNKNOWN, best_of
from tfagents_system.report.env_faults import fault_lines
from tfagents_system.report.status import format_number, format_return, format_secs, problems, state_of, time_shares
from tfagents_system.report.told_settings import told_settings
from tfagents_system.run_files import run_directory
from tfagents_system.run_files.heartbeat import read_status
from tfagents_system.run_files.metrics import read_episodes, read_rows
from tfagents_system.run_files.run_paths import TRAINER, RunPaths
from tfagents_system.settings.overrides import Overrides
from tfagents_system.settings.values import leaves_of
from tfagents_system.settings.variables import VARIABLES

Rows = Sequence[Mapping[str, float | None]]

AXES = {"env_steps": "env_steps", "updates": "train_step", "hours": "wall_time_s"}
_UNITS = {"hours": 3600}
_SAID_BELOW = ("env_config", "compute_config")  # Attributes of TrainParams: the JSON's keys, and variables.
_NO_METRICS = (*AXES.values(), "iteration")


@dataclasses.dataclass(frozen=True)
class Budget:
    """How much a page may hold of each run.

    Attributes:
      points: Of each curve.
      episodes: Points of single episodes.
    """

    points: int = 1200
    episodes: int = 4000


def run_data(paths: RunPaths, budget: Budget) -> dict[str, Any]:
    """All but videos; values that a run does not have (yet) are empty."""
    rows = read_rows(paths.metrics_csv)
    status = read_status(paths.status_json)
    now = time.time()
    return {
        "name": paths.exp_dir.resolve().name,
        "folder": str(paths.exp_dir),
        "state": _state(paths, status, now),
        "problems": problems(status, now) if status else [],
        "facts": _facts(rows, best_of(paths, rows), status),
        **_curves(rows, budget.points),
        "best": _best(rows, read_json(paths.best_json)),
        "episodes": _episodes(read_episodes(paths.episodes_csv), budget.episodes),
        "time_shares": time_shares(status) if status else {},
        "plan": sorted(status["plan"].items()) if status else [],
        "pinned": bool(status and status.get("pinned")),
        "settings": settings_of(paths),
        "versions": list(run_directory.read_run_json(paths).get("start", {}).get("versions", {}).items()),
    }


def _state(paths: RunPaths, status: dict[str, Any] | None, now: float) -> str:
    if run_directory.is_finished(paths):
        return "done"
    return state_of(status, now) if status else UNKNOWN


def _facts(rows: Rows, best: float | None, status: dict[str, Any] | None) -> list[tuple[str, str]]:
    """The numbers at the top of the page."""
    last = {name: value for row in rows for name, value in row.items() if value is not None}
    success = last.get("eval_success")
    rates = {name: [row[name] for row in rows if row.get(name)] for name in ("env_steps_per_s", "updates_per_s")}
    told = [
        ("best evaluation", format_number(best)),
        ("last evaluation", format_return(last)),
        ("success", "-" if success is None else f"{success:.0%}"),
        ("environment steps", format_number(_whole(_most(rows, "env_steps")))),
        ("updates", format_number(_whole(_most(rows, "train_step")))),
        ("trained for", format_secs(_most(rows, "wall_time_s"))),
        ("steps/s (median)", _median(rates["env_steps_per_s"])),
        ("updates/s (median)", _median(rates["updates_per_s"])),
    ]
    if status is not None:
        told.append(("restarts of roles", str(sum(beat.get("restarts", 0) for beat in status["roles"].values()))))
        told += [("simulator faults", line) for line in fault_lines(status["run"])]
        ended = status["roles"].get(TRAINER, {}).get("ended_early")
        told += [("ended because", str(ended))] if ended else []
    return [(label, text) for label, text in told if text != "-"]


def _most(rows: Rows, column: str) -> float | None:
    """Not the last value: the row of an evaluation comes after rows of more steps."""
    return max((value for row in rows if (value := row.get(column)) is not None), default=None)


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _median(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return format_number(round(float(np.median(known)), 1)) if known else "-"


def _curves(rows: Rows, most: int) -> dict[str, Any]:
    """For the page.

    Returns:
      `axes`: {axis: [row]}, `metrics`: {name: {"i": [indices of rows], "y": [values]}}.
    """
    axes = {
        axis: short([(row.get(column) or 0.0) / _UNITS.get(axis, 1) for row in rows]) for axis, column in AXES.items()
    }
    names = list(dict.fromkeys(name for row in rows for name in row if name not in _NO_METRICS))
    metrics = {}
    for name in names:
        known = [(k, value) for k, row in enumerate(rows) if (value := row.get(name)) is not None]
        finite = [(k, value) for k, value in known if math.isfinite(value)]
        if finite:
            places, values = np.array([k for k, _ in finite]), np.array([value for _, value in finite])
            # The spread of evaluations belongs to their means: the same rows.
            kept = np.arange(len(values)) if name.startswith("eval_return") else thinned(values, most)
            metrics[name] = {"i": places[kept].tolist(), "y": short(values[kept])}
    used = sorted({0, *(k for each in metrics.values() for k in each["i"])}) if rows else []
    renamed = {k: place for place, k in enumerate(used)}
    for each in metrics.values():
        each["i"] = [renamed[k] for k in each["i"]]
    return {
        "axes": {axis: [values[k] for k in used] for axis, values in axes.items()},
        "metrics": metrics,
    }


def _best(rows: Rows, best: Mapping[str, Any] | None) -> dict[str, float] | None:
    """Where the policy that is kept as the best one was evaluated: its point in the curves."""
    name = (best or {}).get("checkpoint")
    evaluated = [row for row in rows if row.get("eval_return") is not None]
    found = [row for row in evaluated if checkpoint_name(int(row.get("train_step") or 0)) == name]
    if not found:
        return None
    point = {axis: found[-1].get(column) or 0.0 for axis, column in AXES.items()}
    return {**point, "hours": point["hours"] / _UNITS["hours"], "y": found[-1]["eval_return"] or 0.0}


def _episodes(rows: Sequence[Mapping[str, float]], most: int) -> dict[str, list[float]]:
    """Points of single episodes: axes, return, length and worker."""
    if not rows:
        return {}
    kept = thinned(np.array([row["return"] for row in rows]), most)
    told = [rows[k] for k in kept]
    found = {axis: short(np.array([row[column] for row in told])) for axis, column in AXES.items()}
    found["hours"] = short(np.array([row["wall_time_s"] / 3600 for row in told]))
    return found | {name: short(np.array([row[name] for row in told])) for name in ("return", "length", "worker")}


def settings_of(paths: RunPaths) -> list[dict[str, Any]]:
    """Hyperparameters, configuration and variables of the last start: name, value, default (None: it has none)."""
    resolved = told_settings(paths)
    described = described_by(Hyperparameters)
    overridden = set(Overrides.of_run(run_directory.read_run_json(paths)).settings())
    found = []
    params = {name: value for name, value in (resolved.get("params") or {}).items() if name not in _SAID_BELOW}
    for name, value in params.items():
        is_own = name not in described
        default = None if is_own else _default(name, described[name], params)
        # What takes the place of None is the algorithm's own value.
        differs = is_own or (value != default and not (default is None and name not in overridden))
        found.append(_setting(name, value, default, differs=differs))
    for path, value in leaves_of({"config": resolved.get("config") or {}}):
        if path != ("config",):
            found.append(_setting(".".join(path), value, None, differs=True))
    variables = resolved.get("variables") or {}
    for variable in VARIABLES:
        if variable.name in variables:
            value = variables[variable.name]
            found.append(_setting(variable.name, value, variable.default, differs=not _same(value, variable.default)))
    for each in found:
        each["set"] = each["name"] in overridden
    return found


def _setting(name: str, value: Any, default: Any, *, differs: bool) -> dict[str, Any]:
    told = None if default is None else _text(default)
    return {"name": name, "value": _text(value), "default": told, "differs": differs}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "None" if value is None else json.dumps(value, default=str)


def _default(name: str, described: Hyperparameter, params: Mapping[str, Any]) -> Any:
    """What run.json has where nobody says anything; optimizers are written with all of their settings there."""
    part = name.removesuffix("_optimizer")
    if part not in PARTS or part == name:
        return _plain(described.default)
    try:
        return optimizer_settings(types.SimpleNamespace(**{**params, name: {}}), part)
    except (AttributeError, KeyError, TypeError):  # Of another version.
        return _plain(described.default)


def _plain(value: Any) -> Any:
    """As JSON has it: tuples are lists there."""
    return [_plain(each) for each in value] if isinstance(value, tuple | list) else value


def _same(text: str, default: str | None) -> bool:
    try:
        return not text or default is not None and (text == default or float(text) == float(default))
    except ValueError:
        return False


def thinned(values: np.ndarray, most: int) -> np.ndarray:
    """Indices of at most `most` values that look like all of them.

    The curve is parted into stretches of equally many values; of each the smallest and the largest one stay, as do the
    first and the last value of all. So no peak is lost, which a mean or every n-th value would do.

    Args:
      values: [n] finite float64, in the order in which they are drawn.
      most: At least 4.

    Returns:
      Ascending int64.
    """
    count = len(values)
    if count <= most:
        return np.arange(count)
    stretches = (most - 2) // 2
    edges = np.linspace(0, count, stretches + 1).astype(np.int64)
    kept = [0, count - 1]
    for start, end in zip(edges[:-1], edges[1:], strict=True):
        kept += [start + int(values[start:end].argmin()), start + int(values[start:end].argmax())]
    return np.unique(kept)


def short(values: Iterable[float]) -> list[float]:
    """With six significant digits, whole numbers as such: a page is text."""
    rounded = (float(f"{value:.6g}") if abs(value) < 1e5 else float(f"{value:.9g}") for value in values)
    return [int(value) if value.is_integer() and abs(value) < 1e15 else value for value in rounded]
