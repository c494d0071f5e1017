"""SAC (Haarnoja et al., arXiv 1812.05905) in the order of the paper, whose equations are named below.

The other algorithms for continuous actions are subclasses that override a few methods. block_update.py says what makes
an update fast.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tf_agents.policies.actor_policy import ActorPolicy
from tf_agents.trajectories import time_step as ts
from tf_agents.utils import common

from tfagents_system.agents import algorithms
from tfagents_system.agents.agent import Agent
from tfagents_system.agents.algorithms import CLONING_WEIGHT, clones_behaviour
from tfagents_system.agents.behaviour_cloning import BehaviourCloning
from tfagents_system.agents.categorical import Categories
from tfagents_system.agents.encoder import ObservationPipeline, make_encoder
from tfagents_system.agents.minibatch import (
    TD_ERRORS,
    Drawing,
    Measured,
    Minibatch,
    Noise,
    Steps,
    all_measured,
    batch_mean,
    cut_burn_in,
    of_actor,
    of_critics,
    sample,
    weighted_mean,
)
from tfagents_system.agents.networks import Critic, build_acting, build_critics
from tfagents_system.checks.schedules import initial_value
from tfagents_system.train_params_base import TrainParamsBase

CLIPPED_MASS = "clipped_mass"  # In Measured: the share of the targets' probability beyond `value_range`.
NEXT_ACTIONS, ACTIONS, SUBSET, _SHIFTS, _NEXT_SHIFTS = 0, 1, 3, 4, 5  # Purposes of random numbers.


class Sac(Agent):
    """An actor whose distribution is a tanh-squashed Gaussian, and critics, two unless a variant has more."""

    build_acting = staticmethod(build_acting)
    has_targets = True
    critic_loss_weight = 0.5
    actor_steps_first = False

    def __init__(self, params: TrainParamsBase, time_step_spec: Any, action_spec: Any, train_step: tf.Variable) -> None:
        acting, observation_spec = self.build_acting(params, time_step_spec, action_spec), time_step_spec.observation
        encoder = acting.encoder
        if params.actor_observations is not None:  # The actor has an encoder of its own.
            encoder = make_encoder(params, observation_spec)
        inputs = (observation_spec if encoder is None else encoder.encoded_spec, action_spec)
        critics = build_critics(params, *inputs)
        targets = [
            common.maybe_copy_target_network_with_checks(critic, input_spec=inputs, name=f"TargetCriticNetwork{k}")
            for k, critic in enumerate(critics if self.has_targets else [])
        ]
        is_recurrent = bool(critics[0].state_spec)
        super().__init__(params, time_step_spec, action_spec, train_step, acting, critics, targets, is_recurrent)
        self.learn_actor(params)
        self.encoder = encoder
        self._pipeline = ObservationPipeline(params, encoder, observation_spec, params.actor_observations)
        seen = ts.time_step_spec(acting.encoded_spec), action_spec, self.actor
        self._policy_in_training = ActorPolicy(*seen, training=True)
        self._policy_in_inference = ActorPolicy(*seen, training=False)
        self.gamma = initial_value(params.discount)
        self.target_entropy = target_entropy(params, action_spec)
        self.actor_update_period: int = algorithms.value(params, "actor_update_period")
        self._cloning = BehaviourCloning(params) if clones_behaviour(params) else None
        self.categories = Categories.of(params)

    @property
    def scheduled(self) -> dict[str, tf.Variable]:
        return super().scheduled | ({} if self._cloning is None else {CLONING_WEIGHT: self._cloning.weight})

    def update(self, minibatch: Minibatch, noise: Noise) -> Measured:
        """Samples actions, steps critics, actor and alpha, and moves the targets.

        Returns:
          What `critic_loss` measures; if the actor is updated also `actor_loss`, and `alpha_loss` if alpha is learned.
        """
        next_noise, actor_noise = noise.of(NEXT_ACTIONS), noise.of(ACTIONS)
        # The critics' tape alone records the encoder, which learns from their loss.
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch([*self.critic_variables, *self._encoder_variables])
            steps, next_steps = self.split(minibatch, noise)
        if self.actor_update_period == 1 and not self.actor_steps_first:
            # The actor does not depend on the critics' step: its first half can run in parallel. Only batch statistics
            # depend on the order: here the actor's change before the next actions are drawn, below after that.
            begun = self._begin_actor(steps, next_steps, actor_noise)
            measured = self._step_critics(steps, next_steps, next_noise, noise, tape)
            measured |= all_measured(self._finish_actor(steps, *begun))
        else:
            actor = functools.partial(self._step_actor_if_due, steps, next_steps, actor_noise)
            critics = functools.partial(self._step_critics, steps, next_steps, next_noise, noise, tape)
            first, second = (actor, critics) if self.actor_steps_first else (critics, actor)
            measured = first() | second()
        self.train_step_counter.assign_add(1)
        self.move_targets()
        return measured

    def losses(self, minibatch: Minibatch, noise: Noise) -> dict[str, tf.Tensor]:
        next_noise, actor_noise = noise.of(NEXT_ACTIONS), noise.of(ACTIONS)
        steps, next_steps = self.split(minibatch)
        losses = self.critic_loss(steps, next_steps, next_noise, noise, training=False)
        losses.pop(TD_ERRORS, None)
        actions, log_pi = self.sample(steps, actor_noise, training=False)
        losses["actor_loss"] = self.actor_loss(steps, actions, log_pi)
        return losses | ({} if self.alpha_optimizer is None else {"alpha_loss": self.alpha_loss(steps, log_pi)[0]})

    # Targets: y = r + gamma * (min_i Q_target_i(s', a') - alpha * log pi(a'|s')), equations 5 and 6.

    def evaluate(
        self, steps: Steps, next_steps: Steps, next_actions: Any, noise: Noise, training: bool
    ) -> tuple[list[tf.Tensor], tf.Tensor]:
        """Each critic's outputs at (s, a), and the output at (s', a') that the targets are made of."""
        predictions = [self.values(critic, steps, steps.actions, training) for critic in self.critics]
        return predictions, self.next_values(next_steps, next_actions, noise)

    def next_values(self, next_steps: Steps, next_actions: Any, noise: Noise) -> tf.Tensor:
        """Of (s', a') in the targets: values `[B, (T,)]`, or quantiles or logits with one axis more."""
        return self.lowest([self.values(target, next_steps, next_actions) for target in self.targets])

    def lowest(self, outputs: Sequence[tf.Tensor]) -> tf.Tensor:
        """The lowest of several critics' outputs, or of categories the whole distribution with the lowest mean."""
        return lowest(outputs) if self.categories is None else self.categories.lowest(outputs)

    def _td_targets(
        self, next_time_steps: ts.TimeStep, next_values: tf.Tensor, next_log_pi: tf.Tensor
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """y, and what is measured of it."""
        reward, discount = next_time_steps.reward, self.gamma * next_time_steps.discount
        values = next_values if self.categories is None else tf.zeros_like(next_values) + self.categories.atoms
        if values.shape.rank > reward.shape.rank:  # Of each quantile or atom.
            reward, discount, next_log_pi = (tensor[..., None] for tensor in (reward, discount, next_log_pi))
        td_targets = reward + discount * (values - tf.exp(self.log_alpha) * next_log_pi)
        if self.categories is None:
            return tf.stop_gradient(td_targets), {}
        projected, clipped = self.categories.project(tf.nn.softmax(next_values), td_targets)
        return tf.stop_gradient(projected), {CLIPPED_MASS: tf.reduce_mean(clipped)}

    # Critics: J = sum_i (Q_i(s, a) - y)^2 / 2, equation 5; with categories cross-entropies take the squares' place.

    def td_loss(self, td_targets: tf.Tensor, prediction: tf.Tensor) -> tf.Tensor:
        """Loss of one critic, `[B, (T,)]`; `critic_loss_weight` is its factor."""
        if self.categories is not None:  # Its gradient is softmax - target.
            return tf.nn.softmax_cross_entropy_with_logits(td_targets, prediction)
        return tf.math.squared_difference(td_targets, prediction)

    def value_of(self, outputs: tf.Tensor) -> tf.Tensor:
        """Q-values `[B, (T,)]` of a critic's outputs."""
        return outputs if self.categories is None else self.categories.mean(tf.nn.softmax(outputs))

    def value_of_targets(self, td_targets: tf.Tensor) -> tf.Tensor:
        """Values `[B, (T,)]` of y."""
        return td_targets if self.categories is None else self.categories.mean(td_targets)

    def critic_loss(
        self, steps: Steps, next_steps: Steps, next_noise: Drawing, noise: Noise, training: bool
    ) -> dict[str, tf.Tensor]:
        """`critic_loss` of all critics, `q_mean`, the mean of their values, and what is measured beside these.

        That is `CLIPPED_MASS` with categories, and with importance weights `TD_ERRORS` `[B]`.
        """
        next_actions, next_log_pi = self.sample(next_steps, next_noise, training=False)
        predictions, next_values = self.evaluate(steps, next_steps, next_actions, noise, training)
        td_targets, measured = self._td_targets(next_steps.time_steps, next_values, next_log_pi)
        per_example = tf.add_n([self.td_loss(td_targets, prediction) for prediction in predictions])
        regularization = [loss for critic in self.critics for loss in critic.losses]
        measured["critic_loss"] = self.critic_loss_weight * batch_mean(per_example, steps.weight, regularization)
        values = [self.value_of(tf.stop_gradient(prediction)) for prediction in predictions]
        if steps.weight is not None and steps.weight.shape.rank == 1:  # Of samples drawn by priority.
            td_values = self.value_of_targets(td_targets)
            measured[TD_ERRORS] = mean([tf.abs(td_values - value) for value in values])
            measured["q_mean"] = weighted_mean(mean(values), steps.weight)
        else:  # The mean weight of steps is 1.
            measured["q_mean"] = tf.reduce_mean(mean(values) * (1.0 if steps.weight is None else steps.weight))
        return measured

    def _step_critics(
        self, steps: Steps, next_steps: Steps, next_noise: Drawing, noise: Noise, tape: tf.GradientTape
    ) -> Measured:
        """One optimizer step on all critics, and on the encoder that they see through."""
        with tape:
            measured = self.critic_loss(steps, next_steps, next_noise, noise, training=True)
        loss = measured["critic_loss"]
        variables = [*self.critic_variables, *self._encoder_variables]
        self.apply(tape.gradient(loss, variables), variables, self.critic_optimizer)
        return all_measured(measured)

    # Actor: J = alpha * log pi(a|s) - min_i Q_i(s, a), equation 7.

    def actor_value(self, values: list[tf.Tensor]) -> tf.Tensor:
        """What the actor maximises, of each critic's values, `[B, (T,)]` as these."""
        return lowest(values)

    def actor_loss(self, steps: Steps, actions: Any, log_pi: tf.Tensor) -> tf.Tensor:
        value = self.actor_value([self.value_of(self.values(critic, steps, actions)) for critic in self.critics])
        per_example = tf.exp(self.log_alpha) * log_pi - value
        if self._cloning is not None:
            per_example += self._cloning.term(value, actions, steps.actions)
        return 1.0 * batch_mean(per_example, steps.weight, self.actor.losses)

    def learning_actions(self, steps: Steps, next_steps: Steps, noise: Drawing) -> tuple[Any, tf.Tensor]:
        """Actions at `steps` that the actor learns from, and their log pi."""
        del next_steps
        return self.sample(steps, noise, training=True)

    def _begin_actor(self, steps: Steps, next_steps: Steps, noise: Drawing) -> tuple[tf.GradientTape, Any, tf.Tensor]:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(self.actor_variables)
            actions, log_pi = self.learning_actions(steps, next_steps, noise)
        return tape, actions, log_pi

    def _finish_actor(
        self, steps: Steps, tape: tf.GradientTape, actions: Any, log_pi: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """Steps actor and alpha, which shares log pi with the actor's loss."""
        with tape:  # Continues after the critics' step: the actor's loss uses their new values.
            loss = self.actor_loss(steps, actions, log_pi)
        self.apply(tape.gradient(loss, self.actor_variables), self.actor_variables, self.actor_optimizer)
        if self.alpha_optimizer is None:
            return {"actor_loss": loss}
        alpha_loss, gradient = self.alpha_loss(steps, log_pi)
        self.apply([gradient], [self.log_alpha], self.alpha_optimizer)
        return {"actor_loss": loss, "alpha_loss": alpha_loss}

    def _step_actor_if_due(self, steps: Steps, next_steps: Steps, noise: Drawing) -> Measured:
        """Runs in the updates period, 2 * period, ... of the run; costs nothing in the others."""
        is_due = tf.equal((self.train_step_counter + 1) % self.actor_update_period, 0)
        names = ["actor_loss"] if self.alpha_optimizer is None else ["actor_loss", "alpha_loss"]
        losses = tf.cond(
            is_due,
            lambda: self._finish_actor(steps, *self._begin_actor(steps, next_steps, noise)),
            lambda: dict.fromkeys(names, tf.constant(0.0)),
        )
        return {name: (loss, tf.cast(is_due, tf.float32)) for name, loss in losses.items()}

    # Entropy coefficient: J = -log(alpha) * (log pi + target entropy), equation 18 with log(alpha) in alpha's place.

    def alpha_loss(self, steps: Steps, log_pi: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The loss, and its gradient with respect to log(alpha)."""
        gradient = 1.0 * batch_mean(tf.stop_gradient(-log_pi - self.target_entropy), steps.weight)
        return self.log_alpha * gradient, gradient

    # Networks.

    def sample(self, steps: Steps, noise: Drawing, training: bool) -> tuple[Any, tf.Tensor]:
        """Actions of the actor and their log pi, `[B]` or `[B, T]`."""
        policy = self._policy_in_training if training else self._policy_in_inference
        state = policy.get_initial_state(tf.nest.flatten(steps.time_steps)[0].shape[0])
        if steps.past is not None:
            past = of_actor(steps.past[0])
            _, state = self.actor(past.observation, step_type=past.step_type, network_state=state, training=False)
            state = tf.nest.map_structure(tf.stop_gradient, state)
        distributions = policy.distribution(of_actor(steps.time_steps), policy_state=state).action
        return sample(distributions, self.action_spec, noise)

    def values(
        self, critic: Any, steps: Steps, actions: Any, training: bool = False, half: int | None = None
    ) -> tf.Tensor:
        """What a critic returns for actions; recurrent critics begin in the state after the past.

        Args:
          half: Of two joined batches, the one whose values are wanted, 0 or 1; None: all of them.
        """
        state: Any = ()
        if steps.past is not None:
            past, past_actions = of_critics(steps.past[0]), steps.past[1]
            _, state = critic((past.observation, past_actions), step_type=past.step_type, training=False)
            state = tf.nest.map_structure(tf.stop_gradient, state)
        inputs = (of_critics(steps.time_steps).observation, actions)
        is_ours = half is not None and isinstance(critic, Critic)  # Its last layer leaves the other half out.
        halves = {"half": half} if is_ours else {}
        step_type = steps.time_steps.step_type
        values, _ = critic(inputs, step_type=step_type, network_state=state, training=training, **halves)
        return values if half is None or is_ours else tf.split(values, 2)[half]

    @property
    def _encoder_variables(self) -> list[tf.Variable]:
        return [] if self.encoder is None else self.encoder.trainable_variables

    def split(self, minibatch: Minibatch, noise: Noise | None = None) -> tuple[Steps, Steps]:
        """Steps with the actions taken there, and next steps, each with its burn-in; images are encoded.

        `noise` shifts them at random before that.
        """
        time_steps, policy_steps, next_time_steps = self.as_transition(minibatch.experience)
        if noise is not None:
            time_steps = self._pipeline.shifted(time_steps, noise.of(_SHIFTS))
            next_time_steps = self._pipeline.shifted(next_time_steps, noise.of(_NEXT_SHIFTS))
        steps = Steps(self._pipeline.encoded(time_steps), policy_steps.action, weight=minibatch.weight)
        # Nothing is learned from what follows: CrossQ's batch statistics would lead a gradient there.
        following = self._pipeline.encoded(next_time_steps)
        following = following._replace(observation=tf.nest.map_structure(tf.stop_gradient, following.observation))
        return cut_burn_in(steps, following, minibatch.burn_in_steps)


def target_entropy(params: TrainParamsBase, action_spec: Any) -> float:
    """In nats; unless params set it -dim(action) (appendix D), or another multiple of dim(action)."""
    if params.target_entropy is not None:
        return float(params.target_entropy)
    per_number = algorithms.ALGORITHMS[params.algorithm].entropy_per_number
    return per_number * float(sum(spec.shape.num_elements() for spec in tf.nest.flatten(action_spec)))


def lowest(values: Sequence[tf.Tensor]) -> tf.Tensor:
    """Elementwise minimum."""
    return functools.reduce(tf.minimum, values)


def mean(values: Sequence[tf.Tensor]) -> tf.Tensor:
    """Elementwise mean."""
    return tf.add_n(values) / float(len(values))
