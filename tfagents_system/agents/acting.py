"""The acting part of the toolkit's own agents: the actor, behind the image encoder if there is one.

Where the actor sees a part of the observation (`actor_observations`), an encoder of images belongs to it and learns
from its loss, as in Pinto et al. (arXiv 1710.06542): one that learnt from critics that see the state of a simulator
would have no need of what is in the images.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import tensorflow as tf
from tf_agents.policies import actor_policy
from tf_agents.trajectories import time_step as ts

from tfagents_system.agents import algorithms, encoder
from tfagents_system.agents.normalization import set_sources
from tfagents_system.envs.history import leaves_seen_by_actor, seen_by_actor
from tfagents_system.train_params_base import TrainParamsBase, overrides_any


@dataclasses.dataclass(frozen=True)
class Acting:
    """The part of an agent that acts; workers use it as the agent.

    Attributes:
      encoder: Of images, shared with the critics; None if there is none.
      encoded_spec: Spec of the actor's input.
      actor: The network, an encoder of its own included.
      learning_policy: Takes the actor's input.
      policy: Takes environments' observations, the parts that the actor sees; the same policy if there is no encoder.
    """

    encoder: encoder.ImageEncoder | None
    encoded_spec: Any
    actor: Any
    learning_policy: actor_policy.ActorPolicy
    policy: actor_policy.ActorPolicy

    @property
    def sampled_actor(self) -> Any:
        """See `agent_interface`."""
        return self.policy._actor_network

    @property
    def collect_policy(self) -> actor_policy.ActorPolicy:
        """As an agent's."""
        return self.policy

    def first_actions(self) -> Any:
        """The distributions of actions for an observation of zeros; creates all variables."""
        observation = tf.nest.map_structure(
            lambda spec: tf.zeros((1, *spec.shape), spec.dtype), self.policy.time_step_spec.observation
        )
        return self.policy.distribution(ts.restart(observation, 1), self.policy.get_initial_state(1)).action


def build_acting(params: TrainParamsBase, time_step_spec: ts.TimeStep, action_spec: Any) -> Acting:
    """Builds it with the user's hook; arguments as of `TrainParamsBase.agent_ctor`."""
    if params.actor_observations is not None:
        return _build_seeing_parts(params, time_step_spec, action_spec)
    observation_spec = time_step_spec.observation
    image_encoder = encoder.make_encoder(params, observation_spec)
    encoded_spec = observation_spec if image_encoder is None else image_encoder.encoded_spec
    actor = params.actor_ctor(encoded_spec, action_spec)
    learning_policy = actor_policy.ActorPolicy(ts.time_step_spec(encoded_spec), action_spec, actor, training=False)
    policy = learning_policy
    if image_encoder is not None:
        policy = actor_policy.ActorPolicy(time_step_spec, action_spec, encoder.EncodedActor(image_encoder, actor))
    return Acting(image_encoder, encoded_spec, actor, learning_policy, policy)


def _build_seeing_parts(params: TrainParamsBase, time_step_spec: ts.TimeStep, action_spec: Any) -> Acting:
    """The same where the actor does not see all parts of the observation."""
    spec = seen_by_actor(time_step_spec.observation, params.actor_observations)
    own_encoder = encoder.make_encoder(params, spec)
    actor = params.actor_ctor(spec if own_encoder is None else own_encoder.encoded_spec, action_spec)
    if own_encoder is not None:
        actor = encoder.EncodedActor(own_encoder, actor)
    set_sources(actor, leaves_seen_by_actor(time_step_spec.observation, params.actor_observations))
    policy = actor_policy.ActorPolicy(ts.time_step_spec(spec), action_spec, actor, training=False)
    return Acting(None, spec, actor, policy, policy)


def make_worker_agent(params: TrainParamsBase, time_step_spec: ts.TimeStep, action_spec: Any) -> Any:
    """What a worker uses as its agent: `Acting`, without critics, targets and optimizers, or the whole agent.

    The whole agent if the user's hooks build it or its critics, which may share layers with the actor.
    """
    if overrides_any(params, "agent_ctor", "critic_ctor"):
        return params.agent_ctor(time_step_spec, action_spec, tf.Variable(0, dtype=tf.int64, name="train_step"))
    if algorithms.ALGORITHMS[params.algorithm].actions == "discrete":
        return algorithms.module_of(params).build_acting(params, time_step_spec, action_spec)
    acting = build_acting(params, time_step_spec, action_spec)
    acting.first_actions()
    return acting
