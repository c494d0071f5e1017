"""Learning curves of real runs in two or more variants, with the same seeds: how they are recorded and drawn."""

from __future__ import annotations

import csv
import dataclasses
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.processes import ROOT
from benchmarks.real_run import RealRun
from tfagents_system.run_files.metrics import read_metrics

FOLDER = ROOT / "benchmarks" / "learning"
WORKERS = 2
_COLORS = ("#2a6f97", "#c8553d", "#588157", "#6d597a")


@dataclasses.dataclass(frozen=True)
class Task:
    """An environment, its steps an episode, and for how many iterations (an episode a worker) it is trained."""

    environment: str
    horizon: int
    iterations: int
    learning_rate: float

    @property
    def updates(self) -> int:
        """Of the whole run: one an environment step."""
        return self.iterations * self.horizon * WORKERS

    def start(self, seed: int, precision: str = "float32") -> RealRun:
        """A run of it, by run_script.sh."""
        attributes = {
            "num_iter": self.iterations,
            "num_steps_per_iter": self.horizon * WORKERS,
            "eval_period_itrs": max(1, self.iterations // 8),
            "n_eval_episodes": 10,
            "n_buffer_init_episodes": 2,
            "buffer_size": 200 * self.horizon,
            "learning_rate": self.learning_rate,
            "matmul_precision": precision,
        }
        config = {"environment": self.environment, "horizon": self.horizon, "attributes": attributes}
        variables = {"SAC_NUM_COLLECT_WORKERS": WORKERS, "SAC_TRAIN_CPUS": 2, "SAC_SEED": seed}
        return RealRun(FOLDER / "params.py", config, variables)


PENDULUM = Task("Pendulum-v1", 200, 24, 1e-3)
DOUBLE_PENDULUM = Task("InvertedDoublePendulum-v5", 200, 20, 3e-4)


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Mean return of the greedy policy's episodes after so many updates of one run."""

    environment: str
    variant: str
    seed: int
    updates: int
    eval_return: float


def read_evaluations(run: RealRun, task: Task, variant: str, seed: int) -> list[Evaluation]:
    """Those of a run so far."""
    return [
        Evaluation(task.environment, variant, seed, int(row["train_step"] or 0), value)
        for row in read_metrics(run.paths.metrics_csv)
        if (value := row["eval_return"]) is not None
    ]


def record(
    name: str,
    tasks: Sequence[Task],
    variants: Sequence[str],
    seeds: int,
    train: Callable[[Task, str, int], list[Evaluation]],
    output: Path,
) -> None:
    """Trains every task in every variant with every seed in turn; writes `<name>.csv` and `<name>.png` after each."""
    evaluations: list[Evaluation] = []
    for task in tasks:
        for seed in range(seeds):
            for variant in variants:
                found = train(task, variant, seed)
                text = f"{task.environment}, {variant}, seed {seed}: {found[-1].eval_return:.0f}"
                print(text, file=sys.stderr, flush=True)
                evaluations += found
                _write_csv(output / f"{name}.csv", evaluations)
                _draw(output / f"{name}.png", evaluations)
    _print_table(tasks, variants, evaluations)


def _write_csv(path: Path, evaluations: Sequence[Evaluation]) -> None:
    """One line an evaluation."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([field.name for field in dataclasses.fields(Evaluation)])
        writer.writerows([e.environment, e.variant, e.seed, e.updates, f"{e.eval_return:.1f}"] for e in evaluations)


def _draw(path: Path, evaluations: Sequence[Evaluation]) -> None:
    """A panel an environment, a thin line a run, a thick one for the mean of each variant."""
    from matplotlib.figure import Figure

    environments = list(dict.fromkeys(e.environment for e in evaluations))
    figure = Figure(figsize=(4.8 * len(environments), 3.6), dpi=120, layout="constrained")
    for axes, environment in zip(figure.subplots(1, len(environments), squeeze=False)[0], environments, strict=True):
        _draw_environment(axes, [e for e in evaluations if e.environment == environment])
        axes.set_title(environment, loc="left", fontsize=11)
    figure.savefig(path)


def _draw_environment(axes: Any, evaluations: Sequence[Evaluation]) -> None:
    variants = list(dict.fromkeys(e.variant for e in evaluations))
    for variant, color in zip(variants, _COLORS, strict=False):
        runs: dict[int, dict[int, float]] = {}
        for e in evaluations:
            if e.variant == variant:
                runs.setdefault(e.seed, {})[e.updates] = e.eval_return
        for run in runs.values():
            axes.plot(list(run), list(run.values()), color=color, linewidth=0.8, alpha=0.45)
        common = sorted(set.intersection(*(set(run) for run in runs.values())))
        means = [statistics.mean(run[step] for run in runs.values()) for step in common]
        axes.plot(common, means, color=color, linewidth=2.2, label=f"{variant}, mean of {len(runs)}")
    axes.set_xlabel("updates")
    axes.set_ylabel("evaluation return")
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)


def _print_table(tasks: Sequence[Task], variants: Sequence[str], evaluations: Sequence[Evaluation]) -> None:
    """The last evaluation of every run, with mean and standard deviation over the seeds."""
    for task in tasks:
        for variant in variants:
            key = (task.environment, variant, task.updates)
            last = [e.eval_return for e in evaluations if (e.environment, e.variant, e.updates) == key]
            if last:
                each = ", ".join(f"{value:.0f}" for value in last)
                spread = f"{statistics.mean(last):.0f} +- {statistics.pstdev(last):.0f}"
                print(f"{task.environment}, {variant}, {task.updates} updates: {spread} ({each})")
