"""Plays a saved policy: returns, lengths, and a video of each episode.

    python tfagents_system/run.py --exp_dir logs/minitaur --num_episodes 5 --checkpoint best --seed 108

Needs TensorFlow and the environment, but no Reverb, and writes nothing but the videos.
"""

# ruff: noqa: E402 (sys.path is put right before our own modules are imported)
from __future__ import annotations

import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    # A script's own folder leads sys.path: there, our modules would hide others of the same name.
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != _ROOT / "tfagents_system"]
    sys.path.insert(0, str(_ROOT))

import argparse
import dataclasses
import json
import os
import random
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tfagents_system.curriculum import Curriculum, check_curriculum
from tfagents_system.errors import EXIT_DONE, EXIT_FAILED, UserError, exit_with
from tfagents_system.info_keys import SUCCESS_KEYS
from tfagents_system.launch.run_directory import read_run_json
from tfagents_system.launch.run_paths import RunPaths
from tfagents_system.load_params import load_env_config, load_params
from tfagents_system.overrides import Overrides
from tfagents_system.params_check import check_env_config
from tfagents_system.train_params_base import TrainParamsBase

_EXIT_INTERRUPTED = 130  # As shells tell of a program that Ctrl-C ended.
_MAX_FRAMES_PER_SECOND = 30  # Simulators with finer steps are drawn less often: drawing is what takes long.


@dataclasses.dataclass(frozen=True)
class PlayedEpisode:
    """One episode.

    Attributes:
      episode_return: Undiscounted sum of rewards.
      length: Steps.
      success: As the environment reports it; None where it does not.
      video: The MP4; None without one.
    """

    episode_return: float
    length: int
    success: bool | None
    video: Path | None


def main(arguments: Sequence[str] | None = None) -> int:
    """The program; returns its exit code."""
    flags = _parse(arguments)
    paths = RunPaths(_find(flags.exp_dir, "--exp_dir", Path.is_dir))
    checkpoint = find_checkpoint(paths, flags.checkpoint)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")  # Single observations are faster on the CPU.
    if not flags.no_video:
        from tfagents_system.envs import rendering

        rendering.prepare_headless()
    if env_python := read_run_json(paths).get("env_python"):
        os.environ.setdefault("SAC_ENV_PYTHON", str(env_python))  # The environment runs where it was trained.
    params = _load_params(paths, flags.params, flags.config)
    video_dir = None if flags.no_video else Path(flags.video_dir or paths.videos).absolute()
    from tfagents_system.envs.faults import EnvironmentFault

    print(f"{checkpoint.name} of {paths.exp_dir}", flush=True)
    try:
        episodes = play(
            params, paths, checkpoint, num_episodes=flags.num_episodes, seed=flags.seed, video_dir=video_dir
        )
    except EnvironmentFault as fault:
        print(f"error: {fault}", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        return _EXIT_INTERRUPTED
    print(_summary(episodes))
    return EXIT_DONE


def play(
    params: TrainParamsBase,
    paths: RunPaths,
    checkpoint: Path,
    *,
    num_episodes: int,
    seed: int,
    video_dir: Path | None = None,
    on_episode: Callable[[int, PlayedEpisode], None] | None = None,
) -> list[PlayedEpisode]:
    """Plays episodes with the greedy policy.

    Args:
      params: The run's TrainParams.
      paths: The run directory.
      checkpoint: Folder of the policy checkpoint.
      num_episodes: How many.
      seed: Decides everything that is random.
      video_dir: Where videos go; None makes none.
      on_episode: Told of every episode, from 1; the default prints it.

    Raises:
      UserError: The policy does not fit the environment, or the environment can't be drawn.
      EnvironmentFault: The environment failed.
    """
    policy = _load_policy(paths, checkpoint)
    random.seed(seed)
    np.random.seed(seed % 2**32)  # Environments that use the global generators shall repeat, too.
    episodes = []
    with _make_env(params, seed, render=video_dir is not None) as env:
        _check_fit(policy, env)
        _apply_curriculum(params, env, checkpoint)
        for k in range(1, num_episodes + 1):
            video = video_dir / f"{checkpoint.name}_episode_{k}.mp4" if video_dir else None
            episodes.append(_play_episode(env, policy, video))
            (on_episode or _print_episode)(k, episodes[-1])
    return episodes


def find_checkpoint(paths: RunPaths, name: str) -> Path:
    """The folder of a policy checkpoint.

    Args:
      paths: The run directory.
      name: Its name, `latest` or `best`.

    Raises:
      UserError: There is none of that name.
    """
    found = sorted(path.name for path in paths.policy_checkpoints.glob("policy_checkpoint_*") if path.is_dir())
    there_are = f"there are {', '.join(found)}" if found else "there are none yet"
    if name == "latest" and found:
        name = found[-1]
    elif name == "best":
        try:
            name = str(json.loads(paths.best_json.read_text())["checkpoint"])
        except (OSError, ValueError, KeyError, TypeError):
            raise UserError(f"{paths.exp_dir} has no best checkpoint yet: {there_are}") from None
    name = name.rstrip("/")
    if name not in found:
        raise UserError(f"{paths.policy_checkpoints} has no checkpoint {name}: {there_are}")
    return paths.policy_checkpoints / name


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Plays a saved policy: returns, lengths, videos.", allow_abbrev=False)
    parser.add_argument("--exp_dir", required=True, help="run directory, such as logs/minitaur")
    parser.add_argument("--params", help="Python file with TrainParams (default: the run's own copy)")
    parser.add_argument("--config", help="JSON of the environment (default: the run's own copy)")
    parser.add_argument("--num_episodes", type=_integer_from(1), default=1, help="default: 1")
    parser.add_argument("--checkpoint", default="latest", help="name in policies/checkpoints, latest (default) or best")
    parser.add_argument("--seed", type=_integer_from(0), default=0, help="for the environment (default: 0)")
    parser.add_argument("--no_video", action="store_true", help="numbers only")
    parser.add_argument("--video_dir", help="where videos go (default: videos/ in the run directory)")
    return parser.parse_args(arguments)


def _integer_from(low: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = int(text)
        if value < low:
            raise argparse.ArgumentTypeError(f"must be at least {low}, found {value}")
        return value

    parse.__name__ = "integer"
    return parse


def _find(text: str, flag: str, exists: Callable[[Path], bool]) -> Path:
    """A path as it is given, or relative to the repository."""
    candidates = [Path(text).expanduser().absolute(), _ROOT / text]
    for candidate in candidates:
        if exists(candidate):
            return candidate
    tried = " and ".join(dict.fromkeys(map(str, candidates)))
    raise UserError(f"{flag}={text} does not exist (looked for {tried}): give the path of an existing one")


def _load_params(paths: RunPaths, params_flag: str | None, config_flag: str | None) -> TrainParamsBase:
    params_path = _find(params_flag or str(paths.params), "--params", Path.is_file)
    config_path = _find(config_flag or str(paths.config), "--config", Path.is_file)
    # Another file than the run's own is taken as it is.
    overrides = Overrides.read(paths.overrides)
    is_own_params, is_own_config = _is_same(params_path, paths.params), _is_same(config_path, paths.config)
    env_config = load_env_config(config_path)
    if is_own_config:
        env_config = overrides.merged(env_config)
    if findings := check_env_config(env_config) + check_curriculum(env_config):
        raise UserError(*findings)
    if not is_own_params:
        return load_params(params_path, env_config)
    return load_params(params_path, env_config, origin=_origin(paths), attributes=overrides.params)


def _is_same(one: Path, other: Path) -> bool:
    return one.resolve() == other.resolve()


def _origin(paths: RunPaths) -> Path | None:
    """Where the run's own copy came from: modules beside the original are imported from there."""
    source = read_run_json(paths).get("params_source")
    origin = Path(source) if isinstance(source, str) else None
    return origin if origin is not None and origin.parent.is_dir() else None


def _load_policy(paths: RunPaths, checkpoint: Path) -> Any:
    from absl import logging
    from tf_agents.policies import policy_loader

    logging.set_verbosity(logging.ERROR)
    model = paths.policies / "greedy_policy"
    if not model.is_dir():
        raise UserError(f"{model} does not exist: the run has not saved its policies yet")
    return policy_loader.load(str(model), str(checkpoint))


def _make_env(params: TrainParamsBase, seed: int, render: bool) -> Any:
    from tfagents_system.envs import loading
    from tfagents_system.envs.faults import EnvironmentFault, describe_error

    try:
        return loading.make_play_env(params, seed, render)
    except (UserError, EnvironmentFault):
        raise
    except Exception as error:
        raise UserError(f"the environment can't be built: {describe_error(error)}") from error


def _check_fit(policy: Any, env: Any) -> None:
    """The policy must have been trained on such an environment."""
    import tree

    def describe(nest: Any) -> list[tuple[Any, ...]]:
        return [(path, tuple(spec.shape), np.dtype(spec.dtype).name) for path, spec in tree.flatten_with_path(nest)]

    trained, ours = describe(_as_arrays(policy.time_step_spec.observation)), describe(env.observation_spec())
    if trained != ours:
        raise UserError(
            f"the policy was trained on observations {trained}, but this environment has {ours}: "
            "give --params and --config of the same run"
        )


def _as_arrays(nest: Any) -> Any:
    import tree
    from tf_agents.specs import array_spec, tensor_spec

    def convert(spec: Any) -> Any:
        return spec if isinstance(spec, array_spec.ArraySpec) else tensor_spec.to_array_spec(spec)

    return tree.map_structure(convert, nest)


def _apply_curriculum(params: TrainParamsBase, env: Any, checkpoint: Path) -> None:
    """What was due for the evaluation environment when the checkpoint was saved."""
    from tfagents_system.policies.export import iteration_of

    curriculum = Curriculum.from_config(params.env_config)
    iteration = iteration_of(checkpoint)
    if iteration is None:  # Of an earlier version, which knew iterations of equal length only.
        iteration = int(checkpoint.name.rpartition("_")[2]) // max(1, params.num_steps_per_iter)
    curriculum.due(iteration)
    for name, value in curriculum.values.items():
        if curriculum.apply_to_eval(name):
            env.set_state({name: value})


def _play_episode(env: Any, policy: Any, video: Path | None) -> PlayedEpisode:
    from tfagents_system.envs import rendering

    if video is None:
        return _run_episode(env, policy, env.reset())
    time_step = env.reset()
    frame = env.render_frame()  # Before the file is there: an environment that can't be drawn leaves none.
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
