"""What is wrong with schedules together with other attributes, each of which is right by itself."""

from __future__ import annotations

from typing import Any

from tfagents_system.agents.algorithms import ALGORITHMS
from tfagents_system.checks.schedules import is_schedule


def schedule_together_findings(params: Any) -> list[str]:
    """One sentence each."""
    # The replay server follows a scheduled discount: agents and workers know of none.
    if not is_schedule(params.discount):
        return []
    findings = []
    if not ALGORITHMS[params.algorithm].takes_bootstrap_factor:
        findings.append(
            f"TrainParams.discount as a schedule does not work with algorithm={params.algorithm!r}, which multiplies "
            "with one discount itself: set a number, or choose dqn, iqn or sac_discrete"
        )
    if params.normalize_rewards:
        findings.append(
            "TrainParams.discount as a schedule does not work with normalize_rewards=True, returns would be discounted "
            "in several ways: set a number, or normalize_rewards=False"
        )
    return findings
