"""The inputs of an update: the parts of an agent, and the steps of a minibatch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import tensorflow as tf
from tf_agents.trajectories import time_step as ts
from tf_agents.utils import eager_utils

from tfagents_system.agents.encoder import ObservationPipeline
from tfagents_system.envs.history import seen_by_actor

Measured = dict[str, tuple[tf.Tensor, tf.Tensor]]
"""By name: a value, and 1 or 0 for whether this update has measured it. Unmeasured values are 0."""
TD_ERRORS = "td_errors"
"""In Measured where samples have weights `[B]`: |y - Q(s, a)| `[B]`, mean over the critics, of means of quantiles."""


class CriticLoss(NamedTuple):
    """What a minibatch says of the critics.

    Attributes:
      loss: Scalar of all, or `[B]`.
      q: Likewise: the values of the actions taken.
      td_errors: See `TD_ERRORS`; None where samples have no weights.
    """

    loss: tf.Tensor
    q: tf.Tensor
    td_errors: tf.Tensor | None = None


class Views(NamedTuple):
    """In the place of an observation, where actor and critics do not see the same.

    Attributes:
      actor: The parts that the actor sees; of images the pixels, for an encoder of its own.
      critics: All of it, with features for images.
    """

    actor: Any
    critics: Any


@dataclasses.dataclass(frozen=True)
class CloningWeight:
    """A weight that agents hold and TensorFlow does not find: it follows from the position in the run alone.

    Checkpoints therefore lack it, and a run goes on from those of another weight, or of none.

    Attributes:
      variable: float32 scalar.
    """

    variable: tf.Variable


@dataclasses.dataclass(frozen=True)
class Parts:
    """The parts that an update changes in place, so that checkpoints of the agent are complete.

    Attributes:
      policy, train_policy: Of the actor, outside of training and in it.
      actor: The network of both.
      critics: Networks from (observation, action) to values `[B, (T,)]`, or to quantiles with one axis more.
      targets: A network for each critic, or none where the algorithm has no targets.
      log_alpha: Scalar variable.
      actor_optimizer, critic_optimizer, alpha_optimizer: Legacy Keras optimizers. `FrozenOptimizer` keeps
        alpha as it is.
      train_step: int64 scalar variable, incremented by each update.
      action_spec: Nest of bounded specs.
      as_transition: From the replay server's experience to a Transition `[B, (T,) ...]`.
      gamma: Discount of a step.
      target_entropy: In nats.
      target_update_tau, target_update_period: Weight of the critics in their targets, and updates between two moves.
      gradient_clipping: Maximum norm of each variable's gradient, or None.
      actor_update_period: Actor and alpha step in every so many updates.
      critic_loss_weight, actor_loss_weight, alpha_loss_weight, reward_scale_factor: Factors.
      td_errors_loss_fn: Loss of targets and predictions, elementwise.
      has_log_alpha_loss: Alpha's loss has log(alpha) as its factor, not alpha.
      cloning_weight: Of the term that keeps the actor near the actions of the data; None: no term.
      pipeline: Processes images before all networks above; None: nothing does.
      actor_observations: The hyperparameter: what the actor sees; None: what the critics see.
    """

    policy: Any
    train_policy: Any
    actor: Any
    critics: Sequence[Any]
    targets: Sequence[Any]
    log_alpha: tf.Variable
    actor_optimizer: Any
    critic_optimizer: Any
    alpha_optimizer: Any
    train_step: tf.Variable
    action_spec: Any
    as_transition: Callable[[Any], Any]
    gamma: float
    target_entropy: float
    target_update_tau: float
    target_update_period: int
    gradient_clipping: float | None
    actor_update_period: int = 1
    critic_loss_weight: float = 0.5
    actor_loss_weight: float = 1.0
    alpha_loss_weight: float = 1.0
    reward_scale_factor: float = 1.0
    td_errors_loss_fn: Callable[[tf.Tensor, tf.Tensor], tf.Tensor] = tf.math.squared_difference
    has_log_alpha_loss: bool = True
    cloning_weight: CloningWeight | None = None
    pipeline: ObservationPipeline | None = None
    actor_observations: Sequence[str] | None = None

    def encoded(self, time_steps: ts.TimeStep) -> ts.TimeStep:
        """Time steps as the networks see them: with features for images, and with `Views` where these differ."""
        seen = time_steps if self.pipeline is None else self.pipeline.encoded(time_steps)
        if self.actor_observations is None:
            return seen
        of_actor = seen_by_actor(time_steps.observation, self.actor_observations)
        return seen._replace(observation=Views(of_actor, seen.observation))

    def features(self, time_steps: ts.TimeStep) -> list[tf.Tensor]:
        """What the critics' encoder has made of images, in encoded time steps."""
        return [] if self.pipeline is None else self.pipeline.features(of_critics(time_steps))

    def optimized(
        self, critic_variables: Sequence[tf.Variable], actor_variables: Sequence[tf.Variable]
    ) -> list[tuple[Any, list[tf.Variable]]]:
        """Each optimizer with the variables that it steps."""
        encoder = self.pipeline.variables if self.pipeline is not None else []
        return [
            (self.critic_optimizer, [*critic_variables, *encoder]),
            (self.actor_optimizer, [*actor_variables]),
            (self.alpha_optimizer, [self.log_alpha]),
        ]

    def apply(self, gradients: Sequence[Any], variables: Sequence[tf.Variable], optimizer: Any) -> None:
        """One step of an optimizer, gradients clipped."""
        apply_gradients(gradients, variables, optimizer, self.gradient_clipping)


class HasTargets(Protocol):
    """What `move_targets` reads; attributes as of Parts."""

    @property
    def critics(self) -> Sequence[Any]: ...
    @property
    def targets(self) -> Sequence[Any]: ...
    @property
    def train_step(self) -> tf.Variable: ...
    @property
    def target_update_tau(self) -> float: ...
    @property
    def target_update_period(self) -> int: ...


class Steps(NamedTuple):
    """Steps in the losses and, for recurrent networks, the steps before them.

    Attributes:
      time_steps: `[B, (T,) ...]`.
      actions: Taken there, `[B, (T,) ...]`; None where only the actor's own ones are wanted.
      past: The burn-in before them with its actions, or None.
      weight: Weight of each step's loss, `[B, T]`; None: all weights are equal.
    """

    time_steps: ts.TimeStep
    actions: Any
    past: tuple[ts.TimeStep, Any] | None = None
    weight: tf.Tensor | None = None


def of_actor(time_steps: ts.TimeStep) -> ts.TimeStep:
    """What the actor sees of encoded time steps."""
    observation = time_steps.observation
    return time_steps._replace(observation=observation.actor) if isinstance(observation, Views) else time_steps


def of_critics(time_steps: ts.TimeStep) -> ts.TimeStep:
    """What the critics see of encoded time steps."""
    observation = time_steps.observation
    return time_steps._replace(observation=observation.critics) if isinstance(observation, Views) else time_steps


def apply_gradients(
    gradients: Sequence[Any], variables: Sequence[tf.Variable], optimizer: Any, gradient_clipping: float | None
) -> None:
    """One step of an optimizer with gradients of at most this norm, each variable's by itself; None: unclipped."""
    grads_and_vars = list(zip(gradients, variables, strict=True))
    if gradient_clipping is not None:
        grads_and_vars = eager_utils.clip_gradient_norms(grads_and_vars, gradient_clipping)
    optimizer.apply_gradients(grads_and_vars)


def unique_variables(networks: Sequence[Any]) -> list[tf.Variable]:
    """The networks' trainable variables in a fixed order, each once, since networks may share layers."""
    return list({variable.ref(): variable for net in networks for variable in net.trainable_variables}.values())


def all_measured(values: dict[str, tf.Tensor]) -> Measured:
    """Values of an update that measures each of them."""
    return {name: (value, tf.constant(1.0)) for name, value in values.items()}


def weighted_mean(values: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
    """Of what was drawn with importance weights: sum(w v) / sum(w)."""
    return tf.reduce_sum(values * weight) / tf.reduce_sum(weight)


def cut_burn_in(steps: Steps, next_time_steps: ts.TimeStep, burn_in_steps: int) -> tuple[Steps, Steps]:
    """Steps and next steps of a sequence after its burn-in, each with the burn-in as its past."""
    if burn_in_steps == 0:
        return steps, Steps(next_time_steps, None)
    head, tail = slice(None, burn_in_steps), slice(burn_in_steps, None)
    past = _cut(steps.time_steps, head), _cut(steps.actions, head)
    # The actions at next observations are the sequence's following actions.
    next_past = _cut(next_time_steps, head), _cut(steps.actions, slice(1, burn_in_steps + 1))
    weight = None if steps.weight is None else steps.weight[:, tail]
    return (
        Steps(_cut(steps.time_steps, tail), _cut(steps.actions, tail), past, weight),
        Steps(_cut(next_time_steps, tail), None, next_past),
    )


def _cut(nest: Any, steps: slice) -> Any:
    """Of tensors `[B, T, ...]`."""
    return tf.nest.map_structure(lambda tensor: tensor[:, steps], nest)


def critic_values(critic: Any, steps: Steps, actions: Any, training: bool = False) -> tf.Tensor:
    """Values of actions at the steps, `[B, (T,)]` or quantiles; recurrent critics start in the state after the past."""
    state: Any = ()
    if steps.past is not None:
        past, past_actions = steps.past
        _, state = critic((of_critics(past).observation, past_actions), step_type=past.step_type, training=False)
        state = tf.nest.map_structure(tf.stop_gradient, state)
    inputs = (of_critics(steps.time_steps).observation, actions)
    values, _ = critic(inputs, step_type=steps.time_steps.step_type, network_state=state, training=training)
    return values


def move_targets(parts: HasTargets) -> None:
    """Moves targets in every `target_update_period`-th update, after the train step was incremented."""
    if parts.targets and parts.target_update_period == 1:
        _move_targets(parts)
    elif parts.targets:
        is_due = tf.equal(parts.train_step % parts.target_update_period, 0)
        tf.cond(is_due, lambda: _move_targets(parts), lambda: None)


def _move_targets(parts: HasTargets) -> None:
    """Moves targets by the fraction tau towards the critics; copies untrained values such as batch statistics."""
    tau = parts.target_update_tau
    pairs = {
        target.ref(): (target, source)
        for critic, target_critic in zip(parts.critics, parts.targets, strict=True)
        for source, target in zip(critic.variables, target_critic.variables, strict=True)
    }
    for target, source in pairs.values():
        if not target.trainable or tau == 1.0:
            target.assign(source)
        elif tau > 0.0:
            tf.raw_ops.ResourceApplyGradientDescent(var=target.handle, alpha=tau, delta=target - source)
