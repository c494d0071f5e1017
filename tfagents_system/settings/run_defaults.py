"""What a run has where neither the user's class nor `--set` says it: its iterations, and periods that fit them.

Other defaults are one value each, in hyperparameters.py. These follow from other attributes. They are decided once,
when a run begins, and recorded in its run.json: a run keeps each of them for as long as nobody says something
else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tfagents_system.settings.own_attributes import is_set
from tfagents_system.train_params_base import TrainParamsBase

ENV_STEPS_PER_ITER = (
    200  # Costs 2 % of the throughput of iterations of 1000 steps (docs/explanations/experience.md has figures).
)
OF_ITERATIONS = ("num_train_episodes_per_iter", "updates_per_iter", "env_steps_per_iter")
# Of a run that takes another one's agent, or enough of its experience.
WITHOUT_RANDOM_STEPS = {"initial_collect_steps": 0}
_STEPS_AN_EVALUATION_STEP = 9  # Evaluations take at most a tenth of all steps of simulators.
_LOG_STEPS, _CHECKPOINT_STEPS = 1000, 50_000


def defaults_of(params: TrainParamsBase, num_workers: int) -> dict[str, Any]:
    """Values by attribute for a run that begins.

    Args:
      params: As the user gives them; every value is right by itself.
      num_workers: Planned workers: each has at least a step of an iteration.
    """
    found: dict[str, Any] = {}
    if not any(is_set(params, name) for name in OF_ITERATIONS):
        found["env_steps_per_iter"] = max(ENV_STEPS_PER_ITER, num_workers)
    steps_per_iter = found.get("env_steps_per_iter", params.env_steps_per_iter)
    if steps_per_iter is not None:
        if not is_set(params, "log_period_iters"):
            found["log_period_iters"] = max(1, _LOG_STEPS // steps_per_iter)
        evaluation_steps = params.num_eval_episodes * params.horizon
        periods = {"checkpoint_period": _CHECKPOINT_STEPS}
        if evaluation_steps:
            periods["eval_period"] = _STEPS_AN_EVALUATION_STEP * evaluation_steps
        for period, steps in periods.items():
            if not (is_set(params, f"{period}_iters") or is_set(params, f"{period}_env_steps")):
                found[f"{period}_env_steps"] = steps
    return found


def kept_defaults(params: TrainParamsBase, num_workers: int, recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Values by attribute for a run that has begun. What its params say no more it has as a run that begins.

    Args:
      params, num_workers: As of `defaults_of`.
      recorded: Those that it had up to now.
    """
    kept = {name: recorded.get(name, value) for name, value in defaults_of(params, num_workers).items()}
    return kept | {name: recorded[name] for name in WITHOUT_RANDOM_STEPS if name in recorded}
