"""What is wrong with `actor_observations` together with other attributes."""

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
