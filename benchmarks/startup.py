"""A run is at its first update within 15 s on 2 cores; 32 workers are up within 30 s, with 350 MB each at most.

    python -m benchmarks.startup [--quick]

`./run_script.sh` with the Pendulum example, the environment made. A worker's memory is its proportional set size (PSS):
pages that several processes share count in parts.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time

from benchmarks.outcome import Outcome, parse_args
from benchmarks.processes import ROOT, end_on_sigterm
from benchmarks.real_run import RealRun

_DEADLINE_SECS = 300.0
_PENDULUM = ROOT / "tfagents_system/examples/pendulum/params.py"


def pendulum(num_workers: int) -> RealRun:
    config = json.loads((ROOT / "tfagents_system/examples/pendulum/config.json").read_text())
    variables = {"SAC_NUM_COLLECT_WORKERS": num_workers, "SAC_TRAIN_CPUS": 2}
    return RealRun(_PENDULUM, config, variables)


def time_line(run: RealRun) -> dict[str, float]:
    """Seconds from the command to each step of the start."""
    steps = {
        "checks are done": lambda: run.paths.specs.exists(),
        "the roles are started": lambda: run.paths.log("trainer").exists(),
        "the replay server serves": lambda: run.heartbeat("replay").get("state") == "serving",
        "a worker collects": lambda: run.heartbeat("worker_0").get("steps", 0) > 0,
        "the first updates": lambda: run.heartbeat("trainer").get("train_step", 0) > 0,
    }
    return {what: run.wait_until(condition, what, _DEADLINE_SECS) for what, condition in steps.items()}


def one_import() -> float:
    """CPU seconds that a process takes to import what a role needs."""
    script = "import tfagents_system.sac_train, time; print(time.process_time())"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def main() -> None:
    args = parse_args()
    end_on_sigterm()
    outcome = Outcome(__doc__.splitlines()[0])
    outcome.row("importing TensorFlow, TF-Agents and Reverb", one_import(), "s of CPU")
    starts = []
    for _ in range(1 if args.quick else 3):
        with pendulum(2) as run:
            starts.append(time_line(run))
    for what in starts[0]:
        outcome.row(f"cold start: {what}", statistics.median(start[what] for start in starts), "s")
    first_update = statistics.median(start["the first updates"] for start in starts)
    outcome.ratio("15 s over the time to the first update", 15.0 / first_update, 1.0)
    count = 4 if args.quick else 32
    with pendulum(count) as run:
        workers = [f"worker_{k}" for k in range(count)]
        up = run.wait_until(
            lambda: all(run.heartbeat(worker).get("state", "starting") != "starting" for worker in workers),
            f"{count} workers up",
            _DEADLINE_SECS,
        )
        time.sleep(2.0)  # They have weights and environments now.
        pss = [process.memory_full_info().pss for name, process in run.processes().items() if name in workers]
    outcome.row(f"{count} workers are up after", up, "s")
    outcome.row(f"memory of a worker among {len(pss)} (PSS)", statistics.median(pss) / 1e6, "MB")
    if not args.quick:
        outcome.ratio("30 s over the time for 32 workers", 30.0 / up, 1.0)
    outcome.ratio("350 MB over a worker's memory", 350e6 / max(pss), 1.0)
    outcome.print()


if __name__ == "__main__":
    main()
