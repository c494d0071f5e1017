"""DQN (Mnih et al., Human-level control through deep reinforcement learning, 2015), double and dueling.

Double: van Hasselt et al., arXiv 1509.06461. Dueling: Wang et al., arXiv 1511.06581.
"""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf

from tfagents_system.agents import algorithms
from tfagents_system.agents.update_parts import CriticLoss
from tfagents_system.agents.value_agent import ValueActing, ValueAgent, exploring_acting
from tfagents_system.agents.value_network import best
from tfagents_system.agents.value_update import Sample, ValueLearnerParts, ValueUpdate, of_actions
from tfagents_system.train_params_base import TrainParamsBase


class DqnUpdate(ValueUpdate):
    """Huber's loss of y - Q(s, a), y = r + g * Q_target(s', a').

    Args:
      parts: Of the agent.
      seed: As of ValueUpdate.
      double_q: a' is the best action of the online network; else of the target.
    """

    def __init__(self, parts: ValueLearnerParts, seed: int = 0, *, double_q: bool) -> None:
        super().__init__(parts, seed)
        self._double_q = double_q

    def _critic_loss(self, sample: Sample, training: bool) -> CriticLoss:
        (critic,), (target,) = self._parts.critics, self._parts.targets
        values, _ = critic(sample.observation, training=training)
        next_values, _ = target(sample.next_observation)
        choosing = critic(sample.next_observation)[0] if self._double_q else next_values
        next_value = of_actions(next_values, best(choosing))
        td_target = tf.stop_gradient(sample.reward + sample.bootstrap * next_value)
        q = of_actions(values, sample.action)
        return CriticLoss(huber(td_target - q), q, tf.abs(td_target - tf.stop_gradient(q)))


def huber(errors: tf.Tensor) -> tf.Tensor:
    """d^2 / 2 where |d| <= 1, else |d| - 1/2."""
    clipped = tf.clip_by_value(errors, -1.0, 1.0)
    return clipped * (errors - 0.5 * clipped)


def build_agent(params: TrainParamsBase, time_step_spec: Any, action_spec: Any, train_step: tf.Variable) -> ValueAgent:
    """DQN, double unless params say otherwise."""
    update_class = functools.partial(DqnUpdate, double_q=bool(algorithms.value(params, "double_q")))
    return ValueAgent(params, time_step_spec, action_spec, train_step, build_acting, update_class)


def build_acting(params: TrainParamsBase, time_step_spec: Any, action_spec: Any) -> ValueActing:
    """What workers need of it."""
    return exploring_acting(params, time_step_spec, action_spec)
