"""The columns of a run's experience, which workers, replay server and gateway have alike."""

from __future__ import annotations

from typing import Any

from tfagents_system.train_params_base import TrainParamsBase, has_potential
from tfagents_system.transport.layout import Layout


def run_layout(params: TrainParamsBase, observation_spec: Any, action_spec: Any) -> Layout:
    """The columns for an environment's specs (nests without batch dimension), as the parameters need them."""
    form = params.sample_form_ctor()
    return Layout.from_specs(
        observation_spec,
        action_spec,
        has_returns=params.normalize_rewards,
        has_explored=form.cuts_at_exploration,
        has_potential=has_potential(params),
        has_episode=form.hindsight is not None,
    )
