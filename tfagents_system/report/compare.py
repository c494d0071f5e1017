"""Compares runs: learning curves with interquartile means and bootstrap intervals, and a table.

    python -m tfagents_system.report compare logs/exp_task_* [--group NAME=PATTERN]... [--output compare.png]

Runs that differ in nothing but the seed are one group. Statistics are those of Agarwal et al. (arXiv 2108.13264), by
their library rliable: the mean of the middle half of the runs, and the interval that contains it with 95 % probability
when runs are drawn with replacement. Only reads files; runs of Stable-Baselines3 may be among them.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import fnmatch
import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfagents_system.checks.called_as import called_as
from tfagents_system.checks.findings import counted
from tfagents_system.errors import EXIT_DONE, UserError
from tfagents_system.machine.files import replacing
from tfagents_system.report.curves import HIGHEST, RETURN, SUCCESS, Run, read_runs
from tfagents_system.report.long_work import LongWork
from tfagents_system.report.plots import tidy_steps
from tfagents_system.report.status import aligned, format_number
from tfagents_system.report.statuses_of_runs import distinct_names, runs_among
from tfagents_system.settings.values import differing, in_words

_PICTURE = "compare.png"
_REPETITIONS = 2000
_MOST_POINTS = 100
_COLUMNS = (
    "group",
    "runs",
    "unfinished",
    "env_steps",
    "final_iqm",
    "final_low",
    "final_high",
    "best",
    "source",
    "metric",
)
_COLORS = ("#2a6f97", "#c8553d", "#5b8e3e", "#8a5a9e", "#d19a2c", "#3d9a9a", "#8c6d5a", "#c65b8e", "#6b7280", "#1f2a44")
_MARKERS = ("", "o", "s", "^")  # Of the first ten groups, the next ten and so on.
_LEGEND_WIDTH = 120  # In characters, including each entry's marker and spacing.


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


@dataclasses.dataclass(frozen=True)
class Group:
    """Runs that differ in nothing but the seed.

    Attributes:
      runs: All of them; some may have no value yet.
    """

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
        runs share. Where each group is a single run it has the run's name.
    """
    experiments = {run.experiment for run in runs}
    ours = [run for run in runs if run.is_ours]  # Other runs have no settings to compare.
    words = {run.folder: in_words(own) for run, own in zip(ours, differing([r.settings for r in ours]), strict=True)}
    by_name: dict[str, list[Run]] = {}
    for run in runs:
        name = _matching(run, patterns) or _name(run, words.get(run.folder, ""), len(experiments) > 1)
        by_name.setdefault(name, []).append(run)
    groups = [Group(name, tuple(members)) for name, members in by_name.items()]
    if not are_single(groups):
        return groups
    own = distinct_names([run.folder.resolve() for run in runs])
    return [
        group if _matching(run, patterns) else Group(_of_one(run, own[run.folder.resolve()], words), group.runs)
        for group in groups
        for run in group.runs
    ]


def are_single(groups: Sequence[Group]) -> bool:
    """Whether each group is a single run: there is no mean of several, and no interval."""
    return all(len(group.runs) == 1 for group in groups)


def _of_one(run: Run, name: str, words: Mapping[Path, str]) -> str:
    """The run's name; of a task, whose number says nothing, with its settings."""
    is_task = run.folder.resolve().name != run.experiment
    return " ".join(filter(None, [name, words.get(run.folder, "") if is_task else ""]))


def _matching(run: Run, patterns: Sequence[str]) -> str | None:
    for text in patterns:
        name, separator, pattern = text.partition("=")
        pattern = pattern if separator else name
        texts = (run.folder.name, str(run.folder), str(run.folder.resolve()))
        if any(fnmatch.fnmatchcase(text, pattern.rstrip("/")) for text in texts):
            return name
    return None


def _name(run: Run, words: str, with_experiment: bool) -> str:
    return " ".join(filter(None, [run.experiment if with_experiment or not words else "", words]))


def interquartile_mean(scores: np.ndarray) -> np.ndarray:
    """[runs, 1, points] -> [points]: the mean without the lowest and the highest quarter of the runs.

    Like rliable's aggregate_iqm, but for all points at once: it is called for each of thousands of samples.
    """
    ordered = np.sort(scores.reshape(-1, scores.shape[-1]), axis=0)
    cut = len(ordered) // 4
    mean: np.ndarray = ordered[cut : len(ordered) - cut].mean(axis=0)
    return mean


def with_interval(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Interquartile mean, and the 95 % interval of it: three arrays [points], the same at every call.

    Args:
      scores: [runs, points]
    """
    if len(scores) == 1:
        return scores[0], scores[0], scores[0]
    from rliable import library

    before = np.random.get_state()
    np.random.seed(0)  # rliable draws from the global generator.
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # arch's, of an argument that rliable passes.
            estimates, intervals = library.get_interval_estimates(
                {"": scores[:, None, :]}, interquartile_mean, reps=_REPETITIONS
            )
    finally:
        np.random.set_state(before)
    return estimates[""], intervals[""][0], intervals[""][1]


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
        begun = group.begun
        row: dict[str, Any] = dict.fromkeys(_COLUMNS)
        row |= {"group": group.name, "runs": len(group.runs), "source": ", ".join({r.source: 0 for r in group.runs})}
        row["metric"] = metric
        row["unfinished"] = sum(run.is_unfinished for run in group.runs)
        if begun:
            iqm, low, high = with_interval(np.array([[run.values[-1]] for run in begun]))
            row["final_iqm"] = float(iqm[0])
            if metric in HIGHEST or len(begun) == 1:
                row["best"] = max((run.best for run in begun if run.best is not None), default=None)
            if len(begun) > 1:
                row |= {"final_low": float(low[0]), "final_high": float(high[0])}
            row["env_steps"] = int(max(run.steps[-1] for run in begun))
        rows.append(row)
    return rows


def print_table(rows: Sequence[dict[str, Any]], runs: Sequence[Run]) -> None:
    """Prints the table, and below it the runs that are not finished."""
    header = ("group", "runs", "env steps", "final IQM", "95 % interval", "best")
    cells = [_cells(row) for row in rows]
    if all(row["runs"] == 1 for row in rows):
        header = ("run", "env steps", "final", "best")  # type: ignore[assignment]
        cells = [(name, *numbers, best) for name, _, *numbers, _, best in cells]
    print("\n".join(aligned([header, *cells], header[:1])))
    for run in runs:
        if run.is_of_training:
            print(f"returns of training episodes, not of evaluations: {run.folder}")
        if run.is_unfinished:
            reached = f"{run.steps[-1]:,.0f} env steps" if len(run.steps) else "no evaluation yet"
            print(f"unfinished: {run.folder} ({run.state}, {reached})")


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    runs = f"{row['runs']}*" if row["unfinished"] else f"{row['runs']} "
    interval = "-"
    if row["final_low"] is not None:
        interval = f"[{format_number(row['final_low'])}, {format_number(row['final_high'])}]"
    numbers = [format_number(row[name]) for name in ("env_steps", "final_iqm", "best")]
    return row["group"], runs, numbers[0], numbers[1], interval, numbers[2]


def write_table(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """The same as CSV; missing values are empty."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, _COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def draw(groups: Sequence[Group], path: Path, metric: str = RETURN) -> None:
    """Draws a curve with its interval for each group, and its runs as thin lines.

    A curve is dashed where not all runs of its group have reached. After the tenth group colors repeat, with markers.

    Raises:
      OSError: The picture can't be written.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 5.2), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    for number, group in enumerate(groups):
        if group.begun:
            repeats, color = divmod(number, len(_COLORS))
            marker, told = _MARKERS[repeats % len(_MARKERS)], not are_single(groups)
            _draw_group(axes, group, curve_of(group), _COLORS[color], marker, told)
    axes.set_ylabel({RETURN: "return of an evaluation", SUCCESS: "success rate of an evaluation"}.get(metric, metric))
    title = "single runs" if are_single(groups) else "interquartile mean with 95 % interval"
    axes.set_title(title, loc="left", fontsize=10)
    tidy_steps(axes)
    _place_legend(figure, axes)
    with replacing(path) as file:
        figure.savefig(file, format="png")


def _draw_group(axes: Any, group: Group, curve: Curve, color: str, marker: str, is_told_how_many: bool) -> None:
    for run in group.begun:
        alone = {"marker": "o", "markersize": 3} if len(run.steps) == 1 else {}  # A line would not show it.
        axes.plot(run.steps, run.values, color=color, linewidth=0.6, alpha=0.35, **alone)
    axes.fill_between(curve.steps, curve.low, curve.high, color=color, alpha=0.18, linewidth=0)
    label = f"{group.name} ({', '.join(facts)})" if (facts := _facts(group, is_told_how_many)) else group.name
    is_all = curve.counts == len(group.runs)
    style = {
        "color": color,
        "linewidth": 2.0,
        "markersize": 4,
        "marker": marker or ("o" if len(curve.steps) <= 3 else ""),
    }
    axes.plot(curve.steps[is_all], curve.iqm[is_all], label=label, **style)
    if not is_all.all():
        start = max(0, int(is_all.sum()) - 1)
        axes.plot(curve.steps[start:], curve.iqm[start:], linestyle=(0, (3, 1.5)), **style)


def _facts(group: Group, is_told_how_many: bool) -> list[str]:
    """`5 runs`, `1 unfinished`, and a note if a curve is not of evaluations."""
    facts = [counted(len(group.runs), "run")] if is_told_how_many else []
    if unfinished := sum(run.is_unfinished for run in group.runs):
        facts.append(f"{unfinished} unfinished" if is_told_how_many else "unfinished")
    if any(run.is_of_training for run in group.runs):
        facts.append("training episodes")
    return facts


def _place_legend(figure: Any, axes: Any) -> None:
    """Inside the axes if it is small, otherwise below them."""
    handles, labels = axes.get_legend_handles_labels()
    longest = max(map(len, labels), default=0)
    if len(labels) <= 6 and longest <= 60:
        axes.legend(loc="best", frameon=False, fontsize=9)
    else:
        columns = max(1, min(4, _LEGEND_WIDTH // max(1, longest)))
        figure.legend(handles, labels, loc="outside lower left", frameon=False, fontsize=8, ncols=columns)


def _beside(folders: Sequence[Path]) -> Path:
    """compare.png in the folder that contains all runs; in the current one if there is none that is writable."""
    parents = {folder.resolve().parent for folder in folders}
    parent = parents.pop()
    is_one = not parents and os.access(parent, os.W_OK)
    return parent / _PICTURE if is_one and parent != Path.cwd() else Path(_PICTURE)


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the table; writes picture and CSV.

    Raises:
      UserError: There is nothing to compare; with all findings.
    """
    parser = argparse.ArgumentParser(
        prog=called_as("python -m tfagents_system.report compare"),
        description="Compares runs: learning curves and a table.",
    )
    parser.add_argument("run", nargs="+", type=Path, help="run directories, such as logs/exp_task_*")
    parser.add_argument(
        "--group", action="append", default=[], metavar="NAME=PATTERN", help="runs whose directories fit are one group"
    )
    parser.add_argument(
        "--metric", default=RETURN, metavar="COLUMN", help=f"of metrics.csv, such as {SUCCESS} (default: {RETURN})"
    )
    parser.add_argument(
        "--output", type=Path, help=f"default: {_PICTURE} in the folder that the runs lie in; a CSV beside it"
    )
    args = parser.parse_args(argv)
    args.run = runs_among(args.run)
    args.output = args.output or _beside(args.run)
    findings = []
    if args.output.suffix.lower() != ".png":
        findings.append(f"--output must be a .png file, found {args.output}: the table goes beside it, as .csv")
    if not args.output.absolute().parent.is_dir():
        findings.append(f"--output: there is no directory {args.output.absolute().parent}: make it first")
    runs = []
    try:
        runs = read_runs(args.run, args.metric)
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
        draw(groups, args.output, args.metric)
    table = args.output.with_suffix(".csv")
    write_table(rows, table)
    print(f"plot:  {args.output}\ntable: {table}")
    return EXIT_DONE
