"""Records a reward's trajectory, checks an environment, measures it.

    python -m tfagents_system.racing record_reward --params my_params.py --config my.json --out reward.npz
    python -m tfagents_system.racing check_environment --params my_params.py --config my.json --out check
    python -m tfagents_system.racing benchmark --params my_params.py --config my.json

The environment's info must have `position`; docs/how_to/racing.md says more.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tfagents_system.checks.called_as import called_as
from tfagents_system.errors import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED, exit_with
from tfagents_system.playing.saved_run import find_path, load_run_params, output_folder
from tfagents_system.train_params_base import TrainParamsBase


def main(arguments: Sequence[str] | None = None) -> int:
    """The program; returns its exit code."""
    flags = _parse(arguments)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    policy_path = None if flags.policy is None else find_path(flags.policy, "--policy", Path.exists)
    params = load_run_params(None, flags.params, flags.config)
    from tfagents_system.envs.faults import EnvironmentFault

    try:
        _COMMANDS[flags.command](flags, params, policy_path)
    except EnvironmentFault as fault:
        print(f"error: {fault}", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return EXIT_DONE


def _record_reward(flags: argparse.Namespace, params: TrainParamsBase, policy: Path | None) -> None:
    from tfagents_system.envs.trajectory_reward import KEY
    from tfagents_system.playing import driving

    section = params.env_config.get(KEY)
    named = section.get("file") if isinstance(section, dict) else None
    out = Path(flags.out or named or "reward.npz").expanduser().absolute()
    loaded = _load(policy)
    print(driving.record_reward(params, loaded, flags.seed, out, flags.force, is_watched=flags.watch))


def _check_environment(flags: argparse.Namespace, params: TrainParamsBase, policy: Path | None) -> None:
    from tfagents_system.envs import rendering
    from tfagents_system.playing import driving

    rendering.prepare_headless()
    out = output_folder(flags.out or "check_environment", "--out")
    for line in driving.check_environment(params, _load(policy), flags.seed, out, flags.every):
        print(line)


def _benchmark(flags: argparse.Namespace, params: TrainParamsBase, policy: Path | None) -> None:
    from tfagents_system.playing import driving

    del policy
    for line in driving.benchmark(params, flags.seed, flags.steps):
        print(line)


_COMMANDS = {"record_reward": _record_reward, "check_environment": _check_environment, "benchmark": _benchmark}


def _load(policy: Path | None) -> Any:
    if policy is None:
        return None
    from absl import logging

    from tfagents_system.policies.files import load_policy

    logging.set_verbosity(logging.ERROR)
    return load_policy(policy, "--policy")


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    common = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    common.add_argument("--params", required=True, help="Python file with TrainParams")
    common.add_argument("--config", required=True, help="JSON of the environment")
    common.add_argument("--seed", type=_count, default=0, help="for the environment (default: 0)")
    driver = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    driver.add_argument(
        "--policy", help="who drives: a policy checkpoint, SavedModel or exported file (default: expert_policy_ctor)"
    )
    parser = argparse.ArgumentParser(
        prog=called_as("python -m tfagents_system.racing"), description=__doc__.split("\n")[0]
    )
    parser.set_defaults(policy=None)
    commands = parser.add_subparsers(dest="command", required=True)
    record = commands.add_parser("record_reward", parents=[common, driver], help="one lap, written as a trajectory")
    record.add_argument("--out", help="default: the file of trajectory_reward in the JSON, or reward.npz")
    record.add_argument("--watch", action="store_true", help="somebody else drives the device: nothing is sent")
    record.add_argument("--force", action="store_true", help="overwrite the file")
    check = commands.add_parser("check_environment", parents=[common, driver], help="prints rewards, writes pictures")
    check.add_argument("--out", help="folder for the pictures (default: check_environment)")
    check.add_argument("--every", type=_count_from_1, default=20, help="steps between two pictures (default: 20)")
    measure = commands.add_parser("benchmark", parents=[common], help="times of reset and step, memory")
    measure.add_argument("--steps", type=_count_from_1, default=2000, help="default: 2000")
    return parser.parse_args(arguments)


def _count(text: str, low: int = 0) -> int:
    value = int(text)
    if value < low:
        raise argparse.ArgumentTypeError(f"must be at least {low}, found {value}")
    return value


def _count_from_1(text: str) -> int:
    return _count(text, 1)


if __name__ == "__main__":
    exit_with(main)
