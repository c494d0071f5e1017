"""REDQ: randomized ensembled double Q-learning (Chen et al., arXiv 2101.05982)."""

from __future__ import annotations

import functools
import math
from typing import Any

import tensorflow as tf

from tfagents_system.agents import algorithms
from tfagents_system.agents.ensemble import EnsembleAgent
from tfagents_system.agents.fused_update import FusedUpdate, lowest, mean
from tfagents_system.agents.update_parts import Parts, Steps
from tfagents_system.train_params_base import TrainParamsBase


class RedqUpdate(FusedUpdate):
    """Algorithm 1 of the paper.

    Each update draws a new set of M of the N critics, all sets equally likely. All N critics learn
    y = r + gamma * (min over the set of Q_target_i(s', a') - alpha * log pi(a'|s')), and the actor maximises the mean
    of all N critics.

    Args:
      parts: Of the agent.
      num_target_critics: M, from 1 to N.
      seed, burn_in_steps: See FusedUpdate.
    """

    def __init__(self, parts: Parts, *args: Any, num_target_critics: int, **options: Any) -> None:
        super().__init__(parts, *args, **options)
        self._num_target_critics = num_target_critics

    def drawn(self) -> tf.Tensor:
        """Whether each critic belongs to the set of this train step, `[N]` bool."""
        count = len(self._parts.targets)
        # The indices of the M largest of N independent uniform numbers.
        _, members = tf.math.top_k(self._drawing().uniform(count), self._num_target_critics)
        return tf.reduce_any(tf.equal(tf.range(count)[:, None], members), axis=1)

    def _next_values(self, next_steps: Steps, next_actions: Any) -> tf.Tensor:
        targets = self._parts.targets
        if self._num_target_critics == len(targets):
            return super()._next_values(next_steps, next_actions)
        is_drawn, reward = self.drawn(), next_steps.time_steps.reward
        infinite = tf.fill(tf.shape(reward), math.inf)
        values = [
            # A target that is not drawn costs nothing.
            tf.cond(is_drawn[i], lambda target=target: self._values(target, next_steps, next_actions), lambda: infinite)
            for i, target in enumerate(targets)
        ]
        return lowest(values)

    def _actor_q(self, values: list[tf.Tensor]) -> tf.Tensor:
        return mean(values)


def build_agent(
    params: TrainParamsBase, time_step_spec: Any, action_spec: Any, train_step: tf.Variable
) -> EnsembleAgent:
    """REDQ; N and M are 10 and 2 unless params say otherwise; the actor's period, see `algorithms`."""
    num_target_critics = algorithms.value(params, "num_target_critics")
    update_class = functools.partial(RedqUpdate, num_target_critics=num_target_critics)
    return EnsembleAgent(params, time_step_spec, action_spec, train_step, update_class)
