"""The trial of a user's own code, in a fork: params, configuration, environment, and the resources that they need.

A crash or a hang becomes a finding beside the others.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from tfagents_system.agents.iteration_counts import (
    has_prior_data,
    iterations_of_run,
    random_steps,
    steps_of_run,
    updates_of_iteration,
    updates_ratio,
)
from tfagents_system.checks.findings import ERROR, Findings
from tfagents_system.envs.env_process import DEFAULT_STEP_TIMEOUT_SECS, ProcessSettings, build_timeout_secs
from tfagents_system.errors import UserError
from tfagents_system.launch import costs, data_checks, forks
from tfagents_system.launch.cpus import CpuPlan
from tfagents_system.report.long_work import LongWork
from tfagents_system.run_files import kept_checkpoints, run_directory
from tfagents_system.run_files.run_paths import TRAINER, RunPaths
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
from tfagents_system.settings.overrides import HORIZON, Overrides
from tfagents_system.train_params_base import TrainParamsBase

if TYPE_CHECKING:
    from tfagents_system.launch.environment_checks import Outcome
    from tfagents_system.launch.prepare import Preparation

PARAMS, CONFIG = "params", "config"


@dataclasses.dataclass
class Inspection:
    """What the trial learned about the user's own files.

    Attributes:
      num_iter: Of the params; None if they can't be loaded.
      defaults: Those that the run has, see `run_defaults`.
      attributes: Of the params, by name, and `config`: with all overrides.
      specs: The content of specs.pbtxt; None if the environment could not be built.
      imported: Files beside the params file that it has imported, by relative path.
      prior_data: The ring that was made of prior data; None: there is none, or it is not needed.
      doing: The current activity; empty once the trial is complete.
    """

    findings: Findings = dataclasses.field(default_factory=Findings)
    num_iter: int | None = None
    defaults: dict[str, Any] = dataclasses.field(default_factory=dict)
    attributes: dict[str, Any] = dataclasses.field(default_factory=dict)
    config: dict[str, Any] = dataclasses.field(default_factory=dict)
    specs: bytes | None = None
    imported: list[str] = dataclasses.field(default_factory=list)
    prior_data: Path | None = None
    doing: str = ""


def run_trial(
    start: Preparation,
    environ: Mapping[str, str],
    work: LongWork,
    *,
    render: bool,
    plan: CpuPlan | None,
    in_fork: bool,
) -> Inspection:
    """Loads params and configuration, builds the environment and tries it: all that runs a user's own code.

    Args:
      start: Its checks before the user's code.
      environ: Of the fork.
      work: Is told what the trial does.
      render: Whether a picture is drawn.
      plan: Where updates are measured; None: they are not.
      in_fork: False: in this process, which a crash ends and a hang stops.
    """
    if not in_fork:
        return Inspector(start).run(render, plan)
    if _can_be_read(start.values):  # Else that is reported at once, without TensorFlow.
        work.doing = "importing TensorFlow"
        try:
            forks.import_all(work.look)
        except ImportError as error:
            inspection = Inspection()
            inspection.findings.error("packages", f"{error}: install what is missing, as ./setup.sh does")
            return inspection
    if plan is not None:  # Updates are measured with the trainer's threads.
        threads = plan.thread_environ(TRAINER).items()
        environ = {**environ, **{name: count for name, count in threads if name.startswith("TF_")}}
    watch = _Watch(float(start.values.get("step_timeout_secs", DEFAULT_STEP_TIMEOUT_SECS)), start.copy, work)
    try:
        inspection = forks.call(lambda tell: Inspector(start, tell).run(render, plan), "sac_check", environ, watch)
    except forks.CallDiedError as error:
        return watch.ended_early(None if watch.is_hung else str(error))
    return inspection


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
    """Whether a trial's current activity takes too long.

    Args:
      step_timeout_secs: Limit of a step or a reset; all else may take longer, as in workers.
      copy: The temporary copy of the params' folder, whose name means nothing to the user.
      work: Is told what the trial does.
    """

    def __init__(self, step_timeout_secs: float, copy: Path | None, work: LongWork) -> None:
        self._step_timeout_secs, self._copy, self._work = step_timeout_secs, copy, work
        self._inspection: Inspection | None = None
        self._since = time.monotonic()
        self.is_hung = False

    def __call__(self, inspection: Inspection | None) -> bool:
        self._work.look()
        if inspection is not self._inspection:
            assert inspection is not None
            self._inspection, self._since = inspection, time.monotonic()
            self._work.doing = inspection.doing.replace(f"{self._copy}/", "")
        elif inspection and inspection.doing:
            self.is_hung = time.monotonic() - self._since >= self._limit_secs(inspection.doing)
        return self.is_hung

    def _limit_secs(self, doing: str) -> float:
        return self._step_timeout_secs if _is_step(doing) else build_timeout_secs(self._step_timeout_secs)

    def ended_early(self, died_with: str | None) -> Inspection:
        """The findings before the user's code ended the process, or hung (None), and the finding that it did."""
        inspection = self._inspection or Inspection()
        doing = inspection.doing or "the check of params and environment"
        if died_with is not None:
            fault = f"the process died with {died_with} in {doing}: see above, and correct it"
        else:
            fault = f"{doing} has not returned for {self._limit_secs(doing):g} s: correct it"
            fault += ", or raise SAC_STEP_TIMEOUT_SECS" if _is_step(doing) else ""
        if doing == "rendering":
            inspection.findings.note("rendering", f"{fault}; training needs no pictures")
        else:
            inspection.findings.error(PARAMS if inspection.num_iter is None else "environment", fault)
        return inspection


def _is_step(doing: str) -> bool:
    return "step()" in doing or "reset()" in doing


class Inspector:
    """The trial itself. The cheapest checks come first; each is made if what it needs exists.

    Args:
      tell: Called with the findings so far, whenever something begins that may take long.
    """

    def __init__(self, start: Preparation, tell: Callable[[Inspection], None] = lambda inspection: None) -> None:
        self._start, self._values, self._tell = start, start.values, tell
        self._inspection = Inspection()
        self._findings = self._inspection.findings

    def run(self, render: bool, plan: CpuPlan | None) -> Inspection:
        bytes_before = psutil.Process().memory_info().rss
        params = self.load_inputs()
        if params is not None:
            data_checks.check_kinds_of_workers(params, self._values, self._findings, self._enter)
            if self._check_prior_sources(params) and params.env_config.get("horizon"):
                self._try_environment(params, render, plan, bytes_before)
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
        path, origin = self._choose(PARAMS), self._origin()
        self._enter(f"importing {origin}")
        params = None
        with self._findings.catching(PARAMS):
            if config is None:
                load_params_class(path, origin)
                return None
            params = self._load_params(path, origin, config)
            findings = params_check.check_params(params)
            if self._values.get("deterministic"):
                findings += params_check.check_deterministic(params)
            self._findings.error(PARAMS, *findings)
            if not self._has_wrong(PARAMS):
                self._findings.fact(PARAMS, f"{path}: {_in_words(params)}")
                self._findings.note(PARAMS, *params_check.advice(params))
                self._inspection.num_iter, self._inspection.config = params.num_iter, config
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
        compute_config, process = compute_config_of({"seed": 0, **self._values}), ProcessSettings.of(self._values)
        impossible: list[str] = []

        def load(attributes: Mapping[str, Any]) -> TrainParamsBase:
            how: dict[str, Any] = {"origin": origin, "compute_config": compute_config, "process": process}
            return load_params(path, config, **how, attributes=attributes, findings=impossible)

        attributes = self._start.overrides.params
        params = load(attributes)
        self._findings.error(PARAMS, *impossible)
        horizon = self._horizon_of(params, config)
        if not params_check.check_params(params):
            self._inspection.defaults = self._defaults(params) | horizon
        defaults = Overrides(defaults=self._inspection.defaults).attributes
        return load(defaults | attributes) if self._inspection.defaults else params

    def _horizon_of(self, params: TrainParamsBase, config: dict[str, Any]) -> dict[str, int]:
        """The `horizon` of a configuration without one, which gets it: the environment's own time limit."""
        if HORIZON in config:
            recorded = self._start.overrides.defaults.get(HORIZON)  # Of the run that goes on.
            return {} if recorded is None else {HORIZON: recorded}
        if self._has_wrong(CONFIG):  # It may be misspelt.
            return {}
        from tfagents_system.envs.loading import time_limit  # It imports TensorFlow.

        self._enter("building the environment")
        with data_checks.told(self._findings, "environment", "building it to know its time limit"):
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
        with self._findings.catching(data_checks.PRIOR):
            data_checks.prior_sources(params.prior_data, self._folders())
        return not self._has_wrong(data_checks.PRIOR)

    def _folders(self) -> tuple[Path, Path]:
        """Where relative paths of prior data are looked for."""
        return self._origin().parent, self._values[PARAMS].parent

    def _try_environment(self, params: TrainParamsBase, render: bool, plan: CpuPlan | None, bytes_before: int) -> None:
        # Imported here: TensorFlow takes seconds, and earlier findings should not wait for a broken one.
        from tfagents_system.envs.specs import save_specs
        from tfagents_system.launch.environment_checks import EnvironmentTrial

        values, start, inspection, findings = self._values, self._start, self._inspection, self._findings
        outcome = EnvironmentTrial(
            params,
            int(values.get("seed", 0)),
            findings,
            self._enter,
            render=render,
            plan=plan,
            envs_per_worker=int(values.get("envs_per_worker") or 1),
            deterministic=bool(values.get("deterministic")),
            has_workers="server" in values or costs.workers_here(values) > 0,  # Those that join are workers.
        ).run()
        if outcome is None:
            return
        with tempfile.TemporaryDirectory() as folder:
            save_specs(file := Path(folder) / "specs.pbtxt", *outcome.specs)
            inspection.specs = file.read_bytes()
        inspection.imported = self._imported()
        data_checks.check_saved_expert(values, *outcome.specs[:2], findings, self._enter)
        if start.run_before is not None and "server" not in values:
            if outcome.signature is not None:
                fault = kept_checkpoints.why_not_to_go_on(start.run_before, outcome.signature)
                findings.error("agent", *filter(None, [fault]))
            if run_directory.has_begun(start.run_before):
                rings = {path.resolve(): path for path in (start.run_before.replay, values.get("replay_dir")) if path}
                for ring in rings.values():
                    lines = data_checks.ring_findings(params, outcome.layout, ring, start.run_before)
                    findings.error("experience", *lines)
        if self._has_wrong(PARAMS):
            return
        if start.taken is not None:
            data_checks.check_taken(start.taken, params, outcome, inspection.specs, findings)
        if start.has_replay_server and has_prior_data(params) and not run_directory.has_begun(start.run_before):
            self._enter("reading prior_data")
            inspection.prior_data = data_checks.make_prior_data(
                params, inspection.specs, start.temporary, self._folders(), findings
            )
        if start.paths is not None and not self._has_wrong(CONFIG):
            self._check_sizes(start.paths, params, outcome, max(0, outcome.resident_bytes - bytes_before))

    def _imported(self) -> list[str]:
        """Modules of the params' folder, by relative path."""
        origin = self._origin().resolve()
        files = {str(file) for module in list(sys.modules.values()) if (file := getattr(module, "__file__", None))}
        modules = [Path(file) for file in files if file.startswith(f"{origin.parent}{os.sep}")]
        return sorted(str(path.relative_to(origin.parent)) for path in modules if path != origin)

    def _check_sizes(self, paths: RunPaths, params: TrainParamsBase, outcome: Outcome, own_bytes: int) -> None:
        """Checks memory and disk."""
        from tfagents_system.replay.ring_files import ring_bytes

        values, findings, run = self._values, self._findings, self._start.run_before
        workers = costs.workers_here(values)
        if "server" in values:  # Workers that join have neither a ring nor checkpoints here.
            costs.check_memory(findings, workers, own_bytes, 0)
            return
        planned = values.get("num_collect_workers", 1)
        iterations = iterations_of_run(params, planned)
        steps = steps_of_run(params) or iterations * params.num_train_episodes_per_iter * planned * params.horizon
        checkpoints = int(costs.periods(params, "checkpoint", iterations, steps))
        run_bytes = costs.disk_of_run(outcome.agent_bytes, outcome.policy_bytes, checkpoints)
        needed = {paths.exp_dir: ("checkpoints, policies, logs", run_bytes)}
        available = costs.memory_of_job(self._start.environ)
        replay_bytes = 0
        if "trainer_server" not in values:  # Else the ring is where the replay server is.
            replay_bytes = ring_bytes(params, outcome.layout)
            # One on a node's scratch is copied to the run directory; that of a job is on another machine.
            scratch = paths.replay if available is not None else values.get("replay_dir", paths.replay)
            for folder in dict.fromkeys((paths.replay, scratch)):
                stays = run is None and folder.is_relative_to(paths.exp_dir)  # What is there is moved aside.
                there = 0 if stays else costs.sizes(folder)[0]
                needed[folder] = ("replay buffer", max(0, replay_bytes - there))
        prior = self._inspection.prior_data or (run.prior_data if run is not None else None)
        prior_bytes = costs.sizes(prior)[1] if prior is not None else 0
        if self._inspection.prior_data is not None:  # An agent that goes on has it already.
            needed[paths.prior_data] = ("prior data", prior_bytes)
        with contextlib.suppress(OSError):  # The run directory can't be read, which is reported elsewhere.
            costs.check_disk(findings, needed)
        costs.check_memory(findings, workers, own_bytes, replay_bytes, prior_bytes, available=available)


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
