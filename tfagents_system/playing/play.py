"""Plays episodes with a saved policy, greedily; draws them where a video is wanted."""

from __future__ import annotations

import contextlib
import dataclasses
import random
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfagents_system.envs.curriculum import EvaluatedTask, Values, values_in_words
from tfagents_system.envs.info_keys import SUCCESS_KEYS
from tfagents_system.playing import montage, video
from tfagents_system.playing.played_environment import check_fit, make_env, stopping_between_steps
from tfagents_system.report.episodes import success_rate
from tfagents_system.report.long_work import LongWork
from tfagents_system.train_params_base import TrainParamsBase


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


def play(
    params: TrainParamsBase,
    path: Path,
    num_episodes: int,
    seed: int,
    video_dir: Path | None = None,
    on_episode: Callable[[int, PlayedEpisode], None] | None = None,
    work: LongWork | None = None,
) -> list[PlayedEpisode]:
    """Plays episodes with a greedy policy.

    Args:
      path: The policy: a checkpoint of a run, a SavedModel, or an exported file.
      seed: Determines all random numbers, but those that a SavedModel which explores draws itself.
      video_dir: Where videos go; None makes none.
      on_episode: Called with every episode, from 1; the default prints it.
      work: What this is a part of: it is told what is under way; None: this is the whole.

    Raises:
      UserError: The policy does not fit the environment, or the environment can't be drawn.
      EnvironmentFault: The environment failed.
      KeyboardInterrupt: See `stopping_between_steps`.
    """
    if work is None:
        what = "playing" if video_dir is None else "playing and drawing"
        with LongWork(what, num_episodes, "episodes") as work:
            told = on_episode or _print_episode

            def count(k: int, episode: PlayedEpisode) -> None:
                work.done = k
                told(k, episode)

            return play(params, path, num_episodes, seed, video_dir, count, work)
    work.doing = "loading the policy"
    policy = _load_policy(path)
    random.seed(seed)
    np.random.seed(seed % 2**32)  # Makes environments that use the global generators repeatable.
    episodes = []
    work.doing = "building the environment"
    with stopping_between_steps(env := make_env(params, seed, render=video_dir is not None)) as check_stop:
        check_fit(policy, env)
        if env.device is not None:
            env.device.set_evaluation(True)
        values = _apply_curriculum(params, env, _iteration(params, path, policy))
        for k in range(1, num_episodes + 1):
            env.evaluation_episode = k - 1
            mp4 = video_dir / f"{path.name}_seed_{seed}_episode_{k}.mp4" if video_dir else None
            episodes.append(dataclasses.replace(_play_episode(env, policy, mp4, work, check_stop), curriculum=values))
            (on_episode or _print_episode)(k, episodes[-1])
    return episodes


def play_montage(params: TrainParamsBase, checkpoints: Sequence[Path], seed: int, video_dir: Path) -> None:
    """One episode of each checkpoint, then all of them side by side in one video."""
    if len(checkpoints) == 1:
        print(f"note: {checkpoints[0].name} is the only checkpoint: the montage shows it alone", flush=True)
    parts = []
    with tempfile.TemporaryDirectory(prefix="montage_") as temporary, contextlib.ExitStack() as stack:
        work = stack.enter_context(LongWork("montage", len(checkpoints), "checkpoints"))
        for checkpoint in checkpoints:
            train_step = int(checkpoint.name.rpartition("_")[2])

            def tell(k: int, episode: PlayedEpisode, name: str = checkpoint.name) -> None:
                print(f"{name}: return {episode.episode_return:.3f}, {episode.length} steps", flush=True)

            episode = play(params, checkpoint, 1, seed, Path(temporary), tell, work)[0]
            work.advance()
            assert episode.video is not None
            played = [f"return {episode.episode_return:.1f}", values_in_words(episode.curriculum)]
            parts.append(montage.Part(episode.video, f"train step {train_step:,}", ", ".join(filter(None, played))))
        stack.close()
        print(montage.join(parts, video_dir / "montage.mp4"))


def summary(episodes: Sequence[PlayedEpisode]) -> str:
    """One line for the user on the returns of all episodes."""
    returns = [episode.episode_return for episode in episodes]
    successes = success_rate(episode.success for episode in episodes)
    rate = "" if successes is None else f", success {successes:.0%}"
    if len(returns) == 1:  # Which has no spread.
        return f"mean return {returns[0]:.3f} over 1 episode{rate}"
    spread = f"min {min(returns):.3f}, max {max(returns):.3f}"
    mean, std = statistics.fmean(returns), statistics.pstdev(returns)
    return f"mean return {mean:.3f} +- {std:.3f} (standard deviation; {spread}) over {len(returns)} episodes{rate}"


def _load_policy(path: Path) -> Any:
    from absl import logging

    from tfagents_system.policies.files import load_policy

    logging.set_verbosity(logging.ERROR)
    return load_policy(path, "--policy")


def _iteration(params: TrainParamsBase, path: Path, policy: Any) -> int:
    """The iteration in which a policy was saved; the last one of a policy that does not say it."""
    from tfagents_system.policies.names import iteration_of

    known = policy.description["iteration"] if hasattr(policy, "description") else iteration_of(path)
    return params.num_iter if known is None else known


def _apply_curriculum(params: TrainParamsBase, env: Any, iteration: int) -> Values:
    """Sets the values with which the policy of that iteration was evaluated, and prints them."""
    task = EvaluatedTask(params.env_config, params.num_iter)
    values = task.stage(iteration)
    for name, value in values.items():
        env.set_state({name: value})
    if stage := task.in_words(iteration):
        print(f"curriculum of {stage}", flush=True)
    return values


def _play_episode(
    env: Any, policy: Any, path: Path | None, work: LongWork, check_stop: Callable[[], None]
) -> PlayedEpisode:
    time_step = env.reset()
    check_stop()
    with contextlib.nullcontext() if path is None else video.recording(env, path) as draw:

        def tell(steps: int) -> None:
            work.doing = f"step {steps:,}"
            check_stop()
            if draw is not None:
                draw(steps)

        episode = _run_episode(env, policy, time_step, tell)
    return dataclasses.replace(episode, video=path)


def _run_episode(
    env: Any, policy: Any, time_step: Any, on_step: Callable[[int], None] = lambda steps: None
) -> PlayedEpisode:
    from tfagents_system.policies.fit import arrays_for

    policy_state, spec = policy.get_initial_state(1), policy.time_step_spec.observation
    episode_return, length, success = 0.0, 0, None
    while not time_step.is_last():
        seen = time_step._replace(observation=arrays_for(time_step.observation, spec))
        step = policy.action(seen, policy_state)
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
    mp4 = f", {episode.video}" if episode.video else ""
    print(f"episode {k}: return {episode.episode_return:.3f}, {episode.length} steps{success}{mp4}", flush=True)
