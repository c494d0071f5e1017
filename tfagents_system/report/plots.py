"""learning_curve.png: returns, losses, temperature and curriculum over environment steps.

`python -m tfagents_system.report.plots logs/pendulum` draws it for a run, also while it trains.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tfagents_system.checks.called_as import called_as
from tfagents_system.errors import EXIT_BAD_INPUT, EXIT_DONE
from tfagents_system.machine.files import replacing
from tfagents_system.report.long_work import followed
from tfagents_system.report.statuses_of_runs import runs_among
from tfagents_system.run_files.metrics import read_rows
from tfagents_system.run_files.run_paths import RunPaths

Rows = list[dict[str, float | None]]

_TRAIN, _EVAL, _OTHER = "#9fbcd0", "#c8553d", "#2a6f97"
_PANELS = (
    ("critic_loss", "critic loss"),
    ("actor_loss", "actor loss"),
    ("alpha", "alpha (temperature)"),
    ("q_mean", "mean Q of the minibatches"),
    ("eval_success", "evaluation success rate"),
)
_PANELS_IN_A_ROW = 3
_LOG_SCALE_FROM = 50.0  # Ratio of the largest to the smallest value.
_MAX_MARKERS = 60


def draw_learning_curve(paths: RunPaths) -> Path:
    """Draws metrics.csv; returns the path of the picture.

    Above: the mean return of evaluations with a band of one standard deviation between episodes, and the return of
    collected episodes. Below: a small panel for each of losses, alpha and the curriculum's parameters that has values;
    losses with those of held-out episodes.

    Raises:
      ValueError: There are no metrics yet.
      OSError: The picture can't be written.
    """
    from matplotlib.figure import Figure

    rows = sorted(read_rows(paths.metrics_csv), key=lambda row: row.get("env_steps") or 0.0)
    if not rows:
        raise ValueError(f"{paths.metrics_csv} has no rows: there is nothing to draw yet")
    panels = _panels(rows)
    small_rows = math.ceil(len(panels) / _PANELS_IN_A_ROW)
    figure = Figure(figsize=(9.0, 4.2 + 1.9 * small_rows), dpi=150, layout="constrained")
    grid = figure.add_gridspec(1 + small_rows, 6, height_ratios=[4.0, *[1.7] * small_rows])
    returns = figure.add_subplot(grid[0, :])
    _draw_returns(returns, rows)
    returns.set_title(paths.exp_dir.resolve().name, loc="left", fontweight="bold", fontsize=13)
    last_step = max(1.0, *(row.get("env_steps") or 0.0 for row in rows))
    for (row, columns), (name, title) in zip(_places(len(panels)), panels, strict=True):
        axes = figure.add_subplot(grid[1 + row, columns])
        _draw_panel(axes, rows, name, title)
    for axes in figure.axes:
        axes.set_xlim(-0.02 * last_step, 1.02 * last_step)
        _tidy(axes, small=axes is not returns)
    with replacing(paths.learning_curve) as file:
        figure.savefig(file, format="png")
    return paths.learning_curve


def _panels(rows: Rows) -> list[tuple[str, str]]:
    """(column, title) of the small panels: those with a value."""
    curriculum = [(name, name.replace("/", ": ")) for name in rows[0] if name.startswith("curriculum/")]
    return [(name, title) for name, title in (*_PANELS, *curriculum) if _series(rows, name)[0]]


def _places(count: int) -> list[tuple[int, slice]]:
    """(row, columns of six) of each small panel; those of a row share its width."""
    places = []
    for row in range(math.ceil(count / _PANELS_IN_A_ROW)):
        width = 6 // min(_PANELS_IN_A_ROW, count - row * _PANELS_IN_A_ROW)
        places += [(row, slice(start, start + width)) for start in range(0, 6, width)]
    return places


def _draw_returns(axes: Any, rows: Rows) -> None:
    steps, returns = _series(rows, "train_return")
    axes.plot(steps, returns, color=_TRAIN, linewidth=1.1, **_marker(returns), label="collected episodes, exploring")
    evaluated = [row for row in rows if row.get("eval_return") is not None]
    steps, means = _series(evaluated, "eval_return")
    _, stds = _series(
        [{**row, "eval_return_std": row.get("eval_return_std") or 0.0} for row in evaluated], "eval_return_std"
    )
    low = [mean - std for mean, std in zip(means, stds, strict=True)]
    high = [mean + std for mean, std in zip(means, stds, strict=True)]
    axes.fill_between(steps, low, high, color=_EVAL, alpha=0.18, linewidth=0)
    axes.plot(steps, means, color=_EVAL, linewidth=1.8, **_marker(means), label="evaluation, greedy: mean ± std")
    axes.set_ylabel("return of an episode")
    axes.yaxis.set_major_formatter(_thousands)
    drawn = [line for line in axes.get_lines() if len(line.get_xdata()) and not line.get_label().startswith("_")]
    if drawn:
        axes.legend(handles=drawn, loc="best", frameon=False, fontsize=9)
    else:
        axes.text(0.5, 0.5, "no episode has ended yet", transform=axes.transAxes, ha="center", color="gray")


def _draw_panel(axes: Any, rows: Rows, name: str, title: str) -> None:
    steps, values = _series(rows, name)
    held_out_steps, held_out = _series(rows, f"validation/{name}")
    if name.startswith("curriculum/"):
        axes.step(steps, values, where="post", color=_OTHER, linewidth=1.4, **_marker(values))
    else:
        axes.plot(steps, values, color=_OTHER, linewidth=1.2, **_marker(values), label="trained on")
    if held_out:
        axes.plot(held_out_steps, held_out, color=_EVAL, linewidth=1.2, **_marker(held_out), label="held out")
        axes.legend(loc="best", frameon=False, fontsize=7)
    shown = _values(rows, name)
    axes.set_title(title, loc="left", fontsize=9)
    if name == "eval_success":
        axes.set_ylim(-0.03, 1.03)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    elif _is_for_log_scale(shown):
        axes.set_yscale("log")
    else:
        axes.yaxis.set_major_formatter(_thousands)


def _is_for_log_scale(values: Sequence[float]) -> bool:
    return min(values) > 0 and max(values) / min(values) > _LOG_SCALE_FROM


def tidy_steps(axes: Any) -> None:
    """The looks of a large panel over environment steps."""
    axes.yaxis.set_major_formatter(_thousands)
    _tidy(axes, small=False)


def _tidy(axes: Any, *, small: bool) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(3 if small else 8, steps=[1, 2, 2.5, 5, 10], integer=True))
    axes.xaxis.set_major_formatter(_thousands)
    axes.set_xlabel("environment steps", fontsize=8 if small else 10)
    axes.tick_params(labelsize=8 if small else 9)
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _marker(values: Sequence[float]) -> dict[str, Any]:
    """Marks all points while they are few: a line does not show a single one."""
    return {"marker": "o", "markersize": 3} if len(values) <= _MAX_MARKERS else {}


def _series(rows: Rows, name: str) -> tuple[list[float], list[float]]:
    """(environment steps, values) of the rows that have a value."""
    pairs = [(row.get("env_steps") or 0.0, value) for row in rows if (value := row.get(name)) is not None]
    return [step for step, _ in pairs], [value for _, value in pairs]


def _values(rows: Rows, name: str) -> list[float]:
    """Of a column, with those of held-out episodes behind them."""
    return [value for values in _trained_and_held_out(rows, name) for value in values]


def _trained_and_held_out(rows: Rows, name: str) -> tuple[list[float], list[float]]:
    return _series(rows, name)[1], _series(rows, f"validation/{name}")[1]


def _thousands(value: float, _: Any = None) -> str:
    """`12,000`; small values keep their digits."""
    text = f"{value:,.0f}" if value == round(value) else f"{value:,g}"
    return text.replace("-", "\N{MINUS SIGN}")  # As Matplotlib's own formatters write it.


def main(argv: Sequence[str] | None = None) -> int:
    """Draws the learning curves of the given runs; returns 2 where one has nothing to draw."""
    parser = argparse.ArgumentParser(
        prog=called_as("python -m tfagents_system.report.plots"),
        description="Draws learning_curve.png into run directories.",
    )
    parser.add_argument("run", nargs="+", type=Path, help="run directories, such as logs/pendulum")
    failed = False
    folders = runs_among(parser.parse_args(argv).run)
    for folder in followed(folders, "drawing", "runs", len(folders)):
        try:
            print(draw_learning_curve(RunPaths(folder)))
        except (ValueError, OSError) as error:
            print(f"error: {error}", file=sys.stderr)
            failed = True
    return EXIT_BAD_INPUT if failed else EXIT_DONE


if __name__ == "__main__":
    sys.exit(main())
