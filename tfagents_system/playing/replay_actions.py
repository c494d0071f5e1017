"""Plays the actions of a recorded episode (`keep_best_episodes`), and tells where it departs from the record."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tfagents_system.envs.curriculum import values_in_words
from tfagents_system.envs.info_keys import RECORD_PREFIX
from tfagents_system.envs.info_keys import recorded as recorded_value
from tfagents_system.errors import UserError
from tfagents_system.playing import video
from tfagents_system.playing.played_environment import make_replay_env, stopping_between_steps
from tfagents_system.report.long_work import LongWork
from tfagents_system.run_files.recorded_episodes import ACTIONS, REWARDS, RecordedEpisode, action_names, load_episode
from tfagents_system.train_params_base import TrainParamsBase

SETTING = "--replay_actions"


@dataclasses.dataclass
class Replayed:
    """How an episode was repeated.

    Attributes:
      length: Steps that were played.
      episode_return: Their rewards' sum.
      departure: Where it first differs from the record, in words; empty where all is as recorded.
      other_rewards: Steps with another reward than the recorded one.
      largest: The largest difference of these.
      video: The MP4; None without one.
    """

    length: int = 0
    episode_return: float = 0.0
    departure: str = ""
    other_rewards: int = 0
    largest: float = 0.0
    video: Path | None = None


def play(params: TrainParamsBase, path: Path, video_dir: Path | None = None) -> str:
    """Plays a file's actions; returns what the user is told. See `replay`."""
    return in_words(load_episode(path, SETTING), replay(params, path, video_dir))


def replay(params: TrainParamsBase, path: Path, video_dir: Path | None = None) -> Replayed:
    """Plays a file's actions in the environment that they were chosen in.

    Args:
      params: Of the run.
      path: The file.
      video_dir: Where the video goes; None makes none.

    Raises:
      UserError: It is no recorded episode, or of another environment; or the environment can't be drawn.
      EnvironmentFault: The environment failed.
    """
    from tfagents_system.envs.episode_seeds import seed_episode

    recorded = load_episode(path, SETTING)
    seed = recorded.seed or 0
    env = make_replay_env(params, seed, recorded.env_id, render=video_dir is not None)
    with stopping_between_steps(env) as check_stop:
        actions = list(_actions(recorded, env, path))
        for name, value in recorded.curriculum.items():
            env.set_state({name: value})
        seed_episode(env, seed)
        env.reset()
        with contextlib.ExitStack() as stack:
            mp4 = video_dir / f"{path.stem}.mp4" if video_dir is not None else None
            draw = stack.enter_context(video.recording(env, mp4)) if mp4 else lambda steps: None
            work = stack.enter_context(LongWork("playing", len(actions), "steps"))

            def tell(steps: int) -> None:
                work.done = steps
                check_stop()
                draw(steps)

            found = _play(env, actions, recorded, tell)
    return dataclasses.replace(found, video=mp4)


def in_words(recorded: RecordedEpisode, played: Replayed) -> str:
    """Lines for the user: what was recorded, and how far it was repeated."""
    what = f"{len(recorded)} steps of worker {recorded.worker_id} with {recorded.checkpoint}"
    values = f", {values_in_words(recorded.curriculum)}" if recorded.curriculum else ""
    lines = [f"recorded: return {recorded.episode_return:.3f}, {what}{values}"]
    mp4 = f", {played.video}" if played.video else ""
    lines.append(f"replayed: return {played.episode_return:.3f}, {played.length} steps{mp4}")
    if not played.departure:
        lines.append("all of it is as recorded")
        return "\n".join(lines)
    rest = f"; {played.other_rewards} of {played.length} rewards differ, by {played.largest:.3g} at most"
    lines.append(f"departs from the record in {played.departure}{rest if played.other_rewards else ''}")
    if recorded.seed is None:
        lines.append("note: the episode was not seeded, so what is random in the environment is not repeated")
    return "\n".join(lines)


def _actions(recorded: RecordedEpisode, env: Any, path: Path) -> Iterator[Any]:
    """The agent's actions, step by step.

    Raises:
      UserError: The environment takes others.
    """
    import tree

    specs = tree.flatten_with_path(env.action_spec())
    names = action_names([where for where, _ in specs])
    takes = {name: tuple(spec.shape) for name, (_, spec) in zip(names, specs, strict=True)}
    has = {name: values.shape[1:] for name, values in recorded.lists.items() if name.split("/")[0] == ACTIONS}
    if has != takes:
        raise UserError(
            f"{SETTING}={path} has actions of shapes {has}, but this environment takes {takes}: give --exp_dir, or "
            "--params and --config, of the run that recorded it"
        )
    for leaves in zip(*(recorded.lists[name] for name in names), strict=True):
        own = [np.asarray(leaf, spec.dtype) for leaf, (_, spec) in zip(leaves, specs, strict=True)]
        yield tree.unflatten_as(env.action_spec(), own)


def _play(env: Any, actions: list[Any], recorded: RecordedEpisode, on_step: Callable[[int], None]) -> Replayed:
    found = Replayed()
    lists = {name: values for name, values in recorded.lists.items() if name.startswith(RECORD_PREFIX)}
    for step, action in enumerate(actions):
        time_step = env.step(action)
        found.length += 1
        found.episode_return += float(time_step.reward)
        difference = abs(float(time_step.reward) - float(recorded.lists[REWARDS][step]))
        found.other_rewards += difference > 0.0
        found.largest = max(found.largest, difference)
        is_over = bool(time_step.is_last())
        if not found.departure:
            here = _departure(step, float(time_step.reward), env.info, is_over, recorded, lists)
            found.departure = here and f"step {step + 1}: {here}"
        on_step(found.length)
        if is_over:
            break
    return found


def _departure(
    step: int,
    reward: float,
    info: Mapping[str, Any],
    is_over: bool,
    recorded: RecordedEpisode,
    lists: Mapping[str, np.ndarray],
) -> str:
    """What a step has that is not as recorded; empty where all is."""
    was = float(recorded.lists[REWARDS][step])
    if reward != was:
        return f"the reward is {reward:.6g}, it was {was:.6g}"
    for name, values in lists.items():
        found = recorded_value(info.get(name))
        if found is not None and not _is_same(found, values[step]):
            return f"{name} is {info[name]}, it was {values[step]}"
    is_last = step + 1 == len(recorded)
    if is_over != is_last:
        return "the episode ends, it went on" if is_over else "the episode goes on, it ended"
    return ""


def _is_same(found: np.ndarray, recorded: np.ndarray) -> bool:
    return np.array_equal(found, recorded, equal_nan=found.dtype.kind == recorded.dtype.kind == "f")
