"""Learning curves of runs that are stopped, or killed with all their processes, and resumed, beside runs that are not.

    python -m benchmarks.learning.interrupted [--seeds N] [--output FOLDER]

Each interrupted run is stopped by SIGTERM and killed by SIGKILL in turn, three times in all, at moments that its seed
decides. Every evaluation of every run goes to interrupted.csv, the curves to interrupted.png. It takes 20 minutes on 2
cores.
"""

from __future__ import annotations

import argparse
import functools
import random
import signal
from pathlib import Path

from benchmarks.learning import curves
from benchmarks.learning.curves import Evaluation, Task
from benchmarks.processes import end_on_sigterm
from benchmarks.real_run import RealRun

_INTERRUPTIONS = 3
_SLOWEST_UPDATES_PER_S = 20.0
_START_SECS = 120.0


def train(task: Task, variant: str, seed: int) -> list[Evaluation]:
    """One run, from scratch to its last evaluation, interrupted or not."""
    deadline_secs = _START_SECS + task.updates / _SLOWEST_UPDATES_PER_S
    with task.start(seed) as run:
        if variant == "interrupted":
            moments = sorted(random.Random(seed).sample(range(1, task.updates), _INTERRUPTIONS))
            for number, moment in enumerate(moments):
                run.wait_until(functools.partial(_has_done, run, moment), f"update {moment}", deadline_secs)
                run.interrupt(signal.SIGKILL if number % 2 else signal.SIGTERM)
        run.wait_until(
            lambda: any(e.updates >= task.updates for e in curves.read_evaluations(run, task, variant, seed)),
            f"the evaluation after {task.updates} updates",
            deadline_secs,
        )
        return curves.read_evaluations(run, task, variant, seed)


def _has_done(run: RealRun, updates: int) -> bool:
    return (run.heartbeat("trainer").get("train_step") or 0) >= updates


def main() -> None:
    end_on_sigterm()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--output", type=Path, default=curves.FOLDER / "results")
    arguments = parser.parse_args()
    variants = ("not interrupted", "interrupted")
    curves.record("interrupted", [curves.PENDULUM], variants, arguments.seeds, train, arguments.output)


if __name__ == "__main__":
    main()
