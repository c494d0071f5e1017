"""Policies that choose one of n actions by their scores: the best one, a sample of the softmax, or explored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf
import tensorflow_probability as tfp
from tf_agents.policies import tf_policy
from tf_agents.trajectories import policy_step

from tfagents_system.agents.networks import ValueNetwork
from tfagents_system.checks.schedules import Schedule
from tfagents_system.errors import UserError, shown
from tfagents_system.train_params_base import TrainParamsBase

NOISE_SCALE = 0.01  # Of what is added to values before the best of them is chosen, with `boltzmann_epsilon`.
EPSILON, BOLTZMANN = "exploration_epsilon", "boltzmann_epsilon"


class ScorePolicy(tf_policy.TFPolicy):
    """The action with the highest score, of equal ones the first; its distribution has the scores as its logits.

    Args:
      time_step_spec, action_spec: Of the agent; the action is an int32 scalar from 0 to n - 1.
      network: Its `acting_values` are the scores.
    """

    def __init__(self, time_step_spec: Any, action_spec: Any, network: ValueNetwork) -> None:
        super().__init__(time_step_spec, action_spec, automatic_state_reset=False, validate_args=False)
        self.network = network

    def _variables(self) -> list[tf.Variable]:
        return list(self.network.variables)

    def _distribution(self, time_step: Any, policy_state: Any) -> policy_step.PolicyStep:
        scores = self.network.acting_values(time_step.observation)
        return policy_step.PolicyStep(tfp.distributions.Categorical(logits=scores, dtype=tf.int32), policy_state)

    def _action(self, time_step: Any, policy_state: Any, seed: Any = None) -> policy_step.PolicyStep:
        scores = self.network.acting_values(time_step.observation)
        return policy_step.PolicyStep(self._choose(scores, seed), policy_state)

    def _choose(self, scores: tf.Tensor, seed: Any) -> tf.Tensor:
        del seed
        return best(scores)


class SamplingPolicy(ScorePolicy):
    """Samples from the softmax of the scores."""

    def _choose(self, scores: tf.Tensor, seed: Any) -> tf.Tensor:
        return tfp.distributions.Categorical(logits=scores, dtype=tf.int32).sample(seed=seed)


class ExploringPolicy(ScorePolicy):
    """With probability epsilon a random action, else with `boltzmann_epsilon` the best of values + 0.01 * noise.

    Args:
      time_step_spec, action_spec, network: As of ScorePolicy.
      rates: The two probabilities, scalar variables, by the names of their attributes of TrainParams.
    """

    def __init__(
        self, time_step_spec: Any, action_spec: Any, network: ValueNetwork, rates: Mapping[str, tf.Variable]
    ) -> None:
        super().__init__(time_step_spec, action_spec, network)
        self.rates = dict(rates)

    def _variables(self) -> list[tf.Variable]:
        return [*self.network.variables, *self.rates.values()]

    def _choose(self, scores: tf.Tensor, seed: Any) -> tf.Tensor:
        batch, count = tf.shape(scores)[0], scores.shape[-1]
        noisy = best(scores + NOISE_SCALE * tf.random.normal(tf.shape(scores), seed=seed))
        is_noisy, is_random = tf.unstack(tf.random.uniform([2, batch], seed=seed))
        chosen = tf.where(is_noisy < self.rates[BOLTZMANN], noisy, best(scores))
        anyone = tf.random.uniform([batch], 0, count, tf.int32, seed=seed)
        return tf.where(is_random < self.rates[EPSILON], anyone, chosen)


def exploration_rates(params: TrainParamsBase) -> dict[str, tf.Variable]:
    """The variables that a run's schedules change."""
    return {
        name: tf.Variable(Schedule.of(getattr(params, name)).value(0, 0, 0), False, name=name, dtype=tf.float32)
        for name in (EPSILON, BOLTZMANN)
    }


def best(scores: tf.Tensor) -> tf.Tensor:
    """The first of the highest, `[B]` int32."""
    return tf.argmax(scores, axis=-1, output_type=tf.int32)


def num_actions(params: TrainParamsBase, action_spec: Any) -> int:
    """N.

    Raises:
      UserError: The actions are others.
    """
    is_index = not tf.nest.is_nested(action_spec) and action_spec.dtype.is_integer and action_spec.shape.rank == 0
    if not is_index:
        raise UserError(
            f"algorithm={params.algorithm!r} chooses one of n actions, found {shown(action_spec)}: choose 'sac', or an "
            "environment with discrete actions"
        )
    return int(action_spec.maximum) + 1
