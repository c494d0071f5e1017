"""The networks of an agent by what they are for, and how they are drawn anew while everything else stays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfagents_system.agents.action_sampling import UnsupportedAgentError
from tfagents_system.agents.normalization import ObservationNormalization, RunningNormalization
from tfagents_system.agents.part_names import ACTOR, CRITICS, ENCODER
from tfagents_system.agents.value_network import ValueNetwork

TARGETS = "targets"
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


def redraw(agent: Any, fresh: Any, shares: Mapping[str, float]) -> None:
    """Draws the networks of an agent anew: theta <- share * theta + (1 - share) * theta', with theta' of `fresh`.

    A share of 0 is a reset (Nikishin et al., arXiv 2205.07802), one in between Shrink-and-Perturb (Ash and Adams, arXiv
    1910.08475). Running statistics of observations stay. The optimizers of the networks forget their moments, and the
    count by which they correct these; their settings, and schedules by train step, stay.

    Args:
      agent: One that `networks_of` knows.
      fresh: Another one, built in the same way and never trained.
      shares: What stays of `actor`, `critics` (with their targets) and `encoder`, 0 where it does not say. Encoders of
        images within networks of values are `encoder`, too.
    """
    shares = {**shares, TARGETS: shares.get(CRITICS, 0.0)}
    new = networks_of(fresh)
    for part, networks in networks_of(agent).items():
        share = shares.get(part, 0.0)
        for network, fresh_network in zip(networks, new[part], strict=True):
            _blend(network, fresh_network, share, shares.get(ENCODER, 0.0))
    for name in _OPTIMIZERS:
        if hasattr(agent, name):
            _forget_moments(getattr(agent, name))


def _blend(network: Any, fresh: Any, share: float, share_of_encoder: float) -> None:
    kept = {variable.ref() for variable in statistics_of(network)}
    images = network.images if isinstance(network, ValueNetwork) else None
    of_images = {variable.ref() for variable in images.variables} if images is not None else set()
    for variable, drawn in zip(network.variables, fresh.variables, strict=True):
        own_share = share_of_encoder if variable.ref() in of_images else share
        if variable.ref() in kept or (own_share and not variable.dtype.is_floating):
            continue
        variable.assign(own_share * variable + (1.0 - own_share) * drawn if own_share else drawn)


def statistics_of(network: Any) -> list[tf.Variable]:
    """The running statistics of observations in a network: what it has seen, not what it has learned."""
    layers: Sequence[Any] = [layer for layer in network.submodules if isinstance(layer, RunningNormalization)]
    return [variable for layer in layers for variable in layer.variables]


def normalizations_of(network: Any) -> list[RunningNormalization]:
    """What normalises the leaves of the network's observation, in the order in which checkpoints number them."""
    found = [layer for layer in network.submodules if isinstance(layer, ObservationNormalization)]
    return [leaf for layer in found for leaf in layer.leaves]


def _forget_moments(optimizer: Any) -> None:
    for variable in optimizer.variables():
        variable.assign(tf.zeros_like(variable))
