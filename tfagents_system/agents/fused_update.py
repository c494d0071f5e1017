"""The update that SAC and its variants share: sample, step the critics, the actor and alpha, move the targets."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tf_agents.agents import tf_agent
from tf_agents.agents.sac.sac_agent import SacLossInfo
from tf_agents.trajectories import time_step as ts
from tf_agents.utils import common

from tfagents_system.agents.behaviour_cloning import with_cloning
from tfagents_system.agents.encoder import EncoderBackprop
from tfagents_system.agents.entropy import FrozenOptimizer
from tfagents_system.agents.layers import dropout_noise
from tfagents_system.agents.noise import Drawing, Noise, sample
from tfagents_system.agents.update_parts import (
    TD_ERRORS,
    CriticLoss,
    Measured,
    Parts,
    Steps,
    all_measured,
    critic_values,
    cut_burn_in,
    move_targets,
    of_actor,
    unique_variables,
    weighted_mean,
)

# Purposes of random numbers.
_NEXT_ACTIONS, _ACTIONS, _UNUSED, _SUBSET, _SHIFTS, _NEXT_SHIFTS = range(6)
_HELD_OUT_SEED = 0x68656C64  # Losses without learning use numbers that no update uses.


class FusedUpdate:
    """One update of SAC or a variant, which differ in their critics, as a small graph.

    The losses are those of SAC (Haarnoja et al., arXiv 1812.05905, equations 5, 7 and 18). An algorithm overrides what
    differs: `_evaluate`, `_next_values`, `_td_loss` and `_actor_q`. By default all critics learn the minimum over
    their targets, and the actor maximises the minimum over the critics.

    Args:
      parts: Of the agent.
      seed: Determines all random numbers together with the train step: an update repeated after a restart draws the
        same ones.
      burn_in_steps: For recurrent networks: the first steps of each sequence only produce the state in which the
        losses of the others begin (Kapturowski et al., Recurrent Experience Replay in Distributed RL, 2019).
    """

    kind = "fused"

    def __init__(self, parts: Parts, seed: int = 0, burn_in_steps: int = 0) -> None:
        self._parts = parts
        self._seed = seed
        self._burn_in_steps = burn_in_steps
        self._critic_variables = unique_variables(parts.critics)
        self._actor_variables = parts.actor.trainable_variables
        self._learns_alpha = not isinstance(parts.alpha_optimizer, FrozenOptimizer)
        self.optimized = parts.optimized(self._critic_variables, self._actor_variables)

    def step(self, experience: Any, noise: Sequence[Any] | None = None, weight: tf.Tensor | None = None) -> Measured:
        """Does one update.

        Args:
          experience: A Transition `[B, ...]`, or for recurrent networks a Trajectory `[B, T + 1, ...]`.
          noise: Standard normal numbers for the actions at the next observations and for those at the observations:
            each a list with one array `[B, (T,) ...]` float32 a leaf of the action. None draws them.
          weight: Weight of each transition in all losses, `[B, T]` including the burn-in; the mean after the burn-in is
            1, see `Sequences`. Or importance weights of samples, `[B]`. None: all weights are equal.

        Returns:
          `critic_loss` and `q_mean`; if the actor is updated also `actor_loss`, and `alpha_loss` if alpha is learned;
          `TD_ERRORS` with importance weights.
        """
        with dropout_noise(self._seed, self._parts.train_step):
            return self._step(experience, noise if noise is not None else self._noise(), weight)

    def _step(self, experience: Any, noise: Sequence[Any], weight: tf.Tensor | None) -> Measured:
        parts = self._parts
        steps, next_steps, encoder_backprop = self._see(experience, weight)
        next_noise, actor_noise = noise
        if parts.actor_update_period == 1:
            # The actor does not depend on the critics' step: its first half can run in parallel. Only batch statistics
            # depend on the order: here the actor's change before the next actions are drawn, below after that.
            begun = self._begin_actor(steps, actor_noise)
            measured = self._step_critics(steps, next_steps, next_noise, encoder_backprop)
            measured |= all_measured(self._finish_actor(steps, begun))
        else:
            measured = self._step_critics(steps, next_steps, next_noise, encoder_backprop)
            measured |= self._step_actor_if_due(steps, actor_noise)
        parts.train_step.assign_add(1)
        move_targets(parts)
        return measured

    def __call__(self, experience: Any, noise: Sequence[Any] | None = None) -> tf_agent.LossInfo:
        """Does one update like TF-Agents' `train`: `extra` is SacLossInfo, with 0 for unmeasured losses."""
        measured = self.step(experience, noise)
        values = [measured[name][0] if name in measured else tf.constant(0.0) for name in SacLossInfo._fields]
        return tf_agent.LossInfo(loss=sum(values), extra=SacLossInfo(*values))

    def losses(self, experience: Any, weight: tf.Tensor | None = None) -> dict[str, tf.Tensor]:
        """The same losses without learning, for held-out experience.

        Networks run in inference mode. Nothing changes, not even the train step.
        """
        seed, self._seed = self._seed, self._seed ^ _HELD_OUT_SEED
        try:
            with dropout_noise(self._seed, self._parts.train_step):
                return self._losses(experience, weight)
        finally:
            self._seed = seed

    def _losses(self, experience: Any, weight: tf.Tensor | None) -> dict[str, tf.Tensor]:
        next_noise, actor_noise = self._noise()
        steps, next_steps = self._split(experience, weight)
        critic_loss, q_mean, _ = self._critic_loss(steps, next_steps, next_noise, training=False)
        actions, log_pi = self._sample(steps, actor_noise, training=False)
        actor_loss = self._actor_loss(steps, actions, log_pi)
        losses = {"critic_loss": critic_loss, "q_mean": q_mean, "actor_loss": actor_loss}
        return losses | ({"alpha_loss": self._alpha_loss(steps, log_pi)[0]} if self._learns_alpha else {})

    # What an algorithm may override.

    def _evaluate(self, steps: Steps, next_steps: Steps, next_actions: Any, training: bool) -> tuple[list[Any], Any]:
        """Each critic's values of (s, a), and the target values of (s', a')."""
        predictions = [self._values(critic, steps, steps.actions, training) for critic in self._parts.critics]
        return predictions, self._next_values(next_steps, next_actions)

    def _next_values(self, next_steps: Steps, next_actions: Any) -> tf.Tensor:
        """Target values of (s', a'): equation 5's min_i Q_target_i(s', a')."""
        return lowest([self._values(target, next_steps, next_actions) for target in self._parts.targets])

    def _td_loss(self, td_targets: tf.Tensor, prediction: tf.Tensor) -> tf.Tensor:
        """Loss of one critic, `[B, (T,)]`."""
        return self._parts.td_errors_loss_fn(td_targets, prediction)

    def _actor_q(self, values: list[tf.Tensor]) -> tf.Tensor:
        """The values that the actor maximises, `[B, (T,)]`: equation 7's min_i Q_i(s, a)."""
        return lowest(values)

    # Critics.

    def _step_critics(
        self, steps: Steps, next_steps: Steps, noise: Noise, encoder_backprop: EncoderBackprop
    ) -> Measured:
        """One optimizer step on all critics, and on the encoder that they see through."""
        sources = [*self._critic_variables, *encoder_backprop.features]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(sources)
            loss, q_mean, td_errors = self._critic_loss(steps, next_steps, noise, training=True)
        tf.debugging.check_numerics(loss, "Critic loss is inf or nan.")
        gradients = tape.gradient(loss, sources)
        own = len(self._critic_variables)
        encoder_gradients = encoder_backprop.gradients(gradients[own:])
        variables = [*self._critic_variables, *encoder_backprop.variables]
        self._parts.apply([*gradients[:own], *encoder_gradients], variables, self._parts.critic_optimizer)
        measured = {"critic_loss": loss, "q_mean": q_mean}
        return all_measured(measured if td_errors is None else measured | {TD_ERRORS: td_errors})

    def _critic_loss(self, steps: Steps, next_steps: Steps, noise: Noise, training: bool) -> CriticLoss:
        """Sum over the critics (equation 5), and the mean of their values."""
        parts = self._parts
        next_actions, next_log_pi = self._sample(next_steps, noise, training=False)
        predictions, next_values = self._evaluate(steps, next_steps, next_actions, training)
        td_targets = self._td_targets(next_steps.time_steps, next_values, next_log_pi)
        per_example = tf.add_n([self._td_loss(td_targets, prediction) for prediction in predictions])
        regularization = [loss for critic in parts.critics for loss in critic.losses]
        loss = parts.critic_loss_weight * _batch_mean(per_example, steps.weight, regularization)
        return CriticLoss(loss, *_q_and_errors(tf.nest.map_structure(tf.stop_gradient, predictions), td_targets, steps))

    def _td_targets(self, next_time_steps: ts.TimeStep, next_values: tf.Tensor, next_log_pi: tf.Tensor) -> tf.Tensor:
        """Of each quantile if any: y = r + gamma * discount * (value(s', a') - alpha * log pi(a'|s'))."""
        parts = self._parts
        reward, discount = parts.reward_scale_factor * next_time_steps.reward, parts.gamma * next_time_steps.discount
        if next_values.shape.rank > reward.shape.rank:
            reward, discount, next_log_pi = (tensor[..., None] for tensor in (reward, discount, next_log_pi))
        soft_values = next_values - tf.exp(parts.log_alpha) * next_log_pi
        return tf.stop_gradient(reward + discount * soft_values)

    # Actor and alpha.

    def _begin_actor(self, steps: Steps, noise: Noise) -> tuple[tf.GradientTape, Any, tf.Tensor]:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(self._actor_variables)
            actions, log_pi = self._sample(steps, noise, training=True)
        return tape, actions, log_pi

    def _finish_actor(self, steps: Steps, begun: Any) -> dict[str, tf.Tensor]:
        """Steps actor and alpha."""
        tape, actions, log_pi = begun
        with tape:  # Continues after the critics' step: the actor's loss uses their new values.
            loss = self._actor_loss(steps, actions, log_pi)
        tf.debugging.check_numerics(loss, "Actor loss is inf or nan.")
        gradients = tape.gradient(loss, self._actor_variables)
        self._parts.apply(gradients, self._actor_variables, self._parts.actor_optimizer)
        if not self._learns_alpha:
            return {"actor_loss": loss}
        alpha_loss, gradient = self._alpha_loss(steps, log_pi)
        tf.debugging.check_numerics(alpha_loss, "Alpha loss is inf or nan.")
        self._parts.apply([gradient], [self._parts.log_alpha], self._parts.alpha_optimizer)
        return {"actor_loss": loss, "alpha_loss": alpha_loss}

    def _step_actor_if_due(self, steps: Steps, noise: Noise) -> Measured:
        """Runs in the updates period, 2 * period, ... of the run; costs nothing in the others."""
        is_due = tf.equal((self._parts.train_step + 1) % self._parts.actor_update_period, 0)
        names = ["actor_loss", "alpha_loss"] if self._learns_alpha else ["actor_loss"]
        losses = tf.cond(
            is_due,
            lambda: self._finish_actor(steps, self._begin_actor(steps, noise)),
            lambda: dict.fromkeys(names, tf.constant(0.0)),
        )
        return {name: (loss, tf.cast(is_due, tf.float32)) for name, loss in losses.items()}

    def _actor_loss(self, steps: Steps, actions: Any, log_pi: tf.Tensor) -> tf.Tensor:
        """Equation 7: alpha * log pi(a|s) - value(s, a); with a term of behaviour cloning where there is one."""
        parts = self._parts
        value = self._actor_q([self._values(critic, steps, actions) for critic in parts.critics])
        per_example = with_cloning(tf.exp(parts.log_alpha) * log_pi - value, parts, value, actions, steps.actions)
        return parts.actor_loss_weight * _batch_mean(per_example, steps.weight, parts.actor.losses)

    def _alpha_loss(self, steps: Steps, log_pi: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Equation 18, J = factor * (-log pi - target entropy), and its gradient with respect to log(alpha)."""
        parts = self._parts
        per_example = tf.stop_gradient(-log_pi - parts.target_entropy)
        difference = parts.alpha_loss_weight * _batch_mean(per_example, steps.weight)
        if parts.has_log_alpha_loss:
            return parts.log_alpha * difference, difference
        loss = tf.exp(parts.log_alpha) * difference
        return loss, loss

    # Networks.

    def _sample(self, steps: Steps, noise: Noise, training: bool) -> tuple[Any, tf.Tensor]:
        """Actions of the actor and their log pi, `[B]` or `[B, T]`."""
        policy = self._parts.train_policy if training else self._parts.policy
        batch_size = tf.nest.flatten(steps.time_steps)[0].shape[0]
        state = policy.get_initial_state(batch_size)
        if steps.past is not None:
            past, _ = steps.past
            _, state = self._parts.actor(
                of_actor(past).observation, step_type=past.step_type, network_state=state, training=False
            )
            state = tf.nest.map_structure(tf.stop_gradient, state)
        distributions = policy.distribution(of_actor(steps.time_steps), policy_state=state).action
        return sample(distributions, self._parts.action_spec, noise)

    _values = staticmethod(critic_values)

    def _see(self, experience: Any, weight: tf.Tensor | None) -> tuple[Steps, Steps, EncoderBackprop]:
        """Steps and next steps, augmented and encoded, and the gradients' path back to the encoder."""
        if (pipeline := self._parts.pipeline) is None:
            return *self._split(experience, weight), EncoderBackprop()
        # The actor's tape does not record the encoder: its gradient ends at the features.
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(pipeline.variables)
            steps, next_steps = self._split(experience, weight, is_shifted=True)
        return steps, next_steps, EncoderBackprop(tape, self._parts.features(steps.time_steps), pipeline.variables)

    def _split(self, experience: Any, weight: tf.Tensor | None = None, is_shifted: bool = False) -> tuple[Steps, Steps]:
        """Observations with the actions taken there, and next observations; each with its burn-in."""
        time_steps, policy_steps, next_time_steps = self._parts.as_transition(experience)
        if is_shifted and (pipeline := self._parts.pipeline) is not None:
            time_steps = pipeline.shifted(time_steps, self._drawing(_SHIFTS))
            next_time_steps = pipeline.shifted(next_time_steps, self._drawing(_NEXT_SHIFTS))
        time_steps, next_time_steps = self._parts.encoded(time_steps), self._parts.encoded(next_time_steps)
        steps = Steps(time_steps, policy_steps.action, weight=weight)
        return cut_burn_in(steps, next_time_steps, self._burn_in_steps)

    def _noise(self) -> list[Drawing]:
        # Nothing draws from the third. Without it TensorFlow would name other operations differently and add in another
        # order: runs would not repeat earlier ones bit for bit.
        return [self._drawing(number) for number in (_NEXT_ACTIONS, _ACTIONS, _UNUSED)][:2]

    def _drawing(self, number: int = _SUBSET) -> Drawing:
        """Random numbers of this train step, for one purpose."""
        return Drawing(self._seed, self._parts.train_step, number)


def lowest(values: Sequence[tf.Tensor]) -> tf.Tensor:
    """Elementwise minimum."""
    return functools.reduce(tf.minimum, values)


def mean(values: Sequence[tf.Tensor]) -> tf.Tensor:
    """Elementwise mean."""
    return tf.add_n(values) / float(len(values))


def _q_and_errors(
    predictions: Sequence[tf.Tensor], td_targets: tf.Tensor, steps: Steps
) -> tuple[tf.Tensor, tf.Tensor | None]:
    """The mean of the critics' values, and with importance weights the TD errors `[B]`."""
    q, weight = mean(predictions), steps.weight
    if weight is None or weight.shape.rank > 1:
        return tf.reduce_mean(q if weight is None else q * _like(weight, q)), None
    errors = [tf.abs(_mean_quantile(td_targets) - _mean_quantile(each)) for each in predictions]
    return weighted_mean(_mean_quantile(q), weight), mean(errors)


def _mean_quantile(values: tf.Tensor) -> tf.Tensor:
    """`[B]` of `[B]`, or of quantiles `[B, n]`."""
    return tf.reduce_mean(values, -1) if values.shape.rank > 1 else values


def _like(weight: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """A weight `[B, T]` for values that may have quantiles."""
    return weight[..., None] if values.shape.rank > weight.shape.rank else weight


def _batch_mean(per_example: tf.Tensor, weight: tf.Tensor | None, regularization: Any = None) -> tf.Tensor:
    """Mean over the batch of the weighted sum over time, if any, plus the networks' own losses."""
    if weight is not None:
        per_example *= weight
    if per_example.shape.rank > 1:
        per_example = tf.reduce_sum(per_example, range(1, per_example.shape.rank))
    return common.aggregate_losses(per_example_loss=per_example, regularization_loss=regularization).total_loss
