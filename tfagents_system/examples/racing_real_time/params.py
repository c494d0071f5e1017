"""A car learns to race in wall time: it does not wait for the policy, and commands and observations come late."""

from __future__ import annotations

from typing import Any

import gymnasium

from tfagents_system.examples.racing.params import TrainParams as Racing
from tfagents_system.examples.racing.real_time import make_real_time_race
from tfagents_system.examples.racing.trajectory_reward import with_trajectory_reward


class TrainParams(Racing):
    """200,000 steps at 20 Hz: about three hours, and evaluations."""

    asynchronous = True
    action_history = 3  # The action under way, and up to two time steps of delay both ways together.

    num_iter = 200
    num_eval_episodes = 2

    def env_ctor(
        self, *args: Any, seed: int | None = None, render_mode: str | None = None, **kwargs: Any
    ) -> gymnasium.Env:
        race = make_real_time_race(self.env_config, seed, **{**kwargs, "render_mode": render_mode})
        return with_trajectory_reward(race, self.env_config)

    def expert_policy_ctor(self) -> None:
        """None: the driver sees the car itself, and this one is in another process."""
