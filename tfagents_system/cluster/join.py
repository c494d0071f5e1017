"""Joins workers of this machine to a run, on another machine or this one, through its gateway.

All findings come together, before anything starts. Exit codes: 0 the run is finished, 1 it or all workers here failed,
2 bad input, 75 this command or the run was stopped.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import dataclasses
import datetime
import hashlib
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tfagents_system.errors import (
    EXIT_BAD_INPUT,
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_RESUMABLE,
    OptionParser,
    UserError,
    exit_with,
)
from tfagents_system.launch import forks, machine_checks
from tfagents_system.launch.cpus import plan_for
from tfagents_system.launch.forks import RoleStarter
from tfagents_system.launch.prepare import Preparation
from tfagents_system.launch.role_process import RoleProcess, end_orphans, say
from tfagents_system.launch.run_settings import resolve
from tfagents_system.launch.supervisor import Supervisor, claim_cpus
from tfagents_system.launch.vars_file import ROOT
from tfagents_system.machine import peers, processes
from tfagents_system.machine.claims import COLLECT, KINDS, Claims, held_cpus
from tfagents_system.machine.files import read_json, write_atomically
from tfagents_system.machine.signals import StopFlag
from tfagents_system.report.status import fault_lines, is_dead
from tfagents_system.run_files import run_directory
from tfagents_system.run_files.heartbeat import STALE_SECS, read_status
from tfagents_system.run_files.run_directory import Inputs
from tfagents_system.run_files.run_lock import RunLock
from tfagents_system.run_files.run_paths import GATEWAY, RunPaths
from tfagents_system.settings.load_params import input_files_of
from tfagents_system.settings.resolved import SHARED, Settings
from tfagents_system.settings.values import as_text
from tfagents_system.settings.variables import read_variables, variable_name, without_task
from tfagents_system.transport.credentials import CERTIFICATE, KEY
from tfagents_system.transport.tunnel import check_path, identity_of

SINCE = "TFAGENTS_SINCE"  # When the attempt of a job began that starts both the run and this command (requeue.py).
UP = "up"
_WAIT_SECS = 600.0  # For a run that is still starting.
_SPEAK_SECS = 60.0
_LOOK_SECS = 1.0
_NO_GATEWAY = "the run {} has no gateway: start it with SAC_GATEWAY_PORT=0 to let others join, or wait until it is up"
_BEATS: dict[Path, tuple[float, float]] = {}  # Of each run the last beat, and when it was new, on the monotonic clock.
_OUTCOMES = {"done": EXIT_DONE, "stopped": EXIT_RESUMABLE, "failed": EXIT_FAILED}


# Which run, and where.


def gateway_address(run: RunPaths, machine: str | None = None) -> str | None:
    """`host:port` of a run's gateway, as it is reached from a machine, by default this one; None before it is up."""
    gateway = read_json(run.gateway_json) or {}
    if not {"host", "port"} <= gateway.keys():
        return None
    is_there = gateway.get("machine") == (machine or socket.gethostname())
    return f"{'127.0.0.1' if is_there else gateway['host']}:{gateway['port']}"


@dataclasses.dataclass(frozen=True)
class Target:
    """The run to join.

    Attributes:
      server: `host:port` of its gateway.
      credentials_dir: Folder with the run's certificate and key.
      password_file: For the gateway, if it asks for a password.
      run: The run directory, if it can be seen from here.
      follows: It has said where the gateway is, and may say another place once the run continues there. Not where the
        user has said it, or behind a tunnel.
      look: Called regularly while workers are there: keeps the tunnel to it open.
    """

    server: str
    credentials_dir: Path
    password_file: Path | None
    run: RunPaths | None
    follows: bool = False
    look: Callable[[], None] = lambda: None


def find_target(run: RunPaths | None, environ: Mapping[str, str]) -> Target:
    """Where the run can be reached.

    SAC_SERVER, SAC_CREDENTIALS_DIR and SAC_PASSWORD_FILE win over what the run directory says, if that is known.

    Raises:
      UserError: That is unknown, or credentials are missing.
    """
    server = environ.get("SAC_SERVER") or (gateway_address(run) if run is not None else None)
    if not server:
        if run is None:
            raise UserError("which run? Give --to with its directory, or --server HOST:PORT of its gateway")
        raise UserError(_NO_GATEWAY.format(f"in {run.exp_dir}"))
    folder, password_file = (
        Path(environ[name]) if environ.get(name) else None for name in ("SAC_CREDENTIALS_DIR", "SAC_PASSWORD_FILE")
    )
    if folder is None and run is not None and run.credentials.is_dir():
        folder = run.credentials
    if folder is None:
        raise UserError(
            f"no credentials for the server {server}: copy the folder credentials of the run directory there to this "
            "machine, and give the copy with --credentials DIR"
        )
    return Target(server, folder, password_file, run, follows=not environ.get("SAC_SERVER"))


def state_of_run(run: RunPaths, since: float = 0.0) -> str | None:
    """What a run directory says: `starting`, `running`, UP where others can join now, `done`, `stopped` or `failed`.

    Args:
      since: Unix seconds: what a start before that has left says nothing.

    Returns:
      None for a run that is dead, or not started since then.
    """
    status = _status_since(run, since)
    if status is None or (is_dead(status, time.time()) and not _has_beaten(run, status["run"].get("updated_at", 0.0))):
        return None
    state, gateway = str(status["run"].get("state")), status["roles"].get(GATEWAY)
    # Without a gateway others would wait in vain, and are told so.
    has_address = gateway is None or gateway.get("given_up") or gateway_address(run) is not None
    return UP if state == "running" and has_address else state


def _has_beaten(run: RunPaths, updated_at: float) -> bool:
    """Whether its status was written again while it was looked at: this machine's clock may be ahead of the run's."""
    if _BEATS.setdefault(run.exp_dir, (updated_at, float("-inf")))[0] != updated_at:
        _BEATS[run.exp_dir] = updated_at, time.monotonic()
    return time.monotonic() - _BEATS[run.exp_dir][1] < STALE_SECS


def _status_since(run: RunPaths, since: float) -> dict[str, Any] | None:
    status = read_status(run.status_json)
    return None if status is None or status["run"].get("started_at", 0.0) < since else status


def wait_for_run(runs: Sequence[RunPaths], stop: Callable[[float], bool], since: float = 0.0) -> RunPaths | None:
    """Waits until a run is up.

    Args:
      runs: The directories that it may be in.
      stop: Sleeps, and returns whether this command is to stop.

    Returns:
      Its directory; None if the run is finished, or this command is to stop.

    Raises:
      UserError: It is not started in time.
    """
    began = spoke = time.monotonic()
    while True:
        states = {state_of_run(run, since): run for run in reversed(runs)}
        if UP in states:
            return states[UP]
        if any(_status_since(run, since) and run_directory.is_finished(run) for run in runs) or stop(_LOOK_SECS):
            return None
        waited_secs = time.monotonic() - began
        what = f"the run in {' or '.join(str(run.exp_dir) for run in runs)}"
        if waited_secs > _WAIT_SECS:
            raise UserError(f"{what} has not been started for {waited_secs:.0f} s: start it with run_script.sh")
        if time.monotonic() - spoke > _SPEAK_SECS:
            spoke = time.monotonic()
            print(f"waiting {waited_secs:.0f} s for {what} to start", flush=True)


# A machine where the user has a login: what its run gives to workers is fetched by ssh, which opens a tunnel. Nothing
# runs there but `sh` and `tar`, for a moment. The tunnel leads to the gateway and not to the replay server: the gateway
# gives out slots and compares versions and inputs, and refuses others who reach an end of the tunnel.

# A connection of its own: a shared one (ControlMaster) would keep the tunnel open when this program has ended. In batch
# mode, since nobody can enter a password when it breaks at night.
_ALIVE = ("-o", "ConnectTimeout=20", "-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=3")
_ALONE = ("-o", "BatchMode=yes", "-o", "RemoteCommand=none", "-o", "ControlMaster=no", "-o", "ControlPath=none")
_COMMAND = ("ssh", "-T", "-a", "-x", *_ALIVE, *_ALONE)
_OPEN_SECS, _END_SECS = 60.0, 5.0
_AGAIN_SECS = 5.0
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
            raise UserError(_NO_GATEWAY.format(self.name))
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
            "SAC_CREDENTIALS_DIR": str(self.paths.credentials),
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
                archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.2 of Debian has none.
                archive.extractall(self.paths.exp_dir)
        except (tarfile.TarError, OSError) as error:
            words = words or str(error)
        if result.returncode not in (0, _CHANGED) or not self.paths.run_json.exists():
            raise UserError(f"the files of {self.name} can't be read by {self.host} ({words}): log in as their owner")
        return float(mark[1]), mark[2].decode(errors="replace")


class SshTunnel:
    """Opened at once, and by `look` whenever it has broken, until it is closed.

    Args:
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
            time.sleep(0.1)

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


# What workers need, and the checks before they start.


class JoinPreparation(Preparation):
    """The checks before workers join: of this machine, the user's files, and the way to the run.

    Args:
      folder: The parent of joining workers' folders.
      workers: How many are to join; None: as many as fit.
      assignments: Texts of --set; those of a run that can be seen from here are known.
    """

    def __init__(
        self,
        environ: Mapping[str, str],
        vars_file: Path | None,
        target: Target,
        folder: Path,
        workers: int | None,
        assignments: Sequence[str] = (),
    ) -> None:
        run = Settings.read(target.run.run_json).variables if target.run is not None else None
        values: dict[str, Any] = {name: getattr(run, name) for name in SHARED if run is not None}
        values |= {name: getattr(target, name) for name in ("server", "credentials_dir", "password_file")}
        texts = {variable_name(name): "" if value is None else as_text(value) for name, value in values.items()}
        # Without a visible run, nothing is taken for its copies of params and configuration.
        where = {} if target.run is not None else {"SAC_EXP_DIR": str(folder)}
        # The run has taken its settings from its grid and task.
        environ = without_task({**environ, **texts, **where})
        super().__init__(environ, vars_file, resolve(environ, assignments, vars_file=vars_file, root=ROOT), joins=True)
        self.target = target
        self._folder = folder
        # Neither a replay server nor a trainer runs here.
        self.values |= {"reverb_cpus": 0, "train_cpus": 0, "train_gpus": False}
        for name in ("reverb_port", "gateway_port"):
            self.values.pop(name, None)
        slots = len(run.slots.for_kind(self.kind)) if run is not None else None
        self.workers = workers or self._most_that_fit(slots)
        self.values["local_workers"] = self.workers
        self.environ = {**self.environ, "SAC_LOCAL_WORKERS": str(self.workers)}
        if slots is not None and self.workers > slots:
            self.findings.error(
                "slots",
                f"--workers {self.workers}, but the run has {slots} slots for workers of kind {self.kind} that join: "
                "lower it, or start the run with a larger SAC_MAX_WORKERS",
            )

    @property
    def kind(self) -> str:
        """What the workers do."""
        return str(self.values.get("worker_role", COLLECT))

    def run(self, *, starts: bool = True) -> None:
        """Makes all checks; see `Preparation.run`."""
        where = "run directory"
        if (fault := machine_checks.folder_fault(self._folder, "SAC_LOGS_DIR")) is not None:
            self.findings.error(where, fault)
        elif self.target.run is not None:
            self.findings.fact(where, f"{self.target.run.exp_dir}: its params and configuration are used")
        else:
            self.findings.fact(where, "it can't be seen from here: SAC_PARAMS and SAC_CONFIG are used")
        super().run(starts=starts)
        if not self.findings.errors:
            self._check_server()

    def inputs(self) -> Inputs:
        """The files that workers need: the run's own if they can be seen from here."""
        if (run := self.target.run) is None:
            params = self.values["params"]
            input_files = input_files_of(self.inspection.config, params.parent)
            return Inputs(params, self.values["config"], input_files=input_files)
        # Of the folder as it was copied. The path in the run's run.json may be one of another machine.
        digests = run_directory.kept_digests(run) or {}
        digests = {name: digest for name, digest in digests.items() if (run.params_folder / name).is_file()}
        input_files = {path.name: path for path in run.input_files.glob("*")}
        return Inputs(run.params, run.config, run.params_folder if digests else None, digests, input_files=input_files)

    def write_inputs(self, paths: RunPaths) -> None:
        """Puts them into the workers' own folder, in place of what an earlier start of them has left there.

        Raises:
          OSError: They can't be written.
        """
        assert self.inspection.specs is not None
        run_directory.install(paths, self.inputs())
        for file in (paths.params, paths.config, *paths.input_files.glob("*")):
            file.chmod(0o600)
        write_atomically(paths.specs, self.inspection.specs)
        if self.target.run is not None:
            write_atomically(paths.run_json, self.target.run.run_json.read_bytes(), 0o600)  # As the run has it.

    def _most_that_fit(self, slots: int | None) -> int:
        """As many workers as this machine has free CPUs for and the run has slots for, as far as is known here."""
        if not self.values.get("collect_worker_cpus"):
            return 1
        most, held = len(os.sched_getaffinity(0)) // self.values["collect_worker_cpus"], held_cpus()
        for count in range(most if slots is None else min(most, slots), 1, -1):
            with contextlib.suppress(UserError):
                plan_for({**self.values, "local_workers": count}, self.environ, held=held)
                return count
        return 1

    def _check_server(self) -> None:
        """Whether the run can be reached, and takes workers with these inputs."""
        target = self.target
        with tempfile.TemporaryDirectory() as folder:
            inputs = RunPaths(Path(folder))
            self.write_inputs(inputs)
            identity = identity_of(inputs, self.overrides)
            self.findings.extend(check_path(target.server, target.credentials_dir, target.password_file, identity))


# The workers here, until the run is over.


class JoinSupervisor(Supervisor):
    """Supervises workers that have joined a run: they leave when it is over, or when none of them can stay.

    Args:
      *args, **options: Of Supervisor, with a run directory of their own.
      target: The run.
    """

    def __init__(self, *args: Any, target: Target, **options: Any) -> None:
        super().__init__(*args, **options)
        self._target = target
        self._look_at = 0.0

    def role_ended(self, role: RoleProcess, code: int) -> None:
        if self.is_ending:
            return
        if code in (EXIT_DONE, EXIT_RESUMABLE):
            say(f"{role.name} has left{': the run is done' if code == EXIT_DONE else ''}")
        elif code == EXIT_BAD_INPUT:
            role.given_up, role.failed_with = True, "; ".join(role.error_lines()) or "it was refused"
            say(f"{role.name} can't join: {role.failed_with}")
        else:
            super().role_ended(role, code)

    def look(self) -> None:
        """Ends when the last worker here has ended, or the run has, as far as that can be seen."""
        self._target.look()
        run = self._target.run
        if self.exit_code is not None:
            return
        if all(worker.is_over for worker in self.workers):
            self._all_are_over()
        elif run is not None and time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + _LOOK_SECS
            state = state_of_run(run)
            if state in _OUTCOMES:
                self.finish(_OUTCOMES[state], how_it_ended(state, run))
            elif self._target.follows and state == UP and gateway_address(run) not in (None, self._target.server):
                # Such as on another node, after the one that it was on was lost: they would wait there for ever.
                why = f"the run continues at {gateway_address(run)}: start this command again to join it there"
                self.finish(EXIT_RESUMABLE, why)

    def _all_are_over(self) -> None:
        codes = {worker.exit_code for worker in self.workers if not worker.given_up}
        if EXIT_RESUMABLE in codes:
            self.finish(EXIT_RESUMABLE, how_it_ended("stopped", self._target.run))
        elif codes:
            self.finish(EXIT_DONE, "the run is done")
        else:
            refused = all(worker.exit_code == EXIT_BAD_INPUT for worker in self.workers)
            reasons = dict.fromkeys(worker.failed_with for worker in self.workers)
            self.fail(EXIT_BAD_INPUT if refused else EXIT_FAILED, "no worker could stay in the run", list(reasons))

    def stop_roles(self) -> int:
        number = signal.Signals(self.stop.signal_number or signal.SIGTERM)
        self.message = f"this command was stopped by {number.name}"
        say(f"{self.message}: the workers send what they have, and leave")
        return EXIT_RESUMABLE

    def end_roles(self) -> None:
        self.end(dict.fromkeys(self.workers, self.variables.save_deadline_secs))

    def closing_lines(self, code: int) -> list[str]:
        left = f"{self.message}; the workers here have left the run (logs in {self.paths.logs})"
        return [*fault_lines(self.to_json()), f"{self.variables.exp_name}: {left}"]


def how_it_ended(state: str, run: RunPaths | None) -> str:
    """`the run was stopped by SIGINT on node7`, as far as its directory can be seen and says so."""
    status = ((read_status(run.status_json) if run is not None else None) or {"run": {}})["run"]
    message = status.get("message") or ""
    if state != "stopped":
        return f"the run has failed: {message}" if state == "failed" and message else f"the run is {state}"
    if message.startswith("stopped by "):
        return f"the run was {message} on {status.get('host')}"
    goes_on = run is not None and state_of_run(run) in ("starting", "running", UP)
    return "another program ended them, and the run continues: start this again" if goes_on else "the run was stopped"


def take_folder(joined: Path, host: str, claims: Claims) -> Path:
    """A folder for workers of this machine: the same one each time, unless another process here has claimed it."""
    folder, number = joined / host, 1
    while not claims.take(f"joined/{hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]}"):
        number += 1
        folder = joined / f"{host}_{number}"
    return folder


def join(preparation: JoinPreparation, folder: Path, claims: Claims, stop: StopFlag, starter: RoleStarter) -> int:
    """Holds what the workers need and runs them until the run is over.

    Args:
      folder: The workers' own, in place of a run directory.

    Raises:
      UserError: A check has found an error, or the folder or the CPUs are in use.
    """
    paths, target = RunPaths(folder), preparation.target
    variables = dataclasses.replace(preparation.variables(), exp_dir=folder)
    for note in preparation.findings.notes:
        print(f"note: {note}")
    end_orphans(paths, variables.save_deadline_secs)
    with RunLock(paths) as lock:
        end_orphans(paths, variables.save_deadline_secs, has_lock=True)
        preparation.write_inputs(paths)
        own = Settings(variables, preparation.overrides)
        if target.run is not None:  # The params of all workers must see the numbers of the run.
            own = own.joined(Settings.read(paths.run_json).shared())
            run_directory.write_start(paths, own.variables)
        else:
            run_directory.write_inputs(paths, own, preparation.inputs())
        plan = claim_cpus(variables, claims)
        now = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
        print(f"{now} joining the run at {target.server} from {paths.exp_dir}", flush=True)
        print(plan.table(), flush=True)
        return JoinSupervisor(variables, plan, claims, 0, stop, starter, lock=lock, target=target).run()


# The program.


def main(arguments: Sequence[str] | None = None) -> int:
    """The program; returns its exit code."""
    flags = _parse(arguments)
    stop, claims = StopFlag.of_supervisor(), Claims()
    run: RunPaths | None = None
    forks.restore_variables()
    given = {name: value for name, value in vars(flags).items() if name.startswith("SAC_") and value is not None}
    environ = {**os.environ, **given}
    if flags.to is not None and flags.ssh is None:
        # In the current folder, or in the repository.
        runs = [RunPaths(folder / flags.to) for folder in dict.fromkeys((Path.cwd(), ROOT))]
        run = wait_for_run(runs, stop.wait, float(environ.get(SINCE) or 0.0))
        if run is None:
            return _nobody_joins(flags.to, stop)
        environ = without_task(environ) | {"SAC_EXP_DIR": str(run.exp_dir)}
    values, findings = read_variables(environ, vars_file=flags.vars_file, root=ROOT)
    if "exp_dir" not in values:
        raise UserError(*findings)
    folder = take_folder(RunPaths(values["exp_dir"]).joined, socket.gethostname(), claims)
    with contextlib.ExitStack() as stack:
        if flags.ssh is None:
            try:
                target = find_target(run, environ)
            except UserError as error:
                raise UserError(*findings, *error.findings) from None
        else:
            there = stack.enter_context(fetch_run(flags.ssh, flags.to, folder / "of_run"))
            if there.state == "done":
                return _nobody_joins(there.name, stop)
            tunnel = stack.enter_context(contextlib.closing(there.tunnel()))
            environ |= {**there.environ(), "SAC_SERVER": tunnel.server}
            target = dataclasses.replace(find_target(there.paths, environ), look=tunnel.look)
        preparation = JoinPreparation(environ, flags.vars_file, target, folder.parent, flags.workers, flags.assignments)
        forks.show_marks({"SAC_EXP_DIR": str(folder)})
        with contextlib.closing(preparation):
            preparation.run(starts=not flags.check)
        if flags.check:
            print(preparation.findings.report())
            return EXIT_BAD_INPUT if preparation.findings.errors else EXIT_DONE
        code = join(preparation, folder, claims, stop, RoleStarter())
    return code


def _nobody_joins(run: object, stop: StopFlag) -> int:
    print(f"{run} is finished, or this command was stopped: nobody joins")
    return EXIT_RESUMABLE if stop.is_set() else EXIT_DONE


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = OptionParser(
        prog="sac join",
        usage="sac join VARS.sh --to RUN | --server HOST:PORT --credentials DIR [OPTION]...",
        description="VARS.sh is the run's vars file. The workers leave when the run is over, or with Ctrl-C or "
        "SIGTERM; the run continues without them.",
    )
    add = parser.add_argument
    add("--vars-file", type=Path, default=None, help=argparse.SUPPRESS)
    add("--to", type=Path, metavar="RUN", help="run directory, where it can be seen from here; waits for its start")
    add("--ssh", metavar="USER@HOST", help="log in there: --to is a directory of that machine")
    parser.add_count("--workers", "number of workers (default: as many as this machine has CPUs for)")
    add("--check", action="store_true", help="make all checks and report them; start nothing")
    parser.add_settings([])
    # These win over the variables that they stand for.
    kinds = "collect; eval: evaluate only; expert: collect with SAC_EXPERT_POLICY; test: play (default: collect)"
    add("--role", dest="SAC_WORKER_ROLE", choices=KINDS, metavar="ROLE", help=f"what the workers do: {kinds}")
    words = "the run's gateway (default: what the run directory says)"
    add("--server", dest="SAC_SERVER", metavar="HOST:PORT", help=words)
    path: dict[str, Any] = {"type": os.path.abspath, "metavar": "PATH"}
    add("--credentials", dest="SAC_CREDENTIALS_DIR", **path, help="folder with the run's certificate and key")
    add("--password-file", dest="SAC_PASSWORD_FILE", **path, help="file with the run's password")
    flags = parser.parse_args(arguments)
    if flags.ssh is not None and (flags.to is None or flags.SAC_SERVER or flags.SAC_CREDENTIALS_DIR):
        raise UserError(
            "--ssh needs --to with the run directory on that machine, which says the rest: leave out --server and "
            "--credentials"
        )
    return flags


if __name__ == "__main__":
    exit_with(main)
