"""Objects that `env_ctor` can't return, each with the way to an environment that it can; and statistics of wrappers.

Runs under SAC_ENV_PYTHON as well: standard library and NumPy only, Python 3.9.
"""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from tfagents_system.envs.gym_driver import layers_within
from tfagents_system.errors import UserError

_NORMALIZERS = {"NormalizeObservation": "normalize_observations", "NormalizeReward": "normalize_rewards"}
_SPACES = ("action_space", "observation_space")
_TELLING = (*_SPACES, "single_action_space", "step_async", "possible_agents", "agent_iter", "action_spec", "transition")
_STATES = {"state", "env_state", "key", "rng"}  # Arguments of `step` where the environment itself keeps no state.
_MEAN = re.compile(r"mean|average|avg|(^|_)(mu|sum|total|m|m1)(_|$)")
_SPREAD = re.compile(r"(var|vars|variance)(_|$)|std|sigma|square|(^|_)(sq|sumsq|s|s2|m2)(_|$)")
_DEPTH = 3  # Of objects within a wrapper.


def check_kind(env: Any) -> None:
    """Checks what `env_ctor` returned, as far as its class tells.

    Raises:
      UserError: It is no environment, one of another kind, or in a wrapper that training can't do with.
    """
    if fault := _no_object(env) or _other_kind(env) or _wrong_wrapper(env):
        raise UserError(f"env_ctor returned {fault} (docs/reference/environments.md)")


def _no_object(env: Any) -> str:
    name = getattr(env, "__name__", type(env).__name__)
    if env is None:
        return "None: end it with `return env`"
    if isinstance(env, str):
        return f"the text {env!r}: return gymnasium.make({env!r})"
    if isinstance(env, type):
        argument = "env" if any("Wrapper" in cls.__name__ for cls in env.__mro__) else ""
        return f"the class {name}, not an object of it: return {name}({argument})"
    if isinstance(env, (tuple, list, dict)):
        parts = ", ".join(type(part).__name__ for part in (env.values() if isinstance(env, dict) else env))
        return f"a {name} ({parts}): return one environment alone, or several as a gymnasium.vector.SyncVectorEnv"
    if inspect.isawaitable(env) or inspect.isgenerator(env):
        return f"a {name}: write env_ctor with `return`, without async and yield"
    is_function = callable(env) and not hasattr(env, "reset")
    return f"a function ({name}): call it, and return the environment that it builds" if is_function else ""


def _other_kind(env: Any) -> str:
    """The kind of an environment that is not supported, and the way; empty for any other."""
    names = {name for cls in type(env).__mro__ for name in (cls.__name__, cls.__module__.partition(".")[0])}
    if "tf_agents" in names:
        return ""
    has, what = {name for name in _TELLING if hasattr(env, name)}, f"the {type(env).__name__} object, "
    if "VecEnv" in names or ("step_async" in has and "single_action_space" not in has):
        return (
            f"{what}a vector environment of Stable-Baselines3: return the environment inside it, and set "
            "SAC_ENVS_PER_WORKER or SAC_NUM_COLLECT_WORKERS to how many there are to be. For VecNormalize set "
            "TrainParams.normalize_observations and normalize_rewards, for VecFrameStack frame_stack"
        )
    if names & {"ParallelEnv", "AECEnv", "MultiAgentEnv"} or has & {"possible_agents", "agent_iter"}:
        return (
            f"{what}an environment of several agents (PettingZoo, RLlib), and one policy is trained: write a gymnasium."
            "Env of one agent, with the others as part of it, or one that joins their observations and actions"
        )
    if "dm_env" in names or ("action_spec" in has and "action_space" not in has):
        way = "tf_agents.environments.dm_control_wrapper.DmControlWrapper(env)"
        way = 'envpool.make(..., env_type="gymnasium")' if "envpool" in names else way
        return f"{what}an environment of dm_env (dm_control): return {way}"
    with contextlib.suppress(AttributeError, TypeError, ValueError):  # Of a compiled class.
        if "transition" in has or _STATES & set(inspect.signature(env.step).parameters):
            return (
                f"{what}whose step takes and returns its state (Brax, MJX, gymnax, FuncEnv): write a gymnasium.Env "
                "that keeps this state as an attribute and returns NumPy arrays"
            )
    methods = [name for name in _SPACES if name in has and callable(getattr(env, name))]
    return f"{what}whose {methods[0]} is a method: make it an attribute or a property" if methods else ""


def _wrong_wrapper(env: Any) -> str:
    for layer in layers_within(env):
        modules = {cls.__name__: cls.__module__.partition(".")[0] for cls in type(layer).__mro__}
        kinds = {name for name, module in modules.items() if module in ("gym", "gymnasium")}
        for kind in kinds & _NORMALIZERS.keys():
            if getattr(layer, "update_running_mean", True):
                return (
                    f"an environment in the wrapper {kind}, of which each worker and each evaluation would have "
                    f"statistics of its own: remove it, and set TrainParams.{_NORMALIZERS[kind]} = True, whose "
                    "statistics go with the policy; or give it known ones, and set update_running_mean = False"
                )
        if "ClipAction" in kinds and not np.isfinite(getattr(env.action_space, "low", 0.0)).all():
            return "an environment in the wrapper ClipAction, which takes away the bounds that actions keep: remove it"
    return ""


def statistics_of(env: Any) -> dict[str, list[bytes]]:
    """[means, spreads] that an environment or its wrappers hold: their values, by names such as `Normalize.rms`."""
    layers, statistics = list(layers_within(env)), dict[str, list[bytes]]()
    seen = set(map(id, layers))

    def look(name: str, holder: Any, depth: int) -> None:
        parts = holder if isinstance(holder, Mapping) else getattr(holder, "__dict__", {})
        for key, value in sorted(parts.items(), key=lambda part: str(part[0])[:1] == "_") if depth else ():
            with contextlib.suppress(Exception):  # Of the user's own classes; of a closure's empty cell.
                cells = [cell.cell_contents for cell in getattr(value, "__closure__", None) or ()]
                for part in (value, getattr(value, "__self__", None), *cells):
                    is_nested = (isinstance(part, Mapping) or hasattr(part, "__dict__")) and id(part) not in seen
                    if is_nested and not isinstance(part, type) and not inspect.ismodule(part):
                        seen.add(id(part))
                        look(f"{name}.{key}", part, depth - 1)
        held = {str(key).lower(): value for key, value in parts.items()}
        with contextlib.suppress(Exception):  # No numbers.
            numbers = [
                [np.asarray(held[key], float) for key in held if words.search(key)] for words in (_MEAN, _SPREAD)
            ]
            if all(numbers):
                statistics[name] = [b"".join(number.tobytes() for number in kind) for kind in numbers]

    for layer in layers:
        look(type(layer).__name__, layer, _DEPTH)
    return statistics
