"""One environment in its own process, under the interpreter of SAC_ENV_PYTHON.

Started by env_process.py; wire.py is their protocol. Standard library and NumPy only, Python 3.9, NumPy 1 or 2.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import json
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
from tfagents_system.errors import UserError, shown
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
        _Server(connection, memory_fd).serve()
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

    def __init__(self, connection: socket.socket, memory_fd: int) -> None:
        self._connection = connection
        self._memory_fd = memory_fd
        self._env: Any = None
        self._other: Any = None  # The collect environment that an evaluation environment may use.
        self._ignored: set[Any] = set()
        self._records = False  # Somebody asks for `record/...`.
        self._untold: set[str] = set()  # What of it was not recorded, which was said.

    def serve(self) -> None:
        connection = self._connection
        answers: dict[bytes, Callable[[], None]] = {wire.CALL: self._build}
        while True:
            request = connection.recv(1)
            if not request:
                return
            try:
                answers[request]()
            except UserError as error:
                wire.send_message(connection, wire.FAILED, {"findings": list(error.findings)})
            except (EOFError, ConnectionError):
                raise
            except BaseException as error:
                self._tell(error)
            if len(answers) == 1 and self._env is not None:
                answers = {wire.STEP: self._step, wire.RESET: self._reset, wire.CALL: self._call}

    def _tell(self, error: BaseException) -> None:
        traceback.print_exception(type(error), error, error.__traceback__)
        sys.stderr.flush()
        wire.send_message(self._connection, wire.FAILED, {"error": describe_error(error)})

    def _build(self) -> None:
        """Receives what to build; answers with the spaces."""
        request, _ = wire.receive_content(self._connection)
        params = load_params(
            Path(request["params"]),
            request["env_config"],
            origin=Path(request["origin"]) if request["origin"] else None,
            compute_config=request["compute_config"],
            attributes=request["attributes"],
        )
        _seed_generators(request["seed"])
        self._records = request["kind"] in ("play", "replay") or hooks.records_episodes(params)
        if request["kind"] == "eval" and hooks.eval_env_needs_collect_env(params, request["env_id"]):
            self._other = hooks.build_env(params, {**request, "kind": "collect"})
        env = hooks.build_env(params, request, self._other)
        if gym_driver.is_py_environment(env):
            raise UserError(
                f"env_ctor returned the TF-Agents PyEnvironment {env!r}: with SAC_ENV_PYTHON return the Gymnasium or "
                "gym environment itself, or unset SAC_ENV_PYTHON"
            )
        gym_driver.check_is_gym(env)
        action = wire.describe_space(env.action_space, "action")
        observation = wire.describe_space(env.observation_space, "observation")
        memory = wire.StepMemory(self._memory_fd, action, observation, create=True)
        self._put_observation = wire.writer(observation, memory.observation, "observation")
        self._action, self._memory = action, memory
        self._driver = gym_driver.GymDriver(env, None)
        self._env = env
        self._device = layers.device_layer(layers.gym_layers(env))
        if self._device is not None:
            rtgym_steps.follow(self._device)
            leave_python_to_steps()
            # SLURM signals all processes of a job: the worker is told, too, and lets it wait. Not SIG_IGN, which
            # what it starts would inherit.
            signal.signal(signal.SIGTERM, _pass_over)
            os.register_at_fork(after_in_child=_take_signals)
        told = {
            "device": None if self._device is None else self._tell_device(),
            "action": action,
            "observation": observation,
            "goal_functions": [name for name in goals.FUNCTIONS if goals.function_of(layers.gym_layers(env), name)],
            "name": type(list(layers.gym_layers(env))[-1]).__name__,
            "frames_per_second": rendering.frames_per_second(list(layers.gym_layers(env))),
        }
        wire.send_message(self._connection, wire.DONE, told)

    def _tell_device(self) -> dict[str, bool]:
        """What a worker needs to know of a device; its default action is left in the memory."""
        default = layers.default_action_of(self._device)
        if default is not None:
            wire.writer(self._action, self._memory.action, "default action")(default)
        real_clock = bool(getattr(self._device, "has_real_clock", True))
        return {"has_default_action": default is not None, "has_real_clock": real_clock}

    def _reset(self) -> None:
        request, _ = wire.receive_content(self._connection)
        if self._device is not None:
            gc.collect()  # No step waits for it now.
        if request["seed"] is not None:
            self._driver = gym_driver.GymDriver(self._env, request["seed"])
            _seed_generators(request["seed"])
        if request["evaluation_episode"] is not None:
            layers.set_evaluation_episode(layers.gym_layers(self._env), request["evaluation_episode"])
        self._put_observation(self._driver.reset())
        self._connection.sendall(wire.DONE)

    def _step(self) -> None:
        observation, reward, discount, is_over, info = self._driver.step(
            wire.read_action(self._action, self._memory.action)
        )
        self._put_observation(observation)
        try:
            number = float(reward)
        except TypeError:
            raise TypeError(f"the reward is {reward!r}: it must be a number") from None
        told = self._encoded(self._told_info(info)) if info else b""
        self._memory.put_result(number, discount == 0.0, is_over and discount != 0.0, told)
        self._connection.sendall(b".")

    def _told_info(self, info: Mapping[Any, Any]) -> dict[str, Any]:
        """The parts of an info that training needs, for JSON: finite `log/...` numbers, `record/...` and success."""
        told: dict[str, Any] = {}
        for key in info:
            if key in self._ignored:
                continue
            value = info[key]
            if isinstance(key, str) and key.startswith(LOG_PREFIX):
                if _is_finite_number(value):
                    told[key] = float(value)
            elif isinstance(key, str) and key.startswith(RECORD_PREFIX):
                if self._records and (array := recorded(value)) is not None:
                    told[key] = array.tolist()
                elif self._records and key not in self._untold:
                    why = f"it is {shown(value)}, neither numbers nor texts; such steps are left out (NaN)"
                    self._tell_once(key, why)
            elif key in SUCCESS_KEYS:
                told[key] = bool(value)
            else:
                self._ignored.add(key)
        return told

    def _encoded(self, told: dict[str, Any]) -> bytes:
        """As JSON; what is to be recorded is left out where there is no room for it."""
        encoded = json.dumps(told).encode() if told else b""
        if len(encoded) <= wire.INFO_BYTES:
            return encoded
        self._tell_once(
            RECORD_PREFIX + "...", f"info takes {len(encoded)} bytes in a step, at most {wire.INFO_BYTES} are taken"
        )
        return json.dumps({key: told[key] for key in told if not key.startswith(RECORD_PREFIX)}).encode()

    def _tell_once(self, key: str, why: str) -> None:
        if key not in self._untold:
            self._untold.add(key)
            print(f"{key} of the environment's info is not recorded: {why}", file=sys.stderr, flush=True)

    def _call(self) -> None:
        """set_state, render, close, those of goals, or of a device: wait, limit_steps, set_evaluation, take_metrics."""
        request, given = wire.receive_content(self._connection)
        answer: dict[str, Any] = {}
        data = b""
        if request["call"] == "set_state":
            gym_driver.set_state(layers.gym_layers(self._env), request["state"])
        elif request["call"] == "render":
            try:
                picture = rendering.render_gym(self._env)
            except Exception as error:
                raise rendering.explain(error, self._env) from error
            frame = rendering.as_frame(picture, self._env)
            answer, data = {"shape": list(frame.shape)}, frame.tobytes()
        elif request["call"] in goals.FUNCTIONS:
            found = self._of_goals(request, given)
            answer, data = {"shape": list(found.shape)}, found.tobytes()
        elif request["call"] == "limit_steps":
            layers.limit_steps_of(self._device, request["steps"])
        elif request["call"] == "set_evaluation":
            layers.set_evaluation_of(self._device, request["is_evaluation"])
        elif request["call"] == "take_metrics":
            answer = {"metrics": layers.take_metrics_of(self._device)}
        elif request["call"] == "wait":
            wait = getattr(self._device, "wait", None)
            if callable(wait):
                wait()
        else:
            close = getattr(self._env, "close", None)
            if callable(close):
                close()
        wire.send_message(self._connection, wire.DONE, answer, data)

    def _of_goals(self, request: Mapping[str, Any], given: bytes) -> np.ndarray:
        """Of goals that were achieved, and as many that were desired: float64."""
        both = np.frombuffer(given, request["dtype"]).reshape(2, *request["shape"])
        achieved, desired = both.copy()
        function = goals.function_of(layers.gym_layers(self._env), request["call"])
        assert function is not None
        return np.asarray(function(achieved, desired, {}), np.float64)


def _seed_generators(seed: int) -> None:
    """Python's and NumPy's own: a user's environment may take numbers from these two."""
    random.seed(seed % hooks.SEED_LIMIT)
    np.random.seed(seed % hooks.SEED_LIMIT)


def _is_finite_number(value: Any) -> bool:
    is_number = isinstance(value, numbers.Real) or getattr(value, "ndim", None) == 0
    return is_number and math.isfinite(value)
