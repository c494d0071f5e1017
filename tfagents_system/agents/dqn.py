"""DQN (Mnih et al., Human-level control through deep reinforcement learning, 2015), double and dueling.

Double: van Hasselt et al., arXiv 1509.06461. Dueling: Wang et al., arXiv 1511.06581.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf
from tf_agents.trajectories import time_step as ts

from tfagents_system.agents import algorithms
from tfagents_system.agents.agent import Acting, Agent
from tfagents_system.agents.encoder import ObservationPipeline
from tfagents_system.agents.minibatch import TD_ERRORS, Measured, Minibatch, all_measured, weighted_mean
from tfagents_system.agents.networks import (
    ExploringPolicy,
    ScorePolicy,
    best,
    build_value_network,
    exploration_rates,
    num_actions,
)
from tfagents_system.agents.noise import Noise
from tfagents_system.train_params_base import TrainParamsBase

_SHIFTS, _NEXT_SHIFTS, FRACTIONS, TARGET_FRACTIONS = range(4)  # Purposes of random numbers.


class Sample(NamedTuple):
    """A minibatch.

    Attributes:
      observation, next_observation: Nests `[B, ...]`.
      action: `[B]` int32.
      reward: `[B]`.
      bootstrap: `[B]`: the whole factor of the next value, gamma^n or 0: the replay server gives it.
      weight: Importance weights `[B]`; None: all are equal.
    """

    observation: Any
    action: tf.Tensor
    reward: tf.Tensor
    bootstrap: tf.Tensor
    next_observation: Any
    weight: tf.Tensor | None


class CriticLoss(NamedTuple):
    """What each sample says of the critics, `[B]` each.

    Attributes:
      loss: To be minimised.
      q: Values of the actions taken.
      td_errors: See `TD_ERRORS`.
    """

    loss: tf.Tensor
    q: tf.Tensor
    td_errors: tf.Tensor


class Dqn(Agent):
    """One network of the values of all n actions, which acts with the epsilons of the params.

    Args:
      params: Hyperparameters; double unless they say otherwise.
      time_step_spec, action_spec, train_step: As of `TrainParamsBase.agent_ctor`; the action is an int32 scalar.

    Raises:
      UserError: Actions are not n discrete ones.
    """

    @staticmethod
    def build_acting(params: TrainParamsBase, time_step_spec: ts.TimeStep, action_spec: Any) -> Acting:
        network, rates = build_critic(params, time_step_spec, action_spec, "ValueNetwork"), exploration_rates(params)
        specs = time_step_spec, action_spec, network
        return Acting(network, ScorePolicy(*specs), ExploringPolicy(*specs, rates), scheduled=rates)

    def __init__(self, params: TrainParamsBase, time_step_spec: Any, action_spec: Any, train_step: tf.Variable) -> None:
        acting = self.build_acting(params, time_step_spec, action_spec)
        target = build_critic(params, time_step_spec, action_spec, "TargetCritic0")
        super().__init__(params, time_step_spec, action_spec, train_step, acting, [acting.network], [target])
        self._pipeline = ObservationPipeline(params, acting.network.body.images, time_step_spec.observation)
        self.double_q = bool(algorithms.value(params, "double_q"))

    def update(self, minibatch: Minibatch, noise: Noise) -> Measured:
        """Returns `critic_loss`, `q_mean` and `grad_norm`; with importance weights `TD_ERRORS`, too."""
        sample = sample_of(self, self._pipeline, minibatch, noise)
        measured = step_critics(self, sample, lambda: self.critic_loss(sample, noise, training=True))
        self.train_step_counter.assign_add(1)
        self.move_targets()
        return all_measured(measured)

    def losses(self, minibatch: Minibatch, noise: Noise) -> dict[str, tf.Tensor]:
        sample = sample_of(self, self._pipeline, minibatch)
        return critic_losses(self.critic_loss(sample, noise, training=False), sample)

    def critic_loss(self, sample: Sample, noise: Noise, training: bool) -> CriticLoss:
        """Huber's loss of y - Q(s, a), y = r + g * Q_target(s', a'), a' the best action of the online network.

        If not `double_q`, a' is the target's best.
        """
        (critic,), (target,) = self.critics, self.targets
        values, _ = critic(sample.observation, training=training)
        next_values, _ = target(sample.next_observation)
        choosing = critic(sample.next_observation)[0] if self.double_q else next_values
        next_value = of_actions(next_values, best(choosing))
        td_target = tf.stop_gradient(sample.reward + sample.bootstrap * next_value)
        q = of_actions(values, sample.action)
        return CriticLoss(huber(td_target - q), q, tf.abs(td_target - tf.stop_gradient(q)))


def build_critic(params: TrainParamsBase, time_step_spec: ts.TimeStep, action_spec: Any, name: str) -> Any:
    """A network of the values of all actions."""
    units, count = tuple(params.critic_joint_fc_layer_params), num_actions(params, action_spec)
    return build_value_network(params, time_step_spec.observation, count, units, name)


def sample_of(agent: Agent, pipeline: ObservationPipeline, minibatch: Minibatch, noise: Noise | None = None) -> Sample:
    """The minibatch; `noise` shifts its images at random."""
    time_steps, policy_steps, next_time_steps = agent.as_transition(minibatch.experience)
    if noise is not None:
        time_steps = pipeline.shifted(time_steps, noise.of(_SHIFTS))
        next_time_steps = pipeline.shifted(next_time_steps, noise.of(_NEXT_SHIFTS))
    return Sample(
        time_steps.observation,
        policy_steps.action,
        next_time_steps.reward,
        next_time_steps.discount,
        next_time_steps.observation,
        minibatch.weight,
    )


def step_critics(agent: Agent, sample: Sample, loss_of: Callable[[], CriticLoss]) -> dict[str, tf.Tensor]:
    """One step of the critics; its losses, and with importance weights the TD errors."""

    def total_of() -> tuple[Any, ...]:
        loss, *others = loss_of()
        return mean(loss, sample.weight), *others

    (total, q, td_errors), gradients = agent.minimize(
        total_of, agent.critic_variables, agent.critic_optimizer, "Critic"
    )
    measured = {
        "critic_loss": total,
        "q_mean": weighted_mean(tf.stop_gradient(q), sample.weight),
        "grad_norm": tf.linalg.global_norm(gradients),
    }
    return measured if sample.weight is None else measured | {TD_ERRORS: td_errors}


def critic_losses(found: CriticLoss, sample: Sample) -> dict[str, tf.Tensor]:
    """Of held-out experience."""
    return {"critic_loss": mean(found.loss, sample.weight), "q_mean": weighted_mean(found.q, sample.weight)}


def of_actions(values: tf.Tensor, actions: tf.Tensor) -> tf.Tensor:
    """The values of one action each: from `[B, ..., n]` and `[B]` to `[B, ...]`.

    A product with a mask: a gather's gradient is a scatter, which takes longer for few actions.
    """
    mask = tf.one_hot(actions, values.shape[-1])
    return tf.reduce_sum(values * (mask[:, None, :] if values.shape.rank == 3 else mask), axis=-1)


def mean(per_sample: tf.Tensor, weight: tf.Tensor | None) -> tf.Tensor:
    """Over the batch, weighted."""
    return tf.reduce_mean(per_sample if weight is None else per_sample * weight)


def huber(errors: tf.Tensor) -> tf.Tensor:
    """d^2 / 2 where |d| <= 1, else |d| - 1/2."""
    clipped = tf.clip_by_value(errors, -1.0, 1.0)
    return clipped * (errors - 0.5 * clipped)
