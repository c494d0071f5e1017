"""Calls the TrainParams hooks that build environments, each with the arguments that it accepts.

Runs under SAC_ENV_PYTHON as well: standard library and NumPy only, Python 3.9.
"""

from __future__ import annotations

import contextlib
import inspect
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tfagents_system.envs.gym_driver import SEED_LIMIT
from tfagents_system.envs.kinds import check_kind
from tfagents_system.errors import UserError
from tfagents_system.train_params_base import EnvArgsKwargs, TrainParamsBase

COLLECT, EVAL = "collect", "eval"


def build_env(
    params: TrainParamsBase, kind: str, seed: int, env_id: int = 0, collect_env: Any = None, *, render: bool = False
) -> Any:
    """What `env_ctor` returns for one environment.

    Args:
      params: The user's TrainParams.
      kind: COLLECT or EVAL.
      env_id: `id` for the hook.
      collect_env: The collect environment beside an evaluation environment; None: a hook that asks something of it gets
        one that is built for this, and closed before the evaluation environment is built.
      render: It is to return pictures.

    Raises:
      UserError: A hook returns something other than it should.
    """
    if kind == EVAL:
        args, kwargs = _eval_arguments(params, seed, env_id, collect_env)
    else:
        args, kwargs = _call_hook(params.collect_env_args_kwargs, id=env_id)
    if render and "render_mode" in inspect.signature(params.env_ctor).parameters:
        kwargs = {"render_mode": "rgb_array", **kwargs}
    env = _call_env_ctor(params, args, kwargs, seed)
    check_kind(env)
    if render:
        from tfagents_system.envs import rendering

        rendering.enable_frames(env)
    return env


class _NoCollectEnv:
    """Stands for a collect environment; a hook that asks anything of it fails."""


def _eval_arguments(params: TrainParamsBase, seed: int, env_id: int, collect_env: Any) -> EnvArgsKwargs:
    hook = params.eval_env_args_kwargs
    if collect_env is not None:
        return _call_hook(hook, id=env_id, collect_env=collect_env)
    stand_in = _NoCollectEnv()
    is_kept = weakref.ref(stand_in)
    with contextlib.suppress(Exception):  # Whatever it raises without a real one.
        arguments = _call_hook(hook, id=env_id, collect_env=stand_in)
        del stand_in
        if is_kept() is None:  # Neither the arguments nor the params have it.
            return arguments
    collect_env = build_env(params, COLLECT, seed, env_id)
    try:
        return _call_hook(hook, id=env_id, collect_env=collect_env)
    finally:
        getattr(collect_env, "close", lambda: None)()


def _call_env_ctor(params: TrainParamsBase, args: Sequence[Any], kwargs: Mapping[str, Any], seed: int) -> Any:
    parameters = inspect.signature(params.env_ctor).parameters
    takes_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    if "seed" in kwargs or not ("seed" in parameters or takes_any):
        return params.env_ctor(*args, **kwargs)
    try:
        return params.env_ctor(*args, seed=seed % SEED_LIMIT, **kwargs)
    except TypeError as error:
        # env_ctor(*args, **kwargs) may pass everything on to a constructor that takes no seed.
        if "seed" in parameters or "seed" not in str(error):
            raise
        return params.env_ctor(*args, **kwargs)


def _call_hook(hook: Callable[..., Any], **known: Any) -> EnvArgsKwargs:
    """Calls a hook with the known arguments that it accepts, by name, or by position if named differently."""
    parameters = inspect.signature(hook).parameters.values()
    takes_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters)
    named = known if takes_any else {p.name: known[p.name] for p in parameters if p.name in known}
    others = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    by_position = not named and any(p.default is p.empty for p in others)
    result = hook(*list(known.values())[: len(others)]) if by_position else hook(**named)
    is_pair = isinstance(result, (tuple, list)) and len(result) == 2
    if not (is_pair and isinstance(result[0], (tuple, list)) and isinstance(result[1], Mapping)):
        raise UserError(
            f"{getattr(hook, '__name__', hook)} must return a tuple of arguments and a dictionary of keyword arguments "
            f"for env_ctor, such as (), {{}}, found {result!r}"
        )
    return tuple(result[0]), dict(result[1])
