"""The networks of an agent by what they are for, and how they are drawn anew while everything else stays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfagents_system.agents.action_sampling import UnsupportedAgentError
from tfagents_system.agents.normalization import ObservationNormalization, RunningNormalization

ACTOR, CRITICS, TARGETS, ENCODER = "actor", "critics", "targets", "encoder"
_OPTIMIZERS = ("_actor_optimizer", "_critic_optimizer")


def networks_of(agent: Any) -> dict[str, list[Any]]:
    """`actor`, `critics`, `targets` and `encoder`, each a list, empty where there is none.

    Raises:
      UnsupportedAgentError: It is neither one of the toolkit's agents nor TF-Agents' SacAgent.
    """
    if hasattr(agent, "_critic_networks"):
        critics, targets = agent._critic_networks, agent._target_critic_networks
    elif hasattr(agent, "_critic_network_2"):
        critics = [agent._critic_network_1, agent._critic_network_2]
        targets = [agent._target_critic_network_1, agent._target_critic_network_2]
    else:
        raise UnsupportedAgentError(f"{type(agent).__name__} is neither TF-Agents' SacAgent nor one of its variants")
    actor, encoder = (getattr(agent, name, None) for name in ("_actor_network", "_encoder"))
    return {
        ACTOR: [] if actor is None else [actor],
        CRITICS: list(critics),
        TARGETS: list(targets),
        ENCODER: [] if encoder is None else [encoder],
    }


def redraw(agent: Any, fresh: Any) -> None:
    """Replaces the networks' weights by those of `fresh` (Nikishin et al., arXiv 2205.07802).

    Running statistics of observations stay. The optimizers of the networks forget their moments, and the count by which
    they correct these.

    Args:
      agent: One that `networks_of` knows.
      fresh: Another one, built in the same way and never trained.
    """
    new = networks_of(fresh)
    for part, networks in networks_of(agent).items():
        for network, fresh_network in zip(networks, new[part], strict=True):
            kept = {variable.ref() for variable in statistics_of(network)}
            for variable, drawn in zip(network.variables, fresh_network.variables, strict=True):
                if variable.ref() not in kept:
                    variable.assign(drawn)
    for name in _OPTIMIZERS:
        for variable in getattr(agent, name).variables() if hasattr(agent, name) else ():
            variable.assign(tf.zeros_like(variable))


def statistics_of(network: Any) -> list[tf.Variable]:
    """The running statistics of observations in a network: what it has seen, not what it has learned."""
    layers: Sequence[Any] = [layer for layer in network.submodules if isinstance(layer, RunningNormalization)]
    return [variable for layer in layers for variable in layer.variables]


def normalizations_of(network: Any) -> list[RunningNormalization]:
    """What normalises the leaves of the network's observation, in the order in which checkpoints number them."""
    found = [layer for layer in network.submodules if isinstance(layer, ObservationNormalization)]
    return [leaf for layer in found for leaf in layer.leaves]
