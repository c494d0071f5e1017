"""Objects that `env_ctor` can't return, each with the way to an environment that it can; and statistics of wrappers.

Runs under SAC_ENV_PYTHON as well: standard library only, Python 3.9.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from itertools import chain
from types import ModuleType
from typing import Any

from tfagents_system.envs.gym_driver import is_vector_env, layers_within
from tfagents_system.errors import UserError

_NORMALIZERS = {"NormalizeObservation": "normalize_observations", "NormalizeReward": "normalize_rewards"}
_SEVERAL_AGENTS = (
    "an environment of several agents, and one policy is trained: write a gymnasium.Env of one, with the others in it"
)
_KINDS = {  # By names of base classes, or of their package.
    "VecEnv": "a vector environment of Stable-Baselines3: return the environment inside it, set SAC_ENVS_PER_WORKER to "
    "how many there are to be, and normalize_observations, normalize_rewards or frame_stack for what it does",
    **dict.fromkeys(("MultiAgentEnv", "ParallelEnv", "AECEnv"), _SEVERAL_AGENTS),
    "dm_env": "an environment of dm_env: return tf_agents.environments.dm_control_wrapper.DmControlWrapper(env), or of "
    'EnvPool envpool.make(..., env_type="gymnasium")',
}
# Attributes of what is written like these, without their base classes.
_LIKE = {"possible_agents": "ParallelEnv", "agent_iter": "AECEnv", "step_wait": "VecEnv", "action_spec": "dm_env"}


def check_kind(env: Any) -> None:
    """Checks what `env_ctor` returned, as far as its class tells.

    Raises:
      UserError: It is no environment, one of another kind, or in a wrapper that training can't do with.
    """
    if fault := next(chain(_no_environment(env), _other_kind(env), _wrong_wrapper(env)), ""):
        raise UserError(f"env_ctor returned {fault} (docs/reference/environments.md)")


def _no_environment(env: Any) -> Iterator[str]:
    name = getattr(env, "__name__", type(env).__name__)
    if env is None:
        yield "None: end it with `return env`"
    elif isinstance(env, str):
        yield f"the text {env!r}: return gymnasium.make({env!r})"
    elif isinstance(env, type):
        yield f"the class {name}, not an object of it: return {name}(...)"
    elif isinstance(env, (tuple, list, dict)):
        yield f"a {name}: return one environment alone, or several as a gymnasium.vector.SyncVectorEnv"
    elif inspect.isawaitable(env) or inspect.isgenerator(env):
        yield f"a {name}: write env_ctor with `return`, without async and yield"
    elif callable(env) and not hasattr(env, "reset"):
        yield f"a function ({name}): call it, and return the environment that it builds"


def _other_kind(env: Any) -> Iterator[str]:
    names = {name for cls in type(env).__mro__ for name in (cls.__name__, cls.__module__.partition(".")[0])}
    known = {"MultiAgentEnv"} if names & {"tf_agents", "gym", "gymnasium"} else _KINDS.keys()  # RLlib's is gymnasium's.
    like = {kind for attribute, kind in _LIKE.items() if hasattr(env, attribute) and not is_vector_env(env)}
    spaces = [getattr(env, name, None) for name in ("action_space", "observation_space")]
    names |= like if any(space is None or callable(space) for space in spaces) else like & {"VecEnv"}
    yield from (f"the {type(env).__name__} object, {_KINDS[name]}" for name in names & known)


def _wrong_wrapper(env: Any) -> Iterator[str]:
    for layer in layers_within(env):
        names = {c.__name__ for c in type(layer).__mro__ if c.__module__.partition(".")[0] in ("gym", "gymnasium")}
        for name in names & _NORMALIZERS.keys():
            if getattr(layer, "update_running_mean", True):
                yield (
                    f"an environment in the wrapper {name}, with statistics of its own in each worker and evaluation: "
                    f"remove it and set TrainParams.{_NORMALIZERS[name]} = True, or set update_running_mean = False "
                    "where it has known ones"
                )


def running_statistics(env: Any) -> list[str]:
    """Objects of wrappers that hold a mean and a variance, by names such as `Normalize.rms`."""
    held: dict[str, Any] = {}
    for layer in layers_within(env):
        if getattr(layer, "update_running_mean", True):
            name = type(layer).__name__
            held.update(
                {name: layer, **{f"{name}.{key}": part for key, part in getattr(layer, "__dict__", {}).items()}}
            )
    return [
        name
        for name, part in held.items()
        if not callable(part)
        and not isinstance(part, ModuleType)
        and {"mean", "var"} <= {key.replace("running_", "") for key in getattr(part, "__dict__", {})}
    ]
