"""One environment in its own process, under the interpreter of SAC_ENV_PYTHON. env_process.py starts it.

A request is (method, arguments), its answer (None, value) or (class of the error, its arguments), both pickled. Actions
and observations are packed before, because pickling an array takes longer than most steps.

Standard library and NumPy only, Python 3.9, NumPy 1 or 2.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import pickle
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from tfagents_system.envs import gym_driver, hooks, rendering
from tfagents_system.envs.faults import EnvironmentProcessError, describe_error
from tfagents_system.envs.gym_driver import LOG_PREFIX, RECORD_PREFIX, SUCCESS_KEYS, gym_layers
from tfagents_system.errors import UserError
from tfagents_system.settings.load_params import load_params

TRACE_SIGNAL = signal.SIGUSR1
_PR_SET_PDEATHSIG = 1
_PICKLE_PROTOCOL = 4  # In which NumPy 2 and NumPy 1 read arrays of each other without a warning.


class Connection:
    """Messages between the two sides, which speak in turns.

    Args:
      connection: A socket.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        # What makefile() gives takes 10 us longer.
        self._messages = open(connection.fileno(), "rb", closefd=False)  # noqa: SIM115
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)

    def send(self, content: Any) -> None:
        """Sends a message."""
        self._socket.sendall(pickle.dumps(content, _PICKLE_PROTOCOL))

    def poll(self, secs: float) -> bool:
        """Waits for a message, or the other side's end, for so long; returns whether there is one."""
        return bool(self._poll.poll(secs * 1e3))

    def receive(self) -> Any:
        """The next message.

        Raises:
          EOFError, OSError: The other side is gone.
        """
        try:
            return pickle.load(self._messages)
        except pickle.UnpicklingError as error:
            raise EOFError("the other side is gone in the middle of a message") from error

    def close(self) -> None:
        self._messages.close()
        self._socket.close()


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
    connection = Connection(socket.socket(fileno=connection_fd))
    with contextlib.suppress(EOFError, OSError):  # The other side is gone.
        _serve(connection)
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


def _serve(connection: Connection) -> NoReturn:
    """Builds the requested environment, then serves requests until the connection ends."""
    methods: dict[str, Callable[..., Any]] = {"build": lambda source, what: _build(source, what, methods)}
    while True:
        name, arguments = connection.receive()
        try:
            answer: Any = (None, methods[name](*arguments))
        except UserError as error:
            answer = (UserError, error.findings)
        except BaseException as error:
            traceback.print_exception(type(error), error, error.__traceback__)
            sys.stderr.flush()
            answer = (EnvironmentProcessError, (describe_error(error),))
        connection.send(answer)


def _build(source: Mapping[str, Any], what: Mapping[str, Any], methods: dict[str, Callable[..., Any]]) -> Any:
    """Builds the environment.

    Args:
      source: What `load_params` takes.
      what: Further arguments of `hooks.build_env`.
      methods: Gets what may be requested, by name.

    Returns:
      What the worker needs to know: name, spaces of actions and observations, frames per second, functions of goals.
    """
    origin = Path(source["origin"]) if source["origin"] else None
    params = load_params(Path(source["path"]), origin=origin, **source["settings"])
    gym_driver.seed_generators(what["seed"] % gym_driver.SEED_LIMIT)
    env = hooks.build_env(params, **what)
    layers = list(gym_layers(env))
    for is_refused, kind, remedy in (
        (gym_driver.is_py_environment(env), "TF-Agents PyEnvironment", "the Gymnasium or gym environment itself"),
        (gym_driver.is_vector_env(env), "vector environment", "a single one"),
    ):
        if is_refused:
            raise UserError(
                f"env_ctor returned the {kind} {env!r}: with SAC_ENV_PYTHON return {remedy}, or unset SAC_ENV_PYTHON"
            )
    if gym_driver.device_layer(layers) is not None:
        raise UserError(
            "SAC_ENV_PYTHON is not for environments that act in real time: unset it, and give the device's driver a "
            "process of its own, as tfagents_system/examples/racing/real_time.py does"
        )
    backend = gym_driver.GymBackend(env)
    spaces = backend.observation_spaces

    def reset(seed: int | None, evaluation_episode: int | None) -> Any:
        if seed is not None:
            backend.reseed(seed)
            gym_driver.seed_generators(seed)
        if evaluation_episode is not None:
            gym_driver.set_evaluation_episode(layers, evaluation_episode)
        return _packed(spaces, backend.reset())

    def step(action: Any) -> Any:
        observation, reward, discount, is_over, info = backend.step(unpack(action))
        try:
            number = float(reward)
        except TypeError:
            raise TypeError(f"the reward is {reward!r}: it must be a number") from None
        return _packed(spaces, observation), number, discount, is_over, _plain_info(info) if info else {}

    methods.update(reset=reset, step=step, set_state=backend.set_state, close=backend.close)
    methods["render"] = lambda: rendering.frame_of(backend.render, env)
    functions = gym_driver.functions_of(layers)
    for name, function in functions.items():
        methods[name] = lambda achieved, desired, call=function: np.asarray(call(achieved, desired, {}), np.float64)
    plain = [_plain("action", backend.action_spaces), _plain("observation", spaces)]
    return (type(layers[-1]).__name__, *plain, rendering.frames_per_second(layers), list(functions))


def _plain(name: str, spaces: Any) -> Any:
    """A nest of spaces without their library."""
    if isinstance(spaces, dict):
        return {key: _plain(name, part) for key, part in spaces.items()}
    if isinstance(spaces, tuple):
        return tuple(_plain(name, part) for part in spaces)
    return gym_driver.plain_space(name, spaces)


def _plain_info(info: Mapping[Any, Any]) -> dict[str, Any]:
    """The parts of an info that training needs, without the user's types: `log/...`, `record/...`, success."""
    plain: dict[str, Any] = {}
    for key, value in info.items():
        if key in SUCCESS_KEYS or (isinstance(key, str) and key.startswith(LOG_PREFIX)):
            number = gym_driver.one_number(value)
            plain[key] = repr(value) if number is None else number  # The worker tells of the former.
        elif isinstance(key, str) and key.startswith(RECORD_PREFIX):
            plain[key] = gym_driver.recorded(value)
    return {key: value for key, value in plain.items() if value is not None}


def _packed(spaces: Any, value: Any) -> Any:
    """Packs an observation, whatever types it has.

    A part that is missing, or no array of numbers, is a KeyError, TypeError or ValueError.
    """
    if isinstance(spaces, dict):
        return {key: _packed(space, value[key]) for key, space in spaces.items()}
    if isinstance(spaces, tuple):
        if len(value) != len(spaces):
            raise ValueError(f"observation: expected {len(spaces)} parts but found {len(value)}")
        return [_packed(space, part) for space, part in zip(spaces, value)]
    array = np.asarray(value)
    if array.dtype.kind not in "fiub":
        raise TypeError(f"observation: expected numbers but found {value!r}")
    return pack(array)
