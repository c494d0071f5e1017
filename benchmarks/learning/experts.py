"""Experts of our own for the record of learning curves: who demonstrates, and what fine-tuning begins with.

An expert is trained once for each task (variant `sac, 50 steps`), and its run directory stays in
logs/experts_of_the_record/ for later commands. Its demonstrations are episodes of its best greedy policy, in a file as
`sac experience export` writes them:

    python -m benchmarks.learning.experts RUN --episodes 20 --out demos.npz
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.processes import ROOT, run_json

FOLDER = ROOT / "logs" / "experts_of_the_record"
_SEED = 1000  # Of no run of the record.
_PLAY_SECS = 1800.0


def expert_of(task: str, train: Callable[[int, Path], None], folder: Path = FOLDER) -> Path:
    """The run directory of a task's expert.

    Args:
      task: Its name.
      train: Trains one where there is none, with a seed, and puts its run directory into a folder.
      folder: Where the experts' are.
    """
    kept = folder / task
    if not kept.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        print(f"{task}: training an expert", file=sys.stderr, flush=True)
        train(_SEED, kept)
    return kept


def demonstrations_of(expert: Path, episodes: int) -> Path:
    """The file with so many demonstrations of an expert, made where there is none yet."""
    path = expert.parent / f"{expert.name}_{episodes}_demonstrations.npz"
    if not path.exists():
        command = [sys.executable, "-m", "benchmarks.learning.experts", str(expert), "--episodes", str(episodes)]
        told = run_json([*command, "--out", str(path)], _PLAY_SECS)
        print(f"{path}: {told}", file=sys.stderr, flush=True)
    return path


def demonstrate(expert: Path, episodes: int, path: Path) -> list[float]:
    """Plays the best policy of a run greedily and writes the episodes; returns their returns."""
    from tfagents_system.experience import data_sets
    from tfagents_system.playing.play import make_env
    from tfagents_system.playing.saved_run import find_checkpoint, load_run_params
    from tfagents_system.policies.files import load_policy
    from tfagents_system.run_files.run_paths import RunPaths

    paths = RunPaths(expert)
    policy = load_policy(find_checkpoint(paths, "best"), "the expert")
    with make_env(load_run_params(paths, None, None), _SEED, render=False) as env:
        played = [_episode(env, policy) for _ in range(episodes)]
    partial = path.with_suffix(".partial.npz")
    data_sets.write_npz(partial, played)
    os.replace(partial, path)
    return [float(each.rewards.sum()) for each in played]


def _episode(env: Any, policy: Any) -> Any:
    """One episode of an environment whose observations are arrays by name or one array, and whose action is one."""
    import numpy as np

    from tfagents_system.experience.data_sets import NamedEpisode

    time_step, state = env.reset(), policy.get_initial_state(1)
    observations, actions, rewards = [_by_name(time_step.observation)], [], []
    while not time_step.is_last():
        chosen = policy.action(time_step, state)
        state = chosen.state
        time_step = env.step_in_environment_units(chosen.action)
        observations.append(_by_name(time_step.observation))
        actions.append(chosen.action)
        rewards.append(time_step.reward)
    is_terminated = float(time_step.discount) == 0.0
    seen = {name: np.stack([each[name] for each in observations]) for name in observations[0]}
    return NamedEpisode(seen, {"": np.stack(actions)}, np.array(rewards), is_terminated)


def _by_name(observation: Any) -> dict[str, Any]:
    """As NamedEpisode has it."""
    return dict(observation) if isinstance(observation, Mapping) else {"": observation}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="run directory of the expert")
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument("--out", type=Path, required=True, help="file.npz")
    arguments = parser.parse_args()
    returns = demonstrate(arguments.run, arguments.episodes, arguments.out)
    print(json.dumps({"returns": returns, "mean": statistics.fmean(returns)}))


if __name__ == "__main__":
    main()
