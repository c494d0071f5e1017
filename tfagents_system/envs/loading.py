"""Builds the environments of a run from the hooks of TrainParams, here or each in its own process."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, cast

from absl import logging

from tfagents_system.envs import hooks
from tfagents_system.envs.backends import is_batched
from tfagents_system.envs.batched_environment import BatchedEnvironment
from tfagents_system.envs.env_process import EnvProcess, ProcessSettings
from tfagents_system.envs.layers import time_limit_of
from tfagents_system.envs.training_environment import SingleLanes, TrainingEnvironment
from tfagents_system.train_params_base import TrainParamsBase, has_potential

AnyEnvironment = TrainingEnvironment | BatchedEnvironment


def lanes_of(envs: Sequence[AnyEnvironment]) -> BatchedEnvironment | SingleLanes:
    """A worker's environments as lanes: a vector environment is the only one, single ones are a lane each."""
    if isinstance(envs[0], BatchedEnvironment):
        return envs[0]
    return SingleLanes(cast(Sequence[TrainingEnvironment], envs))


def make_collect_env(
    params: TrainParamsBase,
    worker_id: int,
    seed: int,
    env_id: int | None = None,
    *,
    name: str = "the environment",
    process: ProcessSettings | None = None,
) -> TrainingEnvironment:
    """An environment in which worker `worker_id` collects experience; of a vector environment the first lane.

    Args:
      params: The user's TrainParams.
      worker_id: Named in errors.
      seed: For the environment.
      env_id: `id` for the hook; None: the worker's number. It differs if workers have several environments.
      name: Named in errors.
      process: Settings of its process; None: those of the params, see `load_params`.

    Raises:
      UserError: The hooks return something other than they should.
    """
    what = {"kind": "collect", "env_id": worker_id if env_id is None else env_id, "seed": seed}
    return _training_environment(params, what, worker_id, name, _build(params, what, process))


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

    In its own process, a hook that takes the collect environment gets another one, built there for it.
    """
    what = {"kind": "eval", "env_id": worker_id if env_id is None else env_id, "seed": seed}
    return _training_environment(params, what, worker_id, name, _build(params, what, process, collect_env.user_env))


def make_worker_env(
    params: TrainParamsBase,
    worker_id: int,
    seed: int,
    env_id: int,
    *,
    name: str,
    process: ProcessSettings | None,
    is_eval: bool = False,
    collect_env: AnyEnvironment | None = None,
) -> AnyEnvironment:
    """An environment of a worker: all lanes of a vector environment. See `make_collect_env`.

    Args:
      is_eval: It is for evaluation rather than collecting.
      collect_env: Of an environment for evaluation: the one beside it, for a hook that takes one.
    """
    what = {"kind": "eval" if is_eval else "collect", "env_id": env_id, "seed": seed}
    env = _build(params, what, process, None if collect_env is None else collect_env.user_env)
    if is_batched(env):
        return BatchedEnvironment(env, params.horizon, **_settings(params, what, worker_id, name))
    return _training_environment(params, what, worker_id, name, env)


def all_lanes(params: TrainParamsBase, env: AnyEnvironment) -> AnyEnvironment:
    """The environment itself, or a vector environment with all of its lanes where `env` is its first one."""
    if is_batched(env.user_env):
        return BatchedEnvironment(
            env.user_env,
            params.horizon,
            action_history=params.action_history,
            action_table=params.action_table,
            strict_observation_bounds=params.strict_observation_bounds,
            potential=params.potential if has_potential(params) else None,
        )
    return env


def make_play_env(params: TrainParamsBase, seed: int, render: bool) -> TrainingEnvironment:
    """An evaluation environment to play a policy in: that of worker 0.

    Args:
      params: The user's TrainParams.
      seed: For the environment.
      render: `render_frame` will be called.
    """
    what = {"kind": "play", "seed": seed, "render": render}
    return _training_environment(params, what, 0, "the environment", _build(params, what, None))


def make_replay_env(params: TrainParamsBase, seed: int, env_id: int, render: bool) -> TrainingEnvironment:
    """A collect environment to repeat an episode in; arguments as of `make_play_env` and `make_collect_env`."""
    what = {"kind": "replay", "env_id": env_id, "seed": seed, "render": render}
    return _training_environment(params, what, 0, "the environment", _build(params, what, None))


def time_limit(params: TrainParamsBase) -> int | None:
    """Most steps of an episode by the environment's own time limit, which is built to know it; None without one."""
    env = _build(params, {"kind": "collect", "env_id": 0, "seed": 0}, None)
    try:
        return None if isinstance(env, EnvProcess) else time_limit_of(env)
    finally:
        getattr(env, "close", lambda: None)()


def _build(
    params: TrainParamsBase, what: Mapping[str, Any], process: ProcessSettings | None, collect_env: Any = None
) -> Any:
    """Calls `hooks.build_env`, here or in a process of its own."""
    process = process or (params._source.process if params._source is not None else None)
    if process is not None:
        return EnvProcess(process, params, what)
    _log_mujoco_warnings()
    env = hooks.build_env(params, what, collect_env)
    _log_mujoco_warnings()  # It may have been imported only now.
    return env


def _training_environment(
    params: TrainParamsBase, what: Mapping[str, Any], worker_id: int, name: str, env: Any
) -> TrainingEnvironment:
    try:
        return TrainingEnvironment(env, params.horizon, **_settings(params, what, worker_id, name))
    except BaseException:
        if isinstance(env, EnvProcess):
            env.close()  # Its spaces can't be used.
        raise


def _settings(params: TrainParamsBase, what: Mapping[str, Any], worker_id: int, name: str) -> dict[str, Any]:
    return {
        "seed": what["seed"] % hooks.SEED_LIMIT,
        "worker_id": worker_id,
        "name": name,
        "action_history": params.action_history,
        "action_table": params.action_table,
        "strict_observation_bounds": params.strict_observation_bounds,
        "potential": params.potential if has_potential(params) and what["kind"] == "collect" else None,
    }


def _log_mujoco_warnings() -> None:
    """MuJoCo writes MUJOCO_LOG.TXT into the working directory, and to standard output; this sends warnings to the log.

    Only if it is already imported: the import takes half a second, which other simulators' workers should not pay.
    """
    mujoco = sys.modules.get("mujoco")
    if mujoco is not None:
        mujoco.set_mju_user_warning(lambda text: logging.info("MuJoCo: %s", text))
