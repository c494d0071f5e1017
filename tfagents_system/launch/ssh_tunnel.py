"""A tunnel by the `ssh` program: a port of this machine's loopback leads to one that another machine reaches."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import tempfile
import threading
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
    """Opened at once, and again whenever it breaks, until it is closed.

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
        self._is_closing = threading.Event()
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
        self._thread = threading.Thread(target=self._stay_open, name=f"tunnel to {host}", daemon=True)
        self._thread.start()

    def __enter__(self) -> Tunnel:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._is_closing.set()
        self._thread.join()

    def _try_to_open(self) -> str:
        """As `_open`; what the system refuses (processes, memory, file descriptors) is a reason, too."""
        try:
            return self._open()
        except OSError as error:
            return str(error)

    def _open(self) -> str:
        """Starts ssh and waits until it is connected and listens; returns why it does not, empty if it does."""
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
        deadline = time.monotonic() + _OPEN_SECS
        while os.geteuid() not in peers.users_listening(self._port):
            if self._process.poll() is not None:
                return self._words()
            if self._is_closing.wait(_LOOK_SECS) or time.monotonic() > deadline:
                self._end()
                return f"not in {_OPEN_SECS:.0f} s"
        return ""

    def _stay_open(self) -> None:
        backoff_secs, spoke_at, why = _FIRST_BACKOFF_SECS, float("-inf"), ""
        while not self._is_closing.wait(_LOOK_SECS):
            if self._process is not None and self._process.poll() is None:
                backoff_secs = _FIRST_BACKOFF_SECS
                continue
            if time.monotonic() - spoke_at > _SPEAK_SECS:
                spoke_at = time.monotonic()
                print(
                    f"the tunnel by ssh {self._host} is broken ({why or self._words()}): it is opened again", flush=True
                )
            self._is_closing.wait(backoff_secs)
            backoff_secs = min(2 * backoff_secs, _MAX_BACKOFF_SECS)
            if not self._is_closing.is_set():
                why = self._try_to_open()
        self._end()

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
