"""Notes before a start: what keeps a run from learning, though every value is right by itself."""

from __future__ import annotations

from tfagents_system.agents.iteration_counts import iterations_of_run, random_steps
from tfagents_system.checks.rules import integer_from, is_kept
from tfagents_system.envs.curriculum import Curriculum, check_curriculum
from tfagents_system.train_params_base import TrainParamsBase


def curriculum(params: TrainParamsBase) -> list[str]:
    """Notes on values of the curriculum that never fall due in this run."""
    config = params.env_config
    if check_curriculum(config) or not is_kept(integer_from(1), config.get("horizon")):
        return []  # Reported already.
    count = iterations_of_run(params, params.compute_config.get("num_collect_workers", 1))
    length, remedy = f"{count} iterations", "num_iter"
    if count < params.num_iter:  # By its steps.
        length, remedy = f"num_env_steps={params.num_env_steps}, which are {count} iterations", "num_env_steps"
        length += " of full-length episodes" if params.env_steps_per_iter is None else ""
    return [
        f"curriculum.{name}.iters: {', '.join(map(str, late))} come after the last iteration, so their values never "
        f"fall due: the run has {length}, counted from 0. Lower these, or raise {remedy}"
        for name, late in Curriculum.from_config(config).after(count).items()
    ]


def random_first(params: TrainParamsBase) -> list[str]:
    """Notes on a run that may be over with the random actions of its beginning."""
    steps = random_steps(params)
    if params.num_env_steps is None or steps < params.num_env_steps:
        return []
    count = "num_initial_episodes" if params.initial_collect_steps is None else "initial_collect_steps"
    return [
        f"num_env_steps={params.num_env_steps} may be over before the first update: {count}={getattr(params, count)} "
        f"come first, up to {steps:,} steps with random actions: lower that, or raise num_env_steps"
    ]
