"""What is wrong with attributes about resets together with others."""

from __future__ import annotations

from typing import Any

from tfagents_system.train_params_base import overrides_any


def reset_findings(params: Any) -> list[str]:
    """Of `reset_period_updates`."""
    if params.reset_period_updates is None or not overrides_any(params, "agent_ctor"):
        return []
    return [
        f"TrainParams.reset_period_updates={params.reset_period_updates} draws the networks of the toolkit's own "
        "agents anew, and agent_ctor builds another one: set it to None, or remove the hook"
    ]
