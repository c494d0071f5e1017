"""Steps and updates of an iteration, as the attributes of TrainParams say together."""

from __future__ import annotations

import math
from typing import Any


def updates_ratio(params: Any) -> float | None:
    """Updates per environment step in lock-step; None: an iteration's number of updates is fixed."""
    if params.asynchronous:
        return None
    if params.updates_per_env_step is None and params.env_steps_per_iter is not None:
        return 1.0
    ratio: float | None = params.updates_per_env_step
    return ratio


def most_updates_per_env_step(params: Any) -> float:
    """Updates that are allowed for each environment step with `asynchronous`."""
    ratio = params.max_updates_per_env_step if params.updates_per_env_step is None else params.updates_per_env_step
    return float(ratio)


def updates_per_iter(params: Any) -> int | None:
    """Updates of an iteration; None where its experience decides, see `updates_ratio`."""
    if params.asynchronous and params.env_steps_per_iter is not None:
        return max(1, math.floor(params.env_steps_per_iter * most_updates_per_env_step(params)))
    return params.num_steps_per_iter if updates_ratio(params) is None else None


def updates_of_run(params: Any) -> int | None:
    """Updates of the whole run; None where they depend on how long episodes are."""
    ratio = most_updates_per_env_step(params) if params.asynchronous else updates_ratio(params)
    if params.env_steps_per_iter is not None and ratio is not None:
        return math.floor(params.num_iter * params.env_steps_per_iter * ratio)
    return params.num_iter * params.num_steps_per_iter if updates_ratio(params) is None else None
