"""A core steps the race 10,000 times a second with kinematics, 5,000 with lidar, 2,000 with the camera, in 60 MB.

    python -m benchmarks.racing [--quick]

Each kind of observation in a process of its own, on its 20 training tracks, with random actions: CPU time of the steps
and resets, in turns so that other programs disturb all alike; and the memory of that process alone (unique set size).
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time

import psutil

from benchmarks.outcome import Outcome, parse_args
from benchmarks.processes import ROOT, run_json

_TARGETS = {"kinematics": 10_000, "lidar": 5_000, "camera": 2_000}
_MOST_MB = 60.0
_DEADLINE_SECS = 120.0


def measure(kind: str, steps: int) -> dict[str, float]:
    """Steps a second of CPU time, and the process's memory before the race is there and after it, MB."""
    import gymnasium  # noqa: F401 (its memory and NumPy's are not the race's)
    import numpy as np

    process = psutil.Process()
    before = process.memory_full_info().uss
    from tfagents_system.envs.racing.environment import RacingEnvironment
    from tfagents_system.envs.racing.settings import RacingSettings

    env = RacingEnvironment(RacingSettings.of({"observations": [kind]}))
    rng = np.random.default_rng(0)
    actions = rng.uniform((0.0, -1.0, -0.3), (1.0, 0.0, 0.3), (1000, 3))
    env.reset(seed=0)
    seen = {env.track.name}
    while len(seen) < len(env.track_names):  # All tracks are in memory then, and drawn.
        env.reset()
        seen.add(env.track.name)
    began = time.process_time()
    for step in range(steps):
        if env.step(actions[step % 1000])[2]:
            env.reset()
    secs = time.process_time() - began
    return {"rate": steps / secs, "before": before / 1e6, "mb": process.memory_full_info().uss / 1e6}


def main() -> None:
    """The program."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--measure", nargs=2, metavar=("KIND", "STEPS"), help="one process; for the program itself")
    flags = parse_args(parser)
    if flags.measure:
        import json

        print(json.dumps(measure(flags.measure[0], int(flags.measure[1]))))
        return
    steps, rounds = (500, 1) if flags.quick else (20_000, 5)
    found: dict[str, list[dict[str, float]]] = {kind: [] for kind in _TARGETS}
    for _ in range(rounds):
        for kind in _TARGETS:
            command = [sys.executable, "-m", "benchmarks.racing", "--measure", kind, str(steps)]
            found[kind].append(run_json(command, _DEADLINE_SECS, folder=ROOT))
    outcome = Outcome((__doc__ or "").split("\n")[0])
    for kind, target in _TARGETS.items():
        rate = statistics.median(each["rate"] for each in found[kind])
        mb = statistics.median(each["mb"] for each in found[kind])
        outcome.row(f"{kind}", rate, "steps/s of CPU time")
        outcome.row(f"{kind}: memory of the process", mb, "MB")
        outcome.ratio(f"steps/s with {kind} over {target:,}", rate / target, 1.0)
        outcome.ratio(f"{_MOST_MB:g} MB over the process with {kind}", _MOST_MB / mb, 1.0)
    before = statistics.median(each["before"] for kind in _TARGETS for each in found[kind])
    outcome.row("memory of Python, NumPy and Gymnasium alone", before, "MB")
    outcome.note(f"{rounds} rounds of {steps:,} steps for each, the median; resets are within")
    outcome.print()


if __name__ == "__main__":
    main()
