"""The checks before workers join a run: where it is, whether it takes them, and what this machine has for them."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tfagents_system.checks.findings import Findings
from tfagents_system.errors import UserError
from tfagents_system.launch import machine_checks
from tfagents_system.launch.cpus import plan_for
from tfagents_system.launch.prepare import Preparation
from tfagents_system.launch.python_path import ROOT
from tfagents_system.launch.run_settings import resolve
from tfagents_system.machine import peers
from tfagents_system.machine.claims import held_cpus
from tfagents_system.machine.files import read_json, write_atomically
from tfagents_system.machine.worker_slots import COLLECT
from tfagents_system.report.run_model import is_under_way
from tfagents_system.run_files import params_folder, run_inputs
from tfagents_system.run_files.heartbeat import read_status
from tfagents_system.run_files.run_paths import GATEWAY, RunPaths
from tfagents_system.settings.input_files import FOLDER, copies_of
from tfagents_system.settings.resolved import SHARED, Settings
from tfagents_system.settings.variables import as_text, variable_name, without_task
from tfagents_system.transport.tunnel import check_path, identity_of

_CONNECT_SECS = 5.0


@dataclasses.dataclass(frozen=True)
class Target:
    """The run to join.

    Attributes:
      server: `host:port` of its replay server on this machine, or of its gateway.
      credentials: For the gateway; None: the server is on this machine, and unencrypted.
      password_file: For the gateway, if it asks for a password.
      run: The run directory, if it can be seen from here.
      follows: It has said where the server is, and may say another place once the run goes on there. Not where the
        user has said it, or behind a tunnel.
      look: Called regularly while workers are there: keeps the tunnel to it open.
    """

    server: str
    credentials: Path | None
    password_file: Path | None
    run: RunPaths | None
    follows: bool = False
    look: Callable[[], None] = lambda: None

    def values(self) -> dict[str, Any]:
        """Variables of the workers, by field."""
        return {
            "server": self.server,
            "credentials_dir": self.credentials,
            "password_file": self.password_file,
            "joined_run": self.run.exp_dir if self.run is not None else None,
        }


def find_target(paths: RunPaths, environ: Mapping[str, str], host: str, *, is_certain: bool) -> Target:
    """Where the run can be reached.

    Args:
      paths: The run directory, which may not exist.
      environ: SAC_SERVER, SAC_CREDENTIALS_DIR and SAC_PASSWORD_FILE win over what the run directory says.
      host: Name of this machine.
      is_certain: The user has named the run directory; else one beside another machine's server is taken for that of
        an earlier run of this machine, with the same name.

    Raises:
      UserError: That is unknown, or credentials are missing.
    """
    server = environ.get("SAC_SERVER")
    is_local = not server or peers.address_here(server) is not None
    run = paths if paths.run_json.exists() and (is_certain or is_local) else None
    credentials, password_file = (
        Path(environ[name]) if environ.get(name) else None for name in ("SAC_CREDENTIALS_DIR", "SAC_PASSWORD_FILE")
    )
    if not server:
        if run is None:
            raise UserError(
                f"{paths.exp_dir} is no run directory that can be seen from here: give --server HOST:PORT of the run's "
                "gateway (SAC_GATEWAY_PORT), or --to with the run directory"
            )
        server = _server_of(run, host)
        if peers.address_here(server) is not None:
            return Target(server, None, None, run, follows=True)
    is_gateway = run is not None and server.endswith(f":{(read_json(run.gateway_json) or {}).get('port')}")
    if credentials is None and peers.address_here(server) is not None and not is_gateway:
        if run is None:
            raise UserError(
                f"the server {server} is on this machine, but {paths.exp_dir} is no run directory: give it with --to"
            )
        return Target(server, None, None, run)
    if credentials is None and run is not None and run.credentials.is_dir():
        credentials = run.credentials
    if credentials is None:
        raise UserError(
            f"no credentials for the server {server}: copy the folder credentials/client of the run directory there to "
            "this machine, and give the copy with --credentials DIR"
        )
    return Target(server, credentials, password_file, run, follows=not environ.get("SAC_SERVER"))


def _server_of(run: RunPaths, host: str) -> str:
    """What the run directory says: the replay server itself on its own machine, else the gateway."""
    own = (read_status(run.status_json) or {}).get("run", {})
    gateway = gateway_address(run)
    # Machines, such as containers, may have the same name.
    here = f"127.0.0.1:{own.get('port')}"
    if own.get("host") == host and own.get("port") and (not gateway or _fault_of(here) is None):
        return here
    if gateway is None:
        raise UserError(
            f"the run in {run.exp_dir} is on {own.get('host')} and has no gateway: start it with SAC_GATEWAY_PORT=0 "
            "to let workers of other machines join, or wait until it is up"
        )
    return gateway


def gateway_address(run: RunPaths) -> str | None:
    """`host:port` of a run's gateway; None before it is up."""
    gateway = read_json(run.gateway_json) or {}
    return f"{gateway['host']}:{gateway['port']}" if {"host", "port"} <= gateway.keys() else None


def where_it_goes_on(run: RunPaths, server: str, host: str) -> str | None:
    """Another address than `server`, which the run directory has said, at which it is now; None where it is there."""
    own = (read_status(run.status_json) or {}).get("run", {})
    here = f"127.0.0.1:{own.get('port')}" if own.get("host") == host else None
    gateway = gateway_address(run)
    return None if server in (here, gateway) else gateway or f"{own.get('host')}:{own.get('port')}"


def is_up(run: RunPaths, since: float) -> bool:
    """Whether a run is at work that was started at this time (Unix seconds) or later, and others can join it now."""
    status = read_status(run.status_json)
    if status is None or not is_under_way(status, time.time()) or status["run"].get("state") != "running":
        return False
    gateway = status["roles"].get(GATEWAY)
    has_address = gateway is None or gateway.get("given_up") or gateway_address(run) is not None
    return bool(has_address) and started_since(status, since)


def started_since(status: Mapping[str, Any], since: float) -> bool:
    """Whether a status is of a start at this time or later."""
    return bool(status["run"].get("started_at", 0.0) >= since)


@dataclasses.dataclass(frozen=True)
class JoinInputs:
    """What workers that join need of the run.

    Attributes:
      files: Contents of the run's files, by name.
      params_folder: The run's copy of the folder of its params; None: it has none, or can't be seen from here.
      params_files: Relative paths of what the run has copied there; others were written by the run.
    """

    files: dict[str, bytes]
    params_folder: Path | None = None
    params_files: Sequence[str] = ()

    def write(self, paths: RunPaths) -> None:
        """Puts all of it into the workers' own folder, in place of what an earlier start of them has left there.

        Raises:
          OSError: It can't be written.
        """
        for folder in (paths.input_files, paths.params_folder):
            shutil.rmtree(folder, ignore_errors=True)
        for name, content in self.files.items():
            (paths.exp_dir / name).parent.mkdir(exist_ok=True)
            write_atomically(paths.exp_dir / name, content, 0o600)  # As the run has its run.json.
        if self.params_folder is not None:  # The path in the run's run.json may be one of another machine.
            names = [name for name in self.params_files if (self.params_folder / name).is_file()]
            params_folder.copy_files(self.params_folder, names, paths.params_folder)


class JoinPreparation(Preparation):
    """The checks before workers join: of this machine, the user's files, and the way to the run.

    Args:
      environ: Usually os.environ, after the vars file was sourced.
      vars_file: For messages and relative paths.
      target: The run.
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
        values = {**{name: getattr(run, name) for name in SHARED if run is not None}, **target.values()}
        texts = {variable_name(name): "" if value is None else as_text(value) for name, value in values.items()}
        # Without a visible run, nothing is taken for its copies of params and configuration.
        where = {} if target.run is not None else {"SAC_EXP_DIR": str(folder)}
        # The run has taken its settings from its grid and task.
        environ = without_task({**environ, **texts, **where})
        super().__init__(environ, vars_file, resolve(environ, assignments, vars_file=vars_file, root=ROOT), joins=True)
        self._target = target
        self._folder = folder
        self.values |= {
            "reverb_cpus": 0,
            "train_cpus": 0,
            "train_gpus": False,
        }  # Neither a replay server nor a trainer runs here.
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

    def run(self, *, in_fork: bool = True, starts: bool = True) -> None:
        """Makes all checks; see `Preparation.run`."""
        self._check_folder()
        super().run(in_fork=in_fork, starts=starts)
        if not self.findings.errors:
            self._check_server()

    def inputs(self) -> JoinInputs:
        """What the workers need: the run's own if it can be seen from here."""
        if (run := self._target.run) is not None:
            files = [run.params, run.config, run.specs, run.run_json]
            contents = {path.name: path.read_bytes() for path in files}
            contents |= {f"{FOLDER}/{path.name}": path.read_bytes() for path in run.input_files.glob("*")}
            copied = run_inputs.kept_digests(run)
            return JoinInputs(contents) if copied is None else JoinInputs(contents, run.params_folder, list(copied))
        assert self.paths is not None and self.inspection.specs is not None
        contents = {
            self.paths.params.name: self.values["params"].read_bytes(),
            self.paths.config.name: self.values["config"].read_bytes(),
            self.paths.specs.name: self.inspection.specs,
        }
        sources = copies_of(self.inspection.config, self.values["params"].parent)
        contents |= {f"{FOLDER}/{name}": path.read_bytes() for name, path in sources.items()}
        return JoinInputs(contents)

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

    def _check_folder(self) -> None:
        where = "run directory"
        if (fault := machine_checks.folder_fault(self._folder, "SAC_LOGS_DIR")) is not None:
            self.findings.error(where, fault)
        elif self._target.run is not None:
            self.findings.fact(where, f"{self._target.run.exp_dir}: its params and configuration are used")
        else:
            self.findings.fact(where, "it is not to be seen from here: SAC_PARAMS and SAC_CONFIG are used")

    def _check_server(self) -> None:
        """Whether the run can be reached, and takes workers with these inputs."""
        target, run = self._target, self._target.run
        if run is not None and self.inspection.specs != run.specs.read_bytes():
            self.findings.error(
                "environment",
                f"the environment has other observations or actions here than in the run ({run.specs}): install the "
                "simulator's version that the run has, here as well",
            )
        if target.credentials is None:
            _check_reachable(self.findings, target.server)
            return
        with tempfile.TemporaryDirectory() as folder:
            inputs = RunPaths(Path(folder))
            JoinInputs(self.inputs().files).write(inputs)
            identity = identity_of(inputs, self.overrides)
            self.findings.extend(check_path(target.server, target.credentials, target.password_file, identity))


def _check_reachable(findings: Findings, server: str) -> None:
    if (fault := _fault_of(server)) is None:
        findings.fact("server", f"{server} answers")
        return
    findings.error(
        "server",
        f"the replay server at {server} can't be reached from {socket.gethostname()} ({fault}): is the run going on, "
        "and on this machine? (python -m tfagents_system.report.status)",
    )


def _fault_of(server: str) -> str | None:
    """Why our own replay server does not answer at `host:port` of this machine; None if it does."""
    port = int(server.rpartition(":")[2])
    if not peers.other_users_are_allowed() and peers.users_listening(port) - {os.geteuid()}:
        return "another user listens on that port"
    try:
        socket.create_connection(("127.0.0.1", port), timeout=_CONNECT_SECS).close()
        return None
    except OSError as error:
        return error.strerror or str(error)
