"""A machine where the user has a login: what its run gives to workers is fetched by ssh, which opens a tunnel.

Nothing runs there but `sh` and `tar`, for a moment. The tunnel leads to the gateway and not to the replay server: the
gateway gives out slots and compares versions and inputs, and refuses others who reach an end of the tunnel.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tfagents_system.errors import UserError
from tfagents_system.machine import peers, processes
from tfagents_system.machine.files import read_json
from tfagents_system.report.status import is_dead
from tfagents_system.run_files.heartbeat import read_status
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.transport.credentials import CERTIFICATE, KEY

# A connection of its own: a shared one (ControlMaster) would keep the tunnel open when this program has ended. In batch
# mode, since nobody can enter a password when it breaks at night.
_ALIVE = ("-o", "ConnectTimeout=20", "-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=3")
_ALONE = ("-o", "BatchMode=yes", "-o", "RemoteCommand=none", "-o", "ControlMaster=no", "-o", "ControlPath=none")
_COMMAND = ("ssh", "-T", "-a", "-x", *_ALIVE, *_ALONE)
_OPEN_SECS, _END_SECS = 60.0, 5.0
_AGAIN_SECS, _SPEAK_SECS = 5.0, 60.0
_LOOK_SECS = 0.1
_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1
_FETCH_SECS = 120.0
_FILES = "run.json status.json gateway.json params.py params config.json input_files specs.pbtxt"
_MARK = re.compile(rb"^TFAGENTS_RUN (\d+) (\S+)\n", re.MULTILINE)  # A login shell may print something before it.
_NO_RUN, _SSH_FAILS = 65, 255
_CHANGED = 1  # Of GNU tar: a file was replaced while it was read, such as status.json; what came is whole.
_FETCH = f"""
cd -- {{folder}} && [ -r run.json ] || exit {_NO_RUN}
set --
for file in {_FILES} credentials/{CERTIFICATE} credentials/{KEY}; do [ -r "$file" ] && set -- "$@" "$file"; done
printf 'TFAGENTS_RUN %s %s\\n' "$(date +%s)" "$(uname -n)"
exec tar -cf - -- "$@"
"""


def gateway_address(run: RunPaths, machine: str | None = None) -> str | None:
    """`host:port` of a run's gateway, as it is reached from a machine, by default this one; None before it is up."""
    gateway = read_json(run.gateway_json) or {}
    if not {"host", "port"} <= gateway.keys():
        return None
    is_there = gateway.get("machine") == (machine or socket.gethostname())
    return f"{'127.0.0.1' if is_there else gateway['host']}:{gateway['port']}"


@contextlib.contextmanager
def fetch_run(host: str, folder: Path, copy: Path) -> Iterator[SshRun]:
    """The run for as long as it is needed; then its copy is removed. See SshRun."""
    try:
        yield SshRun(host, folder, copy)
    finally:
        shutil.rmtree(copy, ignore_errors=True)
        with contextlib.suppress(OSError):  # Workers have left their logs beside it.
            os.removedirs(copy.parent)


class SshRun:
    """A run on another machine: its inputs are copied here, with its credentials.

    Args:
      host: As `ssh` takes it: `user@node7`, a name of ~/.ssh/config, or `ssh://user@node7:2222`.
      folder: The run directory there, absolute or relative to the home directory.
      copy: Where the inputs are put; anything there is removed.

    Attributes:
      paths: Of the copy.
      name: `host:folder`.
      state: `running`, `done`, ... as its status says, or `dead`.
      gateway: `host:port` of its gateway, as its machine reaches it.

    Raises:
      UserError: There is no `ssh`, the host does not let us in, or there is no such run with a gateway.
    """

    def __init__(self, host: str, folder: Path, copy: Path) -> None:
        if not re.fullmatch(r"[^-\s]\S*", host):
            raise UserError(f"--ssh {host!r} must be a host as ssh takes it, such as user@node7")
        if shutil.which("ssh") is None:
            raise UserError("--ssh needs the program ssh, which is not installed here (Debian: openssh-client)")
        self.host, self.paths, self.name = host, RunPaths(copy), f"{host}:{folder}"
        shutil.rmtree(copy, ignore_errors=True)
        self.paths.credentials.mkdir(mode=0o700, parents=True)
        copy.chmod(0o700)
        now, machine = self._fetch(shlex.quote(str(folder).removeprefix("~/")))
        status = read_status(self.paths.status_json) or {"run": {}}
        self.state = "dead" if is_dead(status, now) else str(status["run"].get("state", "not started"))
        # On a cluster the login is on one machine, and the run on another.
        gateway = gateway_address(self.paths, machine)
        if gateway is None:
            raise UserError(
                f"the run {self.name} has no gateway: start it with SAC_GATEWAY_PORT=0 to let others join, or wait "
                "until it is up"
            )
        self.gateway = gateway
        if not (self.paths.credentials / KEY).exists():
            raise UserError(
                f"{self.name}/credentials can't be read or is missing: log in as the user who has started the run; "
                "where SAC_CREDENTIALS_DIR has others, join with --server, --credentials"
            )

    def tunnel(self) -> SshTunnel:
        """Opens one to the gateway.

        Raises:
          UserError: The run is not running, or no tunnel can be opened.
        """
        if self.state != "running":
            raise UserError(
                f"the run {self.name} is {self.state}, not running: start it there with run_script.sh first"
            )
        return SshTunnel(self.host, self.gateway)

    def environ(self) -> dict[str, str]:
        """The variables of its workers: params with the files beside them, as the run has copied them."""
        params = Path(str((read_json(self.paths.run_json) or {}).get("params_kept") or self.paths.params)).name
        kept = self.paths.params_folder / params
        return {
            "SAC_EXP_DIR": str(self.paths.exp_dir),
            "SAC_PARAMS": str(kept if kept.is_file() else self.paths.params),
            "SAC_CONFIG": str(self.paths.config),
        }

    def _fetch(self, folder: str) -> tuple[float, str]:
        """Copies what is needed; returns the time there, in Unix seconds, and the machine's name."""
        try:
            result = subprocess.run(
                [*_COMMAND, "--", self.host, "sh -s"],
                input=_FETCH.format(folder=folder).encode(),
                capture_output=True,
                timeout=_FETCH_SECS,
                start_new_session=True,
            )
        except subprocess.TimeoutExpired:
            raise UserError(f"ssh {self.host} fails (no end in {_FETCH_SECS:.0f} s): try it by hand") from None
        words = _last_words(result.stderr)
        if result.returncode == _NO_RUN:
            raise UserError(
                f"{self.name} is no run directory, or {self.host} can't read it: give --to the one there, absolute or "
                "relative to the home directory"
            )
        mark = _MARK.search(result.stdout)
        if result.returncode == _SSH_FAILS or mark is None:
            raise UserError(
                f"ssh {self.host} fails ({words or f'exit code {result.returncode}'}): log in once by hand, so that "
                "the host is known, and with a key that asks for nothing (ssh-copy-id, ssh-add), until `ssh -o "
                f"BatchMode=yes {self.host} true` works"
            )
        try:
            with tarfile.open(fileobj=io.BytesIO(result.stdout[mark.end() :])) as archive:
                archive.extractall(self.paths.exp_dir, filter="data")
        except (tarfile.TarError, OSError) as error:
            words = words or str(error)
        if result.returncode not in (0, _CHANGED) or not self.paths.run_json.exists():
            raise UserError(f"the files of {self.name} can't be read by {self.host} ({words}): log in as their owner")
        return float(mark[1]), mark[2].decode(errors="replace")


class SshTunnel:
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
        self._host = host
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.server = f"127.0.0.1:{port}"
        self._command = [*_COMMAND, "-N", "-o", "ExitOnForwardFailure=yes", "-L", f"{self.server}:{target}", "--", host]
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  # ssh's messages.
        self._process: subprocess.Popen[bytes] | None = None
        self._again_at, self._spoke_at = 0.0, float("-inf")
        self._start()
        deadline = time.monotonic() + _OPEN_SECS
        while os.geteuid() not in peers.users_listening(port):
            if self._process is None or self._process.poll() is not None or time.monotonic() > deadline:
                why = self._why()
                self.close()
                raise UserError(
                    f"ssh {host} opens no tunnel from port {port} here to {target} there ({why}): sshd must allow it "
                    "(AllowTcpForwarding)"
                )
            time.sleep(_LOOK_SECS)

    def look(self) -> None:
        """Starts ssh again if it has ended; to be called again and again, waits for nothing."""
        now = time.monotonic()
        if now < self._again_at or (self._process is not None and self._process.poll() is None):
            return
        if now - self._spoke_at > _SPEAK_SECS:
            self._spoke_at = now
            print(f"the tunnel by ssh {self._host} is broken ({self._why()}): it is opened again", flush=True)
        self._start()

    def close(self) -> None:
        if self._process is not None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_SECS)
            self._process.kill()
            self._process.wait()

    def _start(self) -> None:
        self._again_at = time.monotonic() + _AGAIN_SECS
        self._log.seek(0)
        self._log.truncate()
        self._process = None
        try:
            self._process = processes.start_apart(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._log,
                start_new_session=True,  # Ctrl-C must not reach it: workers then still send what they have.
                preexec_fn=lambda: _LIBC.prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0),
            )
        except OSError as error:  # No process, memory or file descriptor.
            self._log.write(str(error).encode())

    def _why(self) -> str:
        """Why it is not open, in ssh's words."""
        self._log.seek(0)
        code = None if self._process is None else self._process.poll()
        return _last_words(self._log.read()) or ("no answer" if code is None else f"it ended with exit code {code}")


def _last_words(output: bytes) -> str:
    """The last lines that ssh has written to standard error, joined."""
    lines = [line.strip() for line in output.decode(errors="replace").splitlines()]
    return "; ".join([line for line in lines if line][-3:])[-300:]
