"""Learning curves in bfloat16 beside those in float32, from real runs with the same seeds.

    python -m benchmarks.learning.precision [--seeds N] [--output FOLDER]

Every evaluation of every run goes to precision.csv, the curves to precision.png. It takes 40 minutes on 2 cores.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.processes import ROOT, end_on_sigterm
from benchmarks.real_run import RealRun
from tfagents_system.report.metrics import read_metrics

_PRECISIONS = ("float32", "bfloat16")
_WORKERS = 2
_SLOWEST_UPDATES_PER_S = 20.0
_START_SECS = 120.0
_FOLDER = ROOT / "benchmarks" / "learning"


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
        return self.iterations * self.horizon * _WORKERS


_TASKS = (Task("Pendulum-v1", 200, 24, 1e-3), Task("HalfCheetah-v5", 1000, 12, 3e-4))


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Mean return of the greedy policy's episodes after so many updates of one run."""

    environment: str
    precision: str
    seed: int
    updates: int
    eval_return: float


def train(task: Task, precision: str, seed: int) -> list[Evaluation]:
    """One run, from scratch to its last evaluation."""
    config = {
        "environment": task.environment,
        "horizon": task.horizon,
        "iterations": task.iterations,
        "updates_per_iteration": task.horizon * _WORKERS,
        "learning_rate": task.learning_rate,
        "precision": precision,
    }
    variables = {"SAC_NUM_COLLECT_WORKERS": _WORKERS, "SAC_TRAIN_CPUS": 2, "SAC_SEED": seed}
    with RealRun(_FOLDER / "params.py", config, variables) as run:

        def evaluations() -> list[Evaluation]:
            return [
                Evaluation(task.environment, precision, seed, int(row["train_step"] or 0), value)
                for row in read_metrics(run.paths.metrics_csv)
                if (value := row["eval_return"]) is not None
            ]

        run.wait_until(
            lambda: any(found.updates >= task.updates for found in evaluations()),
            f"the evaluation after {task.updates} updates",
            _START_SECS + task.updates / _SLOWEST_UPDATES_PER_S,
        )
        kind = run.heartbeat("trainer")["update"]
        if ("bfloat16" in kind) != (precision == "bfloat16"):
            raise RuntimeError(f"the run was to learn in {precision}, its update was: {kind}")
        return evaluations()


def write_csv(path: Path, evaluations: Sequence[Evaluation]) -> None:
    """One line an evaluation."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([field.name for field in dataclasses.fields(Evaluation)])
        writer.writerows([e.environment, e.precision, e.seed, e.updates, f"{e.eval_return:.1f}"] for e in evaluations)


def draw(path: Path, evaluations: Sequence[Evaluation]) -> None:
    """A panel an environment, a thin line a run, a thick one for the mean of each precision."""
    from matplotlib.figure import Figure

    environments = list(dict.fromkeys(e.environment for e in evaluations))
    figure = Figure(figsize=(4.8 * len(environments), 3.6), dpi=120, layout="constrained")
    for axes, environment in zip(figure.subplots(1, len(environments), squeeze=False)[0], environments, strict=True):
        for precision, color in zip(_PRECISIONS, ("#2a6f97", "#c8553d"), strict=True):
            runs: dict[int, dict[int, float]] = {}
            for e in evaluations:
                if (e.environment, e.precision) == (environment, precision):
                    runs.setdefault(e.seed, {})[e.updates] = e.eval_return
            for run in runs.values():
                axes.plot(list(run), list(run.values()), color=color, linewidth=0.8, alpha=0.45)
            common = [step for step in next(iter(runs.values()), {}) if all(step in run for run in runs.values())]
            means = [statistics.mean(run[step] for run in runs.values()) for step in common]
            axes.plot(common, means, color=color, linewidth=2.2, label=f"{precision}, mean of {len(runs)}")
        axes.set_title(environment, loc="left", fontsize=11)
        axes.set_xlabel("updates")
        axes.set_ylabel("evaluation return")
        axes.grid(alpha=0.25, linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=8)
    figure.savefig(path)


def print_table(evaluations: Sequence[Evaluation]) -> None:
    """The last evaluation of every run, with mean and standard deviation over the seeds."""
    for task in _TASKS:
        for precision in _PRECISIONS:
            last = [
                e.eval_return
                for e in evaluations
                if (e.environment, e.precision, e.updates) == (task.environment, precision, task.updates)
            ]
            if last:
                each = ", ".join(f"{value:.0f}" for value in last)
                spread = f"{statistics.mean(last):.0f} +- {statistics.pstdev(last):.0f}"
                print(f"{task.environment}, {precision}, {task.updates} updates: {spread} ({each})")


def main() -> None:
    end_on_sigterm()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--output", type=Path, default=_FOLDER / "results")
    arguments = parser.parse_args()
    evaluations: list[Evaluation] = []
    for task in _TASKS:
        for seed in range(arguments.seeds):
            for precision in _PRECISIONS:
                found = train(task, precision, seed)
                print(f"{task.environment}, {precision}, seed {seed}: {found[-1].eval_return:.0f}", file=sys.stderr)
                evaluations += found
                write_csv(arguments.output / "precision.csv", evaluations)
                draw(arguments.output / "precision.png", evaluations)
    print_table(evaluations)


if __name__ == "__main__":
    main()
