"""The quadruped Go1 follows a commanded velocity: Go1JoystickFlatTerrain-v1 of EnvPool, from MuJoCo Playground."""

from __future__ import annotations

import ctypes.util
from typing import Any

import envpool

from tfagents_system.train_params_base import TrainParamsBase


class TrainParams(TrainParamsBase):
    """400,000 environment steps in 16 lanes of one worker, an update for every second one.

    A beginning: it was tried for a few thousand steps only.
    """

    algorithm = "crossq"
    sac_log_alpha = -5.0  # A step is rewarded with a few hundredths: an alpha of 1 would drown them.
    actor_observations = ("state",)  # 48 noisy numbers of its sensors; critics see privileged_state, too: 123 more.
    num_env_steps = 400_000
    env_steps_per_iter = 320
    updates_per_env_step = 0.5
    num_eval_episodes = 16

    def env_ctor(self, *args: Any, seed: int | None = None, render_mode: str | None = None, **kwargs: Any) -> Any:
        # With Playground's 0.5 rad 99 % of random steps are worth 0, and nothing was learned in 30,000 of them.
        options: dict[str, Any] = {"num_envs": 16, "action_scale": 0.3}
        if render_mode is not None:
            ctypes.CDLL(ctypes.util.find_library("OSMesa"))  # EnvPool draws with it where it finds it loaded.
            options |= {"num_envs": 1, "max_episode_steps": 250}  # A picture takes 0.4 s.
        options |= {"num_threads": 1, "seed": seed or 0, "render_mode": render_mode, **kwargs}
        return envpool.make("Go1JoystickFlatTerrain-v1", *args, env_type="gymnasium", **options)
