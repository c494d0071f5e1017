"""Checks everything that a run needs before any of its processes starts, then prepares its run directory.

    python -m tfagents_system.launch.prepare --vars_file VARS.sh [--set NAME=VALUE]... [--check | --then PROGRAM]

All findings are told together, with exit code 2. A run that is finished says so and ends with 0. Else PROGRAM takes the
place of this process: signals reach one process, whatever stage the start is in. With --check all that was looked at is
told, and nothing is written or started.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import shutil
import signal
import sys
import tempfile
import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tfagents_system.checklist import Checklist
from tfagents_system.early_end import settings_of_end
from tfagents_system.envs.faults import SHOW_TRACES
from tfagents_system.errors import EXIT_BAD_INPUT, EXIT_DONE, UserError, exit_with
from tfagents_system.launch import params_folder, pinned_packages, resources, run_directory, scratch
from tfagents_system.launch.claims import Claims, held_cpus, port_is_free
from tfagents_system.launch.cpus import CpuPlan, plan_for
from tfagents_system.launch.fork_server import HANDLE_VARIABLE, ForkServer, ForkServerError
from tfagents_system.launch.gpus import FOUND, gpu_of_trainer
from tfagents_system.launch.inspection import EDITS, FOLDER, KEEP, TAKE, Inspection, run_inspection
from tfagents_system.launch.run_lock import RunLock, owner_of_run
from tfagents_system.launch.run_paths import RunPaths
from tfagents_system.launch.run_settings import CARRIER, RunSettings, resolve
from tfagents_system.launch.slots import COLLECT
from tfagents_system.launch.topology import format_cpu_list
from tfagents_system.launch.variables import RunVariables, read_variables
from tfagents_system.load_params import load_env_config
from tfagents_system.replay import peers

ROOT = Path(__file__).resolve().parents[2]
_MOST_SHOWN = 8
_PLAN_FIELDS = {"reverb_cpus", "train_cpus", "num_collect_workers", "collect_worker_cpus"}


class Preparation:
    """The checks of a start: first those of variables and machine, then those that run a user's own code.

    Args:
      environ: Usually os.environ, after the vars file was sourced.
      vars_file: For messages and relative paths.
      settings: What is overridden; by default what the environment says of it.

    Attributes:
      checks: What was looked at, and what was found.
      overrides: What the run has otherwise than its files say.
      plan: The CPU plan; None where there is none.
      inspection: Of the user's files.
      folder: A copy of the folder of SAC_PARAMS for the run; None where none is made.
    """

    def __init__(self, environ: Mapping[str, str], vars_file: Path | None, settings: RunSettings | None = None) -> None:
        self.checks = Checklist()
        settings = settings or resolve(environ, (), vars_file=vars_file, root=ROOT)
        environ, self.overrides = settings.environ, settings.overrides
        self.plan: CpuPlan | None = None
        self.inspection = Inspection()
        self.folder: Path | None = None
        self._environ = environ
        self._is_for_job = resources.JOB_MB in environ  # Which will have another machine than this one.
        self._vars_file = vars_file
        self._values, findings = read_variables(environ, vars_file=vars_file, root=ROOT)
        self.checks["variables"].errors += findings + self._misplaced()
        own = sorted(name for name in environ if name.startswith("SAC_"))
        self.checks["variables"].facts.append(f"{len(own)} set, with {vars_file or 'the environment'}")
        self._paths = RunPaths(self._values["exp_dir"]) if "exp_dir" in self._values else None
        self.checks["settings"].errors += settings.findings
        if words := self.overrides.in_words():
            self.checks["settings"].facts.append(words)
        self.checks["settings"].notes += [
            f"{name}=null removes the key, unless it is null in the file: write a null that is a value into the file"
            for name in self.overrides.removed()
        ]

    def run(self, fork_server: ForkServer | None, *, starts: bool = True) -> None:
        """Makes all checks.

        Args:
          fork_server: A user's own code then runs in a child of it, else in this process.
          starts: A start follows, which takes the run directory itself and has no time to draw a picture.
        """
        self._check_directories(starts)
        if not self._is_for_job:
            self._check_machine()
            self._check_gpu()
        self._check_packages()
        if not self.checks["run directory"].errors:
            self._keep_folder()
            environ = {**self._environ, FOLDER: str(self.folder)} if self.folder else self._environ
            render = not (starts or self._is_for_job)
            self.inspection = run_inspection(environ, self._vars_file, fork_server, render=render)
            self._tell_of_folder()
            self.checks.extend(self.inspection.checks)

    def close(self) -> None:
        """Removes what only the checks needed."""
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def takes_edits(self) -> bool:
        """Whether a run that has begun gets the files as they are now."""
        return self._environ.get(EDITS) == TAKE

    def _keep_folder(self) -> None:
        """Copies the folder of SAC_PARAMS: what is checked is what runs. Or tells what was edited."""
        params: Path | None = self._values.get("params")
        keeps = self._values.get("keep_folder", True) and "server" not in self._values
        if params is None or not keeps or params_folder.is_kept_otherwise(params):
            return
        paths, check = self._paths, self.checks["params folder"]
        own = [paths.exp_dir] if paths else []
        try:
            files = params_folder.files_of(params.parent, own, self._values.get("snapshot_mb", 100))
        except params_folder.TooLargeError as error:
            check.notes.append(
                f"of the folder of SAC_PARAMS only {params.name} is kept, {error}: an edit of what it imports would "
                "change a resumed run. Move it and what it imports into a folder of their own"
            )
            return
        if run_directory.has_begun(paths) and not self.takes_edits:
            assert paths is not None
            if paths.params_folder.is_dir() and self._environ.get(EDITS) != KEEP:
                told = params_folder.differences(paths.params_folder, params.parent, files)
                check.notes += [_edited(params.parent, told)] if told else []
            return
        self.folder = Path(tempfile.mkdtemp(prefix="sac_params_")).resolve()
        params_folder.copy(params.parent, files, self.folder)
        check.facts.append(f"{params.parent}: {len(files)} file{'s' if len(files) != 1 else ''} kept for the run")

    def _tell_of_folder(self) -> None:
        """Names the originals of what was checked, and says where a copy may be the reason of an error."""
        if self.folder is None:
            return
        found, folder = self.inspection.checks, str(self._values["params"].parent)
        found.replace(str(self.folder), folder)
        if any(error in text for text in found.errors for error in ("ModuleNotFound", "ImportError", "FileNotFound")):
            self.checks["params folder"].notes.append(
                f"the run has a copy of {folder} and runs it: what lies outside of that folder is not found by a path "
                "that is relative to a file in it. Give an absolute one, or set SAC_KEEP_FOLDER=0"
            )

    @property
    def seed(self) -> int:
        """The seed that the run began with, else SAC_SEED."""
        return run_directory.seed_of_run(self._paths, int(self._values.get("seed", 0)))

    def variables(self) -> RunVariables:
        """All variables, checked.

        Raises:
          UserError: With everything that was found.
        """
        if self.checks.errors:
            for note in self.checks.notes:
                print(f"note: {note}", file=sys.stderr)
            raise UserError(*self.checks.errors)
        return RunVariables(**self._values)

    def _misplaced(self) -> list[str]:
        """Variables that are not meant for this program."""
        ours = {"SAC_SERVER": self._values.get("server"), "SAC_WORKER_ROLE": self._values.get("worker_role")}
        return [
            f"{name}={value} is for workers that join: unset it here, or join a run with join_script.sh"
            for name, value in ours.items()
            if value not in (None, COLLECT)
        ]

    def _check_directories(self, starts: bool) -> None:
        if self._paths is None:
            return
        check = self.checks["run directory"]
        fault = resources.folder_fault(self._paths.exp_dir, "SAC_EXP_DIR")
        replay_dir = None if self._is_for_job else self._values.get("replay_dir")  # Such as a node's own scratch.
        if fault is None and replay_dir is not None:
            fault = resources.folder_fault(replay_dir, "SAC_REPLAY_DIR") or scratch.fault_of(replay_dir)
        if fault is not None:
            check.errors.append(fault)
            return
        check.facts.append(f"{self._paths.exp_dir}: {self._state_of_run(self._paths)}")
        if not (starts or self._is_for_job) and (owner := owner_of_run(self._paths)) is not None:
            check.errors.append(
                f"SAC_EXP_DIR={self._paths.exp_dir} is in use by {owner}: stop that run first, or choose another "
                "SAC_EXP_NAME"
            )

    def _state_of_run(self, paths: RunPaths) -> str:
        if not paths.run_json.exists():
            return "a new run"
        if not run_directory.has_begun(paths):
            return "a run without any update yet, which takes files and settings as they are now"
        return "finished" if run_directory.is_finished(paths) else "a run that goes on"

    def _check_machine(self) -> None:
        knows_share = "share_cpus" in self._values or not self._environ.get("SAC_SHARE_CPUS")
        if self._values.keys() >= _PLAN_FIELDS and knows_share:
            check = self.checks["CPUs"]
            with check.catching():
                counts, trainers = plan_counts(self._values), held_cpus("trainer")
                self.plan = plan_for(counts, self._environ, held=held_cpus(), trainers=trainers)
                roles = ", ".join(
                    f"{role} {format_cpu_list(ids) or 'any'}" for role, ids in self.plan.by_role().items()
                )
                check.facts.append(f"{roles} ({'pinned' if self.plan.pinned else 'not pinned'})")
                check.notes += self.plan.notes
        if self.plan is not None and self.plan.pinned:
            check = self.checks["taskset"]
            if (taskset := shutil.which("taskset")) is None:
                check.errors.append("taskset is not installed: install util-linux (apt-get install util-linux)")
            else:
                check.facts.append(taskset)
        if "server" not in self._values:  # The replay server is to be here.
            with self.checks["port"].catching():
                peers.require_owners(self._environ)
        if "reverb_port" in self._values:
            with self.checks["port"].catching():
                _check_port(self._values["reverb_port"])
                self.checks["port"].facts.append(f"{self._values['reverb_port']} is free")
        self._check_gateway()
        if "num_collect_workers" in self._values:
            workers = self._values.get("max_workers", self._values["num_collect_workers"])
            resources.check_open_files(self.checks["open files"], workers)

    def _check_gateway(self) -> None:
        """Port, certificates and password of those who join from other machines."""
        if (port := self._values.get("gateway_port")) is None:
            return
        from tfagents_system.channel import credentials

        check = self.checks["gateway"]
        if port and not port_is_free(port):
            check.errors.append(f"SAC_GATEWAY_PORT={port} is in use: choose another port, or 0 for any free one")
        folder = self._values.get("credentials_dir") or (self._paths.credentials if self._paths else None)
        if folder is not None and (folder.exists() or "credentials_dir" in self._values):
            check.errors += credentials.check_credentials(folder, credentials.SERVER)
        with check.catching():
            password = credentials.read_password(self._values.get("password_file"))
            asked = "and a password" if password else "without a password"
            check.facts.append(f"port {port or 'any free one'}, certificates in {folder}, {asked}")

    def _check_gpu(self) -> None:
        if not self._values.get("train_gpus"):
            return
        if (gpu := gpu_of_trainer(self._environ)) is not None:
            self.checks["GPU"].facts.append(f"the trainer's is {gpu}")
            return
        self.checks["GPU"].errors.append(
            "SAC_TRAIN_GPUS=1, but there is no GPU that may be used here (CUDA_VISIBLE_DEVICES: "
            f"{self._environ.get(FOUND, 'not set')}): ask the cluster for one (--gpus-per-node=1), or unset it"
        )

    def _check_packages(self) -> None:
        check = self.checks["packages"]
        differing = pinned_packages.missing(dev=False)
        check.notes += [f"{package}: this version was not tested" for package in differing]
        check.facts.append(f"Python {sys.version.split()[0]}, {len(pinned_packages.pinned(dev=False))} pinned packages")


def plan_counts(values: Mapping[str, Any]) -> types.SimpleNamespace:
    """What `plan_for` needs of the variables, as far as they could be read."""
    return types.SimpleNamespace(**({"share_cpus": False, "use_hyperthreads": True} | dict(values)))


def start_fork_server(environ: Mapping[str, str], vars_file: Path | None) -> ForkServer | None:
    """The process that the roles will be forked from; it begins to import. None where it is not wanted.

    Nor where an input is missing or can't be read: that is told at once, without TensorFlow.
    """
    values, _ = read_variables(environ, vars_file=vars_file, root=ROOT)
    if not values.get("fork_roles", True) or not values.keys() >= {"exp_dir", "params", "config"}:
        return None
    try:
        load_env_config(values["config"])
        compile(values["params"].read_bytes(), values["params"], "exec")
    except (UserError, SyntaxError, ValueError, OSError):
        return None
    return ForkServer.start({**environ, "SAC_EXP_DIR": str(values["exp_dir"])})


def prepare(
    environ: Mapping[str, str],
    vars_file: Path | None,
    quiet_plan: bool = False,
    fork_server: ForkServer | None = None,
    settings: RunSettings | None = None,
) -> bool:
    """Checks and prepares a run; False if it is finished already.

    Args:
      environ: Usually os.environ, after the vars file was sourced.
      vars_file: For messages and relative paths.
      quiet_plan: The supervisor comes next and prints the CPU plan that it claims.
      fork_server: A user's own code then runs in a child of it, else in this process.
      settings: What is overridden; by default what the environment says of it.

    Raises:
      UserError: With all findings.
    """
    preparation = Preparation(environ, vars_file, settings)
    try:
        preparation.run(fork_server)
        return _write_run(preparation, quiet_plan)
    finally:
        preparation.close()


def _write_run(preparation: Preparation, quiet_plan: bool) -> bool:
    variables, inspection = preparation.variables(), preparation.inspection
    assert preparation.plan is not None and inspection.num_iter is not None and inspection.specs is not None
    for note in preparation.checks.notes:
        if note not in preparation.plan.notes:  # Those stand below the plan.
            print(f"note: {note}")
    paths = RunPaths(variables.exp_dir)
    with RunLock(paths):
        uses_copies = run_directory.has_begun(paths) and not preparation.takes_edits
        changes = run_directory.changes(paths, preparation.overrides)
        run_directory.write_inputs(
            paths,
            variables,
            inspection.num_iter,
            preparation.overrides,
            folder=preparation.folder,
            take_edits=preparation.takes_edits,
            ends_for=settings_of_end(inspection.attributes),
        )
        run_directory.write_resolved(paths, variables, inspection.attributes, inspection.config)
        _write_specs(paths, inspection.specs)
    if preparation.seed != variables.seed:
        print(
            f"note: this run began with SAC_SEED={preparation.seed}, which stays; SAC_SEED={variables.seed} is ignored"
        )
    if run_directory.is_finished(paths):
        why = run_directory.why_early(paths)
        print(
            f"{variables.exp_name} is finished ({why or f'{inspection.num_iter} iterations'}, {paths.exp_dir}): "
            "nothing to do. Choose another SAC_EXP_NAME for a new run, or go on with this one with --set "
            f"{'stop_when=... or max_hours=...' if why else 'num_iter=N'}"
        )
        return False
    used = (paths.params, paths.config) if uses_copies else (variables.params, variables.config)
    print(f"{variables.exp_name}: params {used[0]}, config {used[1]}, run directory {paths.exp_dir}")
    if changes:
        print(f"changed for this run from now on: {changes}")
    if words := preparation.overrides.in_words():
        print(f"settings: {words}")
    if not quiet_plan:
        print(preparation.plan.table())
    return True


def check(
    environ: Mapping[str, str],
    vars_file: Path | None,
    fork_server: ForkServer | None = None,
    settings: RunSettings | None = None,
) -> int:
    """Makes the checks of a start, prints what was looked at and found, and returns the exit code; writes nothing."""
    preparation = Preparation(environ, vars_file, settings)
    try:
        preparation.run(fork_server, starts=False)
    finally:
        preparation.close()
    print(preparation.checks.report())
    return EXIT_BAD_INPUT if preparation.checks.errors else EXIT_DONE


def _edited(folder: Path, differences: Sequence[str]) -> str:
    shown = ", ".join(differences[:_MOST_SHOWN])
    more = f" and {len(differences) - _MOST_SHOWN} more" if len(differences) > _MOST_SHOWN else ""
    return (
        f"{folder} is not what this run began with ({shown}{more}), which goes on with its own copy: --take_edits goes "
        "on with the files as they are now, --fresh begins anew, --keep says that this is meant"
    )


def _write_specs(paths: RunPaths, specs: bytes) -> None:
    beside = paths.specs.with_name(f".{paths.specs.name}.{os.getpid()}")
    beside.write_bytes(specs)
    os.replace(beside, paths.specs)


def _check_port(port: int) -> None:
    claims = Claims()
    try:
        claims.take_port(port)
    finally:
        claims.release_all()


def main() -> int:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Nothing is running yet: Ctrl-C just ends, without a traceback.
    parser = argparse.ArgumentParser(description="Check and prepare a run.")
    parser.add_argument("--vars_file", type=Path, default=None, help="the sourced vars file, for messages and paths")
    parser.add_argument("--check", action="store_true", help="only check, and tell all that was looked at")
    parser.add_argument(
        "--set", action="append", default=[], dest="assignments", metavar="NAME=VALUE", help="see overrides.py"
    )
    edited = parser.add_mutually_exclusive_group()
    edited.add_argument("--fresh", action="store_true", help="begin anew; the run that is there is moved aside")
    edited.add_argument("--keep", action="store_true", help="go on with the run's own copies of files edited since")
    edited.add_argument("--take_edits", action="store_true", help="go on with the files as they are now")
    parser.add_argument("--then", type=Path, default=None, help="program to become once the run is prepared")
    args = parser.parse_args()
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"  # What TensorFlow says of itself would hide what the user must read.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # Names may hold any bytes.
    if args.check:
        os.environ[SHOW_TRACES] = "1"
    if args.fresh and args.check:
        raise UserError("--check moves nothing: check without --fresh, with --set SAC_EXP_NAME=another")
    if args.keep or args.take_edits:
        os.environ[EDITS] = KEEP if args.keep else TAKE
    with _moved_aside(args) if args.fresh else contextlib.nullcontext():
        return _start(args)


@contextlib.contextmanager
def _moved_aside(args: argparse.Namespace) -> Iterator[None]:
    """The run that is there has another place, for good once a fresh one is prepared; on an error it comes back."""
    environ = resolve(os.environ, args.assignments, vars_file=args.vars_file, root=ROOT).environ
    exp_dir = read_variables(environ, vars_file=args.vars_file, root=ROOT)[0].get("exp_dir")
    if exp_dir is None or not RunPaths(exp_dir).run_json.exists():
        yield
        return
    aside = run_directory.move_aside(RunPaths(exp_dir))
    print(f"the run that was in {exp_dir} is in {aside} now")
    try:
        yield
    except BaseException:
        if not exp_dir.exists():
            os.rename(aside, exp_dir)
            print(f"the run is in {exp_dir} again")
        raise


def _start(args: argparse.Namespace) -> int:
    settings = resolve(os.environ, args.assignments, vars_file=args.vars_file, root=ROOT)
    os.environ.update(settings.environ)
    fork_server = start_fork_server(os.environ, args.vars_file)
    if args.check:
        code = check(os.environ, args.vars_file, fork_server, settings)
        if fork_server is not None:
            fork_server.close()
        return code
    is_to_run = prepare(
        os.environ, args.vars_file, quiet_plan=args.then is not None, fork_server=fork_server, settings=settings
    )
    if not is_to_run or args.then is None:
        return EXIT_DONE
    sys.stdout.flush()
    for name in (CARRIER, EDITS):  # From here on the run directory says it.
        os.environ.pop(name, None)
    handed_over = 2
    if fork_server is not None:
        with contextlib.suppress(ForkServerError):  # The supervisor then starts another one.
            handed_over, os.environ[HANDLE_VARIABLE] = fork_server.hand_over()
    # What an environment has opened is not for those who come.
    os.closerange(3, handed_over)
    os.closerange(handed_over + 1, 1024)
    os.execv(args.then, [str(args.then), *([str(args.vars_file)] if args.vars_file else [])])


if __name__ == "__main__":
    exit_with(main)
