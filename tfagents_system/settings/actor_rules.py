"""What is wrong with `actor_observations`, and with networks of discrete actions, together with other attributes."""

from __future__ import annotations

from typing import Any

from tfagents_system.agents.algorithms import ALGORITHMS
from tfagents_system.train_params_base import overrides_any


def actor_findings(params: Any) -> list[str]:
    """Of agents without an actor of the toolkit's own."""
    names = params.actor_observations
    if names is None:
        return []
    if not ALGORITHMS[params.algorithm].has_actor:
        with_actor = [name for name, each in ALGORITHMS.items() if each.has_actor and each.actions == "discrete"]
        return [
            f"TrainParams.actor_observations={names} does not work with algorithm={params.algorithm!r}, which has no "
            f"actor, its values are what acts: set it to None, or choose {' or '.join(map(repr, with_actor))}"
        ]
    if overrides_any(params, "agent_ctor"):
        return [
            f"TrainParams.actor_observations={names} says what the actors of the toolkit's own agents see, and "
            "agent_ctor builds another one: set it to None, or remove the hook"
        ]
    return []


def discrete_findings(params: Any) -> list[str]:
    """Parts of networks that the toolkit's own agents of discrete actions do not have."""
    if ALGORITHMS[params.algorithm].actions != "discrete" or overrides_any(params, "agent_ctor"):
        return []
    asked = {name: "remove the hook" for name in ("actor_ctor", "critic_ctor") if overrides_any(params, name)}
    if params.batch_renormalization:
        asked["batch_renormalization=True"] = "set it to None"
    return [
        f"TrainParams.{name} does not work with algorithm={params.algorithm!r}, which builds networks of its own that "
        f"score all actions: {remedy}, or build the whole agent with agent_ctor"
        for name, remedy in asked.items()
    ]
