"""The agent of learners that choose one of n actions, and the part of it that acts."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf
from tf_agents.agents import data_converter, tf_agent
from tf_agents.trajectories import time_step as ts
from tf_agents.utils import common

from tfagents_system.agents.encoder import make_observation_pipeline
from tfagents_system.agents.optimizers import build_optimizer
from tfagents_system.agents.value_network import (
    ExploringPolicy,
    ScorePolicy,
    ValueNetwork,
    build_value_network,
    exploration_rates,
)
from tfagents_system.agents.value_update import ValueLearnerParts, ValueUpdate
from tfagents_system.errors import UserError, shown
from tfagents_system.train_params_base import TrainParamsBase


@dataclasses.dataclass(frozen=True)
class ValueActing:
    """The part of an agent that acts; workers use it as the agent.

    Attributes:
      network: Scores actions: their values, or an actor's logits.
      policy: The greedy one.
      collect_policy: The one that explores.
      scheduled: Variables of the latter that a run's schedules change, by their attributes.
    """

    network: ValueNetwork
    policy: ScorePolicy
    collect_policy: ScorePolicy
    scheduled: Mapping[str, tf.Variable] = dataclasses.field(default_factory=dict)


BuildActing = Callable[[TrainParamsBase, Any, Any], ValueActing]


class ValueAgent(tf_agent.TFAgent):
    """A TFAgent that chooses one of n actions by their values; its update defines how it learns.

    Args:
      params: Hyperparameters.
      time_step_spec, action_spec, train_step: As of `TrainParamsBase.agent_ctor`; the action is an int32 scalar.
      build_acting: Builds the part that acts.
      update_class: Takes ValueLearnerParts and a seed.
      num_critics: Networks of values. One is the network that acts.

    Raises:
      UserError: Actions are not n discrete ones.
    """

    def __init__(
        self,
        params: TrainParamsBase,
        time_step_spec: ts.TimeStep,
        action_spec: Any,
        train_step: tf.Variable,
        build_acting: BuildActing,
        update_class: Callable[..., ValueUpdate],
        num_critics: int = 1,
    ) -> None:
        tf.Module.__init__(self, name=type(self).__name__)
        acting = build_acting(params, time_step_spec, action_spec)
        units, count = tuple(params.critic_joint_fc_layer_params), num_actions(params, action_spec)
        make = functools.partial(build_value_network, params, time_step_spec.observation, count, units)
        # Attributes, so that checkpoints hold them.
        if num_critics == 1:
            self._critic_networks = [acting.network]
        else:
            self._actor_network, self._critic_networks = acting.network, self._more(make, "Critic", num_critics)
        self._target_critic_networks = self._more(make, "TargetCritic", num_critics)
        self._critic_optimizer = build_optimizer(params, "critic")
        self.scheduled = dict(acting.scheduled)
        self.acting = acting
        super().__init__(
            time_step_spec,
            action_spec,
            policy=acting.policy,
            collect_policy=acting.collect_policy,
            train_sequence_length=2,
            train_step_counter=train_step,
        )
        self._update_class = update_class
        self._parts = ValueLearnerParts(
            critics=tuple(self._critic_networks),
            targets=tuple(self._target_critic_networks),
            critic_optimizer=self._critic_optimizer,
            train_step=self.train_step_counter,
            as_transition=data_converter.AsTransition(self.data_context, squeeze_time_dim=True),
            target_update_tau=params.target_update_tau,
            target_update_period=params.target_update_period,
            gradient_clipping=params.gradient_clipping,
            pipeline=make_observation_pipeline(params, self._critic_networks[0].images, time_step_spec.observation),
        )
        self.initialize()

    @staticmethod
    def _more(make: Callable[[str], ValueNetwork], name: str, count: int) -> list[ValueNetwork]:
        return [make(f"{name}{number}") for number in range(count)]

    def make_update(self, seed: int = 0, burn_in_steps: int = 0) -> ValueUpdate:
        """See `agent_interface`; sequences are for other agents."""
        del burn_in_steps
        return self._update_class(self._parts, seed)

    def _initialize(self) -> None:
        for critic, target in zip(self._critic_networks, self._target_critic_networks, strict=True):
            common.soft_variables_update(critic.variables, target.variables, tau=1.0)

    def _train(self, experience: Any, weights: Any) -> tf_agent.LossInfo:
        measured = {name: value for name, (value, _) in self._own_update.step(experience, weight=weights).items()}
        return tf_agent.LossInfo(loss=measured["critic_loss"], extra=measured)

    def _loss(self, experience: Any, weights: Any = None, training: bool = False) -> tf_agent.LossInfo:
        losses = self._own_update.losses(experience, weight=weights)
        return tf_agent.LossInfo(loss=losses["critic_loss"], extra=losses)

    @functools.cached_property
    def _own_update(self) -> ValueUpdate:
        return self.make_update()


def exploring_acting(params: TrainParamsBase, time_step_spec: ts.TimeStep, action_spec: Any) -> ValueActing:
    """A network of values, and a policy that explores with the epsilons of the params."""
    units, count = tuple(params.critic_joint_fc_layer_params), num_actions(params, action_spec)
    network = build_value_network(params, time_step_spec.observation, count, units, "ValueNetwork")
    rates = exploration_rates(params)
    return ValueActing(
        network,
        ScorePolicy(time_step_spec, action_spec, network),
        ExploringPolicy(time_step_spec, action_spec, network, rates),
        rates,
    )


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
