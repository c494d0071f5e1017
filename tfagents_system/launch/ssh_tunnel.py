"""A tunnel by the `ssh` program: a port of this machine's loopback leads to one that another machine reaches."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import tempfile
import time
from types import TracebackType

from tfagents_system.errors import UserError
from tfagents_system.machine import peers, processes

# A connection of its own: a shared one (ControlMaster) would keep the tunnel open when this program has ended. In batch
# mode, since nobody can enter a password when it breaks at night.
COMMAND = (
    *("ssh", "-T", "-a", "-x", "-o", "BatchMode=yes", "-o", "ConnectTimeout=20", "-o", "RemoteCommand=none"),
    *(
        "-o",
        "ServerAliveInterval=15",
        "-o",
        "ServerAliveCountMax=3",
        "-o",
        "ControlMaster=no",
        "-o",
        "ControlPath=none",
    ),
)
_OPEN_SECS, _END_SECS = 60.0, 5.0
_FIRST_BACKOFF_SECS, _MAX_BACKOFF_SECS, _SPEAK_SECS = 1.0, 30.0, 60.0
_PORT_TRIES = 3
_LOOK_SECS = 0.1
_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1


class Tunnel:
    """Opened at once, and by `look` whenever it has broken, until it is closed.

    Args:
      host: As `ssh` takes it.
      target: `host:port`, as the host reaches it.

    Attributes:
      server: `127.0.0.1:port`, the local end.

    Raises:
      UserError: It can't be opened.
    """

    def __init__(self, host: str, target: str) -> None:
        self._host, self._target = host, target
        self._open_at, self._spoke_at, self._backoff_secs = 0.0, float("-inf"), _FIRST_BACKOFF_SECS
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  # ssh's messages.
        self._process: subprocess.Popen[bytes] | None = None
        for _ in range(_PORT_TRIES):
            with socket.create_server(("127.0.0.1", 0)) as free:
                self._port = free.getsockname()[1]
            why = self._try_to_open()
            if "in use" not in why:  # Else another program took the port first.
                break
        if why:
            raise UserError(
                f"ssh {host} opens no tunnel from port {self._port} here to {target} there ({why}): sshd must allow it "
                "(AllowTcpForwarding)"
            )
        self.server = f"127.0.0.1:{self._port}"

    def __enter__(self) -> Tunnel:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end()

    def _try_to_open(self) -> str:
        """Waits until ssh is connected and listens; returns why it does not, empty if it does."""
        try:
            process = self._start()
        except OSError as error:  # No process, memory or file descriptor.
            return str(error)
        deadline = time.monotonic() + _OPEN_SECS
        while os.geteuid() not in peers.users_listening(self._port):
            if process.poll() is not None:
                return self._words()
            if time.monotonic() > deadline:
                self._end()
                return f"not in {_OPEN_SECS:.0f} s"
            time.sleep(_LOOK_SECS)
        return ""

    def _start(self) -> subprocess.Popen[bytes]:
        self._log.seek(0)
        self._log.truncate()
        forward = f"127.0.0.1:{self._port}:{self._target}"
        self._process = None
        self._process = processes.start_apart(
            [*COMMAND, "-N", "-o", "ExitOnForwardFailure=yes", "-L", forward, "--", self._host],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._log,
            start_new_session=True,  # Ctrl-C must not reach it: workers then still send what they have.
            preexec_fn=lambda: _LIBC.prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0),
        )
        return self._process

    def look(self) -> None:
        """Starts ssh again if it has ended; to be called again and again, waits for nothing."""
        now = time.monotonic()
        if self._process is not None and self._process.poll() is None:
            if now - self._open_at > _MAX_BACKOFF_SECS:
                self._backoff_secs = _FIRST_BACKOFF_SECS
            return
        if now < self._open_at:
            return
        why = self._words()
        try:
            self._start()
        except OSError as error:
            why = str(error)
        self._open_at = now + self._backoff_secs
        self._backoff_secs = min(2 * self._backoff_secs, _MAX_BACKOFF_SECS)
        if now - self._spoke_at > _SPEAK_SECS:
            self._spoke_at = now
            print(f"the tunnel by ssh {self._host} is broken ({why}): it is opened again", flush=True)

    def _end(self) -> None:
        if self._process is None:
            return
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECS)
        self._process.kill()
        self._process.wait()

    def _words(self) -> str:
        self._log.seek(0)
        code = None if self._process is None else self._process.returncode
        return last_words(self._log.read()) or f"it ended with exit code {code}"


def last_words(output: bytes) -> str:
    """The last lines that ssh has written to standard error, joined."""
    lines = [line.strip() for line in output.decode(errors="replace").splitlines()]
    return "; ".join([line for line in lines if line][-3:])[-300:]
