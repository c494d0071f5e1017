"""DQN (Mnih et al., Human-level control through deep reinforcement learning, 2015), double and dueling.

Double: van Hasselt et al., arXiv 1509.06461. Dueling: Wang et al., arXiv 1511.06581.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf
from tf_agents.trajectories import time_step as ts

from tfagents_system.agents import algorithms
from tfagents_system.agents.agent import Acting, Agent
from tfagents_system.agents.encoder import ObservationPipeline
from tfagents_system.agents.minibatch import TD_ERRORS, Measured, Minibatch, Noise, all_measured, weighted_mean
from tfagents_system.agents.networks import (
    ExploringPolicy,
    ScorePolicy,
    best,
    build_value_network,
    of_legal,
)
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

    def mean(self, per_sample: tf.Tensor) -> tf.Tensor:
        """Over the batch, weighted."""
        return tf.reduce_mean(per_sample if self.weight is None else per_sample * self.weight)


class CriticLoss(NamedTuple):
    """What each sample says of the critics, `[B]` each; `q` are the values of the actions taken."""

    loss: tf.Tensor
    q: tf.Tensor
    td_errors: tf.Tensor


class ValueLearner(Agent):
    """The update of critics that know the values of all n actions."""

    def __init__(
        self,
        params: TrainParamsBase,
        specs: tuple[Any, Any],
        train_step: tf.Variable,
        acting: Acting,
        critics: list[Any],
    ) -> None:
        targets = [build_value_network(params, *specs, f"TargetCritic{k}") for k in range(len(critics))]
        super().__init__(params, *specs, train_step, acting, critics, targets)
        self._pipeline = ObservationPipeline(params, critics[0].body.images, specs[0].observation)

    def critic_loss(self, sample: Sample, noise: Noise, training: bool) -> CriticLoss:
        """The algorithm's."""
        raise NotImplementedError

    def step_actor(self, sample: Sample) -> dict[str, tf.Tensor]:
        """Steps an actor, if there is one, after the critics; its losses."""
        del sample
        return {}

    def actor_losses(self, sample: Sample) -> dict[str, tf.Tensor]:
        """Its losses without learning."""
        del sample
        return {}

    def update(self, minibatch: Minibatch, noise: Noise) -> Measured:
        """Returns `critic_loss`, `q_mean`, `grad_norm` and an actor's losses; with importance weights `TD_ERRORS`."""
        sample = self._sample_of(minibatch, noise)

        def loss_of() -> tuple[tf.Tensor, CriticLoss]:
            found = self.critic_loss(sample, noise, training=True)
            return sample.mean(found.loss), found

        (loss, found), gradients = self.minimize(loss_of, self.critic_variables, self.critic_optimizer)
        measured = {
            "critic_loss": loss,
            "q_mean": weighted_mean(tf.stop_gradient(found.q), sample.weight),
            "grad_norm": tf.linalg.global_norm(gradients),
        }
        if sample.weight is not None:
            measured[TD_ERRORS] = found.td_errors
        measured |= self.step_actor(sample)
        self.train_step_counter.assign_add(1)
        self.move_targets()
        return all_measured(measured)

    def losses(self, minibatch: Minibatch, noise: Noise) -> dict[str, tf.Tensor]:
        sample = self._sample_of(minibatch)
        found = self.critic_loss(sample, noise, training=False)
        losses = {"critic_loss": sample.mean(found.loss), "q_mean": weighted_mean(found.q, sample.weight)}
        return losses | self.actor_losses(sample)

    def _sample_of(self, minibatch: Minibatch, noise: Noise | None = None) -> Sample:
        """The minibatch; `noise` shifts its images at random."""
        time_steps, policy_steps, following = self.as_transition(minibatch.experience)
        if noise is not None:
            time_steps = self._pipeline.shifted(time_steps, noise.of(_SHIFTS))
            following = self._pipeline.shifted(following, noise.of(_NEXT_SHIFTS))
        reward, bootstrap = following.reward, following.discount
        seen = time_steps.observation, policy_steps.action
        return Sample(*seen, reward, bootstrap, following.observation, minibatch.weight)


class Dqn(ValueLearner):
    """One network of the values of all n actions, which acts with the epsilons of the params; double by default."""

    @staticmethod
    def build_acting(params: TrainParamsBase, time_step_spec: ts.TimeStep, action_spec: Any) -> Acting:
        network = build_value_network(params, time_step_spec, action_spec, "ValueNetwork")
        specs = time_step_spec, action_spec, network
        return Acting(network, ScorePolicy(*specs), ExploringPolicy(*specs, params))

    def __init__(self, params: TrainParamsBase, time_step_spec: Any, action_spec: Any, train_step: tf.Variable) -> None:
        acting = self.build_acting(params, time_step_spec, action_spec)
        super().__init__(params, (time_step_spec, action_spec), train_step, acting, [acting.network])
        self.double_q = bool(algorithms.value(params, "double_q"))

    def critic_loss(self, sample: Sample, noise: Noise, training: bool) -> CriticLoss:
        """Huber's loss of y - Q(s, a), y = r + g * Q_target(s', a'), a' the best legal action of the online network.

        If not `double_q`, a' is the target's best.
        """
        (critic,), (target,) = self.critics, self.targets
        values, _ = critic(sample.observation, training=training)
        next_values, _ = target(sample.next_observation)
        choosing = critic(sample.next_observation)[0] if self.double_q else next_values
        next_value = of_actions(next_values, best(of_legal(choosing, sample.next_observation)))
        td_target = tf.stop_gradient(sample.reward + sample.bootstrap * next_value)
        q = of_actions(values, sample.action)
        return CriticLoss(huber(td_target - q), q, tf.abs(td_target - tf.stop_gradient(q)))


def of_actions(values: tf.Tensor, actions: tf.Tensor) -> tf.Tensor:
    """The values of one action each: from `[B, ..., n]` and `[B]` to `[B, ...]`.

    A product with a mask: a gather's gradient is a scatter, which takes longer for few actions.
    """
    mask = tf.one_hot(actions, values.shape[-1])
    return tf.reduce_sum(values * (mask[:, None, :] if values.shape.rank == 3 else mask), axis=-1)


def huber(errors: tf.Tensor) -> tf.Tensor:
    """d^2 / 2 where |d| <= 1, else |d| - 1/2."""
    clipped = tf.clip_by_value(errors, -1.0, 1.0)
    return clipped * (errors - 0.5 * clipped)
