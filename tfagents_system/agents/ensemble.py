"""The agent of SAC's variants: an actor, any number of critics, with or without targets."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tf_agents.agents import data_converter, tf_agent
from tf_agents.policies import actor_policy
from tf_agents.trajectories import time_step as ts
from tf_agents.utils import common

from tfagents_system.agents import algorithms, encoder, entropy
from tfagents_system.agents.acting import Acting, build_acting
from tfagents_system.agents.behaviour_cloning import cloning_weight
from tfagents_system.agents.fused_update import FusedUpdate
from tfagents_system.agents.noise import UnsupportedAgentError, mean_and_std
from tfagents_system.agents.optimizers import build_optimizer
from tfagents_system.agents.update_parts import Parts
from tfagents_system.checks.schedules import initial_value
from tfagents_system.errors import UserError
from tfagents_system.train_params_base import TrainParamsBase


class EnsembleAgent(tf_agent.TFAgent):
    """A TFAgent with a tanh-squashed Gaussian actor and an ensemble of critics; its update defines how it learns.

    Args:
      params: Hyperparameters, and the hooks that build the networks.
      time_step_spec, action_spec, train_step: As of `TrainParamsBase.agent_ctor`.
      update_class: Takes Parts and the other arguments of FusedUpdate.
      has_targets: Whether each critic has a target network.
      critic_loss_weight: Factor of the critics' loss.

    Raises:
      UserError: A network that a hook has built can't be used.
    """

    def __init__(
        self,
        params: TrainParamsBase,
        time_step_spec: ts.TimeStep,
        action_spec: Any,
        train_step: tf.Variable,
        update_class: Callable[..., FusedUpdate],
        has_targets: bool = True,
        critic_loss_weight: float = 0.5,
    ) -> None:
        tf.Module.__init__(self, name=type(self).__name__)
        acting = build_acting(params, time_step_spec, action_spec)
        # Attributes, so that checkpoints hold them.
        self._encoder, self._actor_network = acting.encoder, acting.actor
        critics_see = acting.encoded_spec
        if params.actor_observations is not None:
            self._encoder = encoder.make_encoder(params, time_step_spec.observation)
            critics_see = time_step_spec.observation if self._encoder is None else self._encoder.encoded_spec
        self._train_policy = actor_policy.ActorPolicy(
            ts.time_step_spec(acting.encoded_spec), action_spec, self._actor_network, training=True
        )
        self._build_critics(params, critics_see, action_spec, has_targets)
        self._log_alpha = tf.Variable(params.sac_log_alpha, dtype=tf.float32, name="log_alpha")
        self._actor_optimizer = build_optimizer(params, "actor")
        self._critic_optimizer = build_optimizer(params, "critic")
        self._alpha_optimizer = entropy.alpha_optimizer(params)
        self._cloning_weight = cloning_weight(params)
        super().__init__(
            time_step_spec,
            action_spec,
            policy=acting.policy,
            collect_policy=acting.policy,
            train_sequence_length=None if self._is_recurrent else 2,
            train_step_counter=train_step,
        )
        self._update_class = update_class
        self._parts = self._make_parts(params, acting.learning_policy, critic_loss_weight)
        _check_actor(acting)
        self.initialize()

    def _build_critics(
        self, params: TrainParamsBase, observation_spec: Any, action_spec: Any, has_targets: bool
    ) -> None:
        self._critic_networks = build_critics(params, observation_spec, action_spec)
        self._is_recurrent = bool(self._critic_networks[0].state_spec)
        self._target_critic_networks = [
            common.maybe_copy_target_network_with_checks(
                critic, input_spec=(observation_spec, action_spec), name=f"TargetCriticNetwork{number}"
            )
            for number, critic in enumerate(self._critic_networks if has_targets else [])
        ]

    def _make_parts(
        self, params: TrainParamsBase, policy: actor_policy.ActorPolicy, critic_loss_weight: float
    ) -> Parts:
        return Parts(
            policy=policy,
            train_policy=self._train_policy,
            actor=self._actor_network,
            critics=tuple(self._critic_networks),
            targets=tuple(self._target_critic_networks),
            log_alpha=self._log_alpha,
            actor_optimizer=self._actor_optimizer,
            critic_optimizer=self._critic_optimizer,
            alpha_optimizer=self._alpha_optimizer,
            train_step=self.train_step_counter,
            action_spec=self.action_spec,
            as_transition=data_converter.AsTransition(self.data_context, squeeze_time_dim=not self._is_recurrent),
            gamma=initial_value(params.discount),
            target_entropy=entropy.target_entropy(params, self.action_spec),
            target_update_tau=params.target_update_tau,
            target_update_period=params.target_update_period,
            gradient_clipping=params.gradient_clipping,
            actor_update_period=algorithms.value(params, "actor_update_period"),
            critic_loss_weight=critic_loss_weight,
            cloning_weight=self._cloning_weight,
            pipeline=encoder.make_observation_pipeline(params, self._encoder, self.time_step_spec.observation),
            actor_observations=params.actor_observations,
        )

    def make_update(self, seed: int = 0, burn_in_steps: int = 0) -> FusedUpdate:
        """See `agent_interface`; arguments as of FusedUpdate."""
        return self._update_class(self._parts, seed, burn_in_steps)

    @property
    def sampled_actor(self) -> Any:
        """See `agent_interface`."""
        return self.collect_policy._actor_network

    def _initialize(self) -> None:
        for critic, target in zip(self._critic_networks, self._target_critic_networks, strict=False):
            common.soft_variables_update(critic.variables, target.variables, tau=1.0)

    def _train(self, experience: Any, weights: Any) -> tf_agent.LossInfo:
        if weights is not None:
            raise ValueError(f"weights of samples are not supported, found {weights!r}: pass None")
        return self._own_update(experience)

    def _loss(self, experience: Any, weights: Any = None, training: bool = False) -> tf_agent.LossInfo:
        losses = self._own_update.losses(experience)
        return tf_agent.LossInfo(loss=losses["critic_loss"] + losses["actor_loss"], extra=losses)

    @functools.cached_property
    def _own_update(self) -> FusedUpdate:
        return self.make_update()


def _check_actor(acting: Acting) -> None:
    try:
        for distribution in tf.nest.flatten(acting.first_actions()):
            mean_and_std(distribution)
    except UnsupportedAgentError as error:
        raise UserError(f"{error}: let actor_ctor return one, or choose algorithm='sac'") from None


def build_critics(params: TrainParamsBase, observation_spec: Any, action_spec: Any) -> list[Any]:
    """Built by the user's hook, and checked: a wrong shape would broadcast to wrong losses."""
    count, num_outputs = algorithms.value(params, "num_critics"), algorithms.num_critic_outputs(params)
    critics = [params.critic_ctor(observation_spec, action_spec) for _ in range(count)]
    wanted = () if num_outputs == 1 else (num_outputs,)
    for critic in critics:
        shape = tuple(critic.create_variables((observation_spec, action_spec)).shape)
        if shape != wanted:
            raise UserError(
                f"critic_ctor must return a network with outputs {list(('B', *wanted))} for "
                f"algorithm='{params.algorithm}', found {list(('B', *shape))}: correct critic_ctor"
            )
    return critics
