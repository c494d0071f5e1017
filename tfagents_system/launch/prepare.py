"""Checks everything that a run needs before any of its processes starts, then prepares its run directory.

    python -m tfagents_system.launch.prepare --vars_file VARS.sh [--then PROGRAM]

All findings are told together, with exit code 2. A run that is finished says so and ends with 0. Else PROGRAM takes the
place of this process: signals reach one process, whatever stage the start is in.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import shutil
import signal
import sys
import tempfile
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from tfagents_system import params_check
from tfagents_system.curriculum import check_curriculum
from tfagents_system.errors import EXIT_DONE, UserError, exit_with
from tfagents_system.launch import run_directory
from tfagents_system.launch.claims import Claims, RunLock, held_cpus
from tfagents_system.launch.cpus import CpuPlan, plan_for
from tfagents_system.launch.fork_server import HANDLE_VARIABLE, CallDiedError, ForkServer, ForkServerError
from tfagents_system.launch.run_paths import RunPaths
from tfagents_system.launch.variables import RunVariables, read_variables
from tfagents_system.load_params import compute_config_from, load_env_config, load_params, load_params_class
from tfagents_system.train_params_base import TrainParamsBase

ROOT = Path(__file__).resolve().parents[2]
_MODULE = "tfagents_system.launch.prepare"  # Also where this one is run as __main__.
_PLAN_FIELDS = {"reverb_cpus", "train_cpus", "num_collect_workers", "collect_worker_cpus"}
_T = TypeVar("_T")


@dataclasses.dataclass
class Inspection:
    """What the user's own files turned out to be.

    Attributes:
      findings: What the user must change.
      notes: What the user should know.
      num_iter: Of the params; None where they can't be loaded.
      specs: The content of specs.pbtxt; None where the environment could not be built.
    """

    findings: list[str]
    notes: list[str]
    num_iter: int | None = None
    specs: bytes | None = None


def inspect(environ: Mapping[str, str], vars_file: Path | None) -> Inspection:
    """Loads params and configuration, builds the environment and tries it: all that runs a user's own code."""
    preparation = Preparation(environ, vars_file)
    preparation.findings.clear()  # Of the variables: whoever asks has them.
    params = preparation.load_inputs()
    specs = preparation.check_environment(params) if params is not None and params.env_config.get("horizon") else None
    return Inspection(
        preparation.findings,
        preparation.notes,
        num_iter=params.num_iter if params is not None else None,
        specs=_specs_file(specs) if specs is not None else None,
    )


def _specs_file(specs: Any) -> bytes:
    from tfagents_system.envs.specs import save_specs

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "specs.pbtxt"
        save_specs(path, *specs)
        return path.read_bytes()


class Preparation:
    """The checks, from the cheapest to the dearest; each is made if what it needs is there.

    Args:
      environ: Usually os.environ, after the vars file was sourced.
      vars_file: For messages and relative paths.

    Attributes:
      findings: What the user must change.
      notes: What the user should know.
    """

    def __init__(self, environ: Mapping[str, str], vars_file: Path | None) -> None:
        self.findings: list[str] = []
        self.notes: list[str] = []
        self._environ = environ
        self._values, findings = read_variables(environ, vars_file=vars_file, root=ROOT)
        self.findings += findings
        self._paths = RunPaths(self._values["exp_dir"]) if "exp_dir" in self._values else None

    def check_machine(self) -> CpuPlan | None:
        """CPUs, taskset and the port; returns the CPU plan if there is one."""
        plan = None
        if self._values.keys() >= _PLAN_FIELDS:
            counts = types.SimpleNamespace(**({"share_cpus": False} | self._values))
            plan = self._try(lambda: plan_for(counts, self._environ, held=held_cpus()))
        if plan is not None and plan.pinned and shutil.which("taskset") is None:
            self.findings.append("taskset is not installed: install util-linux (apt-get install util-linux)")
        if "reverb_port" in self._values:
            self._try(lambda: _check_port(self._values["reverb_port"]))
        return plan

    def load_inputs(self) -> TrainParamsBase | None:
        """Params and configuration, which are checked on their own and together; returns the params if they load."""
        config = None
        if "config" in self._values:
            config_path = self._choose("config")
            config = self._try(lambda: load_env_config(config_path))
        if config is not None:
            env_config = config
            self.findings += params_check.check_env_config(env_config)
            self.findings += check_curriculum(env_config)
        if "params" not in self._values:
            return None
        params_path, origin = self._choose("params"), self._values["params"]
        if config is None:
            self._try(lambda: load_params_class(params_path, origin))
            return None
        compute = {name: self._values[name] for name in _PLAN_FIELDS if name in self._values}
        known = {f"SAC_{name.upper()}": str(value) for name, value in compute.items()}
        known["SAC_SEED"] = str(self.seed)
        params = self._try(
            lambda: load_params(params_path, env_config, origin=origin, compute_config=compute_config_from(known))
        )
        if params is not None:
            self.findings += params_check.check_params(params)
        return params

    def check_environment(self, params: TrainParamsBase) -> Any | None:
        """Builds and steps the environment; returns its specs. Not asked when the configuration itself is wrong."""
        # Imported here: TensorFlow takes seconds, and earlier findings should not wait for it where it is broken.
        from tfagents_system.envs import checks

        if "env_python" in self._values:
            os.environ["SAC_ENV_PYTHON"] = str(self._values["env_python"])  # Found, where it was given as relative.
        findings, specs = checks.check_environment(params, self.seed)
        self.findings += findings
        return specs

    @property
    def seed(self) -> int:
        """The seed that the run began with, else SAC_SEED."""
        wanted = int(self._values.get("seed", 0))
        return int(run_directory.read_run_json(self._paths).get("seed", wanted)) if self._paths else wanted

    def _choose(self, kind: str) -> Path:
        source: Path = self._values[kind]
        if self._paths is None:
            return source
        path, note = run_directory.choose_input(getattr(self._paths, kind), source)
        if note:
            self.notes.append(note)
        return path

    def _try(self, check: Callable[[], _T]) -> _T | None:
        try:
            return check()
        except UserError as error:
            self.findings += error.findings
            return None

    def variables(self) -> RunVariables:
        """All variables, checked.

        Raises:
          UserError: With everything that was found.
        """
        if self.findings:
            for note in self.notes:
                print(f"note: {note}", file=sys.stderr)
            raise UserError(*dict.fromkeys(self.findings))
        return RunVariables(**self._values)


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
) -> bool:
    """Checks and prepares a run; False if it is finished already.

    Args:
      environ: Usually os.environ, after the vars file was sourced.
      vars_file: For messages and relative paths.
      quiet_plan: The supervisor comes next and prints the CPU plan that it claims.
      fork_server: A user's own code then runs in a child of it, else in this process.

    Raises:
      UserError: With all findings.
    """
    preparation = Preparation(environ, vars_file)
    plan = preparation.check_machine()
    inspection = _inspect(fork_server, environ, vars_file)
    preparation.findings += inspection.findings
    preparation.notes += inspection.notes
    variables = preparation.variables()
    assert plan is not None and inspection.num_iter is not None and inspection.specs is not None
    for note in preparation.notes:
        print(f"note: {note}")
    paths = RunPaths(variables.exp_dir)
    with RunLock(paths):
        run_directory.write_inputs(paths, variables, inspection.num_iter)
        _write_specs(paths, inspection.specs)
    if preparation.seed != variables.seed:
        print(
            f"note: this run began with SAC_SEED={preparation.seed}, which stays; SAC_SEED={variables.seed} is ignored"
        )
    if run_directory.is_finished(paths):
        print(
            f"{variables.exp_name} is finished ({inspection.num_iter} iterations, {paths.exp_dir}): nothing to do. "
            f"Choose another SAC_EXP_NAME for a new run, or raise num_iter in {paths.params} to go on with this one"
        )
        return False
    print(f"{variables.exp_name}: params {variables.params}, config {variables.config}, run directory {paths.exp_dir}")
    if not quiet_plan:
        print(plan.table())
    return True


def _inspect(fork_server: ForkServer | None, environ: Mapping[str, str], vars_file: Path | None) -> Inspection:
    """`inspect`, in a process of its own where that can be forked: what a simulator starts does not stay here."""
    if fork_server is None:
        return inspect(environ, vars_file)
    try:
        inspection: Inspection = fork_server.call(_MODULE, "inspect", dict(environ), vars_file, environ=environ)
    except CallDiedError as error:
        return Inspection([f"the check of params and environment died with {error}: see above, and correct it"], [])
    except ForkServerError as error:
        print(f"note: {error}: params and environment are checked without it", flush=True)
        return inspect(environ, vars_file)
    return inspection


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
    parser.add_argument("--then", type=Path, default=None, help="program to become once the run is prepared")
    args = parser.parse_args()
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"  # What TensorFlow says of itself would hide what the user must read.
    fork_server = start_fork_server(os.environ, args.vars_file)
    is_to_run = prepare(os.environ, args.vars_file, quiet_plan=args.then is not None, fork_server=fork_server)
    if not is_to_run or args.then is None:
        return EXIT_DONE
    sys.stdout.flush()
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
