"""REDQ: randomized ensembled double Q-learning (Chen et al., arXiv 2101.05982)."""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf

from tfagents_system.agents import algorithms
from tfagents_system.agents.minibatch import Noise, Steps
from tfagents_system.agents.sac import SUBSET, Sac, mean
from tfagents_system.train_params_base import TrainParamsBase


class Redq(Sac):
    """Algorithm 1 of the paper; N and M are 10 and 2 unless params say otherwise.

    Each update draws a new set of M of the N critics, all sets equally likely. All N critics learn
    y = r + gamma * (min over the set of Q_target_i(s', a') - alpha * log pi(a'|s')), and the actor maximises the mean
    of all N critics. DroQ (Hiraoka et al., arXiv 2110.02034, algorithm 2) is this with N = M = 2: dropout and layer
    normalisation in the critics stand in for the large ensemble, in targets and in the actor's loss as well.
    """

    def __init__(self, params: TrainParamsBase, time_step_spec: Any, action_spec: Any, train_step: tf.Variable) -> None:
        super().__init__(params, time_step_spec, action_spec, train_step)
        self.num_target_critics: int = algorithms.value(params, "num_target_critics")

    def drawn(self, noise: Noise) -> tf.Tensor:
        """Whether each critic belongs to the set of this update, `[N]` bool."""
        count = len(self.targets)
        # The indices of the M largest of N independent uniform numbers.
        _, members = tf.math.top_k(noise.of(SUBSET).uniform(count), self.num_target_critics)
        return tf.reduce_any(tf.equal(tf.range(count)[:, None], members), axis=1)

    def next_values(self, next_steps: Steps, next_actions: Any, noise: Noise) -> tf.Tensor:
        if self.num_target_critics == len(self.targets):
            return super().next_values(next_steps, next_actions, noise)
        is_drawn, infinite = self.drawn(noise), tf.fill(tf.shape(next_steps.time_steps.reward), math.inf)
        if self.categories is not None:  # All of the probability at the highest atom.
            infinite = tf.where(self.categories.atoms == self.categories.atoms[-1], 0.0, -infinite[..., None])
        values = [
            # A target that is not drawn costs nothing.
            tf.cond(is_drawn[i], lambda target=target: self.values(target, next_steps, next_actions), lambda: infinite)
            for i, target in enumerate(self.targets)
        ]
        return self.lowest(values)

    def actor_value(self, values: list[tf.Tensor]) -> tf.Tensor:
        return mean(values)
