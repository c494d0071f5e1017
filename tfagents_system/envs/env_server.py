"""One environment in its own process, under the interpreter of SAC_ENV_PYTHON.

Started by env_process.py; wire.py is their protocol. Standard library and NumPy only, Python 3.9, NumPy 1 or 2.
"""

from __future__ import annotations

import contextlib
import faulthandler
import math
import numbers
import os
import random
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from tfagents_system.envs import goals, gym_driver, hooks, layers, rendering, wire
from tfagents_system.envs.faults import describe_error
from tfagents_system.envs.info_keys import LOG_PREFIX, RECORD_PREFIX, SUCCESS_KEYS, recorded
from tfagents_system.errors import UserError
from tfagents_system.settings.load_params import load_params

TRACE_SIGNAL = signal.SIGUSR1
_PR_SET_PDEATHSIG = 1


def main() -> NoReturn:
    """The program. Its arguments: the repository, three file descriptors, and the worker's pid."""
    connection_fd, memory_fd, trace_fd, parent = (int(argument) for argument in sys.argv[2:6])
    _die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is meant for the program that uses the environment.
    faulthandler.enable(file=trace_fd)  # Reports where the environment was when it crashed,
    faulthandler.register(TRACE_SIGNAL, file=trace_fd)  # or where it hangs, on request.
    for descriptor in (connection_fd, memory_fd, trace_fd):
        os.set_inheritable(descriptor, False)
    connection = socket.socket(fileno=connection_fd)
    with contextlib.suppress(EOFError, ConnectionError):  # The other side is gone.
        _Server(memory_fd).serve(connection)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _die_with(parent: int) -> None:
    """Makes the kernel kill this process when its worker dies, for whatever reason."""
    try:
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    except (ImportError, OSError, AttributeError):
        pass  # The end of the connection also ends it, as soon as the environment stops computing.
    if os.getppid() != parent:
        os._exit(1)


class _Server:
    """Builds the requested environment, then serves requests until the connection ends."""

    def __init__(self, memory_fd: int) -> None:
        self._memory = wire.Memory(memory_fd)
        self._env: Any = None
        self._other: Any = None  # The collect environment that an evaluation environment may use.
        self._records = False  # Somebody asks for `record/...`.
        self._answers: dict[str, Callable[..., Any]] = {"build": self._build}

    def serve(self, connection: socket.socket) -> None:
        while True:
            name, arguments = wire.receive(connection)
            try:
                answer = ("ok", self._answers[name](*arguments))
            except UserError as error:
                answer = ("findings", list(error.findings))
            except BaseException as error:
                traceback.print_exception(type(error), error, error.__traceback__)
                sys.stderr.flush()
                answer = ("error", describe_error(error))
            wire.send(connection, answer)

    def _build(self, source: Mapping[str, Any], what: Mapping[str, Any]) -> dict[str, Any]:
        """Builds the environment; returns what the worker needs to know of it."""
        params = load_params(
            Path(source["params"]),
            source["env_config"],
            origin=Path(source["origin"]) if source["origin"] else None,
            compute_config=source["compute_config"],
            attributes=source["attributes"],
        )
        _seed_generators(what["seed"])
        self._records = what["kind"] in ("play", "replay") or hooks.records_episodes(params)
        if what["kind"] == "eval" and hooks.eval_env_needs_collect_env(params, what["env_id"]):
            self._other = hooks.build_env(params, {**what, "kind": "collect"})
        env = hooks.build_env(params, what, self._other)
        if gym_driver.is_py_environment(env):
            raise UserError(
                f"env_ctor returned the TF-Agents PyEnvironment {env!r}: with SAC_ENV_PYTHON return the Gymnasium or "
                "gym environment itself, or unset SAC_ENV_PYTHON"
            )
        gym_driver.check_is_gym(env)
        if layers.device_layer(layers.gym_layers(env)) is not None:
            raise UserError(
                "SAC_ENV_PYTHON is not for environments that act in real time: unset it, and give the device's driver "
                "a process of its own, as tfagents_system/examples/racing/real_time.py does"
            )
        described = {
            "action": wire.describe_space(env.action_space, "action"),
            "observation": wire.describe_space(env.observation_space, "observation"),
        }
        self._unpack_action = wire.unpacker(env.action_space)
        self._pack_observation = wire.packer(env.observation_space, "observation", self._memory)
        self._driver = gym_driver.GymDriver(env, None)
        self._env = env
        of_goals = {name: goals.function_of(layers.gym_layers(env), name) for name in goals.FUNCTIONS}
        of_goals = {name: function for name, function in of_goals.items() if function is not None}
        self._answers = {
            "step": self._step,
            "reset": self._reset,
            "render": self._render,
            "set_state": lambda state: gym_driver.set_state(layers.gym_layers(env), state),
            "close": self._close,
        }
        for name, function in of_goals.items():
            self._answers[name] = lambda achieved, desired, call=function: np.asarray(
                call(achieved, desired, {}), np.float64
            )
        return {
            **described,
            "goal_functions": list(of_goals),
            "name": type(list(layers.gym_layers(env))[-1]).__name__,
            "frames_per_second": rendering.frames_per_second(list(layers.gym_layers(env))),
        }

    def _reset(self, seed: int | None, evaluation_episode: int | None) -> Any:
        if seed is not None:
            self._driver = gym_driver.GymDriver(self._env, seed)
            _seed_generators(seed)
        if evaluation_episode is not None:
            layers.set_evaluation_episode(layers.gym_layers(self._env), evaluation_episode)
        return self._packed(self._driver.reset())

    def _step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, reward, discount, is_over, info = self._driver.step(self._unpack_action(action))
        try:
            number = float(reward)
        except TypeError:
            raise TypeError(f"the reward is {reward!r}: it must be a number") from None
        terminated, truncated = bool(discount == 0.0), bool(is_over and discount != 0.0)
        return self._packed(observation), number, terminated, truncated, self._told(info) if info else {}

    def _packed(self, observation: Any) -> Any:
        self._memory.clear()
        return self._pack_observation(observation)

    def _told(self, info: Mapping[Any, Any]) -> dict[str, Any]:
        """The parts of an info that training needs, in plain types: finite `log/...` numbers, `record/...`, success."""
        told: dict[str, Any] = {}
        for key, value in info.items():
            if key in SUCCESS_KEYS:
                told[key] = bool(value)
            elif isinstance(key, str) and key.startswith(LOG_PREFIX):
                if _is_finite_number(value):
                    told[key] = float(value)
            elif self._records and isinstance(key, str) and key.startswith(RECORD_PREFIX):
                array = recorded(value)
                if array is not None:
                    told[key] = array.tolist()
        return told

    def _close(self) -> None:
        close = getattr(self._env, "close", None)
        if callable(close):
            close()

    def _render(self) -> np.ndarray:
        try:
            picture = rendering.render_gym(self._env)
        except Exception as error:
            raise rendering.explain(error, self._env) from error
        return rendering.as_frame(picture, self._env)


def _seed_generators(seed: int) -> None:
    """Python's and NumPy's own: a user's environment may take numbers from these two."""
    random.seed(seed % hooks.SEED_LIMIT)
    np.random.seed(seed % hooks.SEED_LIMIT)


def _is_finite_number(value: Any) -> bool:
    is_number = isinstance(value, numbers.Real) or getattr(value, "ndim", None) == 0
    return is_number and math.isfinite(value)
