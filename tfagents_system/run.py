"""Plays a saved policy: returns, lengths, and a video of each episode.

    python tfagents_system/run.py --exp_dir logs/minitaur --num_episodes 5 --checkpoint best --seed 108
    python tfagents_system/run.py --exp_dir logs/minitaur --montage
    python tfagents_system/run.py --policy exported/policy.npz --params my_params.py --config my.json

Needs TensorFlow and the environment, but no Reverb, and writes nothing but the videos.
"""

# ruff: noqa: E402 (sys.path is put right before our own modules are imported)
from __future__ import annotations

import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    # A script's own folder comes first in sys.path, where our modules would hide others of the same name.
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != _ROOT / "tfagents_system"]
    sys.path.insert(0, str(_ROOT))

import argparse
import dataclasses
import os
import random
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tfagents_system.envs.curriculum import EvaluatedTask, Values, values_in_words
from tfagents_system.envs.info_keys import SUCCESS_KEYS
from tfagents_system.errors import EXIT_DONE, EXIT_FAILED, exit_with
from tfagents_system.playing.played_environment import check_fit, make_env
from tfagents_system.playing.saved_run import find_checkpoint, find_path, load_run_params, milestones, output_folder
from tfagents_system.run_files.run_directory import read_run_json
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.train_params_base import TrainParamsBase

_EXIT_INTERRUPTED = 130  # The shells' exit code of a program that Ctrl-C ended.
_MAX_FRAMES_PER_SECOND = 30  # Simulators with finer steps are drawn less often, because drawing is slow.


@dataclasses.dataclass(frozen=True)
class PlayedEpisode:
    """One episode.

    Attributes:
      episode_return: Undiscounted sum of rewards.
      success: As the environment reports it; None where it does not.
      video: The MP4; None without one.
    """

    episode_return: float
    length: int
    success: bool | None
    video: Path | None
    curriculum: Mapping[str, float] = dataclasses.field(default_factory=dict)


def main(arguments: Sequence[str] | None = None) -> int:
    """The program; returns its exit code."""
    flags = _parse(arguments)
    paths = None if flags.exp_dir is None else RunPaths(find_path(flags.exp_dir, "--exp_dir", Path.is_dir))
    policies = _policies(flags, paths)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")  # Single observations are faster on the CPU.
    if not flags.no_video:
        from tfagents_system.envs import rendering

        rendering.prepare_headless()
    if paths and (env_python := read_run_json(paths).get("env_python")):
        os.environ.setdefault("SAC_ENV_PYTHON", str(env_python))  # The environment runs where it was trained.
    params = load_run_params(paths, flags.params, flags.config)
    from tfagents_system.envs.faults import EnvironmentFault

    try:
        if flags.montage:
            _play_montage(params, policies, flags.seed, _video_dir(flags, paths))
        else:
            video_dir = None if flags.no_video else _video_dir(flags, paths)
            print(policies[0].name + (f" of {paths.exp_dir}" if paths else ""), flush=True)
            print(_summary(play(params, policies[0], flags.num_episodes, flags.seed, video_dir)))
    except EnvironmentFault as fault:
        print(f"error: {fault}", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        return _EXIT_INTERRUPTED
    return EXIT_DONE


def play(
    params: TrainParamsBase,
    path: Path,
    num_episodes: int,
    seed: int,
    video_dir: Path | None = None,
    on_episode: Callable[[int, PlayedEpisode], None] | None = None,
) -> list[PlayedEpisode]:
    """Plays episodes with a greedy policy.

    Args:
      path: The policy: a checkpoint of a run, a SavedModel, or an exported file.
      seed: Determines all random numbers.
      video_dir: Where videos go; None makes none.
      on_episode: Called with every episode, from 1; the default prints it.

    Raises:
      UserError: The policy does not fit the environment, or the environment can't be drawn.
      EnvironmentFault: The environment failed.
    """
    policy = _load_policy(path)
    random.seed(seed)
    np.random.seed(seed % 2**32)  # Makes environments that use the global generators repeatable.
    episodes = []
    with make_env(params, seed, render=video_dir is not None) as env:
        check_fit(policy, env)
        values = _apply_curriculum(params, env, _iteration(params, path, policy))
        for k in range(1, num_episodes + 1):
            video = video_dir / f"{path.name}_seed_{seed}_episode_{k}.mp4" if video_dir else None
            episodes.append(dataclasses.replace(_play_episode(env, policy, video), curriculum=values))
            (on_episode or _print_episode)(k, episodes[-1])
    return episodes


def _play_montage(params: TrainParamsBase, checkpoints: Sequence[Path], seed: int, video_dir: Path) -> None:
    """One episode of each checkpoint, then all of them side by side in one video."""
    from tfagents_system.playing import montage

    if len(checkpoints) == 1:
        print(f"note: {checkpoints[0].name} is the only checkpoint: the montage shows it alone", flush=True)
    with tempfile.TemporaryDirectory(prefix="montage_") as temporary:
        parts = []
        for checkpoint in checkpoints:
            train_step = int(checkpoint.name.rpartition("_")[2])

            def tell(k: int, episode: PlayedEpisode, name: str = checkpoint.name) -> None:
                print(f"{name}: return {episode.episode_return:.3f}, {episode.length} steps", flush=True)

            episode = play(params, checkpoint, 1, seed, Path(temporary), tell)[0]
            assert episode.video is not None
            played = [f"return {episode.episode_return:.1f}", values_in_words(episode.curriculum)]
            parts.append(montage.Part(episode.video, f"train step {train_step:,}", ", ".join(filter(None, played))))
        print(montage.join(parts, video_dir / "montage.mp4"))


def _policies(flags: argparse.Namespace, paths: RunPaths | None) -> list[Path]:
    """What is played: one policy, or the checkpoints of a montage."""
    if flags.policy is not None:
        return [find_path(flags.policy, "--policy", Path.exists)]
    assert paths is not None
    return milestones(paths) if flags.montage else [find_checkpoint(paths, flags.checkpoint)]


def _video_dir(flags: argparse.Namespace, paths: RunPaths | None) -> Path:
    if flags.video_dir:
        return output_folder(flags.video_dir, "--video_dir")
    return (paths.videos if paths else Path("videos")).absolute()


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Plays a saved policy: returns, lengths, videos.", allow_abbrev=False)
    parser.add_argument("--exp_dir", help="run directory, such as logs/minitaur")
    parser.add_argument("--params", help="Python file with TrainParams (default: the run's own copy)")
    parser.add_argument("--config", help="JSON of the environment (default: the run's own copy)")
    parser.add_argument("--num_episodes", type=_integer_from(1), default=1, help="default: 1")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--checkpoint", default="latest", help="name in policies/checkpoints, latest (default) or best")
    which.add_argument("--policy", help="another policy: a SavedModel, or a file or folder of tfagents_system.export")
    which.add_argument("--montage", action="store_true", help="first, middle and best checkpoint in one video")
    parser.add_argument("--seed", type=_integer_from(0), default=0, help="for the environment (default: 0)")
    parser.add_argument("--no_video", action="store_true", help="numbers only")
    parser.add_argument("--video_dir", help="where videos go (default: videos/ in the run directory, or here)")
    flags = parser.parse_args(arguments)
    if flags.exp_dir is None and flags.policy is None:
        parser.error("--exp_dir is missing: give a run directory, or --policy with --params and --config")
    if flags.montage and flags.no_video:
        parser.error("--montage is a video: leave out --no_video")
    if flags.montage and flags.num_episodes != 1:
        parser.error("--montage plays one episode of each checkpoint: leave out --num_episodes")
    return flags


def _integer_from(low: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = int(text)
        if value < low:
            raise argparse.ArgumentTypeError(f"must be at least {low}, found {value}")
        return value

    parse.__name__ = "integer"
    return parse


def _load_policy(path: Path) -> Any:
    from absl import logging

    from tfagents_system.policies.policy_files import load_policy

    logging.set_verbosity(logging.ERROR)
    return load_policy(path, "--policy")


def _iteration(params: TrainParamsBase, path: Path, policy: Any) -> int:
    """The iteration in which a policy was saved."""
    from tfagents_system.policies.checkpoint_names import iteration_of

    known = policy.description["iteration"] if hasattr(policy, "description") else iteration_of(path)
    if known is None:  # SavedModels and earlier versions' checkpoints: iterations of equal length.
        return max(0, int(policy.get_train_step())) // max(1, params.num_steps_per_iter)
    return known


def _apply_curriculum(params: TrainParamsBase, env: Any, iteration: int) -> Values:
    """Sets the values with which the policy of that iteration was evaluated, and prints them."""
    task = EvaluatedTask(params.env_config, params.num_iter)
    values = task.stage(iteration)
    for name, value in values.items():
        env.set_state({name: value})
    if stage := task.in_words(iteration):
        print(f"curriculum of {stage}", flush=True)
    return values


def _play_episode(env: Any, policy: Any, video: Path | None) -> PlayedEpisode:
    from tfagents_system.envs import rendering

    if video is None:
        return _run_episode(env, policy, env.reset())
    time_step = env.reset()
    frame = env.render_frame()  # Before the file is created: an environment that can't be drawn leaves none.
    stride = max(1, round(env.frames_per_second / _MAX_FRAMES_PER_SECOND))
    with rendering.VideoWriter(video, env.frames_per_second / stride) as writer:
        writer.add(frame)

        def draw(steps: int) -> None:
            if steps % stride == 0:
                writer.add(env.render_frame())

        episode = _run_episode(env, policy, time_step, draw)
    return dataclasses.replace(episode, video=video)


def _run_episode(
    env: Any, policy: Any, time_step: Any, on_step: Callable[[int], None] = lambda steps: None
) -> PlayedEpisode:
    policy_state = policy.get_initial_state(1)
    episode_return, length, success = 0.0, 0, None
    while not time_step.is_last():
        step = policy.action(time_step, policy_state)
        policy_state = step.state
        time_step = env.step_in_environment_units(step.action)
        episode_return += float(time_step.reward)
        length += 1
        for key in SUCCESS_KEYS:
            if key in env.info:
                success = bool(env.info[key])
        on_step(length)
    return PlayedEpisode(episode_return, length, success, None)


def _print_episode(k: int, episode: PlayedEpisode) -> None:
    success = "" if episode.success is None else f", {'success' if episode.success else 'no success'}"
    video = f", {episode.video}" if episode.video else ""
    print(f"episode {k}: return {episode.episode_return:.3f}, {episode.length} steps{success}{video}", flush=True)


def _summary(episodes: Sequence[PlayedEpisode]) -> str:
    returns = [episode.episode_return for episode in episodes]
    successes = [episode.success for episode in episodes if episode.success is not None]
    rate = f", success {statistics.fmean(successes):.0%}" if successes else ""
    spread = f"min {min(returns):.3f}, max {max(returns):.3f}"
    mean, std = statistics.fmean(returns), statistics.pstdev(returns)
    return f"mean return {mean:.3f} +- {std:.3f} (standard deviation; {spread}) over {len(returns)} episodes{rate}"


if __name__ == "__main__":
    exit_with(main)
