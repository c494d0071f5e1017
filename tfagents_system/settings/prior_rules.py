"""What is wrong with attributes about prior data together with others."""

from __future__ import annotations

from typing import Any

from tfagents_system.agents.iteration_counts import offline_updates, prior_samples, random_count
from tfagents_system.train_params_base import overrides_any


def prior_findings(params: Any) -> list[str]:
    """Of the share of prior data in a minibatch, and of behaviour cloning."""
    findings = []
    size, share, samples = params.train_batch_size, params.prior_data_share, prior_samples(params)
    if params.prior_data is not None and not 0 < samples < size:
        findings.append(
            f"TrainParams.prior_data_share={share:g} of train_batch_size={size} is {samples} samples, and a minibatch "
            "has some of both: choose another share, or raise train_batch_size"
        )
    if params.behaviour_cloning_weight and overrides_any(params, "agent_ctor"):
        findings.append(
            f"TrainParams.behaviour_cloning_weight={params.behaviour_cloning_weight:g} is part of the loss of the "
            "toolkit's own agents, and agent_ctor builds another one: set it to 0, or remove the hook"
        )
    return findings


def prior_notes(params: Any) -> list[str]:
    """What works but is seldom meant."""
    first = random_count(params)
    if not offline_updates(params) or not first:
        return []
    kind = "episodes" if params.env_steps_before_training is None else "steps"
    return [
        f"offline_updates={params.offline_updates}, and the first {first} {kind} are still of random actions, not of "
        "the policy that was trained offline: set env_steps_before_training=0"
    ]
