"""Whether pictures of an environment can be drawn."""

from __future__ import annotations

import contextlib

from tfagents_system.checks.checklist import Check
from tfagents_system.envs import hooks, loading, rendering
from tfagents_system.envs.faults import describe_error
from tfagents_system.envs.training_environment import TrainingEnvironment
from tfagents_system.errors import UserError
from tfagents_system.train_params_base import TrainParamsBase


def check_rendering(params: TrainParamsBase, env: TrainingEnvironment | None, seed: int, check: Check) -> None:
    """Draws one picture.

    Args:
      params: The user's.
      env: In which it is drawn unless another one can be built with a `render_mode`, as run.py does; None: in that.
      seed: Of the other one.
      check: Gets a fact, or a note: training needs no pictures.
    """
    try:
        with contextlib.ExitStack() as stack:
            is_other = env is None or (env.device is None and hooks.takes_render_mode(params))
            if env is None or is_other:  # Another one: as run.py builds it.
                env = loading.make_play_env(params, seed, render=True)
                stack.callback(env.close)
            rendering.enable_frames(env.user_env)
            env.reset()
            frame = env.render_frame()
    except Exception as error:
        told = error.findings[0] if isinstance(error, UserError) else describe_error(error)
        check.notes.append(f"{told}; training needs no pictures")
    else:
        check.facts.append(f"frames of {frame.shape[1]} x {frame.shape[0]}")
