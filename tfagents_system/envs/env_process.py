"""The worker's side of an environment in a process of its own (SAC_ENV_PYTHON): looks like a Gymnasium environment.

A process can be killed when it hangs, it takes a leak with it, and it may have another Python, another NumPy, or
packages that do not fit beside TensorFlow. What passes between the two is described in wire.py.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from absl import logging

from tfagents_system.envs import wire
from tfagents_system.envs.env_server import TRACE_SIGNAL
from tfagents_system.envs.faults import EnvironmentProcessError, line_of_trace
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
_MARK_VARIABLE = "TFAGENTS_ENV_PROCESS"  # In the environment of the process and of all that it starts.

# Any Python can read it, so that one that is too old says so.
_TOO_OLD, _NO_NUMPY = 97, 98
_BOOT = f"""
import sys
if sys.version_info < (3, 9):
    sys.exit({_TOO_OLD})
sys.path[:] = [sys.argv[1]] + [folder for folder in sys.path if folder]
try:
    import numpy
except ImportError:
    sys.exit({_NO_NUMPY})
from tfagents_system.envs.env_server import main
main()
"""


def build_timeout_secs(step_timeout_secs: float) -> float:
    """How long an environment may take to be built: loading models, compiling, asking for a licence."""
    return max(_MIN_BUILD_TIMEOUT_SECS, _BUILD_TIMES_STEP * step_timeout_secs)


@dataclasses.dataclass(frozen=True)
class ProcessSettings:
    """How environments run in processes of their own.

    Attributes:
      python: The interpreter.
      step_timeout_secs: After which a step, reset or other call is taken for hung.
      on_wait: Called about once a second while an environment is waited for; True gives up.
    """

    python: Path
    step_timeout_secs: float = DEFAULT_STEP_TIMEOUT_SECS
    on_wait: Callable[[], bool] = lambda: False

    @classmethod
    def from_environ(
        cls, environ: Mapping[str, str], on_wait: Callable[[], bool] = lambda: False
    ) -> ProcessSettings | None:
        """As SAC_ENV_PYTHON and SAC_STEP_TIMEOUT_SECS say; None: environments run in the worker itself."""
        python = environ.get("SAC_ENV_PYTHON", "").strip()
        if not python:
            return None
        return cls(Path(python).expanduser().absolute(), step_timeout_secs(environ), on_wait)


def step_timeout_secs(environ: Mapping[str, str]) -> float:
    """SAC_STEP_TIMEOUT_SECS."""
    return float(environ.get("SAC_STEP_TIMEOUT_SECS") or DEFAULT_STEP_TIMEOUT_SECS)


class EnvProcess:
    """An environment that runs in a process of its own.

    Observations are views of memory that the next step overwrites: copy what is to stay.

    Args:
      settings: Under which interpreter, and how long to wait.
      params: What `load_params` returned: the process loads the same.
      what: `kind` (collect, eval or play), `seed`, and `env_id` or `render`.

    Attributes:
      observation_space, action_space: As the environment has them.
      metadata: With the frames per second that it tells.
      pid: Of its process.

    Raises:
      UserError: This is not Linux, or the interpreter, the params file under it, or the environment can't be used.
      EnvironmentProcessError: It raised while it was built, or its process died or hung.
    """

    render_mode = "rgb_array"

    def __init__(self, settings: ProcessSettings, params: TrainParamsBase, what: Mapping[str, Any]) -> None:
        if not hasattr(os, "memfd_create"):
            raise UserError(
                f"SAC_ENV_PYTHON={settings.python} needs Linux: to play a policy here, install the simulator in this "
                "Python, and begin the command with `SAC_ENV_PYTHON= python tfagents_system/run.py`"
            )
        self._settings = settings
        self._timeout_secs = settings.step_timeout_secs
        self._dead: str | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._mark = f"{os.getpid()}.{time.monotonic_ns()}"
        self._trace = os.memfd_create("trace")
        memory = os.memfd_create("environment")
        try:
            self._process, self._connection = self._start(memory)
            self.pid = self._process.pid
            self._build(params, what, memory)
        except BaseException:
            self._kill()
            raise
        finally:
            os.close(memory)

    def _start(self, memory: int) -> tuple[subprocess.Popen[bytes], socket.socket]:
        ours, theirs = socket.socketpair()
        with theirs:
            descriptors = (theirs.fileno(), memory, self._trace)
            command = [str(self._settings.python), "-c", _BOOT, str(_ROOT), *map(str, descriptors), str(os.getpid())]
            try:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    env={**os.environ, _MARK_VARIABLE: self._mark},
                    pass_fds=descriptors,
                    process_group=0,  # What it starts is ended with it, and a Ctrl-C is not for it.
                )
            except OSError as error:
                ours.close()
                raise UserError(
                    f"SAC_ENV_PYTHON={self._settings.python} can't be started ({error.strerror}): "
                    "give the path of a Python interpreter"
                ) from None
        # A read returns now and then, to see how long it has taken. A signal handler of Python's runs meanwhile.
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", int(_SLICE_SECS), 0))
        return process, ours

    def _build(self, params: TrainParamsBase, what: Mapping[str, Any], memory: int) -> None:
        source = params._source
        if source is None:
            raise UserError("SAC_ENV_PYTHON needs TrainParams from a file: load them with load_params")
        request = {
            "params": str(source.path),
            "origin": str(source.origin) if source.origin else None,
            "env_config": source.env_config,
            "compute_config": source.compute_config,
            "attributes": source.attributes,
            **what,
        }
        self._send(wire.CALL, request)
        try:
            told, _ = self._answer("its construction", build_timeout_secs(self._timeout_secs))
        except UserError as error:
            raise UserError(*map(self._explain, error.findings)) from None
        self._memory = wire.StepMemory(memory, told["action"], told["observation"], create=False)
        self._write_action = wire.writer(told["action"], self._memory.action, "action")
        self.action_space, self.observation_space = _space(told["action"]), _space(told["observation"])
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": told["frames_per_second"]}
        self._name = str(told["name"])

    def _explain(self, finding: str) -> str:
        """A finding from the other side, with the interpreter that it is of."""
        hint = ": import inside the hooks what only one side has" if "No module named" in finding else ""
        return f"{finding}{hint} (SAC_ENV_PYTHON={self._settings.python})"

    def __repr__(self) -> str:
        return f"{self._name} in process {self.pid}"

    # As of a Gymnasium environment.

    def reset(self, *, seed: int | None = None) -> tuple[Any, dict[str, Any]]:
        """Starts an episode."""
        self._send(wire.RESET, {"seed": seed})
        self._take_turn("reset()")
        return self._memory.observation, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Takes a step; of the info only what training looks at."""
        if self._dead is not None:
            raise EnvironmentProcessError(self._dead)
        self._write_action(action)
        try:
            self._connection.send(wire.STEP)
        except OSError:
            self._raise_death("step()")
        self._take_turn("step()")
        return (self._memory.observation, *self._memory.result())

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Sets parameters, as `Backend.set_state` does."""
        self._send(wire.CALL, {"call": "set_state", "state": _plain(state)})
        self._answer("set_state()", self._timeout_secs)

    def render(self) -> np.ndarray:
        """A picture, `[H, W, 3]` uint8."""
        self._send(wire.CALL, {"call": "render"})
        told, data = self._answer("render()", self._timeout_secs)
        return np.frombuffer(data, np.uint8).reshape(told["shape"])

    def close(self) -> None:
        """Closes the environment and ends its process."""
        if self._dead is None:
            with contextlib.suppress(EnvironmentProcessError, UserError):
                self._send(wire.CALL, {"call": "close"})
                self._answer("close()", _CLOSE_SECS)
        self._dead = self._dead or "its process has been closed"
        self._kill()

    # Its process.

    def _send(self, kind: bytes, content: Mapping[str, Any]) -> None:
        if self._dead is not None:
            raise EnvironmentProcessError(self._dead)
        try:
            wire.send_message(self._connection, kind, content)
        except OSError:
            self._raise_death("a call")

    def _take_turn(self, what: str) -> None:
        """Waits for the answer to a step or reset."""
        if self._byte(what, self._timeout_secs) == wire.FAILED:
            self._raise_failure()

    def _answer(self, what: str, timeout_secs: float) -> tuple[dict[str, Any], bytes]:
        """Waits for the answer to a call."""
        if self._byte(what, timeout_secs) == wire.FAILED:
            self._raise_failure()
        return self._content()

    def _raise_failure(self) -> NoReturn:
        told, _ = self._content()
        if "findings" in told:
            raise UserError(*told["findings"])
        raise EnvironmentProcessError(told["error"])

    def _content(self) -> tuple[dict[str, Any], bytes]:
        try:
            return wire.receive_content(self._connection)
        except (EOFError, OSError):
            self._raise_death("an answer")

    def _byte(self, what: str, timeout_secs: float) -> bytes:
        """The first byte of the answer.

        The time is counted in waits of a second, not by the clock: if this process is stopped for minutes, the
        environment is not to blame.
        """
        waits = 0
        while True:
            try:
                byte = self._connection.recv(1)
            except BlockingIOError:
                pass
            except OSError:
                byte = b""
            else:
                if byte:
                    return byte
                self._raise_death(what)
            waits += 1
            waited_secs = waits * _SLICE_SECS
            if self._settings.on_wait():
                self._raise_hang(f"{what} was waited for when the worker was told to stop")
            if waited_secs >= timeout_secs:
                self._raise_hang(f"{what} has not returned for {timeout_secs:g} s (SAC_STEP_TIMEOUT_SECS)")
            if waited_secs % _SPEAK_SECS == 0:
                logging.info("waiting %d s for %s of %r", waited_secs, what, self)

    def _raise_hang(self, text: str) -> NoReturn:
        os.kill(self.pid, TRACE_SIGNAL)
        deadline = time.monotonic() + _TRACE_SECS
        while not self._trace_text() and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(0.02)  # The rest of it.
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
        raise EnvironmentProcessError(text)

    def _kill(self) -> None:
        """Ends the process and what it has started, in other sessions too; does nothing the second time."""
        if self._trace < 0:
            return
        os.close(self._trace)
        self._trace = -1
        if self._process is not None:
            self._connection.close()
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            stuck = processes.end_marked([f"{_MARK_VARIABLE}={self._mark}"])
            # One that is stuck while it ends has no environment any more: it is not found by its mark.
            if not stuck and not processes.wait_until(self._has_ended, processes.KILL_SECS):
                stuck = [self._process.pid]
            if stuck:
                logging.warning("%s", processes.describe_stuck("the process of an environment", stuck))

    def _has_ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def _trace_text(self) -> str:
        """What the process told of its threads."""
        return os.pread(self._trace, _TRACE_BYTES, 0).decode(errors="replace")

    def _users_line(self) -> str:
        return line_of_trace(self._trace_text(), "env_server.py")


def _plain(state: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value.item() if isinstance(value, np.generic) else value for name, value in state.items()}


def _space(description: Mapping[str, Any]) -> Any:
    """The Gymnasium space of a description (see `wire.describe_space`)."""
    from gymnasium import spaces  # Here: workers without such environments should not pay for it.

    kind = description["kind"]
    if kind == "Dict":
        return spaces.Dict({key: _space(sub) for key, sub in description["spaces"].items()})
    if kind == "Tuple":
        return spaces.Tuple([_space(sub) for sub in description["spaces"]])
    if kind == "Discrete":
        return spaces.Discrete(description["n"], start=description["start"])
    if kind == "MultiDiscrete":
        return spaces.MultiDiscrete(np.array(description["nvec"]), start=np.array(description["start"]))
    if kind == "MultiBinary":
        return spaces.MultiBinary(description["shape"])
    dtype, shape = np.dtype(description["dtype"]), tuple(description["shape"])
    low, high = (np.broadcast_to(np.array(description[side], dtype), shape) for side in ("low", "high"))
    return spaces.Box(low, high, shape, dtype.type)
