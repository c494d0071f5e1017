"""The curves of docs/explanations/learning_results.md: `python -m benchmarks.learning.figures`.

The record is results/algorithms.csv; `python -m benchmarks.learning.algorithms` adds runs to it.
"""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.learning.algorithms import FOLDER, Evaluation, read_record
from benchmarks.processes import ROOT

IMAGES = ROOT / "docs" / "images"
_POINTS = 60
_RUNS_FOR_QUARTERS = 4


@dataclasses.dataclass(frozen=True)
class Style:
    """Colours of Okabe and Ito, which colour-blind readers tell apart; dashes tell them apart in grey, too."""

    color: str
    dashes: tuple[float, ...]
    marker: str


# Solid lines are this toolkit's, broken ones are of other libraries.
STYLES: Mapping[str, Style] = {
    "sac": Style("#0072B2", (), "o"),
    "sac, 50 steps": Style("#56B4E9", (), "s"),
    "sac, 50 steps, learning rates 1e-3": Style("#CC79A7", (), "D"),
    "sac, 50 steps, fine-tuned": Style("#D55E00", (), "^"),
    "sac, 50 steps, layer norm": Style("#0072B2", (), "o"),
    "sac, 50 steps, layer norm, 20 demonstrations": Style("#D55E00", (), "^"),
    "tqc": Style("#CC79A7", (), "s"),
    "crossq": Style("#D55E00", (), "^"),
    "crossq x2": Style("#D55E00", (), "^"),
    "redq x5": Style("#009E73", (), "D"),
    "droq x5": Style("#56B4E9", (), "v"),
    "droq x10": Style("#009E73", (), "v"),
    "dqn": Style("#0072B2", (), "o"),
    "iqn": Style("#D55E00", (), "^"),
    "SB3 DQN": Style("#000000", (5, 2), "x"),
    "SB3-contrib QR-DQN": Style("#7F7F7F", (1.5, 1.5), "+"),
    "SBX SAC": Style("#000000", (5, 2), "x"),
    "SB3 SAC": Style("#7F7F7F", (1.5, 1.5), "+"),
}
FIGURES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "pendulum": ("Pendulum-v1", ("sac", "tqc", "crossq", "redq x5", "droq x5", "SBX SAC", "SB3 SAC")),
    "half_cheetah": (
        "HalfCheetah-v5",
        ("sac", "sac, 50 steps", "sac, 50 steps, learning rates 1e-3", "crossq x2", "droq x10", "SBX SAC"),
    ),
    "hopper": ("Hopper-v5", ("sac", "sac, 50 steps", "SBX SAC")),
    "double_pendulum": ("InvertedDoublePendulum-v5", ("sac", "SBX SAC")),
    "cartpole": ("CartPole-v1", ("dqn", "iqn", "SB3 DQN", "SB3-contrib QR-DQN")),
    "pendulum_pixels": ("Pendulum-v1 from pixels", ("sac",)),
    "reach_demos": (
        "Reach with demonstrations",
        ("sac, 50 steps, layer norm", "sac, 50 steps, layer norm, 20 demonstrations"),
    ),
    "heavy_pendulum": ("Pendulum-v1 with twice the mass", ("sac, 50 steps", "sac, 50 steps, fine-tuned")),
}


def curves(evaluations: Sequence[Evaluation], variant: str) -> tuple[np.ndarray, np.ndarray]:
    """Environment steps `[P]`, as far as all runs of the variant have come, and returns `[runs, P]`."""
    runs: dict[int, list[tuple[int, float]]] = {}
    for each in evaluations:
        if each.variant == variant:
            runs.setdefault(each.seed, []).append((each.env_steps, each.eval_return))
    lines = [np.array(sorted(run)).T for run in runs.values()]
    steps = np.linspace(max(line[0, 0] for line in lines), min(line[0, -1] for line in lines), _POINTS)
    return steps, np.stack([np.interp(steps, *line) for line in lines])


def middle(returns: np.ndarray) -> np.ndarray:
    """`[P]`: the mean over runs, from four runs on without the lowest and the highest quarter."""
    left_out = len(returns) // 4 if len(returns) >= _RUNS_FOR_QUARTERS else 0
    kept: np.ndarray = np.sort(returns, axis=0)[left_out : len(returns) - left_out]
    return kept.mean(axis=0)


def draw(task: str, evaluations: Sequence[Evaluation], folder: Path) -> Path:
    """Writes learning_<task>.png: thick lines are middles of runs, bands reach from the lowest run to the highest."""
    from matplotlib.figure import Figure
    from PIL import Image

    title, variants = FIGURES[task]
    figure = Figure(figsize=(7.2, 4.0), dpi=100, layout="constrained")
    axes: Any = figure.subplots()
    for variant in variants:
        steps, returns = curves([each for each in evaluations if each.task == task], variant)
        style = STYLES[variant]
        axes.plot(
            steps, middle(returns), color=style.color, linewidth=2, dashes=style.dashes, marker=style.marker,
            markevery=10, markersize=5, label=f"{variant} ({len(returns)})",
        )  # fmt: skip
        axes.fill_between(steps, returns.min(axis=0), returns.max(axis=0), color=style.color, alpha=0.12, linewidth=0)
    axes.set_title(title, loc="left", fontsize=11)
    axes.set_xlabel("environment steps")
    axes.set_ylabel("return of the greedy policy")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(title="variant (runs)", frameon=False, fontsize=9, title_fontsize=9)
    path = folder / f"learning_{task}.png"
    picture = io.BytesIO()
    figure.savefig(picture)
    Image.open(picture).convert("RGB").quantize(256).save(path, optimize=True)  # A third of the size, and as good.
    return path


def main() -> None:
    """Draws all of them."""
    record = read_record(FOLDER / "results" / "algorithms.csv")
    for task in FIGURES:
        print(draw(task, record, IMAGES))


if __name__ == "__main__":
    main()
