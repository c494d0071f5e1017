"""Laps of runs' policies on the racing environment's held-out tracks, beside the built-in driver's.

    python -m benchmarks.learning.laps RUN... [--checkpoint latest]

One lap a track from rest, without exploration, with the curriculum's last values; `-` is a lap that was not finished.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfagents_system import load_run
from tfagents_system.envs.curriculum import EvaluatedTask
from tfagents_system.envs.racing.environment import RacingEnvironment
from tfagents_system.playing.saved_run import load_run_params
from tfagents_system.run_files.run_paths import RunPaths

DRIVER = "driver"


def laps(run: Path, drive: Callable[[RacingEnvironment, Mapping[str, np.ndarray]], np.ndarray]) -> dict[str, Any]:
    """Seconds of a lap by track; None where it was not finished.

    Args:
      run: A run directory whose environment is a race.
      drive: Returns gas, brake and steer for an observation of this environment.
    """
    params = load_run_params(RunPaths(run), None, None)
    args, kwargs = params.eval_env_args_kwargs(0, None)
    whole = params.env_ctor(*args, **kwargs)
    env = whole.unwrapped
    assert isinstance(env, RacingEnvironment)
    for name, value in EvaluatedTask(params.env_config, params.num_iter).stage(params.num_iter).items():
        env.set_state({name: value})
    found: dict[str, Any] = {}
    while True:
        observation, info = whole.reset()
        for _ in range(params.horizon):
            observation, _, terminated, truncated, info = whole.step(drive(env, observation))
            if terminated or truncated:
                break
        if info["track"] in found:
            return found
        found[info["track"]] = info["lap_time"] if info["is_success"] else None


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], allow_abbrev=False)
    parser.add_argument("run", nargs="+", type=Path, help="run directories, all with the same tracks")
    parser.add_argument("--checkpoint", default="latest", help="latest, best or its name (default: latest)")
    flags = parser.parse_args(argv)
    rows = {DRIVER: laps(flags.run[0], lambda env, observation: env.driver_action())}
    for run in flags.run:
        policy = load_run(run).policy(flags.checkpoint)
        policy.reset()
        rows[run.name] = laps(run, lambda env, observation, policy=policy: policy(observation))  # type: ignore[misc]
    print("| track |", " | ".join(rows[DRIVER]), "| finished | mean |")
    for name, row in rows.items():
        times = [time for time in row.values() if time is not None]
        told = ["-" if time is None else f"{time:.2f}" for time in row.values()]
        print(
            f"| {name} |", " | ".join(told), f"| {len(times)} | {statistics.mean(times) if times else math.nan:.2f} |"
        )


if __name__ == "__main__":
    main()
