"""Twice the workers collect twice as much, from 1 to 64 on one machine, until a named resource is full.

    python -m benchmarks.many_workers [--quick]

Real runs in lock-step with an environment that sleeps 20 ms a step, 200 steps an episode, and 10 updates an iteration.
Then the idle share of 8 workers, where episodes have 20 to 1000 steps: with iterations of episodes, and of steps.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import psutil

from benchmarks.outcome import Outcome, parse_args
from benchmarks.processes import ROOT, end_on_sigterm
from benchmarks.real_run import RealRun

_STEP_MS, _HORIZON = 20.0, 200
_WARM_UP_ITERATIONS = 2
_DEADLINE_SECS = 300.0
_VARIED_WORKERS, _VARIED_LENGTHS, _VARIED_STEP_MS = 8, (20, 1000), 5.0
_VARIED_SECS = 60.0
_VARIED: dict[str, dict[str, Any]] = {
    "iterations of an episode of each": {},
    "iterations of 400 steps": {"env_steps_per_iter": 400, "updates_per_env_step": 0.025},
}


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


def idle_share(attributes: Mapping[str, Any], secs: float) -> float:
    """Share of the workers' time in which they don't step, where the lengths of episodes differ."""
    config = {"horizon": _VARIED_LENGTHS[1], "step_ms": _VARIED_STEP_MS, "lengths": _VARIED_LENGTHS}
    variables = {"SAC_NUM_COLLECT_WORKERS": _VARIED_WORKERS}
    params = ROOT / "benchmarks" / "sleeping_params.py"
    with RealRun(params, {**config, "attributes": attributes}, variables) as run:
        run.wait_until(lambda: len(run.iterations()) >= _WARM_UP_ITERATIONS, "its first iterations", _DEADLINE_SECS)
        time.sleep(secs)
        rows = run.iterations()[_WARM_UP_ITERATIONS - 1 :]
    steps, elapsed = (rows[-1][name] - rows[0][name] for name in ("env_steps", "wall_time_s"))
    return 1.0 - steps * _VARIED_STEP_MS / 1000.0 / (_VARIED_WORKERS * elapsed)


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
    for name, attributes in _VARIED.items():
        share = idle_share(attributes, _VARIED_SECS / (6 if args.quick else 1))
        outcome.row(f"{_VARIED_WORKERS} workers, episodes of 20 to 1000 steps, {name}: idle", share, "of their time")
    outcome.note(
        f"{psutil.cpu_count()} CPUs, shared by all roles; {1000 / _STEP_MS:.0f} steps/s are the most for a worker"
    )
    outcome.print()


if __name__ == "__main__":
    main()
