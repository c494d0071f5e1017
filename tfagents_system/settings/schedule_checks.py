"""What is wrong with schedules together with other attributes, each of which is right by itself."""

from __future__ import annotations

from typing import Any

from tfagents_system.agents.optimizer_settings import PARTS
from tfagents_system.checks.schedules import is_schedule


def schedule_together_findings(params: Any) -> list[str]:
    """One sentence each."""
    findings = []
    for part in PARTS:
        name, optimizer = f"{part}_learning_rate", getattr(params, f"{part}_optimizer")
        if is_schedule(getattr(params, name)) and optimizer.get("schedule", "constant") != "constant":
            findings.append(
                f'TrainParams.{part}_optimizer["schedule"]="{optimizer["schedule"]}" changes {name}, which is a '
                f"schedule itself: remove one"
            )
    return findings
