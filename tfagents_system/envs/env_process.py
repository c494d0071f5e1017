"""The worker's side of an environment in its own process (SAC_ENV_PYTHON).

A process can be killed when it hangs, its memory leaks end with it, and it may use another Python, another NumPy, or
packages that conflict with TensorFlow. env_server.py is the other side, and describes the protocol.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from absl import logging

from tfagents_system.envs.env_server import TRACE_SIGNAL, Connection, SharedMemory, pack, unpack
from tfagents_system.envs.faults import EnvironmentDiedError, EnvironmentProcessError, line_of_trace
from tfagents_system.envs.gym_driver import Backend
from tfagents_system.envs.vector_driver import LanesStep
from tfagents_system.errors import UserError
from tfagents_system.machine import processes
from tfagents_system.train_params_base import TrainParamsBase

DEFAULT_STEP_TIMEOUT_SECS = 300.0
_MIN_BUILD_TIMEOUT_SECS = 600.0
_BUILD_TIMES_STEP = 4.0
_SLICE_SECS = 1.0
_SPEAK_SECS = 60.0
_CLOSE_SECS = 5.0
_TRACE_SECS = 1.0
_TRACE_BYTES = 64 * 1024
_ROOT = Path(__file__).resolve().parents[2]
_MARK_VARIABLE = "TFAGENTS_ENV_PROCESS"  # In the environment variables of the process and of all its children.

# Any Python can parse this, so that an old one can report that it is too old. Where the package was installed with pip,
# the folder sys.argv[1] has all packages of this Python. Another one must not find those: it would take NumPy from
# there, compiled for this one.
_TOO_OLD, _NO_NUMPY = 97, 98
_BOOT = f"""
import sys

if sys.version_info < (3, 9):
    sys.exit({_TOO_OLD})
import importlib.util
import os

sys.path[:] = [folder for folder in sys.path if folder]
if os.path.isfile(os.path.join(sys.argv[1], "setup.sh")):
    sys.path.insert(0, sys.argv[1])
folder = os.path.join(sys.argv[1], "tfagents_system")
spec = importlib.util.spec_from_file_location("tfagents_system", os.path.join(folder, "__init__.py"))
sys.modules["tfagents_system"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules["tfagents_system"])
try:
    import numpy
except ImportError:
    sys.exit({_NO_NUMPY})
from tfagents_system.envs.env_server import main
main()
"""


def build_timeout_secs(step_timeout_secs: float) -> float:
    """How long building an environment may take: loading models, compiling, requesting a licence."""
    return max(_MIN_BUILD_TIMEOUT_SECS, _BUILD_TIMES_STEP * step_timeout_secs)


@dataclasses.dataclass(frozen=True)
class ProcessSettings:
    """How environments run in processes of their own.

    Attributes:
      python: The interpreter.
      step_timeout_secs: When a step, reset or other call counts as hung.
      on_wait: Called about once a second while waiting for an environment; True gives up.
    """

    python: Path
    step_timeout_secs: float = DEFAULT_STEP_TIMEOUT_SECS
    on_wait: Callable[[], bool] = lambda: False

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> ProcessSettings | None:
        """As the variables say, by field; None: environments run where they are built."""
        python = values.get("env_python")
        return None if python is None else cls(python, values.get("step_timeout_secs", DEFAULT_STEP_TIMEOUT_SECS))


class EnvProcess(Backend):
    """An environment that runs in its own process: a single one, or a vector environment.

    Args:
      settings: Interpreter and timeouts.
      params: What `load_params` returned: the process loads the same.
      **what: Further arguments of `hooks.build_env`.

    Attributes:
      metadata: Includes the environment's frames per second.
      compute_reward, compute_terminated: Where the environment has them, see GoalFunctions.
      pid: Process id.
      name: See `gym_driver.name_of`.

    Raises:
      UserError: This is not Linux, or the interpreter, the params file under it, or the environment can't be used.
      EnvironmentProcessError: It raised while it was built, or its process died or hung.
    """

    _evaluation_episode: int | None = None
    _seed_for_reset: int | None = None

    def __init__(self, settings: ProcessSettings, params: TrainParamsBase, **what: Any) -> None:
        if not hasattr(os, "memfd_create"):
            raise UserError(
                f"SAC_ENV_PYTHON={settings.python} needs Linux: to play a policy here, install the simulator in this "
                "Python, and begin the command with `SAC_ENV_PYTHON= python tfagents_system/run.py`"
            )
        self.user_env = self
        self._settings, self._timeout_secs = settings, settings.step_timeout_secs
        self.name = "the environment"
        self._dead: str | None = None  # Why it can't be used any more.
        self._process: subprocess.Popen[bytes] | None = None
        self._mark = f"{os.getpid()}.{time.monotonic_ns()}"
        self._memory: SharedMemory | None = None  # Of a vector environment.
        self._trace, self._memory_fd = os.memfd_create("trace"), os.memfd_create("memory")
        try:
            self._process, connection = _start(settings.python, self._mark, self._trace, self._memory_fd)
            self._connection = Connection(connection)
            self.pid = self._process.pid
            self._build(params, what)
        except BaseException:
            self._kill()
            raise

    def _build(self, params: TrainParamsBase, what: Mapping[str, Any]) -> None:
        source = params._source
        if source is None:
            raise UserError("SAC_ENV_PYTHON needs TrainParams from a file: load them with load_params")
        settings = {name: getattr(source, name) for name in ("env_config", "compute_config", "attributes")}
        files = {"path": str(source.path), "origin": str(source.origin) if source.origin else "", "settings": settings}
        try:
            answer = self._call("build", files, what, secs=build_timeout_secs(self._timeout_secs))
        except UserError as error:
            hint = ": import inside the hooks what only one side has" if "No module named" in str(error) else ""
            where = f"{hint} (SAC_ENV_PYTHON={self._settings.python})"
            raise UserError(*(f"{finding}{where}" for finding in error.findings)) from None
        self.name, frames_per_second, goal_functions, memory_bytes, attributes = answer
        vars(self).update(attributes)
        if memory_bytes:
            self._memory = SharedMemory(self._memory_fd, memory_bytes)
        self.metadata = {"render_fps": frames_per_second}
        for name in goal_functions:  # The other side passes an empty `info`.
            setattr(self, name, lambda achieved, desired, info, name=name: self._call(name, achieved, desired))

    def layers(self) -> Iterator[Any]:
        yield self

    def reseed(self, seed: int) -> None:
        self._seed_for_reset = seed

    def set_evaluation_episode(self, number: int) -> None:
        """Which of an evaluation's episodes the next reset begins."""
        self._evaluation_episode = number

    def reset(self) -> Any:
        seed, episode = self._seed_for_reset, self._evaluation_episode
        self._seed_for_reset = self._evaluation_episode = None
        return unpack(self._call("reset", seed, episode))

    def reset_lanes(self, mask: np.ndarray) -> dict[int, Any]:
        return {lane: unpack(packed) for lane, packed in self._call("reset_lanes", mask).items()}

    def step(self, action: Any) -> Any:
        """Takes a step; infos contain only what training uses, and observations of lanes are valid until the next."""
        if (memory := self._memory) is not None:
            memory.clear()
            observation, columns, last, infos = self._call("step", pack(action, memory))
            columns = {name: column.copy() for name, column in unpack(columns, memory).items()}
            last = {lane: unpack(packed, memory) for lane, packed in last.items()}
            return LanesStep(unpack(observation, memory), infos=infos, last=last, **columns)
        packed, *rest = self._call("step", pack(action))
        reward, discount, is_over, info = rest
        return unpack(packed), reward, discount, is_over, info

    def set_state(self, state: Mapping[str, Any]) -> None:
        plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in state.items()}
        self._call("set_state", plain)

    def render(self) -> Any:
        return self._call("render")

    def close(self) -> None:
        """Closes the environment and ends its process."""
        if self._dead is None:
            with contextlib.suppress(EnvironmentProcessError, UserError):
                self._call("close", secs=_CLOSE_SECS)
        self._dead = self._dead or "its process has been closed"
        self._kill()

    # Requests and answers.

    def _call(self, name: str, *arguments: Any, secs: float | None = None) -> Any:
        """What a method of the environment returns, within so many seconds; None: those of a step."""
        if self._dead is not None:
            raise EnvironmentDiedError(self._dead)
        what = f"{name}()" if name != "build" else "its construction"
        self._dead = f"{what} was interrupted"  # Until its answer is here, which no other call must get.
        try:
            self._connection.send((name, arguments))
            self._wait(what, self._timeout_secs if secs is None else secs)
            error, content = self._connection.receive()
        except (EOFError, OSError):
            self._raise_death(what)
        self._dead = None
        if error is not None:
            raise error(*content)
        return content

    def _wait(self, what: str, timeout_secs: float) -> None:
        """Waits for the next message.

        Time is counted in waits of a second, not by the clock: the environment must not be blamed if this process is
        stopped for minutes. Python's signal handlers run in between.
        """
        waited_secs = 0.0
        while not self._connection.poll(_SLICE_SECS):
            waited_secs += _SLICE_SECS
            if self._settings.on_wait():
                self._raise_hang(f"{what} was waited for when the worker was told to stop")
            if waited_secs >= timeout_secs:
                self._raise_hang(f"{what} has not returned for {timeout_secs:g} s (SAC_STEP_TIMEOUT_SECS)")
            if waited_secs % _SPEAK_SECS == 0:
                logging.info("waiting %d s for %s of %r", waited_secs, what, self)

    def _raise_hang(self, text: str) -> NoReturn:
        os.kill(self.pid, TRACE_SIGNAL)
        processes.wait_until(lambda: bool(self._trace_text()), _TRACE_SECS)
        time.sleep(0.02)  # For the rest of the trace.
        self._die(f"{text}{self._users_line()}: its process was killed")

    def _raise_death(self, what: str) -> NoReturn:
        assert self._process is not None
        try:
            code = self._process.wait(_CLOSE_SECS)
        except subprocess.TimeoutExpired:
            self._die(f"its process closed the connection in {what}{self._users_line()}")
        if code in (_TOO_OLD, _NO_NUMPY):
            lack = "is older than Python 3.9" if code == _TOO_OLD else "has no NumPy"
            remedy = "give a newer one" if code == _TOO_OLD else f"{self._settings.python} -m pip install numpy"
            self._dead = f"the interpreter {lack}: {remedy}"
            raise UserError(self._dead)
        ended = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
        self._die(f"its process ended with {ended} in {what}{self._users_line()}")

    def _die(self, text: str) -> NoReturn:
        self._dead = text
        trace = self._trace_text()
        if trace:
            logging.error("%s: where it was, the latest call first", text)
            print(trace, file=sys.stderr, flush=True)
        self._kill()
        raise EnvironmentDiedError(text)

    def _kill(self) -> None:
        """Ends the process and its children, in other sessions too; does nothing the second time."""
        if self._trace < 0:
            return
        os.close(self._trace)
        os.close(self._memory_fd)
        self._trace = -1
        if (process := self._process) is None:
            return
        self._connection.close()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        stuck = processes.end_marked([f"{_MARK_VARIABLE}={self._mark}"])
        # A process stuck while exiting has no environment variables any more: its mark does not find it.
        if not stuck and not processes.wait_until(lambda: process.poll() is not None, processes.KILL_SECS):
            stuck = [process.pid]
        if stuck:
            logging.warning("%s", processes.describe_stuck("the process of an environment", stuck))

    def _trace_text(self) -> str:
        """The process's report on its threads."""
        return os.pread(self._trace, _TRACE_BYTES, 0).decode(errors="replace")

    def _users_line(self) -> str:
        return line_of_trace(self._trace_text(), "env_server.py")


def _start(python: Path, mark: str, *memory_fds: int) -> tuple[subprocess.Popen[bytes], socket.socket]:
    ours, theirs = socket.socketpair()
    with theirs:
        descriptors = (theirs.fileno(), *memory_fds)
        command = [str(python), "-c", _BOOT, str(_ROOT), *map(str, descriptors), str(os.getpid())]
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                env={**_environ_of_another_python(os.environ), _MARK_VARIABLE: mark},
                pass_fds=descriptors,
                process_group=0,  # Its children end with it, and Ctrl-C does not reach it.
            )
        except OSError as error:
            ours.close()
            raise UserError(
                f"SAC_ENV_PYTHON={python} can't be started ({error.strerror}): give the path of a Python interpreter"
            ) from None
    return process, ours


def _environ_of_another_python(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without the packages of this Python in PYTHONPATH, where the launchers have put them, and with
    what they have taken out of it for this Python.
    """
    if other := environ.get("TFAGENTS_OTHER_PYTHONPATH"):
        environ = {**environ, "PYTHONPATH": os.pathsep.join(filter(None, [environ.get("PYTHONPATH"), other]))}
    if (_ROOT / "setup.sh").is_file() or "PYTHONPATH" not in environ:
        return dict(environ)
    folders = [folder for folder in environ["PYTHONPATH"].split(os.pathsep) if folder and Path(folder) != _ROOT]
    return {**environ, "PYTHONPATH": os.pathsep.join(folders)}
