"""The update of learners that choose one of n actions: a step on the values, on an actor if any, and on the targets."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
from tf_agents.trajectories import time_step as ts

from tfagents_system.agents.encoder import ObservationPipeline
from tfagents_system.agents.layers import dropout_noise
from tfagents_system.agents.noise import Drawing
from tfagents_system.agents.update_parts import (
    TD_ERRORS,
    CriticLoss,
    Measured,
    all_measured,
    apply_gradients,
    move_targets,
    unique_variables,
    weighted_mean,
)
from tfagents_system.agents.value_network import ValueNetwork

_SHIFTS, _NEXT_SHIFTS, FRACTIONS, TARGET_FRACTIONS = range(4)  # Purposes of random numbers.
_HELD_OUT_SEED = 0x68656C64  # Losses without learning use numbers that no update uses.


@dataclasses.dataclass(frozen=True)
class ValueLearnerParts:
    """The parts that an update changes in place, so that checkpoints of the agent are complete.

    Attributes:
      critics: Networks of the values of all actions.
      targets: One for each.
      critic_optimizer: Legacy Keras optimizer.
      train_step: int64 scalar variable, incremented by each update.
      as_transition: From the replay server's experience to a Transition `[B, ...]`.
      target_update_tau, target_update_period: As of Parts.
      gradient_clipping: Maximum norm of each variable's gradient, or None.
      pipeline: Shifts images at random; None: nothing does.
    """

    critics: Sequence[ValueNetwork]
    targets: Sequence[ValueNetwork]
    critic_optimizer: Any
    train_step: tf.Variable
    as_transition: Callable[[Any], Any]
    target_update_tau: float
    target_update_period: int
    gradient_clipping: float | None
    pipeline: ObservationPipeline | None = None


class Sample(NamedTuple):
    """A minibatch.

    Attributes:
      observation, next_observation: Nests `[B, ...]`.
      action: `[B]` int32.
      reward: `[B]`.
      bootstrap: `[B]`: the whole factor of the next value, 0 where there is none.
    """

    observation: Any
    action: tf.Tensor
    reward: tf.Tensor
    bootstrap: tf.Tensor
    next_observation: Any


class ValueUpdate(abc.ABC):
    """One update as a small graph.

    The replay server gives the whole factor of the next value, gamma^n or 0: no discount is multiplied here.

    Args:
      parts: Of the agent.
      seed: Determines all random numbers together with the train step.
    """

    kind = "fused"

    def __init__(self, parts: ValueLearnerParts, seed: int = 0) -> None:
        self._parts = parts
        self._seed = seed
        self._critic_variables = unique_variables(parts.critics)
        self.optimized: list[tuple[Any, list[tf.Variable]]] = [(parts.critic_optimizer, self._critic_variables)]

    def step(self, experience: Any, *, weight: tf.Tensor | None = None) -> Measured:
        """Does one update with a Transition `[B, ...]`; returns `critic_loss`, `q_mean`, `grad_norm` and so on.

        Args:
          experience: The transition.
          weight: Importance weight of each sample, `[B]`, in all losses; `TD_ERRORS` are returned, too. None: all
            weights are equal.
        """
        parts = self._parts
        with dropout_noise(self._seed, parts.train_step):
            sample = self._sample(experience, is_shifted=True)
            measured = self._step_critics(sample, weight)
            measured |= self._step_others(sample, weight)
            parts.train_step.assign_add(1)
            move_targets(parts)
        return all_measured(measured)

    def losses(self, experience: Any, *, weight: tf.Tensor | None = None) -> dict[str, tf.Tensor]:
        """The same losses without learning, for held-out experience; nothing changes."""
        seed, self._seed = self._seed, self._seed ^ _HELD_OUT_SEED
        try:
            with dropout_noise(self._seed, self._parts.train_step):
                return self._losses(self._sample(experience), weight)
        finally:
            self._seed = seed

    @abc.abstractmethod
    def _critic_loss(self, sample: Sample, training: bool) -> CriticLoss:
        """The critics' loss of each sample, the values of the actions taken, and the TD errors, `[B]` each."""

    def _step_others(self, sample: Sample, weight: tf.Tensor | None) -> dict[str, tf.Tensor]:
        """Steps what else the algorithm learns; its losses."""
        del sample, weight
        return {}

    def _losses(self, sample: Sample, weight: tf.Tensor | None) -> dict[str, tf.Tensor]:
        loss, q, _ = self._critic_loss(sample, training=False)
        return {"critic_loss": mean(loss, weight), "q_mean": _mean_value(q, weight)}

    def _step_critics(self, sample: Sample, weight: tf.Tensor | None) -> dict[str, tf.Tensor]:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(self._critic_variables)
            loss, q, td_errors = self._critic_loss(sample, training=True)
            total = mean(loss, weight)
        tf.debugging.check_numerics(total, "Critic loss is inf or nan.")
        gradients = tape.gradient(total, self._critic_variables)
        self._apply(gradients, self._critic_variables, self._parts.critic_optimizer)
        measured = {
            "critic_loss": total,
            "q_mean": _mean_value(tf.stop_gradient(q), weight),
            "grad_norm": tf.linalg.global_norm(gradients),
        }
        return measured if weight is None else measured | {TD_ERRORS: td_errors}

    def _apply(self, gradients: Sequence[Any], variables: Sequence[tf.Variable], optimizer: Any) -> None:
        apply_gradients(gradients, variables, optimizer, self._parts.gradient_clipping)

    def _sample(self, experience: Any, is_shifted: bool = False) -> Sample:
        time_steps, policy_steps, next_time_steps = self._parts.as_transition(experience)
        pipeline = self._parts.pipeline
        if is_shifted and pipeline is not None:
            time_steps = pipeline.shifted(time_steps, self._drawing(_SHIFTS))
            next_time_steps = pipeline.shifted(next_time_steps, self._drawing(_NEXT_SHIFTS))
        following: ts.TimeStep = next_time_steps
        return Sample(
            time_steps.observation,
            policy_steps.action,
            following.reward,
            following.discount,
            following.observation,
        )

    def _drawing(self, number: int) -> Drawing:
        """Random numbers of this train step, for one purpose."""
        return Drawing(self._seed, self._parts.train_step, number)


def of_actions(values: tf.Tensor, actions: tf.Tensor) -> tf.Tensor:
    """The values of one action each: from `[B, ..., n]` and `[B]` to `[B, ...]`.

    A product with a mask: a gather's gradient is a scatter, which takes longer for few actions.
    """
    mask = tf.one_hot(actions, values.shape[-1])
    return tf.reduce_sum(values * (mask[:, None, :] if values.shape.rank == 3 else mask), axis=-1)


def mean(per_sample: tf.Tensor, weight: tf.Tensor | None) -> tf.Tensor:
    """Over the batch, weighted."""
    return tf.reduce_mean(per_sample if weight is None else per_sample * weight)


def _mean_value(values: tf.Tensor, weight: tf.Tensor | None) -> tf.Tensor:
    return tf.reduce_mean(values) if weight is None else weighted_mean(values, weight)
