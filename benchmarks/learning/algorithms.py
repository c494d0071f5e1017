"""Learning curves of every algorithm beside those of peers, from real runs: a record that grows run by run.

    python -m benchmarks.learning.algorithms --task pendulum --variant sac tqc --seeds 0 1 2 [--peers_python PYTHON]

Each run that the record lacks is trained, and added to results/algorithms.csv with all its evaluations; then the curves
of its task are drawn anew (results/algorithms_<task>.png) and the table printed. Without --variant the record is only
shown.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import json
import os
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.learning import experts
from benchmarks.learning.tasks import OURS, PEERS, TASKS, Task, Variant
from benchmarks.processes import ROOT, end_on_sigterm, run_json
from benchmarks.real_run import RealRun
from tfagents_system.report import compare
from tfagents_system.report.compare import Run
from tfagents_system.run_files.metrics import read_rows

FOLDER = ROOT / "benchmarks" / "learning"
_EVAL_EPISODES = 10
_TRAIN_CPUS = 2
_SLOWEST_UPDATES_PER_S = 4.0
_START_SECS = 300.0
_POLL_SECS = 0.5


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """A line of the record: mean return of the greedy policy's episodes after so many steps of one run.

    Attributes:
      wall_secs: Of the whole run, evaluations included; other work on the machine makes it longer.
    """

    task: str
    variant: str
    seed: int
    env_steps: int
    eval_return: float
    wall_secs: float

    @classmethod
    def from_row(cls, row: dict[str, str]) -> Evaluation:
        numbers = int(row["seed"]), int(row["env_steps"]), float(row["eval_return"]), float(row["wall_secs"])
        return cls(row["task"], row["variant"], *numbers)


class Evaluated(NamedTuple):
    """An evaluation of a run, and the seconds after which it was done, from the command on."""

    env_steps: int
    eval_return: float
    secs: float


def train(task: Task, variant: Variant, seed: int, peers_python: str, env_python: str | None = None) -> list[Evaluated]:
    """One run from scratch, and what its evaluations were."""
    if variant.library:
        return _train_peer(task, variant, seed, peers_python)
    return _train_ours(task, variant, seed, env_python)


def _train_ours(
    task: Task, variant: Variant, seed: int, env_python: str | None, keep: Path | None = None
) -> list[Evaluated]:
    """A run by run_script.sh with one worker, ended when it has been evaluated after the last step.

    Args:
      keep: Where its run directory goes then; None: it is not kept.
    """
    prior_data, begins_with = of_expert(task, variant, env_python)
    attributes = attributes_of(task, variant) | prior_data
    config = {"environment": task.environment, "horizon": task.horizon, "attributes": attributes}
    config["initializer"] = variant.initializer
    train_cpus = min(_TRAIN_CPUS, len(os.sched_getaffinity(0)))
    variables = {"SAC_NUM_COLLECT_WORKERS": 1, "SAC_TRAIN_CPUS": train_cpus, "SAC_SEED": seed, "SAC_REPORT": 0}
    further = {} if env_python is None else {"SAC_ENV_PYTHON": env_python}
    deadline_secs = _START_SECS + task.steps * variant.updates_per_step / _SLOWEST_UPDATES_PER_S
    with RealRun(FOLDER / "params.py", config, variables | further | begins_with) as run:
        evaluations = list[Evaluated]()

        def is_over() -> bool:
            rows = [row for row in read_rows(run.paths.metrics_csv) if row["eval_return"] is not None]
            secs = time.monotonic() - run.started
            for row in rows[len(evaluations) :]:
                evaluations.append(Evaluated(int(row["env_steps"] or 0), row["eval_return"] or 0.0, secs))
            return bool(evaluations) and evaluations[-1].env_steps >= task.steps

        run.wait_until(is_over, f"an evaluation after {task.steps} steps", deadline_secs, poll_secs=_POLL_SECS)
        if keep is not None:
            run.stop()
            shutil.copytree(run.paths.exp_dir, keep.with_suffix(".partial"), dirs_exist_ok=True)
            keep.with_suffix(".partial").rename(keep)
        return evaluations


def of_expert(task: Task, variant: Variant, env_python: str | None) -> tuple[dict[str, object], dict[str, object]]:
    """What a run has of the task's expert, which is trained first where there is none: attributes, and variables."""
    attributes, variables = dict[str, object](), dict[str, object]()
    if variant.demonstrations:
        expert = _expert_of(task.expert, env_python)
        attributes["prior_data"] = str(experts.demonstrations_of(expert, variant.demonstrations))
    if variant.is_fine_tuned:
        variables["SAC_FROM"] = _expert_of(task.expert, env_python)
    return attributes, variables


def _expert_of(task: str, env_python: str | None) -> Path:
    """The run directory of a task's expert, which is plain SAC; see experts.py."""

    def train(seed: int, folder: Path) -> None:
        whole = TASKS[task]
        shortened = dataclasses.replace(whole, steps=whole.expert_steps or whole.steps)
        _train_ours(shortened, OURS["sac, 50 steps"], seed, env_python, folder)

    return experts.expert_of(task, train)


def attributes_of(task: Task, variant: Variant) -> dict[str, object]:
    """Attributes of TrainParams of a run of ours: the task's, and then the variant's own."""
    rate = variant.learning_rate if task.learning_rate is None else task.learning_rate
    own = {**variant.attributes, **(task.values.ours if task.values and variant.values else {})}
    iteration_steps = int(own.get("env_steps_per_iter") or task.horizon)
    return {
        **({} if "env_steps_per_iter" in own else {"num_train_episodes_per_iter": 1}),
        "updates_per_env_step": variant.updates_per_step,
        "num_initial_episodes": task.random_episodes,
        "buffer_size": task.steps + task.random_episodes * task.horizon,
        "num_eval_episodes": _EVAL_EPISODES,
        "eval_period_iters": max(1, task.eval_steps // iteration_steps),
        "num_iter": task.steps,  # More than there will be: an iteration has a step at least.
        # Their rates fall over the length of a run.
        **({"num_env_steps": task.steps} if own.get("algorithm") in ("xqc", "flash_sac") else {}),
        **({"learning_rate": rate} if rate is not None else {}),
        **task.attributes,
        **own,
    }


def _train_peer(task: Task, variant: Variant, seed: int, python: str) -> list[Evaluated]:
    command = [python, "-m", "benchmarks.peers.learning", "--library", variant.library]
    command += ["--algorithm", variant.algorithm, "--environment", task.environment, "--steps", str(task.steps)]
    command += ["--eval_steps", str(task.eval_steps), "--eval_episodes", str(_EVAL_EPISODES), "--seed", str(seed)]
    if task.learning_rate is not None:
        command += ["--learning_rate", str(task.learning_rate)]
    values = task.values.peers(task.steps) if task.values and variant.values else {}
    command += ["--options", json.dumps({**task.peer_options, **values, **variant.options})]
    command += ["--goals"] if task.goals else []
    command += ["--normalize"] if task.attributes.get("normalize_observations") else []
    result = run_json(command, _START_SECS + task.steps * variant.updates_per_step / _SLOWEST_UPDATES_PER_S)
    return [Evaluated(*row) for row in zip(result["env_steps"], result["eval_returns"], result["secs"], strict=True)]


# The record.


def read_record(path: Path) -> list[Evaluation]:
    """All lines; none where there is no file yet."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return [Evaluation.from_row(row) for row in csv.DictReader(file)]


def append(path: Path, evaluations: Sequence[Evaluation]) -> None:
    """Adds the lines of one run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    is_new = not path.exists()
    with path.open("a", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if is_new:
            writer.writerow([field.name for field in dataclasses.fields(Evaluation)])
        writer.writerows(
            [e.task, e.variant, e.seed, e.env_steps, f"{e.eval_return:.2f}", f"{e.wall_secs:.0f}"] for e in evaluations
        )


def runs_of(task: str, evaluations: Sequence[Evaluation]) -> list[Run]:
    """The runs of a task, in the order in which variants are listed."""
    runs = []
    for variant in (*OURS, *PEERS):
        for seed in sorted({e.seed for e in evaluations if (e.task, e.variant) == (task, variant)}):
            lines = [e for e in evaluations if (e.task, e.variant, e.seed) == (task, variant, seed)]
            steps, returns = np.array([e.env_steps for e in lines], float), np.array([e.eval_return for e in lines])
            best = max((e.eval_return for e in lines if e.env_steps), default=None)
            runs.append(Run(Path(f"{variant}_{seed}"), variant, {}, "done", steps, returns, "metrics.csv", best))
    return runs


def show(task: str, path: Path) -> None:
    """Draws the curves of a task and prints its table."""
    runs = runs_of(task, read_record(path))
    if not runs:
        return
    groups = compare.group_runs(runs)
    compare.draw(groups, path.with_name(f"algorithms_{task}.png"))
    print(f"{TASKS[task].environment}:")
    compare.print_table(compare.table_of(groups), runs)


def main() -> None:
    end_on_sigterm()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    variants = {**OURS, **PEERS}
    parser.add_argument("--task", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--variant", nargs="+", choices=variants, default=[])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--steps", type=int, help="ends runs earlier than their task says")
    parser.add_argument("--peers_python", default=str(ROOT / ".venv-peers" / "bin" / "python"))
    parser.add_argument("--env_python", help="for our environments, as SAC_ENV_PYTHON")
    parser.add_argument("--output", type=Path, default=FOLDER / "results")
    arguments = parser.parse_args()
    unfit = [f"{v} on {t}" for t in arguments.task for v in arguments.variant if not variants[v].fits(TASKS[t])]
    if unfit:
        parser.error(
            "--variant must have the kind of actions of --task, discrete or not, and leave out only what it has; not "
            f"so {', '.join(unfit)}"
        )
    path = arguments.output / "algorithms.csv"
    for seed in arguments.seeds:
        for task in arguments.task:
            for variant in arguments.variant:
                if any((e.task, e.variant, e.seed) == (task, variant, seed) for e in read_record(path)):
                    continue
                whole = TASKS[task]
                of_expert(whole, variants[variant], arguments.env_python)  # It does not count in the run's time.
                began = time.monotonic()
                shortened = dataclasses.replace(whole, steps=min(whole.steps, arguments.steps or whole.steps))
                done = train(shortened, variants[variant], seed, arguments.peers_python, arguments.env_python)
                secs = time.monotonic() - began
                append(path, [Evaluation(task, variant, seed, e.env_steps, e.eval_return, secs) for e in done])
                last = done[-1].eval_return
                print(f"{task}, {variant}, seed {seed}: {last:.1f}, {secs:.0f} s", file=sys.stderr, flush=True)
    for task in arguments.task:
        show(task, path)


if __name__ == "__main__":
    main()
