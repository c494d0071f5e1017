"""Objects that `env_ctor` can't return, each with the way to an environment that it can; and statistics of wrappers.

Runs under SAC_ENV_PYTHON as well: standard library only, Python 3.9.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from itertools import chain
from typing import Any

from tfagents_system.envs.gym_driver import layers_within
from tfagents_system.errors import UserError

_NORMALIZERS = {"NormalizeObservation": "normalize_observations", "NormalizeReward": "normalize_rewards"}
_SPACES = ("action_space", "observation_space")
_STATES = {"state", "env_state", "key", "rng"}  # Arguments of `step` where the environment itself keeps no state.
_STATISTICS = (("mean",), ("var", "std"), ("count",))  # What names of running statistics have in them.

_STABLE_BASELINES = (
    "a vector environment of Stable-Baselines3: return the environment inside it, and set SAC_ENVS_PER_WORKER or "
    "SAC_NUM_COLLECT_WORKERS to how many there are to be. For VecNormalize set TrainParams.normalize_observations and "
    "normalize_rewards, for VecFrameStack frame_stack"
)
_SEVERAL_AGENTS = (
    "an environment of several agents (PettingZoo, RLlib), and one policy is trained: write a gymnasium.Env of one "
    "agent, with the others as part of it, or one that joins their observations and actions"
)
_STATELESS = (
    "whose step takes and returns its state (Brax, MJX, gymnax, FuncEnv): write a gymnasium.Env that keeps this state "
    "as an attribute and returns NumPy arrays"
)
_DM_ENV = "an environment of dm_env: return tf_agents.environments.dm_control_wrapper.DmControlWrapper(env)"
_ENVPOOL = 'an environment of dm_env: return envpool.make(..., env_type="gymnasium")'


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
    if "tf_agents" in names:
        return

    def is_one(kinds: set[str], *attributes: str, without: str = "") -> bool:
        return bool(names & kinds) or (any(hasattr(env, name) for name in attributes) and not hasattr(env, without))

    arguments: set[str] = set()
    with contextlib.suppress(AttributeError, TypeError, ValueError):  # Of a compiled class.
        arguments = set(inspect.signature(env.step).parameters)
    kinds = {
        _STABLE_BASELINES: is_one({"VecEnv"}, "step_async", without="single_action_space"),
        _SEVERAL_AGENTS: is_one({"ParallelEnv", "AECEnv", "MultiAgentEnv"}, "possible_agents", "agent_iter"),
        _ENVPOOL if "envpool" in names else _DM_ENV: is_one({"dm_env"}, "action_spec", without="action_space"),
        _STATELESS: is_one(set(), "transition") or bool(_STATES & arguments),
    }
    kinds |= {f"whose {name} is a method: make it a property": callable(getattr(env, name, None)) for name in _SPACES}
    yield from (f"the {type(env).__name__} object, {kind}" for kind, is_so in kinds.items() if is_so)


def _wrong_wrapper(env: Any) -> Iterator[str]:
    for layer in layers_within(env):
        names = {c.__name__ for c in type(layer).__mro__ if c.__module__.partition(".")[0] in ("gym", "gymnasium")}
        for name in names & _NORMALIZERS.keys():
            if getattr(layer, "update_running_mean", True):
                yield (
                    f"an environment in the wrapper {name}, of which each worker and each evaluation would have "
                    f"statistics of its own: remove it, and set TrainParams.{_NORMALIZERS[name]} = True, whose "
                    "statistics go with the policy; or give it known ones, and set update_running_mean = False"
                )


def running_statistics(env: Any) -> list[str]:
    """Objects of wrappers that count a mean and a variance, by names such as `Normalize.rms`."""
    held: dict[str, Any] = {}
    for layer in layers_within(env):
        if getattr(layer, "update_running_mean", True):
            held[name := type(layer).__name__] = layer
            held.update({f"{name}.{key}": part for key, part in getattr(layer, "__dict__", {}).items()})
    names = {name: " ".join(getattr(part, "__dict__", {})) for name, part in held.items()}
    return [name for name, keys in names.items() if all(any(word in keys for word in kind) for kind in _STATISTICS)]
