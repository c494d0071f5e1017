"""What acts of the toolkit's own agents: the actor, behind the encoder of images where there is one."""

from __future__ import annotations

import dataclasses
from typing import Any

import tensorflow as tf
from tf_agents.policies import actor_policy
from tf_agents.trajectories import time_step as ts

from tfagents_system.agents import encoder
from tfagents_system.train_params_base import TrainParamsBase


@dataclasses.dataclass(frozen=True)
class Acting:
    """The part of an agent that acts; to a worker it is the agent.

    Attributes:
      encoder: Of images; None where there is none.
      encoded_spec: What the actor sees.
      actor: The network.
      learning_policy: Takes what the actor sees.
      policy: Takes what environments observe; the same one where there is no encoder.
    """

    encoder: encoder.ImageEncoder | None
    encoded_spec: Any
    actor: Any
    learning_policy: actor_policy.ActorPolicy
    policy: actor_policy.ActorPolicy

    @property
    def collect_policy(self) -> actor_policy.ActorPolicy:
        """As an agent's."""
        return self.policy

    def first_actions(self) -> Any:
        """The distributions of actions for an observation of zeros, which makes all variables."""
        observation = tf.nest.map_structure(
            lambda spec: tf.zeros((1, *spec.shape), spec.dtype), self.policy.time_step_spec.observation
        )
        return self.policy.distribution(ts.restart(observation, 1), self.policy.get_initial_state(1)).action


def build_acting(params: TrainParamsBase, time_step_spec: ts.TimeStep, action_spec: Any) -> Acting:
    """Builds it with the user's hook; arguments as of `TrainParamsBase.agent_ctor`."""
    observation_spec = time_step_spec.observation
    eye = encoder.make_encoder(params, observation_spec)
    encoded_spec = observation_spec if eye is None else eye.encoded_spec
    actor = params.actor_ctor(encoded_spec, action_spec)
    learning_policy = actor_policy.ActorPolicy(ts.time_step_spec(encoded_spec), action_spec, actor, training=False)
    policy = learning_policy
    if eye is not None:
        policy = actor_policy.ActorPolicy(time_step_spec, action_spec, encoder.EncodedActor(eye, actor))
    return Acting(eye, encoded_spec, actor, learning_policy, policy)


def make_worker_agent(params: TrainParamsBase, time_step_spec: ts.TimeStep, action_spec: Any) -> Any:
    """What a worker takes for its agent: `Acting`, which spares it critics, targets and optimizers, or the agent.

    The whole agent where the user's hooks build it, or critics, which may share layers with the actor.
    """
    is_own = any(
        hook in vars(params) or getattr(type(params), hook) is not getattr(TrainParamsBase, hook)
        for hook in ("agent_ctor", "critic_ctor")
    )
    if is_own:
        return params.agent_ctor(time_step_spec, action_spec, tf.Variable(0, dtype=tf.int64, name="train_step"))
    acting = build_acting(params, time_step_spec, action_spec)
    acting.first_actions()
    return acting
