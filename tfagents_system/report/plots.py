"""learning_curve.png: returns, losses and the curriculum over environment steps.

    python -m tfagents_system.report.plots logs/pendulum
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tfagents_system.launch.run_paths import RunPaths
from tfagents_system.report.metrics import read_metrics

Rows = list[dict[str, float | None]]

_TRAIN, _EVAL, _ALPHA = "#9db4c0", "#c8553d", "#2a6f97"


def draw_learning_curve(paths: RunPaths) -> Path:
    """Draws metrics.csv; returns the path of the picture.

    Raises:
      ValueError: There are no metrics yet.
    """
    from matplotlib.figure import Figure

    rows = read_metrics(paths.metrics_csv)
    if not rows:
        raise ValueError(f"{paths.metrics_csv} has no rows yet")
    curriculum = [name for name in rows[0] if name.startswith("curriculum/") and _series(rows, name)[0]]
    panels = 2 + bool(curriculum)
    figure = Figure(figsize=(8.0, 3.2 + 1.7 * (panels - 1)), dpi=150, layout="constrained")
    axes = figure.subplots(panels, 1, sharex=True, height_ratios=[2.2, *([1.0] * (panels - 1))])
    _draw_returns(axes[0], rows)
    _draw_losses(axes[1], rows)
    if curriculum:
        for name in curriculum:
            axes[2].step(*_series(rows, name), where="post", label=name.removeprefix("curriculum/"))
        axes[2].set_ylabel("curriculum")
        axes[2].legend(loc="best", frameon=False, fontsize=8)
    axes[0].set_title(paths.exp_dir.resolve().name, loc="left", fontweight="bold")
    axes[-1].set_xlabel("environment steps")
    axes[-1].xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    for axis in axes:
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(paths.learning_curve)
    return paths.learning_curve


def _draw_returns(axis: Any, rows: Rows) -> None:
    steps, returns = _series(rows, "train_return")
    if steps:
        axis.plot(steps, returns, color=_TRAIN, linewidth=1.2, label="collected (with exploration)")
    evals = [row for row in rows if row.get("eval_return") is not None]
    if evals:
        steps, means = _series(evals, "eval_return")
        stds = [row.get("eval_return_std") or 0.0 for row in evals]
        low = [mean - std for mean, std in zip(means, stds, strict=True)]
        high = [mean + std for mean, std in zip(means, stds, strict=True)]
        axis.fill_between(steps, low, high, color=_EVAL, alpha=0.18, linewidth=0)
        axis.plot(steps, means, color=_EVAL, marker="o", markersize=3, label="greedy policy (mean ± std)")
    axis.set_ylabel("return of an episode")
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    if axis.has_data():
        axis.legend(loc="best", frameon=False, fontsize=8)


def _draw_losses(axis: Any, rows: Rows) -> None:
    steps, losses = _series(rows, "critic_loss")
    axis.plot(steps, losses, color=_TRAIN, label="critic loss")
    axis.set_ylabel("critic loss")
    other = axis.twinx()
    other.plot(*_series(rows, "alpha"), color=_ALPHA, label="alpha")
    other.set_ylabel("alpha", color=_ALPHA)
    other.tick_params(axis="y", colors=_ALPHA)
    other.spines["top"].set_visible(False)


def _series(rows: Rows, name: str) -> tuple[list[float], list[float]]:
    """(environment steps, values) of the rows that have a value, by steps."""
    pairs = [(row["env_steps"] or 0.0, row[name]) for row in rows if row.get(name) is not None]
    pairs.sort(key=lambda pair: pair[0])
    return [step for step, _ in pairs], [value for _, value in pairs]  # type: ignore[misc]


def main(argv: Sequence[str] | None = None) -> int:
    """Draws the learning curves of the given runs."""
    parser = argparse.ArgumentParser(prog="python -m tfagents_system.report.plots", description="Draws learning curves.")
    parser.add_argument("run", nargs="+", type=Path, help="run directories, such as logs/pendulum")
    failed = False
    for folder in parser.parse_args(argv).run:
        try:
            print(draw_learning_curve(RunPaths(folder)))
        except ValueError as error:
            print(f"error: {error}", file=sys.stderr)
            failed = True
    return 2 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
