"""The sequences on which recurrent networks are trained."""

from __future__ import annotations

from tfagents_system.train_params_base import TrainParamsBase


def sequence_length(params: TrainParamsBase) -> int | None:
    """Transitions of a sequence as it is drawn, those of the burn-in included; None where single ones are drawn."""
    return burn_in_steps(params) + params.recurrent_sequence_length if params.recurrent else None


def burn_in_steps(params: TrainParamsBase) -> int:
    """Transitions of a drawn sequence that only lead to the state in which its losses begin."""
    return params.recurrent_burn_in if params.recurrent else 0
