"""Calls the TrainParams hooks that build environments, each with the arguments that it accepts.

Runs under SAC_ENV_PYTHON as well: standard library and NumPy only, Python 3.9.
"""

from __future__ import annotations

import contextlib
import inspect
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tfagents_system.envs.layers import device_layer, gym_layers
from tfagents_system.errors import UserError
from tfagents_system.train_params_base import EnvArgsKwargs, TrainParamsBase, overrides_any

SEED_LIMIT = 2**31  # Some environments keep their seed in a signed 32-bit integer.


def build_env(params: TrainParamsBase, what: Mapping[str, Any], collect_env: Any = None) -> Any:
    """What `env_ctor` returns for one environment.

    Args:
      params: The user's TrainParams.
      what: `kind` (collect, eval, play or replay), `seed`, `env_id` (not for play), `render` (for play and replay).
      collect_env: For an evaluation environment that needs one.

    Raises:
      UserError: A hook returns something other than it should.
    """
    if what["kind"] == "play":
        return _build_play_env(params, what["seed"], what["render"])
    if what["kind"] == "replay":
        arguments = _call_hook(params.collect_env_args_kwargs, id=what["env_id"])
        return _build_drawn_env(params, arguments, what["seed"], what["render"])
    if what["kind"] == "eval":
        arguments = _eval_arguments(params, what["env_id"], collect_env)
    else:
        arguments = _call_hook(params.collect_env_args_kwargs, id=what["env_id"])
    return _call_env_ctor(params, arguments, what["seed"])


def _build_play_env(params: TrainParamsBase, seed: int, render: bool) -> Any:
    """The evaluation environment of worker 0; it can render if `render`.

    A device is evaluated in the environment that collects: without arguments of its own for evaluation, this is that.
    """
    if not overrides_any(params, "collect_env_args_kwargs") or overrides_any(params, "eval_env_args_kwargs"):
        return _build_eval_env(params, seed, render)
    error = None
    try:
        env = _build_eval_env(params, seed, render)
        if device_layer(gym_layers(env)) is None:
            return env
        getattr(env, "close", lambda: None)()
    except Exception as raised:  # Such as for an argument that only the other hook gives.
        error = raised
    collecting = _build_drawn_env(params, _call_hook(params.collect_env_args_kwargs, id=0), seed, render)
    if error is None or device_layer(gym_layers(collecting)) is not None:
        return collecting
    getattr(collecting, "close", lambda: None)()
    raise error


def _build_eval_env(params: TrainParamsBase, seed: int, render: bool) -> Any:
    with contextlib.ExitStack() as stack:
        collect_env = None
        if eval_env_needs_collect_env(params):
            collect_env = build_env(params, {"kind": "collect", "env_id": 0, "seed": seed})
            stack.callback(getattr(collect_env, "close", lambda: None))
        arguments = _eval_arguments(params, 0, collect_env)
    return _build_drawn_env(params, arguments, seed, render)


def _build_drawn_env(params: TrainParamsBase, arguments: EnvArgsKwargs, seed: int, render: bool) -> Any:
    """An environment that can render if `render`."""
    if render and takes_render_mode(params):
        arguments = arguments[0], {"render_mode": "rgb_array", **arguments[1]}
    env = _call_env_ctor(params, arguments, seed)
    if render:
        from tfagents_system.envs import rendering

        rendering.enable_frames(env)
    return env


def records_episodes(params: TrainParamsBase) -> bool:
    """Whether anybody may ask for episodes step by step: `keep_best_episodes`, or an observer of the user's."""
    return bool(params.keep_best_episodes) or overrides_any(params, "train_observers_ctor", "eval_observers_ctor")


def takes_render_mode(params: TrainParamsBase) -> bool:
    """Whether an environment can be built to return pictures."""
    return "render_mode" in inspect.signature(params.env_ctor).parameters


class _CollectEnv:
    """Stands for a collect environment; a hook that asks anything of it fails."""


def eval_env_needs_collect_env(params: TrainParamsBase, env_id: int = 0) -> bool:
    """Whether the user's own hook for evaluation environments asks something of the collect environment, or keeps it.

    One that only has it among its arguments, as TrainParamsBase has, does not need one. The hook is called to know it.
    """
    hook, stands_for = params.eval_env_args_kwargs, _CollectEnv()
    if getattr(hook, "__func__", None) is TrainParamsBase.eval_env_args_kwargs:
        return False
    is_there = weakref.ref(stands_for)
    try:
        returned = _call_hook(hook, id=env_id, collect_env=stands_for)
    except Exception:  # Whatever it raises without a real one.
        return True
    del stands_for
    is_needed = is_there() is not None  # Also deep within what it has returned, or in the params.
    del returned
    return is_needed


def _eval_arguments(params: TrainParamsBase, env_id: int, collect_env: Any) -> EnvArgsKwargs:
    """Those of an environment for evaluation. A hook that needs no collect environment may ask whether there is one."""
    collect_env = _CollectEnv() if collect_env is None else collect_env
    return _call_hook(params.eval_env_args_kwargs, id=env_id, collect_env=collect_env)


def _call_env_ctor(params: TrainParamsBase, arguments: EnvArgsKwargs, seed: int) -> Any:
    args, kwargs = arguments
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
    args, kwargs = _arguments_of(hook, known)
    return _check_arguments(hook, hook(*args, **kwargs))


def _arguments_of(hook: Callable[..., Any], known: Mapping[str, Any]) -> tuple[Sequence[Any], Mapping[str, Any]]:
    parameters = inspect.signature(hook).parameters.values()
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        named = dict(known)
    else:
        named = {p.name: known[p.name] for p in parameters if p.name in known}
    unknown = [p for p in parameters if p.name not in known and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if any(p.default is p.empty for p in unknown) and not named:
        return list(known.values())[: len(unknown)], {}
    return (), named


def _check_arguments(hook: Callable[..., Any], result: Any) -> EnvArgsKwargs:
    is_pair = isinstance(result, (tuple, list)) and len(result) == 2
    if not (is_pair and isinstance(result[0], (tuple, list)) and isinstance(result[1], Mapping)):
        raise UserError(
            f"{getattr(hook, '__name__', hook)} must return a tuple of arguments and a dictionary of keyword arguments "
            f"for env_ctor, such as (), {{}}, found {result!r}"
        )
    return tuple(result[0]), dict(result[1])
