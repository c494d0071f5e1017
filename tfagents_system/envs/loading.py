"""Builds the environments of a run from the hooks of TrainParams, here or each in its own process."""

from __future__ import annotations

import sys
from typing import Any

from absl import logging

from tfagents_system.envs import hooks
from tfagents_system.envs.env_process import EnvProcess, ProcessSettings
from tfagents_system.envs.gym_driver import SEED_LIMIT, time_limit_of
from tfagents_system.envs.hooks import COLLECT, EVAL
from tfagents_system.envs.training_environment import TrainingEnvironment
from tfagents_system.machine import process_settings
from tfagents_system.train_params_base import TrainParamsBase, overrides_any


def make_env(
    params: TrainParamsBase,
    kind: str,
    seed: int,
    env_id: int = 0,
    *,
    worker_id: int = 0,
    name: str = "the environment",
    process: ProcessSettings | None = None,
    collect_env: TrainingEnvironment | None = None,
    render: bool = False,
) -> TrainingEnvironment:
    """An environment of a worker.

    Args:
      params: The user's TrainParams.
      kind, env_id: See `hooks.build_env`.
      seed: For the environment.
      worker_id, name: Named in errors.
      process: Settings of its process; None: those of the params, see `load_params`.
      collect_env: Of an environment for evaluation: the one beside it, see `hooks.build_env`.
      render: `render_frame` will be called.

    Raises:
      UserError: The hooks return something other than they should.
    """
    process = process or (params._source.process if params._source is not None else None)
    if process is not None:
        env: Any = EnvProcess(process, params, kind=kind, seed=seed, env_id=env_id, render=render)
    else:
        _log_mujoco_warnings()
        beside = None if collect_env is None else collect_env.user_env
        with process_settings.kept():
            env = hooks.build_env(params, kind, seed, env_id, beside, render=render)
        _log_mujoco_warnings()  # It may have been imported only now.
    try:
        return TrainingEnvironment(
            env,
            params.horizon,
            seed=seed % SEED_LIMIT,
            worker_id=worker_id,
            name=name,
            action_history=params.action_history,
            action_bounds=params.action_bounds,
            action_table=params.action_table,
            potential=params.potential if overrides_any(params, "potential") and kind == COLLECT else None,
            strict_observation_bounds=params.strict_observation_bounds,
        )
    except BaseException:
        if isinstance(env, EnvProcess):
            env.close()  # Its spaces can't be used.
        raise


def make_collect_env(
    params: TrainParamsBase, worker_id: int, seed: int, env_id: int | None = None, **options: Any
) -> TrainingEnvironment:
    """An environment to collect in.

    Args:
      env_id: None: the worker's number.
      **options: As of `make_env`.
    """
    env_id = worker_id if env_id is None else env_id
    return make_env(params, COLLECT, seed, env_id, worker_id=worker_id, **options)


def make_eval_env(
    params: TrainParamsBase, worker_id: int, collect_env: TrainingEnvironment | None, seed: int, **options: Any
) -> TrainingEnvironment:
    """An environment to evaluate in; arguments as of `make_collect_env`."""
    options = {"name": "the evaluation environment", "collect_env": collect_env, **options}
    return make_env(params, EVAL, seed, worker_id, worker_id=worker_id, **options)


def make_play_env(params: TrainParamsBase, seed: int, render: bool) -> TrainingEnvironment:
    """The evaluation environment of worker 0, to play a policy in."""
    return make_eval_env(params, 0, None, seed, name="the environment", render=render)


def time_limit(params: TrainParamsBase) -> int | None:
    """Most steps of an episode by the environment's own time limit, which is built to know it; None without one."""
    if params._source is not None and params._source.process is not None:
        return None
    env = hooks.build_env(params, COLLECT, 0)
    try:
        return time_limit_of(env)
    finally:
        getattr(env, "close", lambda: None)()


def _log_mujoco_warnings() -> None:
    """MuJoCo writes MUJOCO_LOG.TXT into the working directory, and to standard output; this sends warnings to the log.

    Only if it is already imported: the import takes half a second, which other simulators' workers should not pay.
    """
    mujoco = sys.modules.get("mujoco")
    if mujoco is not None:
        mujoco.set_mju_user_warning(lambda text: logging.info("MuJoCo: %s", text))
