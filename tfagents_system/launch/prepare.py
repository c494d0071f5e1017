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
import threading
import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tfagents_system.checks.checklist import Checklist
from tfagents_system.envs.faults import SHOW_TRACES
from tfagents_system.errors import EXIT_BAD_INPUT, EXIT_DONE, UserError, exit_with
from tfagents_system.launch import pinned_packages, resources
from tfagents_system.launch.cpus import CpuPlan, plan_for
from tfagents_system.launch.fork_client import HANDLE_VARIABLE, ForkServer
from tfagents_system.launch.fork_messages import ForkServerError
from tfagents_system.launch.inspection import Inspection, run_inspection
from tfagents_system.launch.orphans import wait_for_orphans
from tfagents_system.launch.run_settings import CARRIER, EDITS, FOLDER, FRESH, KEEP, TAKE, RunSettings, resolve
from tfagents_system.machine import peers, scratch
from tfagents_system.machine.claims import Claims, held_cpus, port_is_free
from tfagents_system.machine.gpus import FOUND, gpu_of_trainer
from tfagents_system.machine.signals import STOP_SIGNALS
from tfagents_system.machine.slots import COLLECT
from tfagents_system.machine.topology import format_cpu_list
from tfagents_system.run_files import params_folder, run_directory, run_inputs
from tfagents_system.run_files.run_inputs import Inputs
from tfagents_system.run_files.run_lock import RunLock, owner_of_run
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.settings.early_end import settings_of_end
from tfagents_system.settings.load_params import load_env_config
from tfagents_system.settings.variables import RunVariables, read_variables

ROOT = Path(__file__).resolve().parents[2]
_MOST_SHOWN = 8
_COPY = "sac_params_"  # Folders of that name in the temporary one are ours.
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
    """

    def __init__(self, environ: Mapping[str, str], vars_file: Path | None, settings: RunSettings | None = None) -> None:
        self.checks = Checklist()
        settings = settings or resolve(environ, (), vars_file=vars_file, root=ROOT)
        environ, self.overrides = settings.environ, settings.overrides
        self.plan: CpuPlan | None = None
        self.inspection = Inspection()
        self._copied_folder: Path | None = None  # A copy of the folder of SAC_PARAMS.
        self._digests: dict[str, str] = {}
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
            environ = {**self._environ, FOLDER: str(self._copied_folder)} if self._copied_folder else self._environ
            render = not (starts or self._is_for_job)
            # Not measured: on a GPU, which the check leaves alone, and where workers join a run from elsewhere.
            measures = render and not {"server", "train_gpus"} & {k for k, value in self._values.items() if value}
            plan = self.plan if measures else None
            self.inspection = run_inspection(environ, self._vars_file, fork_server, render=render, plan=plan)
            self._tell_of_folder()
            self.checks.extend(self.inspection.checks)

    def close(self) -> None:
        """Removes what only the checks needed."""
        if self._copied_folder is not None:
            shutil.rmtree(self._copied_folder, ignore_errors=True)

    @property
    def edits(self) -> str | None:
        """What is done with files that were edited since the run began; see run_settings.py."""
        return self._environ.get(EDITS)

    @property
    def _run_before(self) -> RunPaths | None:
        """The run that is gone on with, if there is one."""
        return None if self.edits == FRESH else self._paths

    def _keep_folder(self) -> None:
        """Copies the folder of SAC_PARAMS: what is checked is what runs. Or tells what was edited."""
        params: Path | None = self._values.get("params")
        if params is None or "server" in self._values or params_folder.is_kept_otherwise(params):
            return
        check, kept = self.checks["params folder"], None
        if run_directory.has_begun(self._run_before) and self.edits != TAKE:
            assert self._run_before is not None
            kept = run_inputs.kept_digests(self._run_before)
            if kept is None:
                return
        elif not self._values.get("keep_folder", True):
            return
        left_out = ("exp_dir", "logs_dir", "password_file", "credentials_dir")
        own = [self._values[name] for name in left_out if name in self._values]
        try:
            files = params_folder.files_of(params.parent, own, self._values.get("snapshot_mb", 100))
            digests = params_folder.digests(params.parent, files)
            if kept is None:
                self._copied_folder = Path(tempfile.mkdtemp(prefix=_COPY)).resolve()
                params_folder.copy(params.parent, files, self._copied_folder)
                self._digests = digests
                check.facts.append(f"{params.parent}: {len(files)} file{'s' * (len(files) != 1)} kept for the run")
            elif self.edits != KEEP and (told := params_folder.differences(kept, digests)):
                check.notes.append(_edited(params.parent, told))
        except params_folder.TooLargeError as error:
            check.notes.append(
                f"{error}: {'it is not compared with the copy that the run has' if kept else _only_the_file(params)}"
            )
        except OSError as error:
            check.errors.append(
                f"{error.filename} in the folder of SAC_PARAMS can't be read ({error.strerror}): the run keeps a copy "
                "of the folder. Make it readable, or set SAC_KEEP_FOLDER=0"
            )

    def files(self) -> Inputs:
        """The user's files, for the run."""
        return Inputs(self._values["params"], self._values["config"], self._copied_folder, self._digests)

    def _tell_of_folder(self) -> None:
        """Names the originals of what was checked, and says where a copy may be the reason of an error."""
        if self._copied_folder is None:
            return
        found, folder = self.inspection.checks, str(self._values["params"].parent)
        found.replace(str(self._copied_folder), folder)
        if any(error in text for text in found.errors for error in ("ModuleNotFound", "ImportError", "FileNotFound")):
            self.checks["params folder"].notes.append(
                f"the run has a copy of {folder} and runs it: what lies outside of that folder is not found by a path "
                "that is relative to a file in it. Give an absolute one, or set SAC_KEEP_FOLDER=0"
            )

    @property
    def seed(self) -> int:
        """The seed that the run began with, else SAC_SEED."""
        return run_directory.seed_of_run(self._run_before, int(self._values.get("seed", 0)))

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
        if self.edits == FRESH or not paths.run_json.exists():
            return "a new run" + (", the one that is there is moved aside" if paths.run_json.exists() else "")
        if not run_directory.has_begun(paths):
            return "a run without any update yet, which takes files and settings as they are now"
        return "finished" if run_directory.is_finished(paths, self.overrides) else "a run that goes on"

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
        from tfagents_system.transport.remote import credentials

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
    with _closed_on_signals(preparation):
        preparation.run(fork_server)
        return _write_run(preparation, quiet_plan)


@contextlib.contextmanager
def _closed_on_signals(preparation: Preparation) -> Iterator[None]:
    """Closes it at the end, also where a signal ends this process: a copied folder may be large."""

    def end(number: int, frame: types.FrameType | None) -> None:
        del frame
        preparation.close()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    is_main = threading.current_thread() is threading.main_thread()
    ends = [number for number in STOP_SIGNALS if is_main and signal.getsignal(number) is signal.SIG_DFL]
    for number in ends:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in ends:
            signal.signal(number, signal.SIG_DFL)
        preparation.close()


def _write_run(preparation: Preparation, quiet_plan: bool) -> bool:
    variables, inspection = preparation.variables(), preparation.inspection
    assert preparation.plan is not None and inspection.num_iter is not None and inspection.specs is not None
    for note in preparation.checks.notes:
        if note not in preparation.plan.notes:  # Those stand below the plan.
            print(f"note: {note}")
    paths = RunPaths(variables.exp_dir)
    wait_for_orphans(paths, variables.save_deadline_secs)
    if preparation.edits == FRESH and paths.run_json.exists():
        print(f"the run that was in {paths.exp_dir} is in {run_inputs.move_aside(paths)} now")
    with RunLock(paths):
        uses_copies = run_directory.has_begun(paths) and preparation.edits != TAKE
        changes = run_directory.changes(paths, preparation.overrides)
        run_directory.write_inputs(
            paths,
            variables,
            inspection.num_iter,
            preparation.overrides,
            inputs=preparation.files(),
            take_edits=preparation.edits == TAKE,
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
    with _closed_on_signals(preparation):
        preparation.run(fork_server, starts=False)
    print(preparation.checks.report())
    return EXIT_BAD_INPUT if preparation.checks.errors else EXIT_DONE


def _only_the_file(params: Path) -> str:
    return (
        f"only {params.name} is kept, and an edit of what it imports would change a resumed run. Move it and what it "
        "imports into a folder of their own"
    )


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
    edits = KEEP if args.keep else TAKE if args.take_edits else FRESH if args.fresh else None
    if edits in (TAKE, FRESH) and int(os.environ.get("SLURM_RESTART_COUNT") or 0) > 0:
        print("note: the job was requeued: what --fresh or --take_edits asked for was done by its first start")
        edits = None
    if edits is not None:
        os.environ[EDITS] = edits
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
