"""Steps, updates and samples, as the attributes of TrainParams say together."""

from __future__ import annotations

import fractions
import math

from tfagents_system.train_params_base import TrainParamsBase

MAX_BLOCK_MINIBATCHES = 100


def updates_due(steps: int, updates_per_env_step: float) -> int:
    """floor(updates_per_env_step * steps), of the decimal number that was written: 0.1 * 30 is 3, as for people."""
    return math.floor(fractions.Fraction(str(updates_per_env_step)) * steps)


def updates_ratio(params: TrainParamsBase) -> float | None:
    """Updates per environment step in lock-step; None: an iteration's number of updates is fixed."""
    if params.asynchronous:
        return None
    if params.updates_per_env_step is None and params.env_steps_per_iter is not None:
        return 1.0
    return params.updates_per_env_step


def most_updates_per_env_step(params: TrainParamsBase) -> float:
    """Updates that are allowed for each environment step with `asynchronous`."""
    return float(1.0 if params.updates_per_env_step is None else params.updates_per_env_step)


def least_updates_per_env_step(params: TrainParamsBase) -> float | None:
    """Updates for each environment step that workers wait for, with `asynchronous`; None: they wait for none."""
    return params.min_updates_per_env_step if params.asynchronous else None


def ratio_of_run(params: TrainParamsBase) -> float | None:
    """Updates for each environment step, in lock-step or at most; None: an iteration's number of updates is fixed."""
    return most_updates_per_env_step(params) if params.asynchronous else updates_ratio(params)


def updates_of_iteration(params: TrainParamsBase) -> int | None:
    """Updates of an iteration; None where its experience decides, see `updates_ratio`."""
    if params.asynchronous and params.env_steps_per_iter is not None:
        return max(1, updates_due(params.env_steps_per_iter, most_updates_per_env_step(params)))
    return params.updates_per_iter if updates_ratio(params) is None else None


def steps_of_run(params: TrainParamsBase) -> int | None:
    """Environment steps of the whole run, without random episodes; None where they depend on how long episodes are."""
    if params.env_steps_per_iter is None:
        return params.num_env_steps
    by_iterations = (params.initial_collect_steps or 0) + params.num_iter * params.env_steps_per_iter
    return min(by_iterations, params.num_env_steps or by_iterations)


def iterations_of_run(params: TrainParamsBase, workers: int) -> int:
    """Iterations of the whole run, where episodes have their full length."""
    if params.num_env_steps is None:
        return params.num_iter
    steps = params.env_steps_per_iter or params.num_train_episodes_per_iter * workers * params.horizon
    return min(params.num_iter, math.ceil(params.num_env_steps / steps))


def random_count(params: TrainParamsBase) -> int:
    """Random episodes before the first iteration; or steps, if `initial_collect_steps` says how many."""
    steps = params.initial_collect_steps
    return params.num_initial_episodes if steps is None else steps


def random_steps(params: TrainParamsBase) -> int:
    """Steps that these are at most."""
    return random_count(params) * (params.horizon if params.initial_collect_steps is None else 1)


def offline_updates(params: TrainParamsBase) -> int:
    """Updates before the first iteration; 0 without prior data."""
    return params.offline_updates if has_prior_data(params) else 0


def has_prior_data(params: TrainParamsBase) -> bool:
    """Whether a part of each minibatch is drawn from other experience than the run's own."""
    return params.prior_data is not None


def prior_samples(params: TrainParamsBase) -> int:
    """Samples of each minibatch that are drawn from prior data; 0 without any."""
    return round(params.prior_data_share * params.batch_size) if has_prior_data(params) else 0


def steps_of_worker(worker_id: int, iteration: int, steps: int, num_workers: int) -> int:
    """Steps of an iteration that a worker collects: shares differ by one at most, and take turns in being larger ones.

    A worker beyond the planned ones takes as many as it would have as one more, on top of theirs.
    """
    count = max(num_workers, min(worker_id, num_workers) + 1)
    share, left_over = divmod(max(steps, num_workers), count)
    return max(1, share + ((min(worker_id, num_workers) + iteration) % count < left_over))
