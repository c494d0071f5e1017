"""SAC for discrete actions (Christodoulou, arXiv 1910.07207): SAC's losses with expectations over the n actions.

Values are the mean of both critics and not their minimum (double average Q-learning, Zhou et al., arXiv 2209.10081):
with the minimum an actor seldom comes upon rare rewards.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import tensorflow as tf
from tf_agents.trajectories import time_step as ts

from tfagents_system.agents.agent import Acting
from tfagents_system.agents.dqn import CriticLoss, Sample, ValueLearner, of_actions
from tfagents_system.agents.minibatch import Noise
from tfagents_system.agents.networks import SamplingPolicy, ScorePolicy, build_value_network, legal_actions, of_legal
from tfagents_system.agents.normalization import set_sources
from tfagents_system.agents.sac import mean
from tfagents_system.envs.history import leaves_seen_by_actor, seen_by_actor
from tfagents_system.train_params_base import TrainParamsBase

_NUM_CRITICS = 2
# Of log(n), that of equal probabilities. With the paper's 0.98 (its section 5) policies stay almost random.
_SHARE_OF_MOST_ENTROPY = 0.3
_LEAST_LOG_PI = -1e9  # Of illegal actions: pi log(pi) is 0, not NaN, whatever alpha is.


class SacDiscrete(ValueLearner):
    """Two critics of the values of all actions, and an actor of their probabilities.

    With a mask all sums are over the n(s) legal actions, and unless `target_entropy` is set, each state has a target
    of its own: 0.3 log n(s). One of all actions could not be reached where few are legal.
    """

    @staticmethod
    def build_acting(params: TrainParamsBase, time_step_spec: ts.TimeStep, action_spec: Any) -> Acting:
        names, whole = params.actor_observations, time_step_spec.observation
        time_step_spec = time_step_spec._replace(observation=seen_by_actor(whole, names))
        actor = build_value_network(params, time_step_spec, action_spec, "Actor", is_actor=True)
        set_sources(actor, leaves_seen_by_actor(whole, names))
        return Acting(actor, *(kind(time_step_spec, action_spec, actor) for kind in (ScorePolicy, SamplingPolicy)))

    def __init__(self, params: TrainParamsBase, time_step_spec: Any, action_spec: Any, train_step: tf.Variable) -> None:
        specs = time_step_spec, action_spec
        acting = self.build_acting(params, *specs)
        critics = [build_value_network(params, *specs, f"Critic{k}") for k in range(_NUM_CRITICS)]
        super().__init__(params, specs, train_step, acting, critics)
        self.learn_actor(params)
        self._actor_observations = params.actor_observations
        self._has_own_target = params.target_entropy is not None
        most_entropy, wanted = math.log(action_spec.maximum + 1), params.target_entropy
        self.target_entropy = _SHARE_OF_MOST_ENTROPY * most_entropy if wanted is None else float(wanted)

    def critic_loss(self, sample: Sample, noise: Noise, training: bool) -> CriticLoss:
        """The sum over critics of (y - Q_i(s, a))^2 / 2, y = r + g sum_a' pi (mean Q_target(s', a') - alpha log pi)."""
        log_pi = self._log_pi(sample.next_observation)
        next_values = mean([target(sample.next_observation)[0] for target in self.targets])
        soft = tf.reduce_sum(tf.exp(log_pi) * (next_values - tf.exp(self.log_alpha) * log_pi), axis=-1)
        td_target = tf.stop_gradient(sample.reward + sample.bootstrap * soft)
        of_critics = [critic(sample.observation, training=training)[0] for critic in self.critics]
        taken = [of_actions(values, sample.action) for values in of_critics]
        loss = tf.add_n([0.5 * tf.math.squared_difference(td_target, q) for q in taken])
        td_errors = mean([tf.abs(td_target - tf.stop_gradient(q)) for q in taken])
        return CriticLoss(loss, mean(taken), td_errors)

    def actor_loss(self, sample: Sample, training: bool) -> tuple[tf.Tensor, tf.Tensor]:
        """Equation 12: sum_a pi(a|s) (alpha log pi(a|s) - mean_i Q_i(s, a)); and log pi, `[B, n]`."""
        log_pi = self._log_pi(sample.observation, training)
        values = tf.stop_gradient(mean([critic(sample.observation)[0] for critic in self.critics]))
        per_sample = tf.reduce_sum(tf.exp(log_pi) * (tf.exp(self.log_alpha) * log_pi - values), axis=-1)
        return sample.mean(per_sample), log_pi

    def alpha_loss(self, sample: Sample, log_pi: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Equation 11 with log(alpha) in alpha's place; and its gradient, the entropy minus its target."""
        target, legal = self.target_entropy, legal_actions(sample.observation)
        if legal is not None and not self._has_own_target:
            counts = tf.reduce_sum(tf.cast(legal, tf.float32), axis=-1)
            target = _SHARE_OF_MOST_ENTROPY * tf.math.log(counts)
        missing = tf.stop_gradient(-tf.reduce_sum(tf.exp(log_pi) * log_pi, axis=-1) - target)
        gradient = sample.mean(missing)
        return self.log_alpha * gradient, gradient

    def step_actor(self, sample: Sample) -> dict[str, tf.Tensor]:
        loss_of = functools.partial(self.actor_loss, sample, training=True)
        (loss, log_pi), _ = self.minimize(loss_of, self.actor_variables, self.actor_optimizer)
        if self.alpha_optimizer is None:
            return {"actor_loss": loss}
        alpha_loss, gradient = self.alpha_loss(sample, log_pi)
        self.apply([gradient], [self.log_alpha], self.alpha_optimizer)
        return {"actor_loss": loss, "alpha_loss": alpha_loss}

    def actor_losses(self, sample: Sample) -> dict[str, tf.Tensor]:
        loss, log_pi = self.actor_loss(sample, training=False)
        losses = {"actor_loss": loss}
        return losses if self.alpha_optimizer is None else losses | {"alpha_loss": self.alpha_loss(sample, log_pi)[0]}

    def _log_pi(self, observation: Any, training: bool = False) -> tf.Tensor:
        """`[B, n]`."""
        logits = self.actor(seen_by_actor(observation, self._actor_observations), training=training)[0]
        log_pi = tf.nn.log_softmax(of_legal(logits, observation))
        return log_pi if legal_actions(observation) is None else tf.maximum(log_pi, _LEAST_LOG_PI)
