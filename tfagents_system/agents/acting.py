"""The acting part of the toolkit's own agents, which is all that workers build of them.

Where the actor sees a part of the observation (`actor_observations`), an encoder of images belongs to it and learns
from its loss, as in Pinto et al. (arXiv 1710.06542): one that learnt from critics that see the state of a simulator
would have no need of what is in the images.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import tensorflow as tf
from tf_agents.policies import tf_policy
from tf_agents.policies.actor_policy import ActorPolicy
from tf_agents.trajectories import time_step as ts

from tfagents_system.agents import algorithms
from tfagents_system.agents.encoder import EncodedActor, ImageEncoder, make_encoder
from tfagents_system.agents.noise import UnsupportedActorError, mean_and_std
from tfagents_system.agents.normalization import set_sources
from tfagents_system.envs.history import leaves_seen_by_actor, seen_by_actor
from tfagents_system.errors import UserError
from tfagents_system.train_params_base import TrainParamsBase, overrides_any


@dataclasses.dataclass(frozen=True)
class Acting:
    """The part of an agent that acts; workers use it as the agent.

    Attributes:
      network: An actor, with an encoder that is its own, or the network whose values choose actions.
      policy: Takes environments' observations, the parts that the actor sees.
      collect_policy: The one that explores.
      encoder: Of images, in front of the network and shared with the critics; None: there is none.
      encoded_spec: Spec of the network's input.
      scheduled: Variables of the policies that a run's schedules change, by their attributes.
    """

    network: Any
    policy: tf_policy.TFPolicy
    collect_policy: tf_policy.TFPolicy
    encoder: ImageEncoder | None = None
    encoded_spec: Any = None
    scheduled: Mapping[str, tf.Variable] = dataclasses.field(default_factory=dict)


def build_acting(params: TrainParamsBase, time_step_spec: ts.TimeStep, action_spec: Any) -> Acting:
    """An actor of continuous actions, built with the user's hook; arguments as of `TrainParamsBase.agent_ctor`.

    Raises:
      UserError: Its distributions are not tanh-squashed Gaussians.
    """
    spec, names = time_step_spec.observation, params.actor_observations
    if names is not None:
        spec = seen_by_actor(spec, names)
        time_step_spec, whole_spec = ts.time_step_spec(spec), time_step_spec.observation
    encoder = make_encoder(params, spec)
    encoded_spec = spec if encoder is None else encoder.encoded_spec
    actor = acts = params.actor_ctor(encoded_spec, action_spec)
    if encoder is not None:
        actor.create_variables(encoded_spec)  # By itself, because a seed's results depend on the order.
        acts = EncodedActor(encoder, actor)
    if names is not None:
        encoder, encoded_spec, actor = None, spec, acts
        set_sources(actor, leaves_seen_by_actor(whole_spec, names))
    policy = ActorPolicy(time_step_spec, action_spec, acts, training=False)
    _check_distributions(policy)
    return Acting(actor, policy, policy, encoder, encoded_spec)


def _check_distributions(policy: ActorPolicy) -> None:
    """Of the first actions, which creates all variables."""
    observation = tf.nest.map_structure(
        lambda spec: tf.zeros((1, *spec.shape), spec.dtype), policy.time_step_spec.observation
    )
    try:
        for distribution in tf.nest.flatten(
            policy.distribution(ts.restart(observation, 1), policy.get_initial_state(1)).action
        ):
            mean_and_std(distribution)
    except UnsupportedActorError as error:
        raise UserError(
            f"{error}: let actor_ctor return one, or let agent_ctor return a TFAgent that can train it"
        ) from None


def make_worker_agent(params: TrainParamsBase, time_step_spec: ts.TimeStep, action_spec: Any) -> Any:
    """What a worker uses as its agent: `Acting`, without critics, targets and optimizers, or the whole agent.

    The whole agent if the user's hooks build it or its critics, which may share layers with the actor.
    """
    if overrides_any(params, "agent_ctor", "critic_ctor"):
        return params.agent_ctor(time_step_spec, action_spec, tf.Variable(0, dtype=tf.int64, name="train_step"))
    return algorithms.agent_class(params).build_acting(params, time_step_spec, action_spec)
