"""A point that is to be moved to a goal, with rewards that tell nothing until it is there: solved with hindsight."""

from __future__ import annotations

from typing import Any

from tfagents_system.examples.reach.environment import Reach
from tfagents_system.train_params_base import TrainParamsBase


class TrainParams(TrainParamsBase):
    """10,000 environment steps, and one update for each of them: about two minutes of one CPU.

    `--set hindsight_share=null` shows what is learned without hindsight: nothing.
    """

    hindsight_share = 0.8  # Four samples with another goal for each with its own, as in the paper.
    discount = 0.95
    n_step = 1

    num_env_steps = 10_000
    env_steps_per_iter = 200
    updates_per_env_step = 1.0
    buffer_size = 50_000
    batch_size = 128
    actor_fc_layer_params = (64, 64)
    critic_joint_fc_layer_params = (64, 64)

    num_eval_episodes = 20
    eval_period_env_steps = 1000
    best_metric = "success"

    def env_ctor(self, *args: Any, seed: int | None = None, **kwargs: Any) -> Reach:
        del seed  # It is passed to reset(), as Gymnasium requires.
        return Reach(*args, **kwargs)
