"""One environment in its own process, under the interpreter of SAC_ENV_PYTHON. env_process.py starts it.

A request is (method, arguments), its answer (None, value) or (class of the error, its arguments), both pickled. Actions
and observations are packed before, because pickling an array takes longer than most steps; those of a vector
environment's steps are in memory that both sides share.

Standard library and NumPy only, Python 3.9, NumPy 1 or 2.
"""

from __future__ import annotations

import contextlib
import copy
import faulthandler
import mmap
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
from tfagents_system.envs.gym_driver import LOG_PREFIX, RECORD_PREFIX, SUCCESS_KEYS
from tfagents_system.envs.vector_driver import LanesStep, VectorBackend
from tfagents_system.errors import UserError
from tfagents_system.settings.load_params import load_params

TRACE_SIGNAL = signal.SIGUSR1
_PR_SET_PDEATHSIG = 1
_PICKLE_PROTOCOL = 4  # In which NumPy 2 and NumPy 1 read arrays of each other without a warning.
_NUMBER_BYTES = 8  # At most, of an observation or action; arrays begin at multiples of it.
_COLUMNS = ("reward", "discount", "is_last", "began", "resting")  # Of a LanesStep, `[N]` each.


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


class SharedMemory:
    """Arrays of one message, which both sides map: the message has their places.

    Args:
      descriptor: Of the memory.
      size: Its bytes.
    """

    def __init__(self, descriptor: int, size: int) -> None:
        self.buffer = mmap.mmap(descriptor, size)
        self._size, self._used = size, 0

    def clear(self) -> None:
        """Begins another message: its arrays overwrite those of the last one."""
        self._used = 0

    def put(self, array: np.ndarray) -> Any:
        """Copies an array; returns its place, or its bytes where there is no room."""
        place, end = self._used, self._used + array.nbytes
        if end > self._size:
            return array.tobytes()
        np.ndarray(array.shape, array.dtype, self.buffer, place)[...] = array
        self._used = -(-end // _NUMBER_BYTES) * _NUMBER_BYTES
        return place


def pack(value: Any, memory: SharedMemory | None = None) -> Any:
    """A nest of arrays in plain types: a dictionary, a list for a tuple, (dtype, shape, bytes or place) of an array."""
    if isinstance(value, dict):
        return {key: pack(part, memory) for key, part in value.items()}
    if isinstance(value, tuple):
        return [pack(part, memory) for part in value]
    array = np.asarray(value)
    return array.dtype.str, array.shape, array.tobytes() if memory is None else memory.put(array)


def unpack(packed: Any, memory: SharedMemory | None = None) -> Any:
    """The inverse of `pack`; arrays of no dimension become numbers. Those in memory are valid until it is cleared."""
    if isinstance(packed, dict):
        return {key: unpack(part, memory) for key, part in packed.items()}
    if isinstance(packed, list):
        return tuple(unpack(part, memory) for part in packed)
    dtype, shape, data = packed
    if memory is not None and isinstance(data, int):
        return np.ndarray(shape, dtype, memory.buffer, data)
    return np.ndarray(shape, dtype, bytearray(data))[()]


def main() -> NoReturn:
    """The program. Its arguments: the repository, three file descriptors, and the worker's pid."""
    connection_fd, trace_fd, memory_fd, parent = (int(argument) for argument in sys.argv[2:6])
    _die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is meant for the program that uses the environment.
    faulthandler.enable(file=trace_fd)  # Reports where the environment was when it crashed,
    faulthandler.register(TRACE_SIGNAL, file=trace_fd)  # or where it hangs, on request.
    for descriptor in (connection_fd, trace_fd, memory_fd):
        os.set_inheritable(descriptor, False)
    connection = Connection(socket.socket(fileno=connection_fd))
    with contextlib.suppress(EOFError, OSError):  # The other side is gone.
        _serve(connection, memory_fd)
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


def _serve(connection: Connection, memory_fd: int) -> NoReturn:
    """Builds the requested environment, then serves requests until the connection ends."""
    methods: dict[str, Callable[..., Any]] = {"build": lambda source, what: _build(source, what, memory_fd, methods)}
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


def _build(
    source: Mapping[str, Any], what: Mapping[str, Any], memory_fd: int, methods: dict[str, Callable[..., Any]]
) -> Any:
    """Builds the environment.

    Args:
      source: What `load_params` takes.
      what: Further arguments of `hooks.build_env`.
      memory_fd: Gets the size that a vector environment needs.
      methods: Gets what may be requested, by name.

    Returns:
      What the worker needs to know: name, frames per second, functions of goals, bytes of shared memory, and the
      attributes of a `Backend`.
    """
    origin = Path(source["origin"]) if source["origin"] else None
    params = load_params(Path(source["path"]), origin=origin, **source["settings"])
    gym_driver.seed_generators(what["seed"] % gym_driver.SEED_LIMIT)
    env = hooks.build_env(params, **what)
    if gym_driver.is_py_environment(env):
        raise UserError(
            f"env_ctor returned the TF-Agents PyEnvironment {env!r}: with SAC_ENV_PYTHON return the Gymnasium or gym "
            "environment itself, or unset SAC_ENV_PYTHON"
        )
    layers = list(gym_driver.gym_layers(env))
    if gym_driver.device_layer(layers) is not None:
        raise UserError(
            "SAC_ENV_PYTHON is not for environments that act in real time: unset it, and give the device's driver a "
            "process of its own, as tfagents_system/examples/racing/real_time.py does"
        )
    backend = VectorBackend(env, None) if gym_driver.is_vector_env(env) else gym_driver.GymBackend(env)
    spaces = backend.observation_spaces
    names = ("is_vector", "num_lanes", "begins_episodes", "can_reset_lanes", "can_reseed")
    attributes = {name: getattr(backend, name) for name in names}
    attributes["action_spaces"] = plain_actions = _plain("action", backend.action_spaces)
    attributes["observation_spaces"] = plain_observations = _plain("observation", spaces)
    memory: SharedMemory | None = None
    size = 0
    if backend.is_vector:  # The last observations of lanes may come with the first ones of their next episodes.
        numbers = 2 * _numbers_in(plain_observations) + _numbers_in(plain_actions) + len(_COLUMNS)
        size = _NUMBER_BYTES * backend.num_lanes * numbers
        os.ftruncate(memory_fd, size)
        memory = SharedMemory(memory_fd, size)

    def reset(seed: int | None, evaluation_episode: int | None) -> Any:
        if seed is not None:
            backend.reseed(seed)
            gym_driver.seed_generators(seed)
        if evaluation_episode is not None:
            gym_driver.set_evaluation_episode(layers, evaluation_episode)
        return _packed(spaces, backend.reset())

    def reset_lanes(mask: np.ndarray) -> dict[int, Any]:
        return {lane: _packed(spaces, observation) for lane, observation in backend.reset_lanes(mask).items()}

    def step_lanes(action: Any) -> Any:
        assert memory is not None
        step = backend.step(copy.deepcopy(unpack(action, memory)))  # The environment may keep or change it.
        memory.clear()
        return _packed_lanes(spaces, step, memory)

    def step(action: Any) -> Any:
        observation, reward, discount, is_over, info = backend.step(unpack(action))
        try:
            number = float(reward)
        except TypeError:
            raise TypeError(f"the reward is {reward!r}: it must be a number") from None
        return _packed(spaces, observation), number, discount, is_over, _plain_info(info) if info else {}

    methods.update(reset=reset, reset_lanes=reset_lanes, step=step_lanes if backend.is_vector else step)
    methods.update(set_state=backend.set_state, close=backend.close)
    methods["render"] = lambda: rendering.frame_of(backend.render, env)
    functions = gym_driver.functions_of(layers)
    for name, function in functions.items():
        methods[name] = lambda achieved, desired, call=function: np.asarray(call(achieved, desired, {}), np.float64)
    return gym_driver.name_of(env), rendering.frames_per_second(layers), list(functions), size, attributes


def _plain(name: str, spaces: Any) -> Any:
    """A nest of spaces without their library."""
    if isinstance(spaces, dict):
        return {key: _plain(name, part) for key, part in spaces.items()}
    if isinstance(spaces, tuple):
        return tuple(_plain(name, part) for part in spaces)
    return gym_driver.plain_space(name, spaces)


def _numbers_in(spaces: Any) -> int:
    """How many numbers a nest of spaces has."""
    if isinstance(spaces, (dict, tuple)):
        return sum(map(_numbers_in, spaces.values() if isinstance(spaces, dict) else spaces))
    return int(np.prod(spaces.shape))


def _plain_info(info: Mapping[Any, Any]) -> dict[str, Any]:
    """The parts of an info that training needs, without the user's types: `log/...`, `record/...`, success."""
    plain = {key: _plain_value(key, value) for key, value in info.items()}
    return {key: value for key, value in plain.items() if value is not None}


def _plain_value(key: Any, value: Any) -> Any:
    """What is under one key; None if training does not need it."""
    if key in SUCCESS_KEYS or (isinstance(key, str) and key.startswith(LOG_PREFIX)):
        number = gym_driver.one_number(value)
        return repr(value) if number is None else number  # The worker tells of the former.
    return gym_driver.recorded(value) if isinstance(key, str) and key.startswith(RECORD_PREFIX) else None


def _plain_lanes(info: Mapping[Any, Any]) -> dict[str, Any]:
    """The same of all lanes: arrays, or lists of what lanes have, and masks under `_key` (see StepNews.info_of)."""
    plain: dict[str, Any] = {}
    for key, values in info.items():
        if key in SUCCESS_KEYS or (isinstance(key, str) and key.startswith((LOG_PREFIX, RECORD_PREFIX))):
            plain[key] = gym_driver.recorded(values)
            if plain[key] is None:
                has_lanes = isinstance(values, (list, tuple)) or getattr(values, "ndim", 0) > 0
                plain[key] = [_plain_value(key, value) for value in values] if has_lanes else repr(values)
            if (mask := info.get(f"_{key}")) is not None:
                plain[f"_{key}"] = np.asarray(mask, bool)
    return plain


def _packed_lanes(spaces: Any, step: LanesStep, memory: SharedMemory) -> tuple[Any, ...]:
    """A step of all lanes: its observation, columns by name, last observations by lane, and infos with their masks."""
    columns = {name: column for name in _COLUMNS if (column := getattr(step, name)) is not None}
    columns["reward"] = np.asarray(step.reward, np.float64)
    infos = [(plain, lanes) for info, lanes in step.infos if (plain := _plain_lanes(info))]
    return (
        _packed(spaces, step.observation, memory),
        pack(columns, memory),
        {lane: _packed(spaces, observation, memory) for lane, observation in step.last.items()},
        infos,
    )


def _packed(spaces: Any, value: Any, memory: SharedMemory | None = None) -> Any:
    """Packs an observation, whatever types it has.

    A part that is missing, or no array of numbers, is a KeyError, TypeError or ValueError.
    """
    if isinstance(spaces, dict):
        return {key: _packed(space, value[key], memory) for key, space in spaces.items()}
    if isinstance(spaces, tuple):
        if len(value) != len(spaces):
            raise ValueError(f"observation: expected {len(spaces)} parts but found {len(value)}")
        return [_packed(space, part, memory) for space, part in zip(spaces, value)]
    array = np.asarray(value)
    if array.dtype.kind not in "fiub":
        raise TypeError(f"observation: expected numbers but found {value!r}")
    return pack(array, memory)
