"""learning_curve.png: returns, losses, temperature and curriculum over environment steps.

`sac plots logs/pendulum` draws it for a run, also while it trains.
"""

from __future__ import annotations

import math
from collections.abc import Sequence, Sized
from pathlib import Path
from typing import Any

from tfagents_system.errors import EXIT_DONE, OptionParser, UserError
from tfagents_system.machine.files import replacing
from tfagents_system.report.long_work import followed
from tfagents_system.report.status import RETURN, TRAIN_RETURN, RunModel, runs_among

_TRAIN, _EVAL, _OTHER = "#9fbcd0", "#c8553d", "#2a6f97"
_PANELS = {
    "critic_loss": "critic loss",
    "actor_loss": "actor loss",
    "alpha": "alpha (temperature)",
    "q_mean": "mean Q of the minibatches",
    "eval_success": "evaluation success rate",
}
_PANELS_IN_A_ROW = 3
_LOG_SCALE_FROM = 50.0  # Ratio of the largest to the smallest value.


def draw_learning_curve(model: RunModel) -> Path:
    """Draws metrics.csv; returns the path of the picture.

    Above: the mean return of evaluations with a band of one standard deviation between episodes, and the return of
    collected episodes. Below: a small panel for each of losses, alpha and the curriculum's parameters that has values;
    losses with those of held-out episodes.

    Raises:
      ValueError: There are no metrics yet.
      OSError: The picture can't be written.
    """
    from matplotlib.figure import Figure

    if not model.rows:
        raise ValueError(
            f"{model.paths.metrics_csv} has no rows: give the directory of a run, or wait for its first iteration"
        )
    curriculum = {name: name.replace("/", ": ") for name in model.rows[0] if name.startswith("curriculum/")}
    panels = {name: title for name, title in {**_PANELS, **curriculum}.items() if model.series(name)[0]}
    small_rows = math.ceil(len(panels) / _PANELS_IN_A_ROW)
    figure = Figure(figsize=(9.0, 4.2 + 1.9 * small_rows), dpi=150, layout="constrained")
    grid = figure.add_gridspec(1 + small_rows, _PANELS_IN_A_ROW, height_ratios=[4.0, *[1.7] * small_rows])
    returns = figure.add_subplot(grid[0, :])
    _draw_returns(returns, model)
    returns.set_title(model.name, loc="left", fontweight="bold", fontsize=13)
    for number, (name, title) in enumerate(panels.items()):
        axes = figure.add_subplot(grid[1 + number // _PANELS_IN_A_ROW, number % _PANELS_IN_A_ROW])
        _draw_panel(axes, model, name)
        axes.set_title(title, loc="left", fontsize=9)
        tidy(axes, is_small=True)
    tidy(returns)
    last_step = max(1.0, *(row.get("env_steps") or 0.0 for row in model.rows))
    for axes in figure.axes:
        axes.set_xlim(-0.02 * last_step, 1.02 * last_step)
    with replacing(model.paths.learning_curve) as file:
        figure.savefig(file, format="png")
    return model.paths.learning_curve


def _draw_returns(axes: Any, model: RunModel) -> None:
    steps, returns = model.series(TRAIN_RETURN)
    axes.plot(steps, returns, color=_TRAIN, linewidth=1.1, **marker(returns), label="collected episodes, exploring")
    steps, means, stds = model.series(RETURN, "eval_return_std")
    low, high = ([mean + sign * std for mean, std in zip(means, stds, strict=True)] for sign in (-1, 1))
    axes.fill_between(steps, low, high, color=_EVAL, alpha=0.18, linewidth=0)
    axes.plot(steps, means, color=_EVAL, linewidth=1.8, **marker(means), label="evaluation, greedy: mean ± std")
    axes.set_ylabel("return of an episode")
    if drawn := [line for line in axes.get_lines() if len(line.get_xdata())]:
        axes.legend(handles=drawn, loc="best", frameon=False, fontsize=9)
    else:
        axes.text(0.5, 0.5, "no episode has ended yet", transform=axes.transAxes, ha="center", color="gray")


def _draw_panel(axes: Any, model: RunModel, name: str) -> None:
    steps, values = model.series(name)
    style = "steps-post" if name.startswith("curriculum/") else "default"
    axes.plot(steps, values, color=_OTHER, linewidth=1.2, drawstyle=style, **marker(values), label="trained on")
    steps, held_out = model.series(f"validation/{name}")
    if held_out:
        axes.plot(steps, held_out, color=_EVAL, linewidth=1.2, **marker(held_out), label="held out")
        axes.legend(loc="best", frameon=False, fontsize=7)
    values += held_out
    if name == "eval_success":
        axes.set_ylim(-0.03, 1.03)
    elif min(values) > 0 and max(values) / min(values) > _LOG_SCALE_FROM:
        axes.set_yscale("log")


def marker(values: Sized, most: int = 60) -> dict[str, Any]:
    """Marks all points while they are few: a line does not show a single one."""
    return {"marker": "o", "markersize": 3} if len(values) <= most else {}


def tidy(axes: Any, *, is_small: bool = False) -> None:
    """The looks of a panel over environment steps."""
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    axes.xaxis.set_major_locator(MaxNLocator(3 if is_small else 8, steps=[1, 2, 2.5, 5, 10], integer=True))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))  # `12,000`.
    if axes.get_yscale() == "linear":
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.6g}"))
    axes.set_xlabel("environment steps", fontsize=8 if is_small else 10)
    axes.tick_params(labelsize=8 if is_small else 9)
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def main(argv: Sequence[str] | None = None) -> int:
    """Draws the learning curves of the given runs; a UserError names those that have nothing to draw."""
    parser = OptionParser()
    parser.add_argument(
        "run", nargs="+", type=Path, metavar="RUN", help="run directories, which get learning_curve.png"
    )
    curves, findings = list[Path](), list[str]()
    folders = runs_among(parser.parse_args(argv).run)
    for folder in followed(folders, "drawing", "runs", len(folders)):
        try:
            curves.append(draw_learning_curve(RunModel(folder)))
        except (ValueError, OSError) as error:
            findings.append(str(error))
    for path in curves:  # Below the lines of progress: a run shows the last line.
        print(path)
    if findings:
        raise UserError(*findings)
    return EXIT_DONE
