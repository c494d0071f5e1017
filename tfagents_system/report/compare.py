"""Compares runs: learning curves with interquartile means and bootstrap intervals, and a table: `sac compare`.

Runs that differ in nothing but the seed are one group. Statistics are those of Agarwal et al. (arXiv 2108.13264): the
mean of the middle half of the runs, and the interval that contains it with 95 % probability when runs are drawn with
replacement. Only reads files; runs of Stable-Baselines3 may be among them.
"""

from __future__ import annotations

import csv
import dataclasses
import fnmatch
import math
import os
import re
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfagents_system.checks.findings import counted
from tfagents_system.checks.rules import is_meant
from tfagents_system.errors import EXIT_DONE, OptionParser, UserError
from tfagents_system.machine.files import replacing
from tfagents_system.report.long_work import LongWork, followed
from tfagents_system.report.plots import marker, tidy
from tfagents_system.report.status import (
    DONE,
    HIGHEST,
    RETURN,
    SUCCESS,
    TRAIN_RETURN,
    UNKNOWN,
    RunModel,
    aligned,
    format_number,
    missing_runs,
    runs_among,
)
from tfagents_system.settings.values import differing, in_words

METRICS, TRAINING, EVALUATIONS = "metrics.csv", "metrics.csv (training)", "evaluations.npz"
# Runs that differ in these alone are runs of one setting.
_ALIKE = ("SAC_SEED", "SAC_REPORT", "num_env_steps", "num_iter", "max_hours")
_LENGTH_RATIO = 1.1  # Of the longest to the shortest run that is told; the last iteration has some more steps.
# Suffixes that distinguish the runs of one experiment: exp_task_3, exp_seed_3, SAC_3.
_OUR_SUFFIX, _PEER_SUFFIX = r"_(task|seed)_?[0-9]+$", r"[-_](task|seed|run)?[-_]?[0-9]+$"
_PICTURE = "compare.png"
_SAMPLES = 2000
_MOST_POINTS = 100


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
      best: Of its policies, see `RunModel.best`; None: none has learned anything yet.
      environment: Its name; empty if unknown.
    """

    folder: Path
    experiment: str
    settings: Mapping[str, Any]
    state: str
    steps: np.ndarray
    values: np.ndarray
    source: str
    best: float | None
    environment: str = ""

    @property
    def is_of_training(self) -> bool:
        """Whether the values are returns of training episodes instead of evaluations."""
        return self.source == TRAINING

    @property
    def is_unfinished(self) -> bool:
        return self.state not in (DONE, UNKNOWN)


# Reading.


def read_runs(folders: Sequence[Path], metric: str = RETURN) -> list[Run]:
    """Reads all; a run that is not finished may have no evaluation yet.

    Args:
      metric: A column of metrics.csv. Other libraries' runs have returns, and success if their environment reports it.

    Raises:
      UserError: Some are not run directories, or can't be read; with all findings.
    """
    runs, findings = list[Run](), list[str]()
    for folder in followed(folders, "reading", "runs", len(folders)):
        try:
            if not folder.is_dir():
                raise UserError(*missing_runs([folder]))
            model = RunModel(folder)
            runs.append(run_of(model, metric) if model.is_ours else _peer(folder, metric))
        except UserError as error:
            findings += error.findings
    if findings:
        raise UserError(*findings)
    return runs


def run_of(model: RunModel, metric: str = RETURN) -> Run:
    """A run of this toolkit.

    Raises:
      UserError: It has no such metric, or is done and has no evaluation.
    """
    path, source, result = model.paths.metrics_csv, METRICS, RETURN
    if model.run_json.get("attributes", {}).get("num_eval_episodes") == 0:
        result = TRAIN_RETURN
        source, metric = (TRAINING, TRAIN_RETURN) if metric == RETURN else (METRICS, metric)
    has_results = any(row.get(result) is not None for row in model.rows)
    if model.state == DONE and not has_results:
        fault = "has no evaluation" if path.exists() else "is missing"
        raise UserError(f"{path} {fault}, although the run is done: restore it, or leave this run out")
    steps, values = model.series(metric)
    if has_results and not steps:
        known = sorted({name for row in model.rows for name, value in row.items() if value is not None})
        meant = is_meant(metric, known) or f" ({', '.join(known)})"
        raise UserError(f"{path} has no {metric}: leave it out, or compare what it has{meant}")
    settings = {name: value for name, value in model.overrides.items() if name not in _ALIKE}
    experiment = re.sub(_OUR_SUFFIX, "", model.name) or model.name
    environment = str(model.run_json.get("environment") or "")
    series = _ordered(steps, values)
    return Run(model.folder, experiment, settings, model.state, *series, source, model.best(metric), environment)


def _peer(folder: Path, metric: str) -> Run:
    """A run of Stable-Baselines3, by what its EvalCallback wrote.

    That is `timesteps` [n], `results` and, where the environment tells it, `successes` [n, episodes].
    """
    path = folder / EVALUATIONS
    if not path.exists():
        raise UserError(
            f"{folder} has no metrics.csv and no {EVALUATIONS}: give directories of runs of this toolkit, such as "
            "logs/exp_task_*, or of Stable-Baselines3 with an EvalCallback"
        )
    try:
        with np.load(path, allow_pickle=False) as content:
            column = {RETURN: "results", SUCCESS: "successes"}.get(metric)
            if column not in content:
                raise UserError(f"{path} has no {metric}: leave it out, or compare {RETURN}")
            values = content[column].mean(axis=tuple(range(1, content[column].ndim)))
            steps, values = _ordered(content["timesteps"].tolist(), values.tolist())
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise UserError(f"{path} cannot be read ({type(error).__name__}: {error}): leave it out") from None
    if not len(steps):
        raise UserError(f"{path} has no evaluation with a finite return: leave it out")
    name = folder.resolve().name
    experiment = re.sub(_PEER_SUFFIX, "", name) or name
    return Run(folder, experiment, {}, UNKNOWN, steps, values, EVALUATIONS, float(values.max()))


def _ordered(steps: Sequence[float], values: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """Ascending; of several evaluations after the same number of steps the last one counts, and of NaN none."""
    pairs = zip(steps, values, strict=True)
    by_step = {step: value for step, value in pairs if math.isfinite(step) and math.isfinite(value)}
    ordered = np.array(sorted(by_step), np.float64)
    return ordered, np.array([by_step[step] for step in ordered], np.float64)


# Grouping.


@dataclasses.dataclass(frozen=True)
class Group:
    """Runs that differ in nothing but the seed; some may have no value yet."""

    name: str
    runs: tuple[Run, ...]

    @property
    def begun(self) -> list[Run]:
        """Runs with a value."""
        return [run for run in self.runs if len(run.steps)]


def group_runs(runs: Sequence[Run], patterns: Sequence[str] = ()) -> list[Group]:
    """Groups runs, in order of appearance.

    Args:
      patterns: `NAME=PATTERN` or `PATTERN`, shell-style, for the name of a run directory or its path. The first match
        decides; a run without a match joins those of its experiment and settings, named by the settings that not all
        runs share.
    """
    ours = [run for run in runs if run.source in (METRICS, TRAINING)]  # Other runs have no settings to compare.
    words = {run.folder: in_words(own) for run, own in zip(ours, differing([r.settings for r in ours]), strict=True)}
    has_names = len(runs) == 1 or len({run.experiment for run in runs}) > 1
    by_name: dict[str, list[Run]] = {}
    for run in runs:
        settings = words.get(run.folder, "")
        name = " ".join(filter(None, [run.experiment if has_names or not settings else "", settings]))
        by_name.setdefault(_matching(run, patterns) or name, []).append(run)
    return [Group(name, tuple(members)) for name, members in by_name.items()]


def _matching(run: Run, patterns: Sequence[str]) -> str | None:
    for text in patterns:
        name, separator, pattern = text.partition("=")
        pattern = pattern if separator else name
        texts = (run.folder.name, str(run.folder), str(run.folder.resolve()))
        if any(fnmatch.fnmatchcase(text, pattern.rstrip("/")) for text in texts):
            return name
    return None


# Statistics.


def with_interval(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of [runs, points]: interquartile mean, and the 95 % interval of it, [points] each; the same at every call."""
    if len(scores) == 1:
        return scores[0], scores[0], scores[0]
    from scipy import stats

    def interquartile_mean(scores: np.ndarray, axis: int) -> Any:
        return stats.trim_mean(scores, 0.25, axis)

    interval = stats.bootstrap(
        (scores,), interquartile_mean, n_resamples=_SAMPLES, batch=100, axis=0, method="percentile", random_state=0
    ).confidence_interval
    return interquartile_mean(scores, 0), interval.low, interval.high


@dataclasses.dataclass(frozen=True)
class Curve:
    """A group's interquartile mean over environment steps.

    Attributes:
      steps: [n] environment steps.
      iqm, low, high: [n] interquartile mean, and the ends of its interval.
      counts: [n] runs that have reached the step.
    """

    steps: np.ndarray
    iqm: np.ndarray
    low: np.ndarray
    high: np.ndarray
    counts: np.ndarray


def curve_of(group: Group) -> Curve:
    """The curve from the first step at which all runs have been evaluated, linear between evaluations.

    A run counts up to its last step, plus half the distance between evaluations, since no two runs are evaluated after
    exactly the same steps.
    """
    begun = group.begun
    first, last = max(run.steps[0] for run in begun), max(run.steps[-1] for run in begun)
    # The points of the run with most: the others were evaluated after about as many steps.
    steps = max(begun, key=lambda run: (len(run.steps), run.steps[-1])).steps
    steps = np.unique([first, *steps[(steps > first) & (steps < last)], last])
    if len(steps) > _MOST_POINTS:
        steps = steps[np.linspace(0, len(steps) - 1, _MOST_POINTS).round().astype(int)]
    distance = max(float(np.diff(run.steps).max(initial=0.0)) for run in begun)
    reaches = np.array([run.steps[-1] for run in begun])[:, None] >= steps - distance / 2
    values = np.array([np.interp(steps, run.steps, run.values) for run in begun])
    iqm, low, high = (np.empty(len(steps)) for _ in range(3))
    for count in np.unique(reaches.sum(axis=0)):  # The farther, the fewer: those that count are the same.
        at = reaches.sum(axis=0) == count
        those = reaches[:, at][:, 0]
        iqm[at], low[at], high[at] = with_interval(values[those][:, at])
    return Curve(steps, iqm, low, high, reaches.sum(axis=0))


def table_of(groups: Sequence[Group], metric: str = RETURN) -> list[dict[str, Any]]:
    """One row per group: texts and numbers by column; None if there is no value yet."""
    rows = []
    for group in groups:
        begun, unfinished = group.begun, sum(run.is_unfinished for run in group.runs)
        row: dict[str, Any] = {"group": group.name, "runs": len(group.runs), "unfinished": unfinished}
        row |= dict.fromkeys(("env_steps", "final_iqm", "final_low", "final_high", "best"))
        row |= {"source": ", ".join({run.source: 0 for run in group.runs}), "metric": metric}
        if begun:
            iqm, low, high = with_interval(np.array([[run.values[-1]] for run in begun]))
            row |= {"final_iqm": float(iqm[0]), "env_steps": int(max(run.steps[-1] for run in begun))}
            if metric in HIGHEST or len(begun) == 1:
                row["best"] = max((run.best for run in begun if run.best is not None), default=None)
            if len(begun) > 1:
                row |= {"final_low": float(low[0]), "final_high": float(high[0])}
        rows.append(row)
    return rows


# What is shown.


def print_table(rows: Sequence[dict[str, Any]], runs: Sequence[Run]) -> None:
    """Prints the table, and below it the runs that are not finished, and why others don't compare."""
    header = ["group", "runs", "env steps", "final IQM", "95 % interval", "best"]
    cells = []
    for row in rows:
        steps, final, low, high, best = (
            format_number(row[name]) for name in ("env_steps", "final_iqm", "final_low", "final_high", "best")
        )
        interval = "-" if row["final_low"] is None else f"[{low}, {high}]"
        cells.append([row["group"], f"{row['runs']}{'*' if row['unfinished'] else ' '}", steps, final, interval, best])
    print("\n".join(aligned([header, *cells], header[:1])))
    for run in runs:
        if run.is_of_training:
            print(f"returns of training episodes, not of evaluations: {run.folder}")
        if run.is_unfinished:
            reached = f"{run.steps[-1]:,.0f} env steps" if len(run.steps) else "no evaluation yet"
            print(f"unfinished: {run.folder} ({run.state}, {reached})")
    if len(environments := sorted({run.environment for run in runs if run.environment})) > 1:
        print(f"note: returns of different environments don't compare: {', '.join(environments)}")
    lengths = [run.steps[-1] for run in runs if len(run.steps) and not run.is_unfinished]
    if lengths and (most := max(lengths)) > _LENGTH_RATIO * (fewest := min(lengths)):
        print(f"note: final values are after {fewest:,.0f} to {most:,.0f} env steps: compare them where all curves are")


def draw(groups: Sequence[Group], path: Path, metric: str = RETURN) -> None:
    """Draws a curve with its interval for each group, and its runs as thin lines.

    A curve is dashed where not all runs of its group have reached.

    Raises:
      OSError: The picture can't be written.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 5.2), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    for number, group in enumerate(groups):
        if group.begun:
            _draw_group(axes, group, curve_of(group), f"C{number % 10}")
    axes.set_ylabel({RETURN: "return of an evaluation", SUCCESS: "success rate of an evaluation"}.get(metric, metric))
    axes.set_title("interquartile mean with 95 % interval", loc="left", fontsize=10)
    tidy(axes)
    figure.legend(loc="outside lower left", frameon=False, fontsize=8, ncols=2)
    with replacing(path) as file:
        figure.savefig(file, format="png")


def _draw_group(axes: Any, group: Group, curve: Curve, color: str) -> None:
    for run in group.begun:
        axes.plot(run.steps, run.values, color=color, linewidth=0.6, alpha=0.35, **marker(run.steps, most=1))
    axes.fill_between(curve.steps, curve.low, curve.high, color=color, alpha=0.18, linewidth=0)
    facts = [counted(len(group.runs), "run")]
    if unfinished := sum(run.is_unfinished for run in group.runs):
        facts.append(f"{unfinished} unfinished")
    if any(run.is_of_training for run in group.runs):
        facts.append("training episodes")
    label = f"{group.name} ({', '.join(facts)})"
    whole = int((curve.counts == len(group.runs)).sum())  # Points that all runs have reached come first.
    style = {"color": color, "linewidth": 2.0, **marker(curve.steps, most=3)}
    axes.plot(curve.steps[:whole], curve.iqm[:whole], label=label, **style)
    if whole < len(curve.steps):
        start = max(0, whole - 1)
        axes.plot(curve.steps[start:], curve.iqm[start:], linestyle=(0, (3, 1.5)), **style)


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the table; writes picture and CSV."""
    parser = OptionParser()
    parser.add_argument("run", nargs="+", type=Path, metavar="RUN", help="run directories, such as logs/exp_task_*")
    parser.add_argument(
        "--group", action="append", default=[], metavar="NAME=PATTERN", help="runs whose directories fit are one group"
    )
    parser.add_argument(
        "--metric", default=RETURN, metavar="COLUMN", help=f"of metrics.csv, such as {SUCCESS} (default: {RETURN})"
    )
    words = f"PNG file to write, with the table as .csv (default: {_PICTURE} beside the first run, or here)"
    parser.add_argument("--out", type=Path, metavar="FILE", help=words)
    args = parser.parse_args(argv)
    folders = runs_among(args.run)
    beside = folders[0].resolve().parent
    output = args.out or (beside if os.access(beside, os.W_OK) else Path()) / _PICTURE
    findings = []
    if output.suffix.lower() != ".png":
        findings.append(f"--out must be a .png file, found {output}: the table goes beside it, as .csv")
    if not output.absolute().parent.is_dir():
        findings.append(f"--out: there is no directory {output.absolute().parent}: make it first")
    runs = []
    try:
        runs = read_runs(folders, args.metric)
        if not any(len(run.steps) for run in runs):
            findings.append(f"no run has an evaluation with {args.metric} yet: wait for the first one")
    except UserError as error:
        findings += error.findings
    if findings:
        raise UserError(*findings)
    groups = group_runs(runs, args.group)
    with LongWork("confidence intervals"):
        rows = table_of(groups, args.metric)
    print_table(rows, runs)
    with LongWork("drawing"):
        draw(groups, output, args.metric)
    table = output.with_suffix(".csv")
    with table.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(f"plot:  {output}\ntable: {table}")
    return EXIT_DONE
