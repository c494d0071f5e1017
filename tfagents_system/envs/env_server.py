"""One environment in its own process, under the interpreter of SAC_ENV_PYTHON.

Started by env_process.py; wire.py is their protocol. Standard library and NumPy only, Python 3.9, NumPy 1 or 2.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
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

from tfagents_system.envs import goals, gym_driver, hooks, layers, rendering, rtgym_steps, wire
from tfagents_system.envs.faults import describe_error
from tfagents_system.envs.info_keys import LOG_PREFIX, RECORD_PREFIX, SUCCESS_KEYS, recorded
from tfagents_system.errors import UserError
from tfagents_system.machine.threads import leave_python_to_steps
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


def _pass_over(number: int, frame: Any) -> None:
    del number, frame


def _take_signals() -> None:
    """A process that the device forks can be ended, by `Process.terminate()` for one."""
    if signal.getsignal(signal.SIGTERM) is _pass_over:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


class _Server:
    """Builds the requested environment, then serves requests until the connection ends."""

    def __init__(self, memory_fd: int) -> None:
        self._memory = wire.Memory(memory_fd)
        self._env: Any = None
        self._other: Any = None  # The collect environment that an evaluation environment may use.
        self._device: Any = None
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
            "close": _silent(getattr(env, "close", None)),
        }
        for name, function in of_goals.items():
            self._answers[name] = lambda achieved, desired, call=function: np.asarray(
                call(achieved, desired, {}), np.float64
            )
        return {
            "device": self._follow_device(),
            **described,
            "goal_functions": list(of_goals),
            "name": type(list(layers.gym_layers(env))[-1]).__name__,
            "frames_per_second": rendering.frames_per_second(list(layers.gym_layers(env))),
        }

    def _follow_device(self) -> dict[str, Any] | None:
        """Takes requests for a device, and returns what a worker needs to know of it; None: there is none."""
        device = self._device = layers.device_layer(layers.gym_layers(self._env))
        if device is None:
            return None
        rtgym_steps.follow(device)
        leave_python_to_steps()
        # SLURM signals all processes of a job: the worker is told, too, and lets it wait. Not SIG_IGN, which what it
        # starts would inherit.
        signal.signal(signal.SIGTERM, _pass_over)
        os.register_at_fork(after_in_child=_take_signals)
        self._answers.update(
            wait=_silent(getattr(device, "wait", None)),
            limit_steps=lambda steps: layers.limit_steps_of(device, steps),
            take_metrics=lambda: layers.take_metrics_of(device),
        )
        return {
            "has_real_clock": bool(getattr(device, "has_real_clock", True)),
            "default_action": layers.default_action_of(device),
        }

    def _reset(self, seed: int | None, evaluation_episode: int | None, is_evaluation: bool | None) -> Any:
        if self._device is not None:
            gc.collect()  # No step waits for it now.
        if is_evaluation is not None:
            layers.set_evaluation_of(self._device, is_evaluation)
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

    def _render(self) -> np.ndarray:
        try:
            picture = rendering.render_gym(self._env)
        except Exception as error:
            raise rendering.explain(error, self._env) from error
        return rendering.as_frame(picture, self._env)


def _silent(method: Any) -> Callable[[], None]:
    """Calls an optional method; what it returns stays here."""

    def call() -> None:
        if callable(method):
            method()

    return call


def _seed_generators(seed: int) -> None:
    """Python's and NumPy's own: a user's environment may take numbers from these two."""
    random.seed(seed % hooks.SEED_LIMIT)
    np.random.seed(seed % hooks.SEED_LIMIT)


def _is_finite_number(value: Any) -> bool:
    is_number = isinstance(value, numbers.Real) or getattr(value, "ndim", None) == 0
    return is_number and math.isfinite(value)
