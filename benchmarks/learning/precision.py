"""Learning curves in bfloat16 beside those in float32, from real runs with the same seeds.

    python -m benchmarks.learning.precision [--seeds N] [--output FOLDER]

Every evaluation of every run goes to precision.csv, the curves to precision.png. It takes 15 minutes on 2 cores.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.learning import curves
from benchmarks.learning.curves import Evaluation, Task
from benchmarks.processes import end_on_sigterm

_SLOWEST_UPDATES_PER_S = 20.0
_START_SECS = 120.0


def train(task: Task, precision: str, seed: int) -> list[Evaluation]:
    """One run, from scratch to its last evaluation."""
    with task.start(seed, precision) as run:
        run.wait_until(
            lambda: any(e.updates >= task.updates for e in curves.read_evaluations(run, task, precision, seed)),
            f"the evaluation after {task.updates} updates",
            _START_SECS + task.updates / _SLOWEST_UPDATES_PER_S,
        )
        kind = run.heartbeat("trainer")["update"]
        if ("bfloat16" in kind) != (precision == "bfloat16"):
            raise RuntimeError(f"the run was to learn in {precision}, its update was: {kind}")
        return curves.read_evaluations(run, task, precision, seed)


def main() -> None:
    end_on_sigterm()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--output", type=Path, default=curves.FOLDER / "results")
    arguments = parser.parse_args()
    tasks, variants = (curves.PENDULUM, curves.DOUBLE_PENDULUM), ("float32", "bfloat16")
    curves.record("precision", tasks, variants, arguments.seeds, train, arguments.output)


if __name__ == "__main__":
    main()
