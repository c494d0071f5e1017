"""Plays episodes, greedily with a saved policy or with the actions of a recorded one, and draws videos of them.

TensorFlow is imported when something is played.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
import statistics
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfagents_system.envs.curriculum import EvaluatedTask, Values, values_in_words
from tfagents_system.envs.gym_driver import SUCCESS_KEYS, one_number
from tfagents_system.envs.rendering import NO_VIDEO
from tfagents_system.errors import UserError
from tfagents_system.machine.signals import raising_when_insisted
from tfagents_system.playing import video
from tfagents_system.report.long_work import LongWork
from tfagents_system.run_files.episodes import ACTIONS, RecordedEpisode, action_names, load_episode
from tfagents_system.train_params_base import TrainParamsBase
from tfagents_system.transport.episode_reports import success_rate

REPLAY = "--replay-actions"


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
    video: Path | None = None
    curriculum: Mapping[str, float] = dataclasses.field(default_factory=dict)


def make_env(params: TrainParamsBase, seed: int, render: bool, env_id: int | None = None) -> Any:
    """The TrainingEnvironment of an evaluation.

    Args:
      render: `render_frame` will be called.
      env_id: Of the environment that collected an episode, to repeat it in.

    Raises:
      UserError: It can't be built.
    """
    from tfagents_system.envs import loading
    from tfagents_system.envs.faults import EnvironmentFault, describe_error

    try:
        if env_id is None:
            return loading.make_play_env(params, seed, render)
        return loading.make_collect_env(params, 0, seed, env_id, render=render)
    except (UserError, EnvironmentFault):
        raise
    except Exception as error:
        raise UserError(f"the environment can't be built: {describe_error(error)}") from error


@contextlib.contextmanager
def stopping_between_steps(env: Any) -> Iterator[Callable[[], None]]:
    """Closes an environment at the end. A device finishes what it does first, whatever stops the program.

    Yields:
      What is called between two steps. Where a signal has come that stops programs, it lets the device wait and raises
      KeyboardInterrupt. A second signal raises it at once, in whatever blocks; in a SLURM job only Ctrl-C does.
      Without a device, or in another thread than the main one, signals do what they did before.

    Raises:
      KeyboardInterrupt: At the end, where a signal has come since the last step.
    """
    if env.device is None or threading.current_thread() is not threading.main_thread():
        with env:
            yield lambda: None
        return

    def check() -> None:
        if stop.is_set():
            env.device.wait()
            raise KeyboardInterrupt

    with raising_when_insisted() as stop, env:
        try:
            yield check
        except KeyboardInterrupt:
            env.device.wait()
            raise
    if stop.is_set():
        raise KeyboardInterrupt


def check_fit(policy: Any, env: Any) -> None:
    """Whether the environment gives what the policy asks for; observations may have other parts beside that.

    Raises:
      UserError: The policy was trained on another kind of environment.
    """
    from tfagents_system.policies.files import misfits

    if findings := misfits(policy, env.observation_spec(), env.environment_action_spec):
        raise UserError(*(f"{finding}: give --params and --config of the same run" for finding in findings))


def play(
    params: TrainParamsBase, path: Path, num_episodes: int, seed: int, video_dir: Path | None = None
) -> list[PlayedEpisode]:
    """Plays episodes with a greedy policy, and prints each.

    Args:
      path: The policy: a checkpoint of a run, a SavedModel, or an exported file.
      seed: Determines all random numbers, but those that a SavedModel which explores draws itself.
      video_dir: Where videos go; None makes none. An environment that can't be drawn has none either, which is noted.

    Raises:
      UserError: The policy does not fit the environment.
      EnvironmentFault: The environment failed.
      KeyboardInterrupt: See `stopping_between_steps`.
    """
    episodes: list[PlayedEpisode] = []
    with LongWork("playing" if video_dir is None else "playing and drawing", num_episodes, "episodes") as work:
        for k, episode in enumerate(_episodes(params, path, num_episodes, seed, video_dir, work), 1):
            success = "" if episode.success is None else f", {'success' if episode.success else 'no success'}"
            mp4 = f", {episode.video}" if episode.video else ""
            print(f"episode {k}: return {episode.episode_return:.3f}, {episode.length} steps{success}{mp4}", flush=True)
            episodes.append(episode)
            work.advance()
    return episodes


def play_montage(params: TrainParamsBase, checkpoints: Sequence[Path], seed: int, video_dir: Path) -> None:
    """One episode of each checkpoint, then all of them side by side in one video.

    Raises:
      UserError, EnvironmentFault, KeyboardInterrupt: As of `play`; or the environment can't be drawn.
    """
    if len(checkpoints) == 1:
        print(f"note: {checkpoints[0].name} is the only checkpoint: the montage shows it alone", flush=True)
    parts = []
    with tempfile.TemporaryDirectory(prefix="montage_") as folder:
        with LongWork("montage", len(checkpoints), "checkpoints") as work:
            for checkpoint in checkpoints:
                (episode,) = _episodes(params, checkpoint, 1, seed, Path(folder), work)
                print(f"{checkpoint.name}: return {episode.episode_return:.3f}, {episode.length} steps", flush=True)
                if episode.video is None:
                    raise UserError("a montage needs pictures: play without --montage")
                values = [f"return {episode.episode_return:.1f}", values_in_words(episode.curriculum)]
                train_step = int(checkpoint.name.rpartition("_")[2])
                part = video.Part(episode.video, f"train step {train_step:,}", ", ".join(filter(None, values)))
                parts.append(part)
                work.advance()
        print(video.join(parts, video_dir / "montage.mp4"))


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


def _episodes(
    params: TrainParamsBase, path: Path, num_episodes: int, seed: int, video_dir: Path | None, work: LongWork
) -> Iterator[PlayedEpisode]:
    """As of `play`."""
    work.doing = "loading the policy"
    policy = _load_policy(path)
    random.seed(seed)
    np.random.seed(seed % 2**32)  # Makes environments that use the global generators repeatable.
    work.doing = "building the environment"
    with stopping_between_steps(env := make_env(params, seed, render=video_dir is not None)) as check_stop:
        check_fit(policy, env)
        values = _apply_curriculum(params, env, _iteration(params, path, policy))
        for k in range(1, num_episodes + 1):
            env.evaluation_episode = k - 1
            time_step = env.reset()
            check_stop()
            if k == 1 and video_dir is not None and not _can_be_drawn(env):
                video_dir = None
            mp4 = video_dir / f"{path.name}_seed_{seed}_episode_{k}.mp4" if video_dir else None
            with video.recording(env, mp4) if mp4 else contextlib.nullcontext() as draw:

                def on_step(steps: int, draw: Callable[[int], None] | None = draw) -> None:
                    work.doing = f"step {steps:,}"
                    check_stop()
                    if draw is not None:
                        draw(steps)

                episode = _run_episode(env, policy, time_step, on_step)
            yield dataclasses.replace(episode, video=mp4, curriculum=values)


def _can_be_drawn(env: Any) -> bool:
    """Whether an environment, just after its reset, gives a picture; prints why it does not."""
    try:
        env.render_frame()
    except UserError as error:
        print(f"note: no video: {error.findings[0].replace(f', {NO_VIDEO}', '')}", flush=True)
        return False
    return True


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


def _run_episode(
    env: Any, loaded: Any, time_step: Any, on_step: Callable[[int], None] = lambda steps: None
) -> PlayedEpisode:
    from tfagents_system.policies.files import Policy

    policy, episode_return, length, success = Policy(loaded), 0.0, 0, None
    while not time_step.is_last():
        time_step = env.step_in_environment_units(policy(time_step.observation))
        episode_return += float(time_step.reward)
        length += 1
        for key in SUCCESS_KEYS:
            if (number := one_number(env.info.get(key))) is not None:
                success = bool(number)
        on_step(length)
    return PlayedEpisode(episode_return, length, success)


def replay(params: TrainParamsBase, path: Path, video_dir: Path | None = None) -> str:
    """Plays the actions of a recorded episode (`keep_best_episodes`) in the environment that they were chosen in.

    Returns two lines for the user, and a note where the episode was not seeded. Without `video_dir` there is no video.

    Raises:
      UserError: It is no recorded episode, or of another environment.
      EnvironmentFault: The environment failed.
    """
    from tfagents_system.envs.gym_driver import seed_episode

    recorded = load_episode(path, REPLAY)
    rewards = []
    with stopping_between_steps(
        env := make_env(params, recorded.seed or 0, video_dir is not None, recorded.env_id)
    ) as check_stop:
        actions = list(_actions(recorded, env, path))
        for name, value in recorded.curriculum.items():
            env.set_state({name: value})
        seed_episode(env, recorded.seed or 0)
        env.reset()
        mp4 = video_dir / f"{path.stem}.mp4" if video_dir is not None and _can_be_drawn(env) else None
        with contextlib.ExitStack() as stack:
            draw = stack.enter_context(video.recording(env, mp4)) if mp4 else lambda steps: None
            work = stack.enter_context(LongWork("playing", len(actions), "steps"))
            for action in actions:
                time_step = env.step(action)
                rewards.append(float(time_step.reward))
                work.advance()
                check_stop()
                draw(len(rewards))
                if time_step.is_last():
                    break
    what = f"{len(recorded)} steps of worker {recorded.worker_id} with {recorded.checkpoint}"
    values = f", {values_in_words(recorded.curriculum)}" if recorded.curriculum else ""
    lines = [
        f"recorded: return {recorded.episode_return:.3f}, {what}{values}",
        f"replayed: return {sum(rewards):.3f}, {len(rewards)} steps" + (f", {mp4}" if mp4 else ""),
    ]
    if recorded.seed is None:
        lines.append("note: the episode was not seeded, so what is random in the environment is not repeated")
    return "\n".join(lines)


def _actions(recorded: RecordedEpisode, env: Any, path: Path) -> Iterator[Any]:
    """The agent's actions, step by step; those that this environment does not take are refused."""
    import tree

    paths, specs = zip(*tree.flatten_with_path(env.action_spec()), strict=True)
    names = action_names(list(paths))
    takes = {name: tuple(spec.shape) for name, spec in zip(names, specs, strict=True)}
    has = {name: values.shape[1:] for name, values in recorded.lists.items() if name.split("/")[0] == ACTIONS}
    if has != takes:
        raise UserError(
            f"{REPLAY}={path} has actions of shapes {has}, but this environment takes {takes}: give its run "
            "directory, or --params and --config, of the run that recorded it"
        )
    for leaves in zip(*(recorded.lists[name] for name in names), strict=True):
        arrays = [np.asarray(leaf, spec.dtype) for leaf, spec in zip(leaves, specs, strict=True)]
        yield tree.unflatten_as(env.action_spec(), arrays)
