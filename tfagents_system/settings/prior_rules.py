"""What is wrong with attributes about prior data together with others."""

from __future__ import annotations

from typing import Any

from tfagents_system.agents.iteration_counts import has_prior_data, offline_updates, prior_samples, random_count


def prior_findings(params: Any) -> list[str]:
    """Of the share of prior data in a minibatch."""
    size, share, samples = params.batch_size, params.prior_data_share, prior_samples(params)
    if not has_prior_data(params) or 0 < samples < size:
        return []
    return [
        f"TrainParams.prior_data_share={share:g} of batch_size={size} is {samples} samples, and a minibatch has "
        "some of both: choose another share, or raise batch_size"
    ]


def prior_notes(params: Any) -> list[str]:
    """What works but is seldom meant."""
    first = random_count(params)
    if not offline_updates(params) or not first:
        return []
    kind = "episodes" if params.initial_collect_steps is None else "steps"
    return [
        f"offline_updates={params.offline_updates}, and the first {first} {kind} are still of random actions, not of "
        "the policy that was trained offline: set initial_collect_steps=0"
    ]
