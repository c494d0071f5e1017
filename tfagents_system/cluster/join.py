"""Joins workers of this machine to a run, on another machine or this one, through its gateway.

    sac join VARS.sh --to RUN [--ssh USER@HOST] [OPTION]...
    sac join VARS.sh --server HOST:PORT --credentials DIR [OPTION]...

All findings come together, with exit code 2, before anything starts. Exit codes: 0 the
run is finished, 1 it or all workers here failed, 2 bad input, 75 this command or the run was stopped.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import functools
import hashlib
import os
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tfagents_system.cluster.ssh import fetch_run, gateway_address
from tfagents_system.errors import EXIT_BAD_INPUT, EXIT_DONE, EXIT_FAILED, EXIT_RESUMABLE, UserError, exit_with
from tfagents_system.launch import forks, machine_checks
from tfagents_system.launch.cpus import plan_for
from tfagents_system.launch.forks import RoleStarter
from tfagents_system.launch.prepare import Preparation
from tfagents_system.launch.run_settings import resolve
from tfagents_system.launch.run_status import say
from tfagents_system.launch.supervisor import RoleProcess, Rules, Supervisor, claim_cpus, end_orphans
from tfagents_system.launch.vars_file import ROOT
from tfagents_system.machine.claims import COLLECT, KINDS, Claims, held_cpus
from tfagents_system.machine.files import write_atomically
from tfagents_system.machine.signals import StopFlag
from tfagents_system.report.status import fault_lines, is_dead, is_under_way
from tfagents_system.run_files import params_folder, run_directory
from tfagents_system.run_files.heartbeat import read_status
from tfagents_system.run_files.run_directory import Inputs
from tfagents_system.run_files.run_lock import RunLock
from tfagents_system.run_files.run_paths import GATEWAY, RunPaths
from tfagents_system.settings.load_params import INPUT_FILES, input_files_of
from tfagents_system.settings.resolved import SHARED, Overrides, Settings
from tfagents_system.settings.variables import RunVariables, as_text, read_variables, variable_name, without_task
from tfagents_system.transport.tunnel import check_path, identity_of

SINCE = "TFAGENTS_SINCE"  # When the attempt of a job began that starts both the run and this command (requeue.py).
_WAIT_SECS = 600.0  # For a run that is still starting.
_SPEAK_SECS = 60.0
_LOOK_SECS = 1.0
_OUTCOMES = {"done": EXIT_DONE, "stopped": EXIT_RESUMABLE, "failed": EXIT_FAILED}


# Which run, and where.


@dataclasses.dataclass(frozen=True)
class Target:
    """The run to join.

    Attributes:
      server: `host:port` of its gateway.
      credentials: Folder with the run's certificate and key.
      password_file: For the gateway, if it asks for a password.
      run: The run directory, if it can be seen from here.
      follows: It has said where the gateway is, and may say another place once the run goes on there. Not where the
        user has said it, or behind a tunnel.
      look: Called regularly while workers are there: keeps the tunnel to it open.
    """

    server: str
    credentials: Path
    password_file: Path | None
    run: RunPaths | None
    follows: bool = False
    look: Callable[[], None] = lambda: None

    def values(self) -> dict[str, Any]:
        """Variables of the workers, by field."""
        return {"server": self.server, "credentials_dir": self.credentials, "password_file": self.password_file}


def find_target(run: RunPaths | None, environ: Mapping[str, str]) -> Target:
    """Where the run can be reached.

    Args:
      run: The run directory, if the user has named it.
      environ: SAC_SERVER, SAC_CREDENTIALS_DIR and SAC_PASSWORD_FILE win over what it says.

    Raises:
      UserError: That is unknown, or credentials are missing.
    """
    server = environ.get("SAC_SERVER") or (gateway_address(run) if run is not None else None)
    if not server:
        if run is None:
            raise UserError("which run? Give --to with its directory, or --server HOST:PORT of its gateway")
        raise UserError(
            f"the run in {run.exp_dir} has no gateway: start it with SAC_GATEWAY_PORT=0 to let others join, or wait "
            "until it is up"
        )
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


def state_of_run(run: RunPaths) -> str | None:
    """What a run directory says: `starting`, `running`, `done`, `stopped` or `failed`; None for a dead run."""
    status = read_status(run.status_json)
    return None if status is None or is_dead(status, time.time()) else str(status["run"].get("state"))


def is_up(run: RunPaths, since: float = 0.0) -> bool:
    """Whether a run is at work that was started at this time (Unix seconds) or later, and others can join it now."""
    status = read_status(run.status_json)
    if status is None or not is_under_way(status, time.time()) or status["run"].get("state") != "running":
        return False
    gateway = status["roles"].get(GATEWAY)
    has_address = gateway is None or gateway.get("given_up") or gateway_address(run) is not None
    return bool(has_address) and _started_since(status, since)


def _started_since(status: Mapping[str, Any], since: float) -> bool:
    return bool(status["run"].get("started_at", 0.0) >= since)


def _is_finished(run: RunPaths, since: float) -> bool:
    status = read_status(run.status_json)
    return status is not None and _started_since(status, since) and run_directory.is_finished(run)


def wait_for_run(runs: Sequence[RunPaths], stop: Callable[[float], bool], since: float = 0.0) -> RunPaths | None:
    """Waits until a run is up.

    Args:
      runs: The directories that it may be in.
      stop: Sleeps, and returns whether this command is to stop.
      since: Unix seconds: what a start before that has left says nothing.

    Returns:
      Its directory; None if the run is finished, or this command is to stop.

    Raises:
      UserError: It is not started in time.
    """
    began = spoke = time.monotonic()
    while True:
        for run in runs:
            if is_up(run, since):
                return run
        if any(_is_finished(run, since) for run in runs) or stop(_LOOK_SECS):
            return None
        waited_secs = time.monotonic() - began
        what = f"the run in {' or '.join(str(run.exp_dir) for run in runs)}"
        if waited_secs > _WAIT_SECS:
            raise UserError(f"{what} has not been started for {waited_secs:.0f} s: start it with run_script.sh")
        if time.monotonic() - spoke > _SPEAK_SECS:
            spoke = time.monotonic()
            print(f"waiting {waited_secs:.0f} s for {what} to start", flush=True)


# What workers need, and the checks before they start.


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
        elif self._target.run is not None:
            self.findings.fact(where, f"{self._target.run.exp_dir}: its params and configuration are used")
        else:
            self.findings.fact(where, "it is not to be seen from here: SAC_PARAMS and SAC_CONFIG are used")
        super().run(starts=starts)
        if not self.findings.errors:
            self._check_server()

    def write_inputs(self, paths: RunPaths) -> None:
        """Puts what workers need into their own folder, in place of what an earlier start of them has left there: the
        run's own files if they can be seen from here.

        Raises:
          OSError: It can't be written.
        """
        if (run := self._target.run) is not None:
            sources = {path.name: path for path in (run.params, run.config, run.specs, run.run_json)}
            sources |= {f"{INPUT_FILES}/{path.name}": path for path in run.input_files.glob("*")}
        else:
            sources = {paths.params.name: self.values["params"], paths.config.name: self.values["config"]}
            copies = input_files_of(self.inspection.config, self.values["params"].parent)
            sources |= {f"{INPUT_FILES}/{name}": path for name, path in copies.items()}
            assert self.inspection.specs is not None
            write_atomically(paths.specs, self.inspection.specs)
        for folder in (paths.input_files, paths.params_folder):
            shutil.rmtree(folder, ignore_errors=True)
        for name, source in sources.items():
            (paths.exp_dir / name).parent.mkdir(exist_ok=True)
            write_atomically(paths.exp_dir / name, source.read_bytes(), 0o600)  # As the run has its run.json.
        if run is not None and (copied := run_directory.kept_digests(run)) is not None:
            # The path in the run's run.json may be one of another machine.
            names = [name for name in copied if (run.params_folder / name).is_file()]
            params_folder.copy_files(run.params_folder, names, paths.params_folder)

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
        target, run = self._target, self._target.run
        if run is not None and self.inspection.specs != run.specs.read_bytes():
            self.findings.error(
                "environment",
                f"the environment has other observations or actions here than in the run ({run.specs}): install the "
                "simulator's version that the run has, here as well",
            )
        with tempfile.TemporaryDirectory() as folder:
            inputs = RunPaths(Path(folder))
            self.write_inputs(inputs)
            identity = identity_of(inputs, self.overrides)
            self.findings.extend(check_path(target.server, target.credentials, target.password_file, identity))


# The workers here, until the run is over.


class JoinRules(Rules):
    """The rules of workers that have joined a run: they leave when it is over, or when none of them can stay.

    Args:
      supervisor: The workers', with a run directory of their own.
      target: The run.
    """

    def __init__(self, supervisor: Supervisor, target: Target) -> None:
        super().__init__(supervisor)
        self._target = target
        self._look_at = 0.0
        self._why = ""  # Why the workers have left, if nothing has failed here.

    def role_ended(self, role: RoleProcess, code: int) -> None:
        if self._supervisor.is_ending:
            return
        if code in (EXIT_DONE, EXIT_RESUMABLE):
            say(f"{role.name} has left{': the run is done' if code == EXIT_DONE else ''}")
        elif code == EXIT_BAD_INPUT:
            role.given_up, role.given_up_because = True, "; ".join(role.error_lines()) or "it was refused"
            say(f"{role.name} can't join: {role.given_up_because}")
        else:
            super().role_ended(role, code)

    def look(self) -> None:
        """Ends when the last worker here has ended, or the run has, as far as that can be seen."""
        super().look()
        self._target.look()
        run = self._target.run
        if self._supervisor.exit_code is not None:
            return
        if all(worker.is_over for worker in self._supervisor.workers):
            self._all_are_over()
        elif run is not None and time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + _LOOK_SECS
            state = state_of_run(run)
            if state in _OUTCOMES:
                self._leave(_OUTCOMES[state], how_it_ended(state, run))
            elif self._target.follows and is_up(run) and gateway_address(run) not in (None, self._target.server):
                # Such as on another node, after the one that it was on was lost: they would wait there for ever.
                why = f"the run goes on at {gateway_address(run)}: start this command again to join it there"
                self._leave(EXIT_RESUMABLE, why)

    def _all_are_over(self) -> None:
        workers = self._supervisor.workers
        codes = {worker.exit_code for worker in workers if not worker.given_up}
        if EXIT_RESUMABLE in codes:
            self._leave(EXIT_RESUMABLE, how_it_ended("stopped", self._target.run))
        elif codes:
            self._leave(EXIT_DONE, "the run is done")
        else:
            refused = all(worker.exit_code == EXIT_BAD_INPUT for worker in workers)
            reasons = dict.fromkeys(worker.given_up_because for worker in workers)
            code = EXIT_BAD_INPUT if refused else EXIT_FAILED
            self._supervisor.fail(code, "no worker could stay in the run", list(reasons))

    def _leave(self, code: int, why: str) -> None:
        self._why = why
        self._supervisor.finish(code, why)

    def stop(self) -> int:
        number = signal.Signals(self._supervisor.stop.signal_number or signal.SIGTERM)
        self._why = self._supervisor.status.message = f"this command was stopped by {number.name}"
        say(f"{self._why}: the workers send what they have, and leave")
        return EXIT_RESUMABLE

    def end_roles(self) -> None:
        self._supervisor.end(dict.fromkeys(self._supervisor.workers, self._supervisor.variables.save_deadline_secs))

    def closing_lines(self, code: int) -> list[str]:
        status = self._supervisor.status
        left = f"{self._why or status.message}; the workers here have left the run"
        logs = f"(logs in {self._supervisor.paths.logs})"
        return [*fault_lines(status.to_json()), f"{self._supervisor.variables.exp_name}: {left} {logs}"]


def how_it_ended(state: str, run: RunPaths | None) -> str:
    """`the run was stopped by SIGINT on node7`, as far as its directory can be seen and says so."""
    status = ((read_status(run.status_json) if run is not None else None) or {"run": {}})["run"]
    message = status.get("message") or ""
    if state != "stopped":
        return f"the run has failed: {message}" if state == "failed" and message else f"the run is {state}"
    if message.startswith("stopped by "):
        return f"the run was {message} on {status.get('host')}"
    goes_on = run is not None and state_of_run(run) in ("starting", "running")
    return "another program has ended them, and the run goes on" if goes_on else "the run was stopped"


def take_folder(joined: Path, host: str, claims: Claims) -> Path:
    """A folder for workers of this machine: the same one each time, unless another process here has claimed it."""
    folder, number = joined / host, 1
    while not claims.take(f"joined/{hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]}"):
        number += 1
        folder = joined / f"{host}_{number}"
    return folder


def join(
    variables: RunVariables,
    write_inputs: Callable[[RunPaths], None],
    overrides: Overrides,
    target: Target,
    claims: Claims,
    stop: StopFlag,
    starter: RoleStarter,
) -> int:
    """Holds what the workers need and runs them until the run is over.

    Args:
      variables: With the workers' own folder as run directory.
      write_inputs: Puts what they need of the run there.
      overrides: Of the run.
      target: The run.
      claims: What this process holds.
      stop: Set when they are to leave.
      starter: Starts them.

    Raises:
      UserError: The folder or the CPUs are in use.
    """
    paths = RunPaths(variables.exp_dir)
    end_orphans(paths, variables.save_deadline_secs)
    with RunLock(paths) as lock:
        end_orphans(paths, variables.save_deadline_secs, has_lock=True)
        write_inputs(paths)
        own = Settings(dataclasses.replace(variables, **target.values()), overrides)
        if target.run is not None:  # The params of all workers must see the numbers of the run.
            own = own.joined(Settings.read(paths.run_json).shared())
            run_directory.write_start(paths, own.variables)
        else:
            input_files = {path.name: path for path in paths.input_files.glob("*")}
            files = Inputs(variables.params, variables.config, input_files=input_files)
            run_directory.write_inputs(paths, own, files)
        plan = claim_cpus(variables, claims)
        now = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
        print(f"{now} joining the run at {target.server} from {paths.exp_dir}", flush=True)
        print(plan.table(), flush=True)
        rules = functools.partial(JoinRules, target=target)
        return Supervisor(variables, plan, claims, 0, stop, starter, rules, lock=lock).run()


# The program.


def main(arguments: Sequence[str] | None = None) -> int:
    """The program; returns its exit code."""
    flags = _parse(arguments)
    stop, claims = StopFlag.of_supervisor(), Claims()
    run: RunPaths | None = None
    forks.restore_variables()
    environ = {**os.environ, **_variables_of(flags)}
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
    if flags.ssh is None:
        try:
            target = find_target(run, environ)
        except UserError as error:
            raise UserError(*findings, *error.findings) from None
        return _prepare_and_join(flags, environ, target, folder, claims, stop)
    with fetch_run(flags.ssh, flags.to, folder / "of_run") as there:
        if there.state == "done":
            return _nobody_joins(there.name, stop)
        password_file = Path(environ["SAC_PASSWORD_FILE"]) if environ.get("SAC_PASSWORD_FILE") else None
        with contextlib.closing(there.tunnel()) as tunnel:
            target = Target(tunnel.server, there.paths.credentials, password_file, there.paths, look=tunnel.look)
            return _prepare_and_join(flags, environ | there.environ(), target, folder, claims, stop)


def _nobody_joins(run: object, stop: StopFlag) -> int:
    print(f"{run} is finished, or this command was stopped: nobody joins")
    return EXIT_RESUMABLE if stop.is_set() else EXIT_DONE


def _prepare_and_join(
    flags: argparse.Namespace, environ: Mapping[str, str], target: Target, folder: Path, claims: Claims, stop: StopFlag
) -> int:
    """Makes all checks, and starts the workers unless only checks are asked for."""
    preparation = JoinPreparation(environ, flags.vars_file, target, folder.parent, flags.workers, flags.assignments)
    forks.show_marks({"SAC_EXP_DIR": str(folder)})
    with contextlib.closing(preparation):
        preparation.run(starts=not flags.check)
    if flags.check:
        print(preparation.findings.report())
        return EXIT_BAD_INPUT if preparation.findings.errors else EXIT_DONE
    variables = dataclasses.replace(preparation.variables(), exp_dir=folder)
    for note in preparation.findings.notes:
        print(f"note: {note}")
    return join(variables, preparation.write_inputs, preparation.overrides, target, claims, stop, RoleStarter())


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="sac join",
        usage="sac join VARS.sh --to RUN | --server HOST:PORT --credentials DIR [OPTION]...",
        description="Join workers of this machine to a run. VARS.sh is its vars file. The workers leave when it is "
        "over, or with Ctrl-C or SIGTERM; the run continues without them.",
        allow_abbrev=False,
    )
    parser.add_argument("--vars_file", type=Path, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--to", type=Path, help="run directory, where it can be seen from here; waits for its start")
    parser.add_argument("--ssh", metavar="USER@HOST", help="log in there: --to is a directory of that machine")
    parser.add_argument("--server", help="HOST:PORT of the run's gateway (default: what the run directory says)")
    parser.add_argument("--workers", type=_positive, help="how many (default: as many as this machine has CPUs for)")
    parser.add_argument(
        "--role",
        choices=KINDS,
        help="what they do: collect, evaluate only, collect as experts (SAC_EXPERT_POLICY), or play (default: collect)",
    )
    parser.add_argument("--credentials", type=Path, help="folder with the run's certificate and key")
    parser.add_argument("--password_file", type=Path, help="file with the run's password")
    parser.add_argument("--check", action="store_true", help="only check, and report all that was looked at")
    parser.add_argument("--set", action="append", default=[], dest="assignments", metavar="NAME=VALUE")
    flags = parser.parse_args(arguments)
    if flags.ssh is not None and (flags.to is None or flags.server or flags.credentials):
        raise UserError(
            "--ssh needs --to with the run directory on that machine, which says the rest: leave out --server and "
            "--credentials"
        )
    return flags


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, found {value}")
    return value


def _variables_of(flags: argparse.Namespace) -> dict[str, str]:
    """The options win over the variables that they stand for."""
    values = {
        "SAC_SERVER": flags.server,
        "SAC_WORKER_ROLE": flags.role,
        "SAC_CREDENTIALS_DIR": flags.credentials and flags.credentials.absolute(),
        "SAC_PASSWORD_FILE": flags.password_file and flags.password_file.absolute(),
    }
    return {name: str(value) for name, value in values.items() if value is not None}


if __name__ == "__main__":
    exit_with(main)
