"""Plays the actions of a recorded episode (`keep_best_episodes`)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tfagents_system.envs.curriculum import values_in_words
from tfagents_system.errors import UserError
from tfagents_system.playing import video
from tfagents_system.playing.played_environment import make_replay_env, stopping_between_steps
from tfagents_system.report.long_work import LongWork
from tfagents_system.run_files.episodes import ACTIONS, RecordedEpisode, action_names, load_episode
from tfagents_system.train_params_base import TrainParamsBase

SETTING = "--replay_actions"


def play(params: TrainParamsBase, path: Path, video_dir: Path | None = None) -> str:
    """Plays a file's actions in the environment that they were chosen in; returns two lines for the user.

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
    mp4 = None if video_dir is None else video_dir / f"{path.stem}.mp4"
    env = make_replay_env(params, seed, recorded.env_id, render=mp4 is not None)
    rewards = []
    with stopping_between_steps(env) as check_stop:
        actions = list(_actions(recorded, env, path))
        for name, value in recorded.curriculum.items():
            env.set_state({name: value})
        seed_episode(env, seed)
        env.reset()
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
