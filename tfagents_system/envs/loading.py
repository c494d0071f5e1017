"""Builds the environments of a run from the hooks of TrainParams, here or each in a process of its own."""

from __future__ import annotations

import os
import sys
from typing import Any

from absl import logging

from tfagents_system.envs import hooks
from tfagents_system.envs.env_process import EnvProcess, ProcessSettings
from tfagents_system.envs.training_environment import TrainingEnvironment
from tfagents_system.train_params_base import TrainParamsBase


def make_collect_env(
    params: TrainParamsBase,
    worker_id: int,
    seed: int,
    env_id: int | None = None,
    *,
    name: str = "the environment",
    process: ProcessSettings | None = None,
) -> TrainingEnvironment:
    """An environment in which worker `worker_id` collects experience.

    Args:
      params: The user's TrainParams.
      worker_id: Named in errors.
      seed: For the environment.
      env_id: `id` for the hook; None: the worker's. It differs where workers have several environments.
      name: Named in errors.
      process: Where it runs; None: as SAC_ENV_PYTHON says.

    Raises:
      UserError: The hooks return something else than they should.
    """
    env_id = worker_id if env_id is None else env_id
    process = process or ProcessSettings.from_environ(os.environ)
    if process is not None:
        env = EnvProcess(process, params, {"kind": "collect", "env_id": env_id, "seed": seed})
    else:
        env = _built(lambda: hooks.build_collect_env(params, env_id, seed))
    return _wrapped(env, params, worker_id, seed, name)


def make_eval_env(
    params: TrainParamsBase,
    worker_id: int,
    collect_env: TrainingEnvironment,
    seed: int,
    env_id: int | None = None,
    *,
    name: str = "the evaluation environment",
    process: ProcessSettings | None = None,
) -> TrainingEnvironment:
    """An environment in which worker `worker_id` evaluates. See `make_collect_env`.

    In a process of its own, a hook that asks for the collect environment gets another one, built for it in there.
    """
    env_id = worker_id if env_id is None else env_id
    process = process or ProcessSettings.from_environ(os.environ)
    if process is not None:
        env = EnvProcess(process, params, {"kind": "eval", "env_id": env_id, "seed": seed})
    else:
        env = _built(lambda: hooks.build_eval_env(params, env_id, seed, collect_env.user_env))
    return _wrapped(env, params, worker_id, seed, name)


def make_play_env(params: TrainParamsBase, seed: int, render: bool) -> TrainingEnvironment:
    """An evaluation environment to play a policy in: that of worker 0.

    Args:
      params: The user's TrainParams.
      seed: For the environment.
      render: `render_frame` will be called.
    """
    process = ProcessSettings.from_environ(os.environ)
    if process is not None:
        env = EnvProcess(process, params, {"kind": "play", "seed": seed, "render": render})
    else:
        env = _built(lambda: hooks.build_play_env(params, seed, render))
    return _wrapped(env, params, 0, seed, "the environment")


def _wrapped(env: Any, params: TrainParamsBase, worker_id: int, seed: int, name: str) -> TrainingEnvironment:
    try:
        return TrainingEnvironment(
            env,
            params.horizon,
            seed=seed % hooks.SEED_LIMIT,
            worker_id=worker_id,
            name=name,
            action_history=params.action_history,
        )
    except BaseException:
        if isinstance(env, EnvProcess):
            env.close()  # It has spaces that can't be used.
        raise


def _built(build: Any) -> Any:
    _log_mujoco_warnings()
    env = build()
    _log_mujoco_warnings()  # It may have been imported only now.
    return env


def _log_mujoco_warnings() -> None:
    """MuJoCo writes MUJOCO_LOG.TXT into the working directory, and to standard output; ours go to the log.

    Only where it is imported already: that takes half a second, which other simulators' workers should not pay.
    """
    mujoco = sys.modules.get("mujoco")
    if mujoco is not None:
        mujoco.set_mju_user_warning(lambda text: logging.info("MuJoCo: %s", text))
