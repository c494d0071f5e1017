"""The base of the toolkit's algorithms: a TFAgent with networks, optimizers and an update.

An algorithm is a file beside this one with a subclass, which builds its networks and defines `update` and `losses`.
`BlockUpdate` compiles the update; a TFAgent of any other class is trained by its own `train`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tf_agents.agents import data_converter, tf_agent
from tf_agents.utils import common, eager_utils

from tfagents_system.agents.acting import Acting
from tfagents_system.agents.algorithms import ACTOR, CRITICS, ENCODER
from tfagents_system.agents.minibatch import Measured, Minibatch
from tfagents_system.agents.noise import Noise
from tfagents_system.agents.normalization import RewardScale, RunningNormalization
from tfagents_system.agents.optimizers import build_optimizer
from tfagents_system.envs.history import policy_time_step_spec
from tfagents_system.errors import UserError, shown
from tfagents_system.train_params_base import TrainParamsBase

TARGETS = "targets"
Optimizer = Any  # tf.keras.optimizers.legacy.Optimizer, which has no types.


class Agent(tf_agent.TFAgent):
    """A TFAgent that says how a minibatch updates it.

    Args:
      params: Hyperparameters.
      time_step_spec, action_spec, train_step: As of `TrainParamsBase.agent_ctor`.
      acting: Its part that acts.
      critics, targets: Networks; one target for each critic, or none.
      is_recurrent: Whether the networks have a memory, and learn from sequences.

    Attributes:
      acting, critics, targets: As given.
      actor: Network that learns to act; None: a critic acts.
      encoder: Of images, shared by actor and critics; None: there is none.
      log_alpha: Logarithm of the entropy coefficient, a scalar variable; None: there is none.
      critic_optimizer, actor_optimizer, alpha_optimizer: None where nothing learns.
    """

    actor: Any = None
    encoder: Any = None
    log_alpha: tf.Variable | None = None
    actor_optimizer: Optimizer | None = None
    alpha_optimizer: Optimizer | None = None

    @staticmethod
    def build_acting(params: TrainParamsBase, time_step_spec: Any, action_spec: Any) -> Acting:
        """The part that acts, which is all that workers build."""
        raise NotImplementedError

    def __init__(
        self,
        params: TrainParamsBase,
        time_step_spec: Any,
        action_spec: Any,
        train_step: tf.Variable,
        acting: Acting,
        critics: Sequence[Any],
        targets: Sequence[Any],
        is_recurrent: bool = False,
    ) -> None:
        tf.Module.__init__(self, name=type(self).__name__)
        self.acting = acting
        # Before the policies, which may hold them, too: so checkpoints name their variables `critics/0/...`.
        self.critics, self.targets = list(critics), list(targets)
        super().__init__(
            time_step_spec,
            action_spec,
            policy=acting.policy,
            collect_policy=acting.collect_policy,
            train_sequence_length=None if is_recurrent else 2,
            train_step_counter=train_step,
        )
        self.critic_optimizer = build_optimizer(params, "critic")
        self.target_update_tau, self.target_update_period = params.target_update_tau, params.target_update_period
        self.gradient_clipping = params.gradient_clipping
        self.as_transition = data_converter.AsTransition(self.data_context, squeeze_time_dim=not is_recurrent)
        self.initialize()

    def learn_actor(self, params: TrainParamsBase) -> None:
        """Gives an agent with an actor the optimizer of that, and an entropy coefficient that is learned or fixed."""
        self.actor = self.acting.network
        self.actor_optimizer = build_optimizer(params, "actor")
        self.log_alpha = tf.Variable(params.sac_log_alpha, dtype=tf.float32, name="log_alpha")
        self.alpha_optimizer = build_optimizer(params, "alpha") if params.learn_entropy_coef else None

    # Cached properties: TensorFlow does not track these, so checkpoints name variables by their networks.

    @functools.cached_property
    def critic_variables(self) -> list[tf.Variable]:
        """Trainable ones of all critics."""
        return unique_variables(self.critics)

    @functools.cached_property
    def actor_variables(self) -> list[tf.Variable]:
        """Trainable ones of the actor."""
        return unique_variables([] if self.actor is None else [self.actor])

    # What an algorithm defines.

    def update(self, minibatch: Minibatch, noise: Noise) -> Measured:
        """One update of everything that learns, the train step's counter included.

        Returns:
          Losses by name; with importance weights `TD_ERRORS`, too.
        """
        raise NotImplementedError

    def losses(self, minibatch: Minibatch, noise: Noise) -> dict[str, tf.Tensor]:
        """The same losses without learning: networks run in inference mode and nothing changes."""
        raise NotImplementedError

    @property
    def optimized(self) -> list[tuple[Optimizer, list[tf.Variable]]]:
        """Each optimizer with the variables that it steps."""
        of_encoder = [] if self.encoder is None else self.encoder.trainable_variables
        parts = [
            (self.critic_optimizer, [*self.critic_variables, *of_encoder]),
            (self.actor_optimizer, self.actor_variables),
            (self.alpha_optimizer, [self.log_alpha]),
        ]
        return [(optimizer, variables) for optimizer, variables in parts if optimizer is not None]

    @property
    def scheduled(self) -> dict[str, tf.Variable]:
        """Variables that a run's schedules change, by their attributes of TrainParams (scheduled.py)."""
        optimizers = {"critic": self.critic_optimizer, "actor": self.actor_optimizer, "alpha": self.alpha_optimizer}
        rates = {
            f"{part}_learning_rate": optimizer.scheduled_rate
            for part, optimizer in optimizers.items()
            if hasattr(optimizer, "scheduled_rate")
        }
        return {**rates, **self.acting.scheduled}

    # What all algorithms do alike.

    def minimize(
        self, loss_of: Callable[[], Any], variables: Sequence[tf.Variable], optimizer: Optimizer, name: str
    ) -> tuple[Any, Sequence[Any]]:
        """One step down the gradient of `loss_of()[0]`.

        Returns:
          What `loss_of` returned, and the gradients.
        """
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(variables)
            loss, *others = loss_of()
        tf.debugging.check_numerics(loss, f"{name} loss is inf or nan.")
        gradients = tape.gradient(loss, variables)
        self.apply(gradients, variables, optimizer)
        return (loss, *others), gradients

    def apply(self, gradients: Sequence[Any], variables: Sequence[tf.Variable], optimizer: Optimizer) -> None:
        """One step of an optimizer; `gradient_clipping` limits the norm of each variable's gradient."""
        grads_and_vars = list(zip(gradients, variables, strict=True))
        if self.gradient_clipping is not None:
            grads_and_vars = eager_utils.clip_gradient_norms(grads_and_vars, self.gradient_clipping)
        optimizer.apply_gradients(grads_and_vars)

    def move_targets(self) -> None:
        """Moves targets in every `target_update_period`-th update, after the train step was incremented."""
        if self.targets and self.target_update_period == 1:
            self._move_targets()
        elif self.targets:
            is_due = tf.equal(self.train_step_counter % self.target_update_period, 0)
            tf.cond(is_due, self._move_targets, lambda: None)

    def _move_targets(self) -> None:
        """Target <- target + tau * (critic - target); untrained values such as batch statistics are copied."""
        tau = self.target_update_tau
        pairs = {
            target.ref(): (target, source)
            for critic, target_critic in zip(self.critics, self.targets, strict=True)
            for source, target in zip(critic.variables, target_critic.variables, strict=True)
        }
        for target, source in pairs.values():
            if not target.trainable or tau == 1.0:
                target.assign(source)
            elif tau > 0.0:  # One fused operation.
                tf.raw_ops.ResourceApplyGradientDescent(var=target.handle, alpha=tau, delta=target - source)

    def networks(self) -> dict[str, list[Any]]:
        """`actor`, `critics`, `targets` and `encoder`, each a list, empty where there is none."""
        return {
            ACTOR: [] if self.actor is None else [self.actor],
            CRITICS: list(self.critics),
            TARGETS: list(self.targets),
            ENCODER: [] if self.encoder is None else [self.encoder],
        }

    def redraw(self, fresh: Agent) -> None:
        """Begins again with the networks and the entropy coefficient of `fresh`, which was never trained.

        All optimizers forget their moments (Nikishin et al., arXiv 2205.07802; D'Oro et al., Sample-efficient
        reinforcement learning by breaking the replay ratio barrier, 2023). Counters and the running statistics of
        observations stay.
        """
        drawn = fresh.networks()
        for part, networks in self.networks().items():
            for network, fresh_network in zip(networks, drawn[part], strict=True):
                kept = {variable.ref() for variable in statistics_of(network)}
                for variable, value in zip(network.variables, fresh_network.variables, strict=True):
                    if variable.ref() not in kept:
                        variable.assign(value)
        if self.log_alpha is not None:
            self.log_alpha.assign(fresh.log_alpha)
        for optimizer, _ in self.optimized:
            for variable in optimizer.variables():
                variable.assign(tf.zeros_like(variable))

    def _initialize(self) -> None:
        for critic, target in zip(self.critics, self.targets, strict=False):
            common.soft_variables_update(critic.variables, target.variables, tau=1.0)

    def _train(self, experience: Any, weights: Any = None) -> tf_agent.LossInfo:
        noise = Noise(0, self.train_step_counter)
        with noise.of_dropout():
            measured = self.update(Minibatch(experience, weights), noise)
        losses = {name: value for name, (value, _) in measured.items()}
        return tf_agent.LossInfo(loss=losses["critic_loss"] + losses.get("actor_loss", 0.0), extra=losses)


def make_agent(
    params: TrainParamsBase, observation_spec: Any, action_spec: Any, train_step: tf.Variable
) -> tf_agent.TFAgent:
    """The agent with its reward scale, which workers do not need.

    Raises:
      UserError: `agent_ctor` returns none.
    """
    agent = params.agent_ctor(policy_time_step_spec(params, observation_spec), action_spec, train_step)
    if not isinstance(agent, tf_agent.TFAgent):
        raise UserError(f"agent_ctor must return a TFAgent, found {shown(agent)}")
    if params.normalize_rewards:
        agent.reward_scale = RewardScale()  # `BlockUpdate` finds it there, and checkpoints of the agent hold it.
    return agent


def set_fixed_alpha(agent: Any, params: TrainParamsBase) -> None:
    """Gives a restored agent the entropy coefficient of its params if it is not learned."""
    if isinstance(agent, Agent) and agent.log_alpha is not None and agent.alpha_optimizer is None:
        agent.log_alpha.assign(params.sac_log_alpha)


def unique_variables(networks: Sequence[Any]) -> list[tf.Variable]:
    """The networks' trainable variables in a fixed order, each once, since networks may share layers."""
    return list({variable.ref(): variable for net in networks for variable in net.trainable_variables}.values())


def statistics_of(network: Any) -> list[tf.Variable]:
    """The running statistics of observations in a network: what it has seen, not what it has learned."""
    layers = [layer for layer in network.submodules if isinstance(layer, RunningNormalization)]
    return [variable for layer in layers for variable in layer.variables]
