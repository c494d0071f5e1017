"""Twice the workers collect twice as much, from 1 to 64 on one machine, until a named resource is full.

    python -m benchmarks.many_workers [--quick]

Real runs in lock-step with an environment that sleeps 20 ms a step, 200 steps an episode, and 10 updates an iteration.
"""

from __future__ import annotations

import time
from typing import Any

import psutil

from benchmarks.outcome import Outcome, parse_args
from benchmarks.processes import ROOT, end_on_sigterm
from benchmarks.real_run import RealRun

_STEP_MS, _HORIZON = 20.0, 200
_WARM_UP_ITERATIONS = 2
_DEADLINE_SECS = 300.0


def measure(num_workers: int, iterations: int) -> dict[str, Any]:
    """Steps/s over some iterations, once all workers collect, and the CPU time that goes with them."""
    config = {"horizon": _HORIZON, "step_ms": _STEP_MS}
    variables = {"SAC_NUM_COLLECT_WORKERS": num_workers}
    with RealRun(ROOT / "benchmarks" / "sleeping_params.py", config, variables) as run:
        run.wait_until(lambda: len(run.iterations()) >= _WARM_UP_ITERATIONS, "its first iterations", _DEADLINE_SECS)
        before, started = _cpu_secs(run), time.monotonic()
        total = _WARM_UP_ITERATIONS + iterations
        run.wait_until(lambda: len(run.iterations()) >= total, f"{total} iterations", _DEADLINE_SECS)
        elapsed, after = time.monotonic() - started, _cpu_secs(run)
        rows = run.iterations()
        secs = rows[total - 1]["wall_time_s"] - rows[_WARM_UP_ITERATIONS - 1]["wall_time_s"]
        return {
            # In lock-step every iteration is one episode of each worker.
            "steps_per_s": iterations * num_workers * _HORIZON / secs,
            "cpus": {name: (after[name] - before[name]) / elapsed for name in after},
        }


def _cpu_secs(run: RealRun) -> dict[str, float]:
    """CPU time so far, by kind of role."""
    totals = {"replay": 0.0, "trainer": 0.0, "workers": 0.0}
    for name, process in run.processes().items():
        kind = "workers" if name.startswith("worker") else name
        if kind in totals:
            totals[kind] += sum(process.cpu_times()[:2])
    return totals


def main() -> None:
    args = parse_args()
    end_on_sigterm()
    outcome = Outcome(__doc__.splitlines()[0])
    first = 0.0
    for count in (1, 2) if args.quick else (1, 2, 4, 8, 16, 32, 64):
        measured = measure(count, 1 if args.quick else 3)
        rate = measured["steps_per_s"]
        first = first or rate
        outcome.row(f"{count} workers", rate, "steps/s")
        for role, cpus in measured["cpus"].items():
            outcome.row(f"{count} workers: CPU of {role}", cpus, "CPUs")
        outcome.ratio(f"{count} workers over {count} times one", rate / (count * first), 0.9)
    outcome.note(
        f"{psutil.cpu_count()} CPUs, shared by all roles; {1000 / _STEP_MS:.0f} steps/s are the most for a worker"
    )
    outcome.print()


if __name__ == "__main__":
    main()
