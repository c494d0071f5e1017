"""The humanoid G1 follows a commanded velocity: G1JoystickFlatTerrain-v1 of EnvPool, from MuJoCo Playground."""

from __future__ import annotations

import ctypes.util
from typing import Any

import envpool

from tfagents_system.train_params_base import TrainParamsBase


class TrainParams(TrainParamsBase):
    """2,000,000 environment steps in 16 lanes of one worker, an update for every fourth one.

    A beginning: it was tried for a few thousand steps only.
    """

    algorithm = "crossq"
    sac_log_alpha = -5.0  # A step is rewarded with a few hundredths: an alpha of 1 would drown them.
    actor_observations = ("state",)  # 103 noisy numbers of its sensors; critics see privileged_state, too: 216 more.
    num_env_steps = 2_000_000
    env_steps_per_iter = 320
    updates_per_env_step = 0.25
    num_eval_episodes = 16

    def env_ctor(self, *args: Any, seed: int | None = None, render_mode: str | None = None, **kwargs: Any) -> Any:
        options: dict[str, Any] = {"num_envs": 16}
        if render_mode is not None:
            ctypes.CDLL(ctypes.util.find_library("OSMesa"))  # EnvPool draws with it where it finds it loaded.
            options |= {"num_envs": 1, "max_episode_steps": 250}  # A picture takes 0.4 s.
        options |= {"num_threads": 1, "seed": seed or 0, "render_mode": render_mode, **kwargs}
        return envpool.make("G1JoystickFlatTerrain-v1", *args, env_type="gymnasium", **options)
