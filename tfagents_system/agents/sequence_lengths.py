"""The sequences on which recurrent networks are trained."""

from __future__ import annotations

from tfagents_system.train_params_base import TrainParamsBase


def sequence_length(params: TrainParamsBase) -> int | None:
    """Transitions of a drawn sequence, including the burn-in; None if single transitions are drawn."""
    return burn_in_steps(params) + params.recurrent_sequence_length if params.recurrent else None


def burn_in_steps(params: TrainParamsBase) -> int:
    """Transitions of a drawn sequence that only produce the state in which its losses begin."""
    return params.recurrent_burn_in if params.recurrent else 0


def sample_reach(params: TrainParamsBase) -> tuple[int, int]:
    """Steps of the same episode before and behind the one that is drawn, which its sample may need."""
    length = sequence_length(params)
    if length is None:
        return 0, params.n_step - 1
    return length - 1, length - burn_in_steps(params) - 1
