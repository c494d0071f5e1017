"""What an update works on: the parts of an agent, and the steps of a minibatch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
from tf_agents.trajectories import time_step as ts

from tfagents_system.agents.encoder import ObservationPipeline

Measured = dict[str, tuple[tf.Tensor, tf.Tensor]]
"""By name: a value, and 1 or 0: whether this update has measured it. What it has not is 0."""


@dataclasses.dataclass(frozen=True)
class Parts:
    """What an update works on, in place, so that checkpoints of the agent are complete.

    Attributes:
      policy, train_policy: Of the actor, outside of training and in it.
      actor: The network of both.
      critics: Networks from (observation, action) to values `[B, (T,)]`, or to quantiles with one axis more.
      targets: A network for each critic, or none where the algorithm has no targets.
      log_alpha: Scalar variable.
      actor_optimizer, critic_optimizer, alpha_optimizer: Legacy Keras optimizers. `FrozenOptimizer` keeps
        alpha as it is.
      train_step: int64 scalar variable, counted up by one in each update.
      action_spec: Nest of bounded specs.
      as_transition: From what the replay server sends to a Transition `[B, (T,) ...]`.
      gamma: Discount of a step.
      target_entropy: In nats.
      target_update_tau, target_update_period: Weight of the critics in their targets, and updates between two moves.
      gradient_clipping: Maximum norm of each variable's gradient, or None.
      actor_update_period: Actor and alpha step in every so many updates.
      critic_loss_weight, actor_loss_weight, alpha_loss_weight, reward_scale_factor: Factors.
      td_errors_loss_fn: Loss of targets and predictions, elementwise.
      has_log_alpha_loss: Alpha's loss has log(alpha) as its factor, not alpha.
      pipeline: What comes before all of the networks above, for images; None: nothing does.
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
    pipeline: ObservationPipeline | None = None


class Steps(NamedTuple):
    """Steps that losses are made of, and for recurrent networks what led to them.

    Attributes:
      time_steps: `[B, (T,) ...]`.
      actions: Taken there, `[B, (T,) ...]`; None where only the actor's own ones are wanted.
      past: The burn-in before them with the actions that were taken, or None.
      weight: How much the loss of each step counts, `[B, T]`; None: all count alike.
    """

    time_steps: ts.TimeStep
    actions: Any
    past: tuple[ts.TimeStep, Any] | None = None
    weight: tf.Tensor | None = None


def unique_variables(networks: Sequence[Any]) -> list[tf.Variable]:
    """What the networks train, in a fixed order, each once, for networks that share layers."""
    return list({variable.ref(): variable for net in networks for variable in net.trainable_variables}.values())


def all_measured(values: dict[str, tf.Tensor]) -> Measured:
    """Values of an update that measures each of them."""
    return {name: (value, tf.constant(1.0)) for name, value in values.items()}


def move_targets(parts: Parts) -> None:
    """Moves targets by tau of their way to the critics; what is not trained, as batch statistics, is copied."""
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
