"""Steps and updates of an iteration, as the attributes of TrainParams say together."""

from __future__ import annotations

import math
from typing import Any


def updates_ratio(params: Any) -> float | None:
    """Updates per environment step in lock-step; None: an iteration has `num_steps_per_iter` updates."""
    if params.updates_per_env_step is None and params.env_steps_per_iter is not None:
        return 1.0
    ratio: float | None = params.updates_per_env_step
    return ratio


def updates_per_iter(params: Any) -> int | None:
    """Updates of an iteration; None where its experience decides, see `updates_ratio`."""
    if params.asynchronous and params.env_steps_per_iter is not None:
        return max(1, math.floor(params.env_steps_per_iter * params.max_updates_per_env_step))
    return params.num_steps_per_iter if params.asynchronous or updates_ratio(params) is None else None
