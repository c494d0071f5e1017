"""One SAC update as a smaller graph: the numbers of TF-Agents' `SacAgent._train`, without what it does twice."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
from tf_agents.agents import tf_agent
from tf_agents.agents.sac.sac_agent import SacAgent, SacLossInfo
from tf_agents.distributions.utils import SquashToSpecNormal
from tf_agents.trajectories import time_step as ts
from tf_agents.utils import common, eager_utils

_SAMPLES_PER_UPDATE, _LEAVES_PER_SAMPLE = 4, 64  # More than there are: positions in the run must not meet.
_LOG_2PI, _LOG_2 = math.log(2.0 * math.pi), math.log(2.0)


class UnsupportedAgentError(Exception):
    """The agent's update is not known to be SAC's; its message says what differs."""


class FusedSacUpdate:
    """SAC's losses and steps (Haarnoja et al., arXiv 1812.05905, equations 5, 7, 9 and 18) on an agent's variables.

    All that SacAgent can be given is kept: networks, optimizers, weights of losses, losses of TD errors, clipping,
    periods of the target. TF-Agents evaluates the actor three times; here alpha's loss takes log pi from the actor's
    loss, as the paper's algorithm 1 does: both see the actor before its step. Actions and log pi come from the noise
    itself instead of back through tanh, and a soft target update is one fused operation a variable.

    Args:
      agent: Its networks, optimizers, counter and settings are used in place, so its checkpoints stay what they are.
      share_log_pi: False evaluates the actor once more for alpha, after the actor's step: TF-Agents' own order.
      seed: Decides the noise of actions, together with the agent's counter of updates: an update that is repeated after
        a restart draws the same numbers.

    Raises:
      UnsupportedAgentError: The agent is not a plain SacAgent. That its actor's distributions are not tanh-squashed
        Gaussians is found at the first call.
    """

    def __init__(self, agent: Any, share_log_pi: bool = True, seed: int = 0) -> None:
        reason = _why_unsupported(agent)
        if reason:
            raise UnsupportedAgentError(reason)
        self._agent = agent
        self._share_log_pi = share_log_pi
        self._seed = seed
        self._critics = (agent._critic_network_1, agent._critic_network_2)
        self._targets = (agent._target_critic_network_1, agent._target_critic_network_2)
        self._critic_variables = _critic_variables(agent)
        self._actor_variables = agent._actor_network.trainable_variables

    def __call__(self, experience: Any, noise: Sequence[Any] | None = None) -> tf_agent.LossInfo:
        """Does one update.

        Args:
          experience: What `SacAgent._train` takes: a Transition `[B, ...]`, or for recurrent networks a Trajectory
            `[B, T + 1, ...]`.
          noise: Standard normal numbers for the actions at the next observations, for those at the observations, and
            where log pi is not shared for those at the observations after the actor's step: each a list with one array
            `[B, (T,) ...]` float32 a leaf of the action. None draws them.

        Returns:
          LossInfo of scalars, float32, with SacLossInfo as `extra`.
        """
        agent = self._agent
        time_steps, policy_steps, next_time_steps = agent._as_transition(experience)
        next_noise, actor_noise, alpha_noise = noise if noise is not None else map(self._drawing, range(3))
        # The actor does not depend on the critics' step: its first half can run beside that.
        with tf.GradientTape(watch_accessed_variables=False) as actor_tape:
            actor_tape.watch(self._actor_variables)
            actions, log_pi = self._sample(time_steps, actor_noise, training=True)
        critic_loss = self._step_critics(time_steps, policy_steps.action, next_time_steps, next_noise)
        with actor_tape:  # Goes on after the critics' step: their new values are what the actor is judged by.
            actor_loss = self._actor_loss(time_steps, actions, log_pi)
        tf.debugging.check_numerics(actor_loss, "Actor loss is inf or nan.")
        self._apply(actor_tape.gradient(actor_loss, self._actor_variables), self._actor_variables, "actor")
        if not self._share_log_pi:
            _, log_pi = self._sample(time_steps, alpha_noise, training=False)
        alpha_loss = self._step_alpha(log_pi)
        agent.train_step_counter.assign_add(1)
        self._update_targets()
        extra = SacLossInfo(actor_loss=actor_loss, critic_loss=critic_loss, alpha_loss=alpha_loss)
        return tf_agent.LossInfo(loss=critic_loss + actor_loss + alpha_loss, extra=extra)

    def _drawing(self, number: int) -> _Drawing:
        return _Drawing(self._seed, self._agent.train_step_counter * _SAMPLES_PER_UPDATE + number)

    def _sample(self, time_steps: ts.TimeStep, noise: Any, training: bool) -> tuple[Any, tf.Tensor]:
        """Actions of the actor and their log pi, `[B]` or `[B, T]`.

        With u = mean + std * noise and a = tanh(u), per dimension (appendix C of the paper, in the stable form)
        log pi(a) = log N(noise) - log std - log(1 - tanh(u)^2), log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2 u)).
        """
        policy = self._agent._train_policy if training else self._agent._policy
        batch_size = tf.nest.flatten(time_steps)[0].shape[0]
        nest = policy.distribution(time_steps, policy_state=policy.get_initial_state(batch_size)).action
        specs = tf.nest.flatten(self._agent.action_spec)
        actions, log_pis = [], []
        for k, (distribution, spec) in enumerate(zip(tf.nest.flatten(nest), specs, strict=True)):
            mean, std = _mean_and_std(distribution)
            epsilon = noise(k, mean) if isinstance(noise, _Drawing) else noise[k]
            u = mean + std * epsilon
            action_mean, magnitude = _constants(spec)
            actions.append(_scale_to_spec(tf.tanh(u), action_mean, magnitude))
            each = 2.0 * (u + tf.nn.softplus(-2.0 * u)) - tf.math.log(std) - 0.5 * tf.square(epsilon)
            event_axes = list(range(each.shape.rank - spec.shape.rank, each.shape.rank))
            constant = spec.shape.num_elements() * (0.5 * _LOG_2PI + 2.0 * _LOG_2) + np.log(magnitude).sum()
            log_pis.append(tf.reduce_sum(each, event_axes) - np.float32(constant))
        return tf.nest.pack_sequence_as(nest, actions), tf.add_n(log_pis)

    def _step_critics(
        self, time_steps: ts.TimeStep, actions: Any, next_time_steps: ts.TimeStep, noise: Any
    ) -> tf.Tensor:
        """One optimizer step on both critics; returns their loss.

        Equations 5 and 6: y = r + gamma * discount * (min_i Q_target_i(s', a') - alpha * log pi(a'|s')).
        """
        agent = self._agent
        next_actions, next_log_pi = self._sample(next_time_steps, noise, training=False)
        next_q = self._min_q(self._targets, next_time_steps, next_actions)
        soft_value = next_q - tf.exp(agent._log_alpha) * next_log_pi
        td_targets = tf.stop_gradient(
            agent._reward_scale_factor * next_time_steps.reward + agent._gamma * next_time_steps.discount * soft_value
        )
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(self._critic_variables)
            losses = [
                agent._td_errors_loss_fn(
                    td_targets,
                    critic((time_steps.observation, actions), training=True, step_type=time_steps.step_type)[0],
                )
                for critic in self._critics
            ]
            regularization = self._critics[0].losses + self._critics[1].losses
            loss = agent._critic_loss_weight * _batch_mean(losses[0] + losses[1], regularization)
        tf.debugging.check_numerics(loss, "Critic loss is inf or nan.")
        self._apply(tape.gradient(loss, self._critic_variables), self._critic_variables, "critic")
        return loss

    def _actor_loss(self, time_steps: ts.TimeStep, actions: Any, log_pi: tf.Tensor) -> tf.Tensor:
        """Equation 7: alpha * log pi(a|s) - min_i Q_i(s, a)."""
        agent = self._agent
        q = self._min_q(self._critics, time_steps, actions)
        per_example = tf.exp(agent._log_alpha) * log_pi - q
        return agent._actor_loss_weight * _batch_mean(per_example, agent._actor_network.losses)

    def _step_alpha(self, log_pi: tf.Tensor) -> tf.Tensor:
        """Equation 18, J = factor * (-log pi - target entropy), with log(alpha) or alpha as the factor."""
        agent = self._agent
        difference = agent._alpha_loss_weight * _batch_mean(tf.stop_gradient(-log_pi - agent._target_entropy))
        factor = agent._log_alpha if agent._use_log_alpha_in_alpha_loss else tf.exp(agent._log_alpha)
        loss = factor * difference
        # The gradient with respect to log(alpha).
        gradient = difference if agent._use_log_alpha_in_alpha_loss else loss
        tf.debugging.check_numerics(loss, "Alpha loss is inf or nan.")
        self._apply([gradient], [agent._log_alpha], "alpha")
        return loss

    def _min_q(self, critics: Sequence[Any], time_steps: ts.TimeStep, actions: Any) -> tf.Tensor:
        inputs = (time_steps.observation, actions)
        q_values = [critic(inputs, step_type=time_steps.step_type, training=False)[0] for critic in critics]
        return tf.minimum(*q_values)

    def _apply(self, gradients: Sequence[Any], variables: Sequence[tf.Variable], part: str) -> None:
        grads_and_vars = list(zip(gradients, variables, strict=True))
        if self._agent._gradient_clipping is not None:
            grads_and_vars = eager_utils.clip_gradient_norms(grads_and_vars, self._agent._gradient_clipping)
        getattr(self._agent, f"_{part}_optimizer").apply_gradients(grads_and_vars)

    def _update_targets(self) -> None:
        """Moves targets by tau of their way to the critics; what is not trained, as batch statistics, is copied."""
        agent = self._agent
        if agent._target_update_period != 1:
            agent._update_target()
            return
        pairs = {
            target.ref(): (target, source)
            for critic, target_critic in zip(self._critics, self._targets, strict=True)
            for source, target in zip(critic.variables, target_critic.variables, strict=True)
        }
        for target, source in pairs.values():
            if not target.trainable or agent._target_update_tau == 1.0:
                target.assign(source)
            elif agent._target_update_tau > 0.0:
                tf.raw_ops.ResourceApplyGradientDescent(
                    var=target.handle, alpha=agent._target_update_tau, delta=target - source
                )


class _Drawing:
    """The noise of one sample of actions, where it is not given.

    Args:
      seed: Of all updates.
      position: Of the sample in the run, int64: no two are the same.
    """

    def __init__(self, seed: int, position: tf.Tensor) -> None:
        self._seed = seed
        self._position = position

    def __call__(self, leaf: int, like: tf.Tensor) -> tf.Tensor:
        """Standard normal numbers in the shape of `like`, for a leaf of the action."""
        seed = tf.stack([tf.constant(self._seed, tf.int64), self._position * _LEAVES_PER_SAMPLE + leaf])
        return tf.random.stateless_normal(tf.shape(like), seed)


def _why_unsupported(agent: Any) -> str:
    """What makes the agent's update another one than SacAgent's; empty if nothing does."""
    if type(agent) is not SacAgent:
        return f"{type(agent).__name__} is not TF-Agents' SacAgent itself"
    if agent._debug_summaries or agent._summarize_grads_and_vars:
        return "the agent writes summaries of its own"
    critics = {variable.ref() for variable in _critic_variables(agent)}
    if any(variable.ref() in critics for variable in agent._actor_network.trainable_variables):
        return "actor and critics share variables"
    return ""


def _critic_variables(agent: Any) -> list[tf.Variable]:
    """The variables of both critics in a fixed order, each once, for critics that share layers."""
    critics = (agent._critic_network_1, agent._critic_network_2)
    return list({variable.ref(): variable for critic in critics for variable in critic.trainable_variables}.values())


def _mean_and_std(distribution: Any) -> tuple[tf.Tensor, tf.Tensor]:
    """Those of the Gaussian before tanh."""
    if type(distribution) is SquashToSpecNormal:
        gaussian = distribution.input_distribution
        if type(gaussian) is tfp.distributions.MultivariateNormalDiag:
            return gaussian.loc, gaussian.scale.diag_part()
        if type(gaussian) is tfp.distributions.Normal:
            return gaussian.loc, gaussian.scale
    raise UnsupportedAgentError(f"the actor's {type(distribution).__name__} is not a tanh-squashed Gaussian")


def _constants(spec: Any) -> tuple[np.ndarray, np.ndarray]:
    """Middle and half range of the action's bounds, `[*spec.shape]` float32."""
    low, high = (np.broadcast_to(np.float32(bound), spec.shape) for bound in (spec.minimum, spec.maximum))
    return (low + high) / np.float32(2.0), (high - low) / np.float32(2.0)


def _scale_to_spec(squashed: tf.Tensor, action_mean: np.ndarray, magnitude: np.ndarray) -> tf.Tensor:
    if np.all(action_mean == 0.0) and np.all(magnitude == 1.0):
        return squashed
    return action_mean + magnitude * squashed


def _batch_mean(per_example: tf.Tensor, regularization: Any = None) -> tf.Tensor:
    """Mean over the batch of the sum over time, plus the networks' own losses."""
    if per_example.shape.rank > 1:
        per_example = tf.reduce_sum(per_example, range(1, per_example.shape.rank))
    return common.aggregate_losses(per_example_loss=per_example, regularization_loss=regularization).total_loss
