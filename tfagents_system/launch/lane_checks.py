"""Tries all lanes of a user's vector environment before any process starts."""

from __future__ import annotations

import time

import numpy as np
import tree

from tfagents_system.checks.checklist import Check, have
from tfagents_system.envs.actions import random_actions
from tfagents_system.envs.batched_environment import BatchedEnvironment
from tfagents_system.envs.training_environment import TrainingEnvironment
from tfagents_system.errors import shown
from tfagents_system.launch.spec_checks import EPISODE_SECS
from tfagents_system.train_params_base import TrainParamsBase
from tfagents_system.worker.environments import several_vectors

_OF_SINGLE = {
    "greedy_episode_share": "whose lanes have one inference",
    "keep_best_episodes": "whose lanes can't be seeded one by one, so that no episode could be repeated",
}
_MORE_STEPS = 3  # Behind an end: the next episode's first ones.


def check_lanes(
    params: TrainParamsBase, env: TrainingEnvironment, check: Check, envs_per_worker: int, deterministic: bool
) -> None:
    """Steps all lanes at random until an episode has ended and another one begun; adds what was found to `check`.

    Args:
      params: The user's.
      env: The first lane.
      check: Gets facts, notes and errors.
      envs_per_worker: SAC_ENVS_PER_WORKER.
      deterministic: SAC_DETERMINISTIC=1.

    Raises:
      EnvironmentFault: It has failed.
      UserError: It can't be used.
    """
    lanes = BatchedEnvironment(
        env.user_env, params.horizon, action_history=params.action_history, action_table=params.action_table
    )
    count = lanes.num_lanes
    if envs_per_worker > 1:
        check.errors.append(several_vectors(envs_per_worker, count))
    if deterministic and not lanes.can_reseed:
        check.errors.append(
            "SAC_DETERMINISTIC=1 seeds the environment anew for each iteration, and EnvPool takes a seed only when it "
            "is built: use SAC_DETERMINISTIC=0, or gymnasium.make_vec"
        )
    if deterministic and params.env_steps_per_iter is not None:
        check.errors.append(
            "SAC_DETERMINISTIC=1 repeats the episodes under way after a restart, which lanes of a vector environment "
            "can't: set num_train_episodes_per_iter instead of env_steps_per_iter, or return single environments "
            "and set SAC_ENVS_PER_WORKER"
        )
    check.errors += [
        f"TrainParams.{name}={shown(value)} does not work with a vector environment, {why}: set it to "
        f"{getattr(TrainParamsBase, name)!r}, or return single environments and set SAC_ENVS_PER_WORKER={count}"
        for name, why in _OF_SINGLE.items()
        if (value := getattr(params, name))
    ]
    if params.env_steps_per_iter is None and (idle := count - params.num_train_episodes_per_iter) > 0:
        check.notes.append(
            f"num_train_episodes_per_iter={params.num_train_episodes_per_iter} for a worker, so {idle} of its {count} "
            f"lanes {have(idle)} nothing to do: set env_steps_per_iter instead, or num_train_episodes_per_iter to a "
            f"multiple of {count}"
        )
    steps = _try(lanes)
    check.facts.append(f"{count} lanes" + (f", the first episode ends after {steps} steps" if steps else ""))


def _try(lanes: BatchedEnvironment) -> int | None:
    """The step in which the first episode ended; None if none did in time."""
    rng = np.random.default_rng(0)
    out = [np.zeros((lanes.num_lanes, *spec.shape), spec.dtype) for spec in tree.flatten(lanes.observation_spec())]
    lanes.reset(out)
    until, steps, ended = time.perf_counter() + EPISODE_SECS, 0, None
    while time.perf_counter() < until and (ended is None or steps < ended + _MORE_STEPS):
        actions = [random_actions(spec, rng, lanes.num_lanes) for spec in tree.flatten(lanes.action_spec())]
        step = lanes.step(actions, out)
        steps += 1
        if ended is None and step.is_last.any():
            ended = steps
    return ended
