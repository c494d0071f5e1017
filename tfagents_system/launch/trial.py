"""The trial of a user's own code, in a fork: params, configuration, environment, data, and the resources they need.

A crash or a hang becomes a finding beside the others. Modules that need TensorFlow are imported where they are used:
the first of these checks come before it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import tree
from absl import flags

from tfagents_system.agents.iteration_counts import (
    has_prior_data,
    iterations_of_run,
    random_steps,
    steps_of_run,
    updates_of_iteration,
    updates_ratio,
)
from tfagents_system.checks.findings import ERROR, Findings
from tfagents_system.checks.rules import integer_from, is_kept
from tfagents_system.envs.env_process import DEFAULT_STEP_TIMEOUT_SECS, ProcessSettings, build_timeout_secs
from tfagents_system.envs.faults import EnvironmentFault, cause_of, describe_error, is_users
from tfagents_system.errors import UserError, shown
from tfagents_system.launch import forks, machine_checks
from tfagents_system.launch.cpus import CpuPlan
from tfagents_system.machine import process_settings
from tfagents_system.machine.claims import EVAL, EXPERT
from tfagents_system.report.long_work import LongWork
from tfagents_system.run_files import kept_checkpoints, run_directory
from tfagents_system.run_files.run_directory import from_line
from tfagents_system.run_files.run_paths import TRAINER, RunPaths
from tfagents_system.run_files.taken import Taken
from tfagents_system.settings import params_check
from tfagents_system.settings.load_params import (
    WITHOUT_RANDOM_STEPS,
    compute_config_of,
    defaults_of,
    kept_defaults,
    load_env_config,
    load_params,
    load_params_class,
)
from tfagents_system.settings.resolved import HORIZON, Overrides
from tfagents_system.settings.variables import NETWORKS
from tfagents_system.train_params_base import TrainParamsBase

if TYPE_CHECKING:
    from tfagents_system.launch.environment_checks import Outcome
    from tfagents_system.launch.prepare import Preparation
    from tfagents_system.transport.segments import Layout

PARAMS, CONFIG = "params", "config"
PRIOR, ANOTHER_RUN, EXPERTS = "prior data", "another run", "experts"


@contextlib.contextmanager
def told(findings: Findings, where: str, what: str, *, names_it: bool = True) -> Iterator[None]:
    """Turns an exception of the user's code into errors; `names_it`: those that explain themselves name `what`, too."""
    try:
        yield
    except UserError as error:
        findings.error(where, *(f"{what}: {finding}" if names_it else finding for finding in error.findings))
    except EnvironmentFault as fault:
        step = f"step {fault.step}" if fault.step else "its first reset"
        findings.error(where, f"{what} failed in {step}: {describe_error(cause_of(fault))}")
    except (Exception, SystemExit) as error:
        described, frames = describe_error(error), traceback.extract_tb(error.__traceback__)
        faulty = "it" if any(is_users(frame.filename) for frame in frames) else "the hook of TrainParams"
        remedy = "" if described.endswith(" installs it") else f": correct {faulty}"
        findings.error(where, f"{what} raised {described}{remedy}")


@dataclasses.dataclass
class Inspection:
    """What the trial learned about the user's own files.

    Attributes:
      defaults: Those that the run has, see `run_defaults`.
      attributes: Of the params, by name, and `config`: with all overrides; empty if they can't be loaded.
      environment: Its name.
      specs: The content of specs.pbtxt; None if the environment could not be built.
      imported: Files beside the params file that it has imported, by relative path.
      prior_data: The ring that was made of prior data; None: there is none, or it is not needed.
      doing: The current activity; empty once the trial is complete.
    """

    findings: Findings = dataclasses.field(default_factory=Findings)
    defaults: dict[str, Any] = dataclasses.field(default_factory=dict)
    attributes: dict[str, Any] = dataclasses.field(default_factory=dict)
    config: dict[str, Any] = dataclasses.field(default_factory=dict)
    environment: str = ""
    specs: bytes | None = None
    imported: list[str] = dataclasses.field(default_factory=list)
    prior_data: Path | None = None
    doing: str = ""


def run_trial(
    start: Preparation, environ: Mapping[str, str], work: LongWork, *, render: bool, plan: CpuPlan | None
) -> Inspection:
    """Loads params and configuration, builds the environment and tries it: all that runs a user's own code.

    Args:
      environ: Of the fork.
      render: Whether a picture is drawn.
      plan: Where updates are measured; None: they are not.
    """
    if _can_be_read(start.values):  # Else that is reported at once, without TensorFlow.
        work.doing = "importing TensorFlow"
        try:
            forks.import_all(work.look)
        except ImportError as error:
            inspection = Inspection()
            inspection.findings.error("packages", f"{error}: install what is missing, as ./setup.sh does")
            return inspection
        named = Findings()
        machine_checks.check_names(named, start.values["params"].parent)
        if named.errors:
            return Inspection(named)
    if plan is not None:  # Updates are measured with the trainer's threads.
        threads = plan.thread_environ(TRAINER).items()
        environ = {**environ, **{name: count for name, count in threads if name.startswith("TF_")}}
    watch = _Watch(start, work)
    try:
        return forks.call(lambda tell: Inspector(start, tell).run(render, plan), "sac_check", environ, watch)
    except forks.CallDiedError as error:
        return watch.ended_early(str(error))


def _can_be_read(values: Mapping[str, Any]) -> bool:
    if not values.keys() >= {"exp_dir", "params", "config"}:
        return False
    try:
        load_env_config(values["config"])
        compile(values["params"].read_bytes(), values["params"], "exec")
    except (UserError, SyntaxError, ValueError, OSError):
        return False
    return True


class _Watch:
    """Whether a trial's current activity takes too long: a step or a reset has a limit of its own, as in workers."""

    def __init__(self, start: Preparation, work: LongWork) -> None:
        self._step_secs = float(start.values.get("step_timeout_secs", DEFAULT_STEP_TIMEOUT_SECS))
        self._copy, self._work = start.copy, work  # Users don't know the name of the copy.
        self._inspection, self._since = Inspection(), time.monotonic()
        self.is_hung = False

    def __call__(self, inspection: Inspection | None) -> bool:
        self._work.look()
        if inspection is not None and inspection is not self._inspection:
            self._inspection, self._since = inspection, time.monotonic()
            self._work.doing = inspection.doing.replace(f"{self._copy}/", "")
            self._is_step = "step()" in inspection.doing or "reset()" in inspection.doing
            self._limit_secs = self._step_secs if self._is_step else build_timeout_secs(self._step_secs)
        elif self._inspection.doing:
            self.is_hung = time.monotonic() - self._since >= self._limit_secs
        return self.is_hung

    def ended_early(self, died_with: str) -> Inspection:
        """The findings before the user's code ended the process, or hung, and the finding that it did."""
        inspection = self._inspection
        doing = inspection.doing or "the check of params and environment"
        if not self.is_hung:
            fault = f"the process died with {died_with} in {doing}: see above, and correct it"
            if any(name in doing for name in ("the evaluation environment", "another environment of the worker")):
                fault += ", or, where a process can have one environment, set SAC_EVAL_WORKERS=1, SAC_ENVS_PER_WORKER=1"
        else:
            fault = f"{doing} has not returned for {self._limit_secs:g} s: correct it"
            fault += ", or raise SAC_STEP_TIMEOUT_SECS" if self._is_step else ""
        if doing == "rendering":
            inspection.findings.note("rendering", f"{fault}; training needs no pictures")
        else:
            inspection.findings.error("environment" if inspection.attributes else PARAMS, fault)
        return inspection


class Inspector:
    """Runs the user's code. The cheapest checks come first; each is made if what it needs exists.

    Args:
      tell: Called with the findings so far, whenever something begins that may take long.
    """

    def __init__(self, start: Preparation, tell: Callable[[Inspection], None] = lambda inspection: None) -> None:
        self._start, self._values, self._tell = start, start.values, tell
        self._modules_before = set(sys.modules)
        self._inspection = Inspection()
        self._findings = self._inspection.findings

    def run(self, render: bool, plan: CpuPlan | None) -> Inspection:
        """The trial. As in a role, a user's code finds no arguments, and flags that have been parsed."""
        sys.argv = sys.argv[:1]
        flags.FLAGS.mark_as_parsed()
        bytes_before = psutil.Process().memory_info().rss
        params = self.load_inputs()
        if params is not None:
            check_kinds_of_workers(params, self._values, self._findings, self._enter)
            if self._check_prior_sources(params) and params.env_config.get("horizon"):
                self._try_environment(params, render, plan, bytes_before)
        if changes := process_settings.changes:
            words = "put back once params and environment are loaded, since our own code would fail by it"
            remedy = "set it where your own code needs it (warnings.catch_warnings, numpy.errstate)"
            self._findings.note(PARAMS, f"{', '.join(changes)} is {words}: {remedy}")
        self._inspection.doing = ""
        return self._inspection

    def _enter(self, doing: str) -> None:
        self._inspection.doing = doing
        self._tell(self._inspection)

    # Params and configuration.

    def load_inputs(self) -> TrainParamsBase | None:
        """Params and configuration, which are checked on their own and together; returns the params if they load."""
        config = self._load_config() if CONFIG in self._values else None
        if PARAMS not in self._values:
            return None
        path, origin, params = self._choose(PARAMS), self._origin(), None
        self._enter(f"importing {origin}")
        with self._findings.catching(PARAMS):
            if config is None:
                load_params_class(path, origin)
                return None
            params = self._load_params(path, origin, config)
            self._findings.error(PARAMS, *params_check.check_params(params), *process_settings.faults())
            if self._values.get("deterministic"):
                self._findings.error(PARAMS, *params_check.check_deterministic(params))
            if not self._has_wrong(PARAMS):
                self._findings.fact(PARAMS, f"{path}: {_in_words(params)}")
                self._findings.note(PARAMS, *params_check.advice(params))
                self._inspection.config = config
                self._inspection.attributes = _plain(params_check.resolved_attributes(params))
        return params

    def _load_config(self) -> dict[str, Any] | None:
        """The configuration with what is overridden; keys that can't be are told."""
        path, overrides = self._choose(CONFIG), self._start.overrides
        with self._findings.catching(CONFIG):
            config = load_env_config(path)
            self._findings.error(CONFIG, *overrides.unknown_keys(config))
            config = overrides.merged(config)
            # `_horizon_of` tells where there is none.
            self._findings.error(CONFIG, *params_check.check_env_config({HORIZON: 1, **config}))
            self._findings.fact(CONFIG, f"{path}: {', '.join(config) or 'no keys'}")
            return config
        return None

    def _load_params(self, path: Path, origin: Path, config: dict[str, Any]) -> TrainParamsBase:
        """The params with all overrides that are possible, and with the run's defaults; tells of the others."""
        attributes, impossible = self._start.overrides.params, list[str]()
        load = functools.partial(
            load_params,
            path,
            origin=origin,
            compute_config=compute_config_of({"seed": 0, **self._values}),
            process=ProcessSettings.of(self._values),
            findings=impossible,
        )
        params = load(config, attributes=attributes)
        self._findings.error(PARAMS, *impossible)
        horizon = self._horizon_of(params, config)
        if not params_check.check_params(params):
            self._inspection.defaults = self._defaults(params) | horizon
        defaults = Overrides(defaults=self._inspection.defaults).attributes
        return load(config, attributes=defaults | attributes) if self._inspection.defaults else params

    def _horizon_of(self, params: TrainParamsBase, config: dict[str, Any]) -> dict[str, int]:
        """The `horizon` of a configuration without one, which gets it: the environment's own time limit."""
        if HORIZON in config:
            recorded = self._start.overrides.defaults.get(HORIZON)  # Of the run that continues.
            return {} if recorded is None else {HORIZON: recorded}
        if self._has_wrong(CONFIG):  # It may be misspelt.
            return {}
        from tfagents_system.envs.loading import time_limit  # It imports TensorFlow.

        self._enter("building the environment")
        with told(self._findings, "environment", "building it to know its time limit"):
            if (limit := time_limit(params)) is not None:
                config[HORIZON] = params.env_config[HORIZON] = limit
                self._findings.fact(CONFIG, f"horizon={limit}, the time limit of the environment")
                return {HORIZON: limit}
            self._findings.error(CONFIG, *params_check.check_env_config(config))
        return {}

    def _defaults(self, params: TrainParamsBase) -> dict[str, Any]:
        """For what the params leave open: those that the run has, or begins with."""
        if not params.env_config.get("horizon"):
            return {}
        workers = self._values.get("num_collect_workers", 1)
        if self._start.uses_copies:
            return kept_defaults(params, workers, self._start.overrides.defaults)
        return defaults_of(params, workers) | self._without_random_steps(params)

    def _without_random_steps(self, params: TrainParamsBase) -> dict[str, Any]:
        """An agent that is taken acts from the first step on; and rows count for the steps before the first update."""
        taken = self._start.taken
        if taken is None or {"initial_collect_steps", "num_initial_episodes"} & self._start.overrides.params.keys():
            return {}
        if taken.agent is not None:
            return WITHOUT_RANDOM_STEPS
        from tfagents_system.replay.stored_ring import StoredRing

        with contextlib.suppress(UserError):  # It is reported with all that is wrong with the other ring.
            return WITHOUT_RANDOM_STEPS if StoredRing(Path(taken.run)).steps >= random_steps(params) else {}
        return {}

    def _choose(self, kind: str) -> Path:
        source: Path = self._values[kind]
        if (run := self._start.run_before) is None:
            return source
        copy: Path = getattr(run, kind)
        return copy if self._start.uses_copies and copy.exists() else source

    def _origin(self) -> Path:
        """The path under which the params file runs."""
        source, start = self._values[PARAMS], self._start
        if start.copy is not None:
            return start.copy / source.name
        if start.uses_copies and start.run_before is not None and start.run_before.params_folder.is_dir():
            return start.run_before.params_folder / source.name
        return Path(source)

    def _has_wrong(self, *names: str) -> bool:
        return any(self._findings.texts(ERROR, name) for name in names)

    # Data, environment and agent.

    def _check_prior_sources(self, params: TrainParamsBase) -> bool:
        """Whether files of prior data are there, before anything that takes longer; other errors end nothing."""
        start = self._start
        if self._has_wrong(PARAMS) or not start.has_replay_server or run_directory.has_begun(start.run_before):
            return True
        with self._findings.catching(PRIOR):
            folders = self._origin().parent, self._values[PARAMS].parent
            self._prior_sources = prior_sources(params.prior_data, folders)
        return not self._has_wrong(PRIOR)

    def _try_environment(self, params: TrainParamsBase, render: bool, plan: CpuPlan | None, bytes_before: int) -> None:
        # Imported here: TensorFlow takes seconds, and earlier findings should not wait for a broken one.
        from tfagents_system.envs.specs import save_specs
        from tfagents_system.launch.environment_checks import EnvironmentTrial

        values, start, inspection, findings = self._values, self._start, self._inspection, self._findings
        outcome = EnvironmentTrial(
            params,
            values.get("seed", 0),
            findings,
            self._enter,
            render=render,
            plan=plan,
            envs_per_worker=values.get("envs_per_worker") or 1,
            deterministic=bool(values.get("deterministic")),
            workers=max(machine_checks.workers_here(values), "server" in values),  # Those that join are workers.
            evaluates=not ("server" in values or values.get("eval_workers")),
            has_trainer=machine_checks.has_trainer(values),
        ).run()
        if outcome is None:
            return
        save_specs(specs := RunPaths(start.temporary).specs, *outcome.specs)
        inspection.specs, inspection.environment = specs.read_bytes(), outcome.name
        inspection.imported = self._imported()
        findings.note("params folder", *self._imported_outside())
        check_saved_expert(values, *outcome.specs[:2], findings, self._enter)
        if start.run_before is not None and "server" not in values:
            if outcome.signature is not None:
                fault = kept_checkpoints.why_not_to_go_on(start.run_before, outcome.signature)
                findings.error("agent", *filter(None, [fault]))
            if run_directory.has_begun(start.run_before):
                rings = {path.resolve(): path for path in (start.run_before.replay, values.get("replay_dir")) if path}
                for ring in rings.values():
                    findings.error("experience", *ring_findings(params, outcome.layout, ring, start.run_before))
        if self._has_wrong(PARAMS):
            return
        if start.taken is not None:
            check_taken(start.taken, params, outcome, specs, findings)
        if start.has_replay_server and has_prior_data(params) and not run_directory.has_begun(start.run_before):
            self._enter("reading prior_data")
            inspection.prior_data = make_prior_data(params, specs, self._prior_sources, findings)
        if start.paths is not None and not self._has_wrong(CONFIG):
            self._check_sizes(start.paths, params, outcome, max(0, outcome.resident_bytes - bytes_before))

    def _imported(self) -> list[str]:
        """Modules of the params' folder, by relative path."""
        origin = self._origin().resolve()
        files = {str(file) for module in list(sys.modules.values()) if (file := getattr(module, "__file__", None))}
        modules = [Path(file) for file in files if file.startswith(f"{origin.parent}{os.sep}")]
        return sorted(str(path.relative_to(origin.parent)) for path in modules if path != origin)

    def _imported_outside(self) -> Iterator[str]:
        """A sentence about the user's modules of which the run has no copy, if the params have imported any."""
        params, ours = self._origin().resolve(), ("tfagents_system", "__autograph")  # TensorFlow makes the latter.
        names = [name for name in sys.modules if name not in self._modules_before and not name.startswith(ours)]
        files = {str(getattr(sys.modules.get(name), "__file__", None)) for name in names}
        users = (file for file in files if os.path.isfile(file) and is_users(file))
        if outside := sorted(file for file in users if params.parent not in Path(file).parents):
            others = f" and {len(outside) - 1} more" if outside[1:] else ""
            yield (
                f"the run has no copy of {outside[0]}{others}, imported from outside the folder of {params.name}: "
                f"edits go unnoticed, and change a resumed run. Move what you edit into {params.parent}"
            )

    def _check_sizes(self, paths: RunPaths, params: TrainParamsBase, outcome: Outcome, own_bytes: int) -> None:
        from tfagents_system.launch import costs
        from tfagents_system.replay.ring import priority_bytes, ring_bytes

        values, findings, run = self._values, self._findings, self._start.run_before
        workers = machine_checks.workers_here(values)
        if "server" in values:  # Workers that join have neither a ring nor checkpoints here.
            machine_checks.check_memory(findings, workers, own_bytes, 0, 0, machine_checks.available_memory())
            return
        planned = values.get("num_collect_workers", 1)
        iterations = iterations_of_run(params, planned)
        steps = steps_of_run(params) or iterations * params.num_train_episodes_per_iter * planned * params.horizon
        checkpoints = int(costs.periods(params, "checkpoint", iterations, steps))
        run_bytes = machine_checks.disk_of_run(outcome.agent_bytes, outcome.policy_bytes, checkpoints)
        needed = {paths.exp_dir: ("checkpoints, policies, logs", run_bytes)}
        job_mb = self._start.environ.get(machine_checks.JOB_MB)
        replay_bytes = server_bytes = 0
        if "trainer_server" not in values:  # Else the ring is where the replay server is.
            replay_bytes, server_bytes = (count(params, outcome.layout) for count in (ring_bytes, priority_bytes))
            # One on a node's scratch is copied to the run directory; that of a job is on another machine.
            scratch = paths.replay if job_mb is not None else values.get("replay_dir", paths.replay)
            for folder in dict.fromkeys((paths.replay, scratch)):
                stays = run is None and folder.is_relative_to(paths.exp_dir)  # What is there is moved aside.
                there = 0 if stays else machine_checks.bytes_in(folder)
                needed[folder] = ("replay buffer", max(0, replay_bytes - there))
        prior = self._inspection.prior_data or (run.prior_data if run is not None else None)
        prior_bytes = machine_checks.bytes_in(prior) if prior is not None else 0
        if self._inspection.prior_data is not None:  # A run that continues has it already.
            needed[paths.prior_data] = ("prior data", prior_bytes)
        with contextlib.suppress(OSError):  # The run directory can't be read, which is reported elsewhere.
            machine_checks.check_disk(findings, needed)
        if job_mb != "":  # The memory of a job is unknown where its submission leaves it to the cluster.
            of_job = None if job_mb is None else (int(job_mb) * 2**20, "of the job's memory")
            sizes = own_bytes, replay_bytes + prior_bytes, server_bytes
            machine_checks.check_memory(findings, workers, *sizes, of_job or machine_checks.available_memory())


def _plain(attributes: dict[str, Any]) -> dict[str, Any]:
    """What another process can read without the user's code: values that JSON lacks are texts."""
    as_plain = lambda value: value.tolist() if type(value).__module__ == "numpy" else repr(value)  # noqa: E731
    plain: dict[str, Any] = json.loads(json.dumps(attributes, default=as_plain))
    return plain


def _in_words(params: TrainParamsBase) -> str:
    length = f"{params.num_iter} iterations"
    if params.num_env_steps is not None:
        length = f"{params.num_env_steps:,} environment steps in iterations"
    steps = "" if params.env_steps_per_iter is None else f" of {params.env_steps_per_iter} steps"
    updates = f" of {updates_of_iteration(params)} updates"
    if (ratio := updates_ratio(params)) is not None:
        updates = f", {ratio:g} updates for each step"
    return f"{length}{steps}{updates}, with batches of {params.batch_size}"


# Prior data.


def prior_sources(prior_data: Any, folders: Sequence[Path]) -> list[str]:
    """The sources of `prior_data`: names of Minari data sets as they are, paths as absolute ones.

    Args:
      folders: Where relative paths are looked for, the first one first.

    Raises:
      UserError: One is not there.
    """
    from tfagents_system.experience import data_sets

    sources, findings = list[str](), list[str]()
    given = [prior_data] if isinstance(prior_data, str | os.PathLike) else prior_data or ()
    for source in map(str, given):
        if source.startswith(data_sets.MINARI):
            try:
                data_sets.check_is_here(source)
                sources.append(source)
            except UserError as error:
                findings.append(f"TrainParams.prior_data: {error}")
            continue
        candidates = list(dict.fromkeys((folder / Path(source).expanduser()).absolute() for folder in folders))
        existing = [candidate for candidate in candidates if candidate.exists()]
        sources += map(str, existing[:1])
        if not existing:
            findings.append(
                f"TrainParams.prior_data: {source} does not exist (looked for {' and '.join(map(str, candidates))}): "
                "give a run, a file, minari:NAME, or a path that is relative to the folder of SAC_PARAMS"
            )
    if findings:
        raise UserError(*findings)
    return sources


def make_prior_data(params: TrainParamsBase, specs: Path, sources: list[str], findings: Findings) -> Path | None:
    """Makes the ring of a run that begins, beside its specs file; None if something is wrong."""
    from tfagents_system.experience.data_sets import Conversion
    from tfagents_system.experience.transfer import make_prior_ring

    ring, length = specs.parent / "prior_data", params.sample_form_ctor().sequence_length
    with findings.catching(PRIOR):
        conversion = Conversion.of(params, specs)
        try:
            made = make_prior_ring(
                sources, ring, conversion, lambda note: findings.note(PRIOR, note), length, params.frame_stack
            )
        except OSError as error:
            raise UserError(f"prior_data can't be copied to {ring} ({error.strerror}): free space there") from None
        findings.fact(PRIOR, made)
        return ring
    return None


# Another run (SAC_FROM).


def check_taken(taken: Taken, params: TrainParamsBase, outcome: Outcome, specs: Path, findings: Findings) -> None:
    """Compares agent, actions and experience of the other run with this one's; agents stay as they are."""
    if taken.agent is not None and outcome.agent is not None:
        with findings.catching(ANOTHER_RUN):
            _compare_agent(taken, outcome.agent, findings)
    with findings.catching(ANOTHER_RUN):
        _compare_actions(taken, outcome.specs, findings)
    if taken.has_rows:
        with findings.catching(ANOTHER_RUN):
            _compare_rows(taken, params, specs, findings)
    for name, had in (("num_iter", taken.iteration), ("num_env_steps", taken.env_steps)):
        wanted = getattr(params, name)
        if had and wanted is not None and had >= wanted:
            findings.error(
                ANOTHER_RUN,
                f"TrainParams.{name}={wanted} is for both runs together where SAC_TAKE=all, and the other one has had "
                f"{had}: raise it, or take the agent alone",
            )


def _compare_agent(taken: Taken, agent: Any, findings: Findings) -> None:
    from tfagents_system.agents.taken_weights import TakenWeights

    assert taken.agent is not None
    try:
        weights = TakenWeights(agent, taken.agent, networks_alone=taken.take == NETWORKS)
    except ValueError as error:
        raise UserError(f"SAC_FROM={taken.source}: {error}") from None
    if not weights.has_network:
        lines = "\n  ".join(weights.misfits)
        raise UserError(
            f"SAC_FROM={taken.source}: nothing of that agent fits this run's:\n  {lines}\nBuild the networks alike, or "
            "take experience alone (SAC_TAKE=replay)"
        )
    findings.fact(ANOTHER_RUN, f"{taken.source}: {weights.in_words}")
    for line in weights.misfits:
        findings.note(ANOTHER_RUN, f"SAC_FROM={taken.source}: begins anew, since it does not fit: {line}")


def _compare_actions(taken: Taken, run_specs: tuple[Any, Any, Any], findings: Findings) -> None:
    """Agents of the same layers may have learned other actions: rows of another table, or shares of other bounds."""
    from tfagents_system.envs.actions import actions_of, in_words
    from tfagents_system.envs.specs import load_actions
    from tfagents_system.experience.transfer import SPECS, mean_the_same

    file = Path(taken.run) / SPECS
    if not file.is_file():
        return
    ours, theirs = tree.flatten(actions_of(*run_specs[1:])), tree.flatten(load_actions(file))
    if len(ours) == len(theirs) and all(map(mean_the_same, ours, theirs)):
        return
    there, here = (", ".join(map(in_words, leaves)) for leaves in (theirs, ours))
    words = f"SAC_FROM={taken.source}: its actions are {there}, this run's {here} (bounds or order differ)"
    if taken.has_rows or any(leaf.rows is not None for leaf in (*ours, *theirs)):
        raise UserError(
            f"{words}: give the actions the same bounds (action_bounds), or action_table the same rows, in order"
        )
    findings.note(ANOTHER_RUN, f"{words}: the agent begins with other actions than it has learned")


def _compare_rows(taken: Taken, params: TrainParamsBase, specs: Path, findings: Findings) -> None:
    from tfagents_system.experience.data_sets import Conversion
    from tfagents_system.replay.ring import ring_rows
    from tfagents_system.replay.stored_ring import StoredRing, differences

    layout, stored = Conversion.of(params, specs).layout, StoredRing(Path(taken.run))
    if lines := differences(layout, stored.layout):
        raise UserError(
            f"SAC_FROM={taken.source} holds other experience than this run collects: {'; '.join(lines)}. Give a run of "
            "the same environment and settings (action_bounds, action_history, action_table, normalize_rewards, "
            "potential), or take the agent alone"
        )
    most, longest = ring_rows(params, layout)[0], min(ring_rows(params, layout))
    if (needed := stored.longest_segment_rows(most)) > longest:
        raise UserError(
            f"SAC_FROM={taken.source} has segments of {needed:,} rows, and the replay buffer takes {longest:,} at "
            "most: raise buffer_size"
        )
    findings.fact(ANOTHER_RUN, f"{taken.run}: {stored.steps:,} steps")
    if stored.rows > most:
        findings.note(
            ANOTHER_RUN,
            f"SAC_FROM takes {stored.rows:,} rows, and the replay buffer has {most:,}: the last ones are kept. Raise "
            "buffer_size to keep all",
        )


def ring_findings(params: TrainParamsBase, layout: Layout, folder: Path, run: RunPaths) -> list[str]:
    """How the experience of a run that continues differs from what its ring, with one layout for life, was made for."""
    from tfagents_system.replay.ring import RingFiles, ring_rows
    from tfagents_system.replay.stored_ring import differences

    if (ring := RingFiles.find(folder)) is None:
        return []
    lines = differences(layout, ring.layout, makes_do=False, words=("now", "before"))
    if not lines and (rows := ring_rows(params, layout)[0]) != ring.capacity_rows:
        lines = [f"rows: now {rows:,} (buffer_size={params.buffer_size}), before {ring.capacity_rows:,}"]
    return lines and [
        f"the experience in {folder} does not fit: {'; '.join(lines)}. A run's replay buffer keeps its columns and its "
        f"size: restore what it was, or begin another run with {from_line(run)} (--take all takes what fits)"
    ]


# Experts and evaluators.


def check_kinds_of_workers(
    params: TrainParamsBase, values: Mapping[str, Any], findings: Findings, enter: Callable[[str], None]
) -> None:
    """Whether experts that are to start have a policy, and evaluators something to evaluate."""
    count, saved = values.get("expert_workers"), values.get("expert_policy")
    if count:
        findings.fact(EXPERTS, f"{count} with {saved or 'TrainParams.expert_policy_ctor'}")
    if count and saved is None:
        enter("expert_policy_ctor")
        with told(findings, EXPERTS, "expert_policy_ctor", names_it=False):
            if not callable(policy := params.expert_policy_ctor()):
                raise UserError(
                    f"SAC_EXPERT_WORKERS={count} needs a policy, and TrainParams.expert_policy_ctor returned "
                    f"{shown(policy)}: set SAC_EXPERT_POLICY to a SavedModel, a policy checkpoint or an exported file, "
                    "or have the hook return a function"
                )
    if not is_kept(integer_from(0), params.num_eval_episodes) or params.num_eval_episodes:
        return
    evaluators = f"SAC_EVAL_WORKERS={values['eval_workers']}" if values.get("eval_workers") else ""
    if values.get("worker_role") == EVAL:
        evaluators = f"SAC_WORKER_ROLE={EVAL}"
    if evaluators:
        findings.error(
            PARAMS,
            f"{evaluators} does not work with num_eval_episodes=0, nothing is evaluated: leave it out (in a begun run "
            "with --set SAC_EVAL_WORKERS=0), or set num_eval_episodes to at least 1 (--set num_eval_episodes=10)",
        )


def check_saved_expert(
    values: Mapping[str, Any], observation_spec: Any, action_spec: Any, findings: Findings, enter: Callable[[str], None]
) -> None:
    """Whether the policy of SAC_EXPERT_POLICY can act, in the environment's own units, if an expert is to start."""
    path = values.get("expert_policy")
    if path is None or not (values.get("expert_workers") or values.get("worker_role") == EXPERT):
        return
    from tfagents_system.policies.files import load_policy, misfits

    name = f"SAC_EXPERT_POLICY={path}"
    enter(f"loading {name}")
    with findings.catching(EXPERTS):
        policy = load_policy(path, "SAC_EXPERT_POLICY")
        if differing := misfits(policy, observation_spec, action_spec):
            remedy = "Name a policy that was trained in this environment"
            raise UserError(*(f"{name}: {misfit}. {remedy}" for misfit in differing))
