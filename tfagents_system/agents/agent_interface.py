"""What the toolkit needs from an agent beyond TF-Agents' TFAgent: its update, and the network that workers act with.

The toolkit's own agents provide both: `make_update` returns an `Update`, `sampled_actor` the network. This file
provides them for TF-Agents' SacAgent, as the only place that knows it, and for unknown agents.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

import tensorflow as tf
from tf_agents.agents import tf_agent
from tf_agents.agents.sac.sac_agent import SacAgent
from tf_agents.policies.actor_policy import ActorPolicy

from tfagents_system.agents.fused_update import FusedUpdate
from tfagents_system.agents.noise import UnsupportedAgentError
from tfagents_system.agents.update_parts import Measured, Parts, all_measured, unique_variables


class Update(Protocol):
    """One update of an agent, which a block repeats.

    Attributes:
      kind: `fused`, or `generic` for the agent's own `train`; for display.
    """

    kind: str

    def step(self, experience: Any, *, weight: tf.Tensor | None = None) -> Measured:
        """Learns from a Transition `[B, ...]`, or a Trajectory `[B, T + 1, ...]` with the steps' weights `[B, T]`."""

    def losses(self, experience: Any, *, weight: tf.Tensor | None = None) -> dict[str, tf.Tensor]:
        """The same losses without learning; none, or NotImplementedError, if the agent reports none."""


def make_update(agent: Any, seed: int = 0, burn_in_steps: int = 0) -> Update:
    """The update of an agent; arguments as of FusedUpdate.

    Raises:
      UnsupportedAgentError: Only the agent's own `train` can update it, see `OwnTrain`. Actors whose distributions are
        not tanh-squashed Gaussians are only found at the first step.
    """
    if _knows_the_toolkit(type(agent)):
        update: Update = agent.make_update(seed, burn_in_steps)
        return update
    return FusedUpdate(_parts_of_sac_agent(agent), seed, burn_in_steps)


def has_fused_update(agent: Any) -> bool:
    """Whether its update is one of the toolkit's, unless its actor's distributions turn out not to fit."""
    try:
        return make_update(agent).kind == FusedUpdate.kind
    except UnsupportedAgentError:
        return False


def sampled_actor(agent: Any) -> Any:
    """The network whose distributions the collect policy samples, to compute it without TensorFlow.

    Raises:
      UnsupportedAgentError: The agent's policies may do more than sample it.
    """
    # Exactly these classes: a subclass or a wrapper may act in another way than its network says.
    is_known = "sampled_actor" in vars(type(agent)) or type(agent) is SacAgent
    if is_known and type(agent.collect_policy) is ActorPolicy:
        return getattr(agent, "sampled_actor", agent.collect_policy._actor_network)
    raise UnsupportedAgentError(f"{type(agent).__name__} is neither TF-Agents' SacAgent nor one of its variants")


class OwnTrain:
    """The update of any TFAgent: its own `train`.

    It can't leave out steps of a sequence: padded sequences get weight 0.
    """

    kind = "generic"

    def __init__(self, agent: tf_agent.TFAgent) -> None:
        self._agent = agent

    def step(self, experience: Any, *, weight: tf.Tensor | None = None) -> Measured:
        info = self._agent.train(experience, weights=of_whole_sequences(weight))
        return all_measured({"loss": info.loss} | _scalars(info.extra))

    def losses(self, experience: Any, *, weight: tf.Tensor | None = None) -> dict[str, tf.Tensor]:
        info = self._agent.loss(experience, weights=of_whole_sequences(weight), training=False)
        return _scalars(info.extra)


def of_whole_sequences(weight: tf.Tensor | None) -> tf.Tensor | None:
    """From `[B, T]` to `[B]`: 0 for padded sequences; the mean is 1 if any sequence is whole."""
    if weight is None:
        return None
    is_whole = tf.cast(tf.reduce_all(weight > 0.0, axis=1), tf.float32)
    return is_whole / tf.maximum(tf.reduce_mean(is_whole), 1e-6)


def _scalars(extra: Any) -> dict[str, tf.Tensor]:
    """The losses that an agent reports beside their sum, by name."""
    named = extra._asdict() if hasattr(extra, "_asdict") else {}
    return {name: value for name, value in named.items() if value.shape.rank == 0}


def _knows_the_toolkit(agent_class: type) -> bool:
    """Whether the agent provides its update, and no subclass has replaced the training that it describes."""
    for base in agent_class.__mro__:
        if "make_update" in vars(base):
            return True
        if vars(base).keys() & {"train", "_train", "loss", "_loss"}:
            return False
    return False


def _parts_of_sac_agent(agent: Any) -> Parts:
    if reason := _why_not_plain_sac(agent):
        raise UnsupportedAgentError(reason)
    named_alike = {
        field.name: getattr(agent, f"_{field.name}")
        for field in dataclasses.fields(Parts)
        if hasattr(agent, f"_{field.name}")
    }
    return Parts(
        actor=agent._actor_network,
        critics=(agent._critic_network_1, agent._critic_network_2),
        targets=(agent._target_critic_network_1, agent._target_critic_network_2),
        train_step=agent.train_step_counter,
        has_log_alpha_loss=agent._use_log_alpha_in_alpha_loss,
        **named_alike,
    )


def _why_not_plain_sac(agent: Any) -> str:
    """Why an agent's update differs from SacAgent's; empty if it does not."""
    if type(agent) is not SacAgent:
        return f"{type(agent).__name__} is not TF-Agents' SacAgent itself"
    if agent._debug_summaries or agent._summarize_grads_and_vars:
        return "the agent writes summaries of its own"
    critics = {variable.ref() for variable in unique_variables((agent._critic_network_1, agent._critic_network_2))}
    if any(variable.ref() in critics for variable in agent._actor_network.trainable_variables):
        return "actor and critics share variables"
    return ""
