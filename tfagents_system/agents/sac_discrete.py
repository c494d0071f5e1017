"""SAC for discrete actions (Christodoulou, arXiv 1910.07207)."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tf_agents.trajectories import time_step as ts

from tfagents_system.agents import entropy
from tfagents_system.agents.fused_update import lowest
from tfagents_system.agents.fused_update import mean as mean_of
from tfagents_system.agents.normalization import set_sources
from tfagents_system.agents.optimizers import build_optimizer
from tfagents_system.agents.update_parts import CriticLoss, unique_variables
from tfagents_system.agents.value_agent import ValueActing, ValueAgent, num_actions
from tfagents_system.agents.value_network import SamplingPolicy, ScorePolicy, ValueNetwork, build_value_network
from tfagents_system.agents.value_update import Sample, ValueLearnerParts, ValueUpdate, mean, of_actions
from tfagents_system.envs.history import leaves_seen_by_actor, seen_by_actor
from tfagents_system.train_params_base import TrainParamsBase

_NUM_CRITICS = 2
_SHARE_OF_MOST_ENTROPY = 0.98  # The paper's section 5: of log(n), that of equal probabilities.


class SacDiscreteUpdate(ValueUpdate):
    """Expectations over the n actions, instead of samples, in SAC's losses.

    Args:
      parts: Of the critics.
      seed: As of ValueUpdate.
      agent: Has the actor, log(alpha) and their optimizers.
      target_entropy: In nats.
      actor_observations: The hyperparameter.
    """

    def __init__(
        self,
        parts: ValueLearnerParts,
        seed: int = 0,
        *,
        agent: Any,
        target_entropy: float,
        actor_observations: Sequence[str] | None,
    ) -> None:
        super().__init__(parts, seed)
        self._actor: ValueNetwork = agent.acting.network
        self._actor_optimizer, self._alpha_optimizer = agent._actor_optimizer, agent._alpha_optimizer
        self._log_alpha: tf.Variable = agent._log_alpha
        self._actor_observations = actor_observations
        self._target_entropy = target_entropy
        self._actor_variables = unique_variables([self._actor])
        self.optimized += [(self._actor_optimizer, self._actor_variables), (self._alpha_optimizer, [self._log_alpha])]
        self._learns_alpha = not isinstance(self._alpha_optimizer, entropy.FrozenOptimizer)

    def _critic_loss(self, sample: Sample, training: bool) -> CriticLoss:
        """The sum over critics of (y - Q_i(s, a))^2 / 2, y = r + g sum_a' pi (min Q_target(s', a') - alpha log pi)."""
        log_pi = self._log_pi(sample.next_observation)
        next_values = lowest([target(sample.next_observation)[0] for target in self._parts.targets])
        soft = tf.reduce_sum(tf.exp(log_pi) * (next_values - tf.exp(self._log_alpha) * log_pi), axis=-1)
        td_target = tf.stop_gradient(sample.reward + sample.bootstrap * soft)
        of_critics = [critic(sample.observation, training=training)[0] for critic in self._parts.critics]
        taken = [of_actions(values, sample.action) for values in of_critics]
        loss = tf.add_n([0.5 * tf.math.squared_difference(td_target, q) for q in taken])
        td_errors = mean_of([tf.abs(td_target - tf.stop_gradient(q)) for q in taken])
        return CriticLoss(loss, mean_of(taken), td_errors)

    def _step_others(self, sample: Sample, weight: tf.Tensor | None) -> dict[str, tf.Tensor]:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(self._actor_variables)
            log_pi = self._log_pi(sample.observation, training=True)
            loss = mean(self._actor_loss(sample, log_pi), weight)
        tf.debugging.check_numerics(loss, "Actor loss is inf or nan.")
        self._apply(tape.gradient(loss, self._actor_variables), self._actor_variables, self._actor_optimizer)
        if not self._learns_alpha:
            return {"actor_loss": loss}
        difference = mean(self._missing_entropy(log_pi), weight)
        self._apply([difference], [self._log_alpha], self._alpha_optimizer)
        return {"actor_loss": loss, "alpha_loss": self._log_alpha * difference}

    def _losses(self, sample: Sample, weight: tf.Tensor | None) -> dict[str, tf.Tensor]:
        losses, log_pi = super()._losses(sample, weight), self._log_pi(sample.observation)
        losses["actor_loss"] = mean(self._actor_loss(sample, log_pi), weight)
        if self._learns_alpha:
            losses["alpha_loss"] = self._log_alpha * mean(self._missing_entropy(log_pi), weight)
        return losses

    def _actor_loss(self, sample: Sample, log_pi: tf.Tensor) -> tf.Tensor:
        """Equation 12: sum_a pi(a|s) (alpha log pi(a|s) - min_i Q_i(s, a)), `[B]`."""
        values = tf.stop_gradient(lowest([critic(sample.observation)[0] for critic in self._parts.critics]))
        return tf.reduce_sum(tf.exp(log_pi) * (tf.exp(self._log_alpha) * log_pi - values), axis=-1)

    def _missing_entropy(self, log_pi: tf.Tensor) -> tf.Tensor:
        """Entropy minus its target, `[B]`: the gradient of equation 11's loss with respect to log(alpha)."""
        return tf.stop_gradient(-tf.reduce_sum(tf.exp(log_pi) * log_pi, axis=-1) - self._target_entropy)

    def _log_pi(self, observation: Any, training: bool = False) -> tf.Tensor:
        """`[B, n]`."""
        seen = seen_by_actor(observation, self._actor_observations)
        return tf.nn.log_softmax(self._actor(seen, training=training)[0])


class SacDiscreteAgent(ValueAgent):
    """Two critics of all actions, and an actor of their probabilities."""

    def __init__(
        self, params: TrainParamsBase, time_step_spec: ts.TimeStep, action_spec: Any, train_step: tf.Variable
    ) -> None:
        count = num_actions(params, action_spec)
        wanted = params.target_entropy
        target = _SHARE_OF_MOST_ENTROPY * math.log(count) if wanted is None else float(wanted)
        update_class = functools.partial(
            SacDiscreteUpdate, agent=self, target_entropy=target, actor_observations=params.actor_observations
        )
        super().__init__(params, time_step_spec, action_spec, train_step, build_acting, update_class, _NUM_CRITICS)
        self._log_alpha = tf.Variable(params.sac_log_alpha, dtype=tf.float32, name="log_alpha")
        self._actor_optimizer = build_optimizer(params, "actor")
        self._alpha_optimizer = entropy.alpha_optimizer(params)


def build_agent(
    params: TrainParamsBase, time_step_spec: Any, action_spec: Any, train_step: tf.Variable
) -> SacDiscreteAgent:
    """Discrete SAC with a learned or fixed entropy coefficient."""
    return SacDiscreteAgent(params, time_step_spec, action_spec, train_step)


def build_acting(params: TrainParamsBase, time_step_spec: ts.TimeStep, action_spec: Any) -> ValueActing:
    """What workers need of it: the actor."""
    units, names, whole = tuple(params.actor_fc_layer_params), params.actor_observations, time_step_spec.observation
    time_step_spec = time_step_spec._replace(observation=seen_by_actor(whole, names))
    count, seen = num_actions(params, action_spec), time_step_spec.observation
    actor = build_value_network(params, seen, count, units, "Actor", is_actor=True)
    set_sources(actor, leaves_seen_by_actor(whole, names))
    policies = (kind(time_step_spec, action_spec, actor) for kind in (ScorePolicy, SamplingPolicy))
    return ValueActing(actor, *policies)
