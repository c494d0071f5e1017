"""One environment in its own process, under the interpreter of SAC_ENV_PYTHON. env_process.py starts it.

A request is (method, arguments), its answer ("ok", value), ("error", text) or ("findings", texts). Both are pickled,
behind their length. Actions and observations are packed before, because pickling an array takes longer than most steps.

Standard library and NumPy only, Python 3.9, NumPy 1 or 2.
"""

from __future__ import annotations

import contextlib
import faulthandler
import numbers
import os
import pickle
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from tfagents_system.envs import gym_driver, hooks, rendering
from tfagents_system.envs.faults import describe_error
from tfagents_system.envs.gym_driver import (
    LOG_PREFIX,
    RECORD_PREFIX,
    SUCCESS_KEYS,
    box_dtype,
    gym_layers,
    is_known,
    no_fixed_shape,
    space_kind,
    text_key,
)
from tfagents_system.errors import UserError
from tfagents_system.settings.load_params import load_params

TRACE_SIGNAL = signal.SIGUSR1
_PR_SET_PDEATHSIG = 1
_LENGTH = struct.Struct("<Q")
_PICKLE_PROTOCOL = 4  # In which NumPy 2 and NumPy 1 read arrays of each other without a warning.
_READ_BYTES = 1 << 16


def send(connection: socket.socket, content: Any) -> None:
    """Sends a message."""
    data = pickle.dumps(content, _PICKLE_PROTOCOL)
    connection.sendall(_LENGTH.pack(len(data)) + data)


def receive(connection: socket.socket) -> Any:
    """The next message.

    Raises:
      BlockingIOError: None has begun within the connection's timeout.
      EOFError: The other side is gone.
    """
    message = connection.recv(_READ_BYTES)
    while len(message) < (length := _length(message)):
        with contextlib.suppress(BlockingIOError):  # The connection's timeout, in the middle of a message.
            rest = connection.recv(length - len(message), socket.MSG_WAITALL)
            if not (message and rest):
                raise EOFError("the other side of an environment's process is gone")
            message += rest
    return pickle.loads(memoryview(message)[_LENGTH.size :])


def _length(message: bytes) -> int:
    """Bytes of the whole message, as far as its first ones tell."""
    return _LENGTH.size + (_LENGTH.unpack_from(message)[0] if len(message) >= _LENGTH.size else 0)


def pack(value: Any) -> Any:
    """A nest of arrays in plain types: a dictionary, a list for a tuple, (dtype, shape, bytes) for an array."""
    if isinstance(value, dict):
        return {key: pack(part) for key, part in value.items()}
    if isinstance(value, tuple):
        return list(map(pack, value))
    array = np.asarray(value)
    return array.dtype.str, array.shape, array.tobytes()


def unpack(packed: Any) -> Any:
    """The inverse of `pack`; arrays of no dimension become numbers."""
    if isinstance(packed, dict):
        return {key: unpack(part) for key, part in packed.items()}
    if isinstance(packed, list):
        return tuple(map(unpack, packed))
    dtype, shape, data = packed
    return np.ndarray(shape, dtype, bytearray(data))[()]


def main() -> NoReturn:
    """The program. Its arguments: the repository, two file descriptors, and the worker's pid."""
    connection_fd, trace_fd, parent = (int(argument) for argument in sys.argv[2:5])
    _die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is meant for the program that uses the environment.
    faulthandler.enable(file=trace_fd)  # Reports where the environment was when it crashed,
    faulthandler.register(TRACE_SIGNAL, file=trace_fd)  # or where it hangs, on request.
    for descriptor in (connection_fd, trace_fd):
        os.set_inheritable(descriptor, False)
    connection = socket.socket(fileno=connection_fd)
    with contextlib.suppress(EOFError, ConnectionError):  # The other side is gone.
        _Server().serve(connection)
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

    def __init__(self) -> None:
        self._methods: dict[str, Callable[..., Any]] = {"build": self._build}

    def serve(self, connection: socket.socket) -> None:
        while True:
            name, arguments = receive(connection)
            try:
                answer = ("ok", self._methods[name](*arguments))
            except UserError as error:
                answer = ("findings", list(error.findings))
            except BaseException as error:
                traceback.print_exception(type(error), error, error.__traceback__)
                sys.stderr.flush()
                answer = ("error", describe_error(error))
            send(connection, answer)

    def _build(self, source: Mapping[str, Any], what: Mapping[str, Any]) -> dict[str, Any]:
        """Builds the environment; returns what the worker needs to know of it."""
        params = load_params(
            Path(source["path"]),
            source["env_config"],
            origin=Path(source["origin"]) if source["origin"] else None,
            compute_config=source["compute_config"],
            attributes=source["attributes"],
        )
        gym_driver.seed_generators(what["seed"] % gym_driver.SEED_LIMIT)
        env = self._env = hooks.build_env(params, **what)
        if gym_driver.is_py_environment(env):
            raise UserError(
                f"env_ctor returned the TF-Agents PyEnvironment {env!r}: with SAC_ENV_PYTHON return the Gymnasium or "
                "gym environment itself, or unset SAC_ENV_PYTHON"
            )
        gym_driver.check_is_gym(env)
        layers = list(gym_layers(env))
        if gym_driver.device_layer(layers) is not None:
            raise UserError(
                "SAC_ENV_PYTHON is not for environments that act in real time: unset it, and give the device's driver "
                "a process of its own, as tfagents_system/examples/racing/real_time.py does"
            )
        self._driver = gym_driver.GymDriver(env, None)
        self._pack_observation = _packer(env.observation_space)
        self._methods = {
            "step": self._step,
            "reset": self._reset,
            "render": lambda: rendering.frame_of(lambda: rendering.render_gym(env), env),
            "set_state": lambda state: gym_driver.set_state(layers, state),
            "close": getattr(env, "close", lambda: None),
        }
        functions = gym_driver.functions_of(layers)
        for name, function in functions.items():
            self._methods[name] = lambda achieved, desired, call=function: np.asarray(
                call(achieved, desired, {}), np.float64
            )
        return {
            "action": _describe_space(env.action_space, "action"),
            "observation": _describe_space(env.observation_space, "observation"),
            "goal_functions": list(functions),
            "name": type(layers[-1]).__name__,
            "frames_per_second": rendering.frames_per_second(layers),
        }

    def _reset(self, seed: int | None, evaluation_episode: int | None) -> Any:
        if seed is not None:
            self._driver.reseed(seed)
            gym_driver.seed_generators(seed)
        if evaluation_episode is not None:
            gym_driver.set_evaluation_episode(gym_layers(self._env), evaluation_episode)
        return self._pack_observation(self._driver.reset())

    def _step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, reward, discount, is_over, info = self._driver.step(unpack(action))
        try:
            number = float(reward)
        except TypeError:
            raise TypeError(f"the reward is {reward!r}: it must be a number") from None
        terminated, truncated = bool(discount == 0.0), bool(is_over and discount != 0.0)
        return self._pack_observation(observation), number, terminated, truncated, _plain_info(info) if info else {}


def _plain_info(info: Mapping[Any, Any]) -> dict[str, Any]:
    """The parts of an info that training needs, without the user's types: `log/...`, `record/...`, success."""
    plain: dict[str, Any] = {}
    for key, value in info.items():
        if key in SUCCESS_KEYS:
            plain[key] = bool(value)
        elif isinstance(key, str) and key.startswith(LOG_PREFIX):
            if isinstance(value, numbers.Real) or getattr(value, "ndim", None) == 0:
                plain[key] = float(value)
        elif isinstance(key, str) and key.startswith(RECORD_PREFIX):
            plain[key] = gym_driver.recorded(value)
    return {key: value for key, value in plain.items() if value is not None}


def _packer(space: Any) -> Callable[[Any], Any]:
    """The function that packs an observation, whatever types it has.

    A part that is missing, or no array of numbers, is a KeyError, TypeError or ValueError.
    """
    kind = space_kind(space)
    if kind == "Dict":
        by_key = {key: _packer(sub) for key, sub in space.spaces.items()}
        return lambda value: {key: pack_part(value[key]) for key, pack_part in by_key.items()}
    if kind == "Tuple":
        parts = [_packer(sub) for sub in space.spaces]

        def pack_tuple(value: Any) -> list[Any]:
            if len(value) != len(parts):
                raise ValueError(f"observation: expected {len(parts)} parts but found {len(value)}")
            return [pack_part(part) for pack_part, part in zip(parts, value)]

        return pack_tuple

    def pack_array(value: Any) -> Any:
        array = np.asarray(value)
        if array.dtype.kind not in "fiub":
            raise TypeError(f"observation: expected numbers but found {value!r}")
        return pack(array)

    return pack_array


def _describe_space(space: Any, name: str) -> tuple[str, dict[str, Any]]:
    """A space without its library: its kind, and arguments of Gymnasium's class, or the spaces within it.

    Raises:
      UserError: It is of no known kind.
    """
    kind = space_kind(space)
    if not is_known(space):
        raise UserError(no_fixed_shape(name, space))
    if kind == "Dict":
        return kind, {text_key(key): _describe_space(sub, name) for key, sub in space.spaces.items()}
    if kind == "Tuple":
        return kind, {str(k): _describe_space(sub, name) for k, sub in enumerate(space.spaces)}
    if kind == "Discrete":
        return kind, {"n": int(space.n), "start": int(getattr(space, "start", 0))}
    if kind == "MultiDiscrete":
        nvec = np.asarray(space.nvec)
        return kind, {"nvec": nvec, "start": np.asarray(getattr(space, "start", np.zeros_like(nvec)))}
    shape = [int(size) for size in space.shape]
    if kind == "MultiBinary":
        return kind, {"n": shape}
    dtype = box_dtype(space)
    if dtype.kind not in "fiub":
        raise UserError(f"the {name} space has dtype {dtype}: use float32 or an integer type")
    low, high = (np.broadcast_to(np.asarray(bound, dtype), shape) for bound in (space.low, space.high))
    return "Box", {"low": low, "high": high, "dtype": dtype.str}
