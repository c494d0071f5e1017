"""The client of the fork server (fork_server.py)."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection, Pipe
from multiprocessing.reduction import send_handle
from pathlib import Path
from typing import Any

from tfagents_system.launch.fork_messages import BEGIN, NO_MARK, CallRequest, ForkRequest, ForkServerError
from tfagents_system.launch.forked_process import ForkedProcess, become_subreaper, has_ended
from tfagents_system.launch.python_path import run_python_path
from tfagents_system.launch.role_process import MARK_VARIABLE
from tfagents_system.machine.processes import KILL_SECS, wait_until
from tfagents_system.machine.signals import SUPERVISOR_PID_VARIABLE

HANDLE_VARIABLE = "TFAGENTS_FORK_SERVER"  # `<file descriptor>,<pid>`, for the program that replaces prepare.
_READY_SECS = 300.0  # A network file system may take minutes for the first import.
_FORK_SECS = 30.0
# TensorFlow reads both when it is imported, for all that is forked later: roles write its errors, as programs would.
_TENSORFLOW = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1"}
# NumPy's BLAS starts its threads when it is imported.
_SINGLE_THREADED = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class ForkServer:
    """The client's end: one process has it at a time.

    Args:
      pid: The server's, a child of this process.
    """

    def __init__(self, connection: Connection, pid: int) -> None:
        self._connection = connection
        self.pid = pid
        self._is_ready = False
        self._has_ended = False

    @classmethod
    def start(cls, environ: Mapping[str, str]) -> ForkServer:
        """Starts a server, which begins to import; `wait_until_ready` waits for it.

        Args:
          environ: Its environment; what marks a run's processes (SAC_EXP_DIR) must be in it: the kernel shows this one
            for forked roles as well.
        """
        ours, theirs = _pipe()
        own = {SUPERVISOR_PID_VARIABLE: str(os.getpid()), "PYTHONPATH": run_python_path(environ), **_TENSORFLOW}
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "tfagents_system.launch.fork_server", str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            env={**environ, **_SINGLE_THREADED, **own, MARK_VARIABLE: NO_MARK},
            pass_fds=[theirs.fileno()],
            start_new_session=True,  # A Ctrl-C in the terminal reaches the supervisor alone.
        )
        theirs.close()
        process.returncode = 0  # We wait for it, not Popen: another program may replace this one.
        return cls(ours, process.pid)

    @classmethod
    def inherited(cls) -> ForkServer | None:
        """The server that the program before this one, in the same process, had started; None if there is none."""
        handle = os.environ.pop(HANDLE_VARIABLE, "")
        if not handle:
            return None
        descriptor, pid = (int(part) for part in handle.split(","))
        try:
            os.set_inheritable(descriptor, False)
            server = cls(Connection(descriptor), pid)
        except OSError:
            return None
        server._is_ready = True
        return server

    def hand_over(self) -> tuple[int, str]:
        """For `inherited` in the program that replaces this one.

        Returns:
          The file descriptor to leave open, and the value of HANDLE_VARIABLE.

        Raises:
          ForkServerError: It can't be used.
        """
        self.wait_until_ready()
        descriptor = self._connection.fileno()
        os.set_inheritable(descriptor, True)
        return descriptor, f"{descriptor},{self.pid}"

    def wait_until_ready(self, stop: Callable[[], bool] = lambda: False) -> None:
        """Waits until everything is imported.

        Raises:
          ForkServerError: It can't be used.
        """
        if not self._is_ready:
            self._answer(_READY_SECS, stop)
            self._is_ready = True

    def is_ready(self) -> bool:
        """Whether everything is imported; does not wait.

        Raises:
          ForkServerError: It can't be used.
        """
        if not self._is_ready and self._connection.poll():
            self.wait_until_ready()
        return self._is_ready

    def call(
        self,
        module: str,
        function: str,
        *arguments: Any,
        environ: Mapping[str, str],
        watch: Callable[[], None] = lambda: None,
    ) -> Any:
        """The result of a function, called in a process of its own; what that leaves running is killed.

        Args:
          environ: The process's whole environment.
          watch: Called ten times a second while it runs.

        Raises:
          UserError: The function raised it.
          CallDiedError: The process died; it has written the traceback of any other exception.
          ForkServerError: The server can't be used.
        """
        self.wait_until_ready()
        self._send(CallRequest(module, function, arguments, dict(environ)))
        outcome = pickle.loads(self._answer(None, lambda: bool(watch())))
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def fork(
        self,
        module: str,
        name: str,
        environ: Mapping[str, str],
        log: Path,
        cpus: Sequence[int],
        arguments: Sequence[str] = (),
    ) -> ForkedProcess:
        """Starts a role, or another program of the toolkit, as a child of the calling process.

        Raises:
          ForkServerError: It was not started, and will not be.
        """
        self.wait_until_ready()
        become_subreaper()
        told, tell = Pipe(duplex=False)
        with tell:  # Closing it silently ends a role that was forked all the same.
            with told:
                self._send(ForkRequest(module, name, dict(environ), str(log), tuple(cpus), tuple(arguments)), told)
            process = ForkedProcess(self._answer(_FORK_SECS))
            with contextlib.suppress(OSError):  # Dead already: its exit code says so.
                tell.send(BEGIN)
            return process

    def close(self) -> None:
        """Ends the server; forked processes continue."""
        self._connection.close()
        self.reap()
        if not self._has_ended:
            os.kill(self.pid, signal.SIGKILL)
            wait_until(self._reaped, KILL_SECS)

    def _reaped(self) -> bool:
        self.reap()
        return self._has_ended

    def reap(self) -> None:
        """Notes that the server has ended: from then on its pid may be another process's."""
        if not self._has_ended:
            self._has_ended = has_ended(self.pid)

    def _send(self, message: ForkRequest | CallRequest, pipe: Connection | None = None) -> None:
        try:
            self._connection.send(message)
            if pipe is not None:
                send_handle(self._connection, pipe.fileno(), self.pid)
        except OSError as error:
            raise ForkServerError(f"the fork server is gone ({error.strerror})") from None

    def _answer(self, timeout_secs: float | None, stop: Callable[[], bool] = lambda: False) -> Any:
        deadline = None if timeout_secs is None else time.monotonic() + timeout_secs
        try:
            while not self._connection.poll(0.1):
                if deadline is not None and time.monotonic() > deadline:
                    raise ForkServerError(f"the fork server has not answered for {timeout_secs:g} s")
                if stop():
                    raise ForkServerError("stopped while the fork server was starting")
            is_fine, content = self._connection.recv()
        except (EOFError, OSError):
            raise ForkServerError("the fork server is gone") from None
        if not is_fine:
            raise ForkServerError(content)
        return content


def _pipe() -> tuple[Connection, Connection]:
    ours, theirs = socket.socketpair()
    return Connection(ours.detach()), Connection(theirs.detach())
