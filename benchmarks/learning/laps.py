"""Laps of runs' policies on the racing environment's held-out tracks, beside the built-in driver's.

    python -m benchmarks.learning.laps RUN... [--checkpoint latest]

One lap a track from rest, without exploration, with the curriculum's last values; `-` is a lap that was not finished.
A policy drives in its run's own environment, a race in real time thus in wall time. The driver always waits for none.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfagents_system import load_run
from tfagents_system.envs.curriculum import EvaluatedTask
from tfagents_system.envs.training_environment import TrainingEnvironment
from tfagents_system.errors import UserError, exit_with
from tfagents_system.examples.racing.environment import RacingEnvironment, RacingSettings
from tfagents_system.examples.racing.track import HELD_OUT
from tfagents_system.playing.play import make_env, stopping_between_steps
from tfagents_system.playing.saved_run import load_run_params
from tfagents_system.policies.files import Policy
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.train_params_base import TrainParamsBase

DRIVER = "driver"
Laps = dict[str, float | None]
Action = Callable[[Mapping[str, np.ndarray]], Any]


def driver_laps(run: Path) -> Laps:
    """Seconds of the built-in driver's laps by track, turn-based; None where one was not finished.

    Args:
      run: A run directory whose environment is a race.
    """
    params = _params(run)
    race = RacingEnvironment(_racing(params), HELD_OUT)
    env = TrainingEnvironment(race, params.horizon)
    return _laps(run, params, env, lambda: lambda observation: race.driver_action())


def policy_laps(run: Path, policy: Policy) -> Laps:
    """The same of a policy in the run's environment.

    Raises:
      UserError: The environment is no race.
    """

    def begin() -> Policy:
        policy.reset()
        return policy

    params = _params(run)
    return _laps(run, params, make_env(params, 0, render=False), begin)


def _params(run: Path) -> TrainParamsBase:
    return load_run_params(RunPaths(run), None, None)


def _racing(params: TrainParamsBase) -> RacingSettings:
    return RacingSettings.of(params.env_config)


def _laps(run: Path, params: TrainParamsBase, env: TrainingEnvironment, begin: Callable[[], Action]) -> Laps:
    """Drives a lap on each held-out track, and closes the environment.

    Args:
      begin: Begins an episode; returns what turns its observations into actions in the environment's own units.
    """
    found: Laps = {}
    with stopping_between_steps(env) as check_stop:
        for name, value in EvaluatedTask(params.env_config, params.num_iter).stage(params.num_iter).items():
            env.set_state({name: value})
        for number, track in enumerate(_racing(params).track_names(HELD_OUT)):
            env.evaluation_episode = number
            step, act = env.reset(), begin()
            while not step.is_last():
                check_stop()
                step = env.step_in_environment_units(act(step.observation))
            if env.info.get("track") != track:
                raise UserError(f"{run}: its environment is no race on {track}: give runs of the racing examples")
            found[track] = env.info["lap_time"] if env.info["is_success"] else None
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], allow_abbrev=False)
    parser.add_argument("run", nargs="+", type=Path, help="run directories, all with the same tracks")
    parser.add_argument("--checkpoint", default="latest", help="latest, best or its name (default: latest)")
    flags = parser.parse_args(argv)
    rows = {DRIVER: driver_laps(flags.run[0])}
    for run in flags.run:
        rows[run.name] = policy_laps(run, load_run(run).policy(flags.checkpoint))
    print("| track |", " | ".join(rows[DRIVER]), "| finished | mean |")
    for name, row in rows.items():
        times = [time for time in row.values() if time is not None]
        told = ["-" if time is None else f"{time:.2f}" for time in row.values()]
        mean = f"{statistics.mean(times):.2f}" if times else "-"
        print(f"| {name} |", " | ".join(told), f"| {len(times)} | {mean} |")
    return 0


if __name__ == "__main__":
    exit_with(main)
