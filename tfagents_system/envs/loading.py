"""Builds the environments of a run from the hooks of TrainParams."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any

from absl import logging

from tfagents_system.envs.training_environment import TrainingEnvironment
from tfagents_system.errors import UserError
from tfagents_system.train_params_base import EnvArgsKwargs, TrainParamsBase

_SEED_LIMIT = 2**31  # Some environments keep their seed in a signed 32-bit integer.


def make_collect_env(
    params: TrainParamsBase, worker_id: int, seed: int, env_id: int | None = None
) -> TrainingEnvironment:
    """An environment in which worker `worker_id` collects experience.

    Args:
      params: The user's TrainParams.
      worker_id: Named in errors.
      seed: For the environment.
      env_id: `id` for the hook; None: the worker's. It differs where workers have several environments.

    Raises:
      UserError: The hooks return something else than they should.
    """
    arguments = _call_hook(params.collect_env_args_kwargs, id=worker_id if env_id is None else env_id)
    return _make(params, arguments, worker_id, seed)


def make_eval_env(
    params: TrainParamsBase,
    worker_id: int,
    collect_env: TrainingEnvironment,
    seed: int,
    env_id: int | None = None,
) -> TrainingEnvironment:
    """An environment in which worker `worker_id` evaluates. See `make_collect_env`."""
    env_id = worker_id if env_id is None else env_id
    arguments = _call_hook(params.eval_env_args_kwargs, id=env_id, collect_env=collect_env.user_env)
    return _make(params, arguments, worker_id, seed)


def make_play_env(params: TrainParamsBase, seed: int, render: bool) -> TrainingEnvironment:
    """An evaluation environment to play a policy in: that of worker 0.

    Args:
      params: The user's TrainParams.
      seed: For the environment.
      render: `render_frame` will be called.
    """
    arguments: EnvArgsKwargs
    if "collect_env" in _names_used(params.eval_env_args_kwargs, type(params)):
        with make_collect_env(params, 0, seed) as collect_env:
            arguments = _call_hook(params.eval_env_args_kwargs, id=0, collect_env=collect_env.user_env)
    else:
        arguments = _call_hook(params.eval_env_args_kwargs, id=0, collect_env=None)
    if render and "render_mode" in inspect.signature(params.env_ctor).parameters:
        arguments = arguments[0], {"render_mode": "rgb_array", **arguments[1]}
    env = _construct(params, arguments, seed)
    if render:
        from tfagents_system.envs import rendering

        rendering.enable_frames(env)
    return TrainingEnvironment(env, params.horizon, seed=seed % _SEED_LIMIT)


def _make(params: TrainParamsBase, arguments: EnvArgsKwargs, worker_id: int, seed: int) -> TrainingEnvironment:
    env = _construct(params, arguments, seed)
    return TrainingEnvironment(env, params.horizon, seed=seed % _SEED_LIMIT, worker_id=worker_id)


def _construct(params: TrainParamsBase, arguments: EnvArgsKwargs, seed: int) -> Any:
    _log_mujoco_warnings()
    env = _call_env_ctor(params, arguments, seed)
    _log_mujoco_warnings()  # It may have been imported only now.
    return env


def _call_env_ctor(params: TrainParamsBase, arguments: EnvArgsKwargs, seed: int) -> Any:
    args, kwargs = arguments
    parameters = inspect.signature(params.env_ctor).parameters
    takes_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    if "seed" in kwargs or not ("seed" in parameters or takes_any):
        return params.env_ctor(*args, **kwargs)
    try:
        return params.env_ctor(*args, seed=seed % _SEED_LIMIT, **kwargs)
    except TypeError as error:
        # env_ctor(*args, **kwargs) may hand all it gets to a constructor that takes no seed.
        if "seed" in parameters or "seed" not in str(error):
            raise
        return params.env_ctor(*args, **kwargs)


def _log_mujoco_warnings() -> None:
    """MuJoCo writes MUJOCO_LOG.TXT into the working directory, and to standard output; ours go to the log.

    Only where it is imported already: that takes half a second, which other simulators' workers should not pay.
    """
    mujoco = sys.modules.get("mujoco")
    if mujoco is not None:
        mujoco.set_mju_user_warning(lambda text: logging.info("MuJoCo: %s", text))


def _call_hook(hook: Callable[..., Any], **known: Any) -> EnvArgsKwargs:
    """Calls a hook with those of the known arguments that it takes, by name, or by position under other names."""
    parameters = inspect.signature(hook).parameters.values()
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        named = known
    else:
        named = {p.name: known[p.name] for p in parameters if p.name in known}
    unknown = [p for p in parameters if p.name not in known and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    others = [value for name, value in known.items() if name not in named]
    if any(p.default is p.empty for p in unknown) and not named:
        result = hook(*others[: len(unknown)])
    else:
        result = hook(**named)
    return _check_arguments(hook, result)


def _check_arguments(hook: Callable[..., Any], result: Any) -> EnvArgsKwargs:
    is_pair = isinstance(result, tuple | list) and len(result) == 2
    if not (is_pair and isinstance(result[0], tuple | list) and isinstance(result[1], Mapping)):
        raise UserError(
            f"{getattr(hook, '__name__', hook)} must return a tuple of arguments and a dictionary of keyword arguments "
            f"for env_ctor, such as (), {{}}, found {result!r}"
        )
    return tuple(result[0]), dict(result[1])


def _names_used(hook: Callable[..., Any], params_class: type) -> frozenset[str]:
    """The arguments of a hook that a user has overridden; none where it is the base's own."""
    name = getattr(hook, "__name__", "")
    if getattr(params_class, name, None) is getattr(TrainParamsBase, name, None):
        return frozenset()
    return frozenset(inspect.signature(hook).parameters)
