"""The checks that run a user's own code: params, configuration, environment, and what they will need.

They run in a process of their own, which tells in a file what it has found so far and what it is doing: a crash or a
hang of the user's code becomes a finding, too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pickle
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil

from tfagents_system.checks.checklist import Checklist
from tfagents_system.envs.curriculum import check_curriculum
from tfagents_system.envs.env_process import DEFAULT_STEP_TIMEOUT_SECS, build_timeout_secs
from tfagents_system.envs.faults import describe_error
from tfagents_system.errors import EXIT_BAD_INPUT, print_findings, shown
from tfagents_system.launch import resources
from tfagents_system.launch.cpus import CpuPlan
from tfagents_system.launch.fork_client import ForkServer
from tfagents_system.launch.fork_messages import CallDiedError, ForkServerError
from tfagents_system.launch.run_settings import EDITS, FOLDER, FRESH, KEEP, TAKE, carried
from tfagents_system.machine.processes import kill_session
from tfagents_system.run_files import run_checkpoints, run_directory, run_inputs
from tfagents_system.run_files.run_checkpoints import AgentSignature
from tfagents_system.run_files.run_paths import TRAINER, RunPaths
from tfagents_system.settings import own_attributes, params_check
from tfagents_system.settings.load_params import compute_config_from, load_env_config, load_params, load_params_class
from tfagents_system.settings.variables import read_variables
from tfagents_system.train_params_base import TrainParamsBase

ROOT = Path(__file__).resolve().parents[2]
PARAMS, CONFIG = "params", "config"
_MODULE = "tfagents_system.launch.inspection"
_COMPUTE_FIELDS = ("reverb_cpus", "train_cpus", "num_collect_workers", "collect_worker_cpus")
_SPEAK_SECS = 20.0
_POLL_SECS = 0.2


@dataclasses.dataclass
class Inspection:
    """What the user's own files turned out to be.

    Attributes:
      checks: What was looked at, and what was found.
      num_iter: Of the params; None where they can't be loaded.
      attributes: Of the params, by name, and `config`: as they are with all that is overridden.
      specs: The content of specs.pbtxt; None where the environment could not be built.
      doing: What is going on now; empty once the inspection is complete.
      pid: Of the process that is at it.
    """

    checks: Checklist = dataclasses.field(default_factory=Checklist)
    num_iter: int | None = None
    attributes: dict[str, Any] = dataclasses.field(default_factory=dict)
    config: dict[str, Any] = dataclasses.field(default_factory=dict)
    specs: bytes | None = None
    doing: str = ""
    pid: int = 0


class Progress:
    """A file in which an inspection tells how far it is.

    Args:
      path: Of the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int] | None = None
        self._since = self._spoke = time.monotonic()

    def write(self, inspection: Inspection) -> None:
        """Called by the inspection when it begins something."""
        beside = self._path.with_suffix(".new")
        beside.write_bytes(pickle.dumps(inspection))
        os.replace(beside, self._path)

    def read(self) -> Inspection:
        """What was written last."""
        try:
            inspection: Inspection = pickle.loads(self._path.read_bytes())
        except (OSError, EOFError, pickle.PickleError):
            return Inspection()
        return inspection

    def overdue(self, step_timeout_secs: float) -> bool:
        """Whether what the inspection is doing takes too long; tells now and then what is being waited for."""
        with contextlib.suppress(FileNotFoundError):
            stat = self._path.stat()
            if (seen := (stat.st_ino, stat.st_mtime_ns)) != self._seen:
                self._seen, self._since = seen, time.monotonic()
                self._spoke = self._since
                return False
        now = time.monotonic()
        if self._seen is None or now - self._spoke < min(_SPEAK_SECS, step_timeout_secs):
            return False
        self._spoke = now
        doing = self.read().doing
        limit_secs = _limit_secs(doing, step_timeout_secs)
        if not doing or now - self._since >= limit_secs:
            return bool(doing)
        print(f"note: check: {doing} takes {now - self._since:.0f} s, of at most {limit_secs:g} s", flush=True)
        return False


def _limit_secs(doing: str, step_timeout_secs: float) -> float:
    """As workers have it: for a step or reset what is given, for all else longer."""
    return step_timeout_secs if _is_step(doing) else build_timeout_secs(step_timeout_secs)


def _is_step(doing: str) -> bool:
    return "step()" in doing or "reset()" in doing


def inspect(
    environ: Mapping[str, str], vars_file: Path | None, progress_path: Path, render: bool, plan: CpuPlan | None = None
) -> Inspection:
    """Loads params and configuration, builds the environment and tries it: all that runs a user's own code."""
    return _Inspector(environ, vars_file, Progress(progress_path)).run(render, plan)


def check_inputs(environ: Mapping[str, str], vars_file: Path | None) -> list[str]:
    """What is wrong with params and configuration; no environment is built."""
    with tempfile.TemporaryDirectory(prefix="sac_check_") as folder:
        inspector = _Inspector(environ, vars_file, Progress(Path(folder) / "progress"))
        return inspector.load_inputs().errors


def run_inspection(
    environ: Mapping[str, str],
    vars_file: Path | None,
    fork_server: ForkServer | None,
    *,
    render: bool,
    plan: CpuPlan | None = None,
) -> Inspection:
    """`inspect`, in a process of its own where that can be forked: what a simulator starts does not stay here."""
    timeout_secs = float(
        read_variables(environ, vars_file=vars_file, root=ROOT)[0].get("step_timeout_secs", DEFAULT_STEP_TIMEOUT_SECS)
    )
    with tempfile.TemporaryDirectory(prefix="sac_check_") as folder:
        path = Path(folder) / "progress"
        if fork_server is not None:
            try:
                return _inspect_forked(environ, vars_file, fork_server, path, timeout_secs, render, plan)
            except ForkServerError as error:
                print(f"note: {error}: params and environment are checked without it", flush=True)
        with _ended_when_overdue(Progress(path), timeout_secs):
            return inspect(environ, vars_file, path, render, plan)


def _inspect_forked(
    environ: Mapping[str, str],
    vars_file: Path | None,
    fork_server: ForkServer,
    path: Path,
    timeout_secs: float,
    render: bool,
    plan: CpuPlan | None,
) -> Inspection:
    progress = Progress(path)
    if plan is not None:  # Updates are measured with the trainer's threads.
        threads = plan.thread_environ(TRAINER)
        environ = {**environ, **{name: count for name, count in threads.items() if name.startswith("TF_")}}
    was_hung = False

    def watch() -> None:
        nonlocal was_hung
        if not was_hung and progress.overdue(timeout_secs):
            was_hung = True
            kill_session(progress.read().pid)

    try:
        inspection: Inspection = fork_server.call(
            _MODULE, "inspect", dict(environ), vars_file, path, render, plan, environ=environ, watch=watch
        )
        return inspection
    except CallDiedError as error:
        return _ended_early(progress.read(), timeout_secs if was_hung else None, str(error))


def _ended_early(so_far: Inspection, timeout_secs: float | None, died_with: str) -> Inspection:
    """What was found before the user's code hung or took the process down, and that it did."""
    doing = so_far.doing or "the check of params and environment"
    if timeout_secs is not None:
        fault = f"{doing} has not returned for {_limit_secs(doing, timeout_secs):g} s: correct it"
        if _is_step(doing):
            fault += ", or raise SAC_STEP_TIMEOUT_SECS"
    else:
        fault = f"the process died with {died_with} in {doing}: see above, and correct it"
    if doing == "rendering":
        so_far.checks["rendering"].notes.append(f"{fault}; training needs no pictures")
    else:
        so_far.checks[PARAMS if so_far.num_iter is None else "environment"].errors.append(fault)
    return so_far


@contextlib.contextmanager
def _ended_when_overdue(progress: Progress, timeout_secs: float) -> Iterator[None]:
    """Where the check runs in this process: a thread ends it with the findings when the user's code hangs."""
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(_POLL_SECS):
            if progress.overdue(timeout_secs):
                print_findings(_ended_early(progress.read(), timeout_secs, "").checks.errors)
                os._exit(EXIT_BAD_INPUT)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


class _Inspector:
    """The checks of `inspect`, from the cheapest to the dearest; each is made if what it needs is there."""

    def __init__(self, environ: Mapping[str, str], vars_file: Path | None, progress: Progress) -> None:
        self._values, _ = read_variables(environ, vars_file=vars_file, root=ROOT)
        self._environ = environ
        self._overrides = carried(environ)
        self._paths = RunPaths(self._values["exp_dir"]) if "exp_dir" in self._values else None
        edits = environ.get(EDITS)
        self._run = None if edits == FRESH else self._paths  # What is gone on with.
        self._seed = run_directory.seed_of_run(self._run, int(self._values.get("seed", 0)))
        self._progress = progress
        self._found = Inspection(pid=os.getpid())
        self._folder = environ.get(FOLDER)
        self._keeps = edits == KEEP
        # A run that workers join has begun elsewhere.
        has_begun = "server" in self._values or run_directory.has_begun(self._run)
        self._uses_copies = has_begun and edits != TAKE

    def run(self, render: bool, plan: CpuPlan | None = None) -> Inspection:
        before_bytes = psutil.Process().memory_info().rss
        params = self._load_inputs()
        if params is not None:
            self._check_experts(params)
        if params is not None and params.env_config.get("horizon"):
            # Imported here: TensorFlow takes seconds, and earlier findings should not wait for it where it is broken.
            from tfagents_system.launch import environment_checks

            if "env_python" in self._values:
                os.environ["SAC_ENV_PYTHON"] = str(self._values["env_python"])  # Found, where it was given as relative.
            trial = environment_checks.check_environment(
                params,
                self._seed,
                self._found.checks,
                self._enter,
                render=render,
                deterministic=bool(self._values.get("deterministic")),
                plan=plan,
            )
            if trial is not None:
                self._found.specs = _specs_file(trial.specs)
                if reason := self._why_not_of_its_checkpoint(trial.signature):
                    self._found.checks[environment_checks.AGENT].errors.append(reason)
                self._check_sizes(params, trial, max(0, trial.resident_bytes - before_bytes))
        self._found.doing = ""
        return self._found

    def load_inputs(self) -> Checklist:
        """The first checks of `run`: of params and configuration."""
        self._load_inputs()
        return self._found.checks

    def _enter(self, doing: str) -> None:
        self._found.doing = doing
        self._progress.write(self._found)

    def _load_inputs(self) -> TrainParamsBase | None:
        """Params and configuration, which are checked on their own and together; returns the params if they load."""
        checks = self._found.checks
        config = None
        if "config" in self._values:
            check, path = checks[CONFIG], self._choose(CONFIG)
            with check.catching():
                config = load_env_config(path)
                config = self._overrides.merged(config)
                check.errors += params_check.check_env_config(config)
                check.errors += check_curriculum(config)
                check.facts.append(f"{path}: {', '.join(config) or 'no keys'}")
        if "params" not in self._values:
            return None
        check, path, origin = checks[PARAMS], self._choose(PARAMS), self._origin()
        self._enter(f"importing {origin}")
        params = None
        with check.catching():
            if config is None:
                load_params_class(path, origin)
                return None
            compute = {
                f"SAC_{name.upper()}": str(self._values[name]) for name in _COMPUTE_FIELDS if name in self._values
            }
            compute_config = compute_config_from(compute | {"SAC_SEED": str(self._seed)})
            params = load_params(
                path, config, origin=origin, compute_config=compute_config, attributes=self._overrides.params
            )
            check.errors += params_check.check_params(params)
            # A run that was begun before these were refused goes on.
            (check.notes if self._uses_copies else check.errors).extend(own_attributes.findings(params))
            if self._values.get("deterministic"):
                check.errors += params_check.check_deterministic(params)
            if not check.errors:
                check.facts.append(f"{path}: {_in_words(params)}")
                check.notes += params_check.advice(params)
                self._found.num_iter = params.num_iter
                self._found.attributes, self._found.config = _plain(params_check.resolved_attributes(params)), config
        return params

    def _choose(self, kind: str) -> Path:
        source: Path = self._values[kind]
        if self._run is None:
            return source
        path, note = run_inputs.choose_input(getattr(self._run, kind), source, self._uses_copies)
        if note and not self._keeps:
            self._found.checks[kind].notes.append(note)
        return path

    def _origin(self) -> Path:
        """What the params file is run as."""
        source: Path = self._values["params"]
        if self._folder:
            return Path(self._folder) / source.name
        if self._uses_copies and self._run is not None and self._run.params_folder.is_dir():
            return self._run.params_folder / source.name
        return source

    def _why_not_of_its_checkpoint(self, signature: AgentSignature | None) -> str:
        """Why the run can't go on with this agent; empty if it can, or is new."""
        if self._run is None or signature is None or "server" in self._values:
            return ""
        newest = run_checkpoints.newest_complete(self._run.trainer_checkpoints)
        return "" if newest is None else run_checkpoints.why_not_of(newest, signature)

    def _check_experts(self, params: TrainParamsBase) -> None:
        """Whether the experts that the run is to start have a policy: each of them would end it."""
        if not self._values.get("expert_workers"):
            return
        check, saved = self._found.checks["experts"], self._values.get("expert_policy")
        check.facts.append(f"{self._values['expert_workers']} with {saved or 'TrainParams.expert_policy_ctor'}")
        if saved is not None:
            return
        self._enter("expert_policy_ctor")
        try:
            policy = params.expert_policy_ctor()
        except (Exception, SystemExit) as error:
            check.errors.append(f"expert_policy_ctor raised {describe_error(error)}: correct the hook, or remove it")
            return
        if not callable(policy):
            check.errors.append(
                f"SAC_EXPERT_WORKERS={self._values['expert_workers']} needs a policy, and "
                f"TrainParams.expert_policy_ctor returned {shown(policy)}: set SAC_EXPERT_POLICY to a SavedModel, a "
                "policy checkpoint or an exported file, or have the hook return a function"
            )

    def _check_sizes(self, params: TrainParamsBase, trial: Any, own_bytes: int) -> None:
        """Memory and disk; not where a value that they follow from is wrong."""
        if self._paths is None or self._found.checks[PARAMS].errors or self._found.checks[CONFIG].errors:
            return
        checks, values = self._found.checks, self._values
        workers = values.get("local_workers", values.get("num_collect_workers", 1)) + values.get("expert_workers", 0)
        are_forked = values.get("fork_roles", True)
        if "server" in values:  # Workers that join have neither a ring nor checkpoints here.
            resources.check_memory(checks["memory"], workers, own_bytes, 0, are_forked=are_forked)
            return
        ring_bytes = _ring_bytes(params, trial.specs)
        available = resources.memory_of_job(self._environ)
        replay_dir = self._paths.replay
        if available is None:  # Of a job it may be scratch of a node.
            replay_dir = values.get("replay_dir", replay_dir)
        run_bytes = resources.disk_of_run(
            trial.agent_bytes, trial.policy_bytes, params.num_iter, params.checkpoint_period_itrs
        )
        needed = {self._paths.exp_dir: ("checkpoints, policies, logs", run_bytes)}
        for folder in dict.fromkeys((self._paths.replay, replay_dir)):  # On scratch it has a copy in the run directory.
            needed[folder] = ("replay buffer", max(0, ring_bytes - resources.reserved_bytes(folder)))
        with contextlib.suppress(OSError):  # The run directory can't be looked at, which is told elsewhere.
            resources.check_disk(checks["disk"], needed)
        resources.check_memory(
            checks["memory"], workers, own_bytes, ring_bytes, are_forked=are_forked, available=available
        )


def _ring_bytes(params: TrainParamsBase, specs: Any) -> int:
    """Of the replay server's files."""
    from tfagents_system.replay.ring_sizes import ring_bytes
    from tfagents_system.transport.segments import Layout

    return ring_bytes(params, Layout.from_specs(*specs, has_returns=params.normalize_rewards))


def _plain(attributes: dict[str, Any]) -> dict[str, Any]:
    """What another process can read without the user's code: values that JSON has no form for are texts."""
    plain: dict[str, Any] = json.loads(json.dumps(attributes, default=_as_plain))
    return plain


def _as_plain(value: Any) -> Any:
    return value.tolist() if type(value).__module__ == "numpy" else repr(value)


def _in_words(params: TrainParamsBase) -> str:
    updates = f"{params.num_iter} iterations of {params.num_steps_per_iter} updates"
    if params.updates_per_env_step is not None:
        updates = f"{params.num_iter} iterations, {params.updates_per_env_step:g} updates for each step"
    return f"{updates}, with batches of {params.train_batch_size}"


def _specs_file(specs: Any) -> bytes:
    from tfagents_system.envs.specs import save_specs

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "specs.pbtxt"
        save_specs(path, *specs)
        return path.read_bytes()
