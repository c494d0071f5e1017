"""The checks that run a user's own code: params, configuration, environment, and the resources that they need.

They run in a fork, see trial.py.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil

from tfagents_system.agents.iteration_counts import (
    iterations_of_run,
    random_steps,
    steps_of_run,
    updates_of_iteration,
    updates_ratio,
)
from tfagents_system.checks.checklist import Check, Checklist
from tfagents_system.envs.curriculum import check_curriculum
from tfagents_system.envs.env_process import ProcessSettings
from tfagents_system.errors import SettingsError, UserError
from tfagents_system.launch import costs, resources
from tfagents_system.launch.cpus import CpuPlan
from tfagents_system.launch.prior_checks import PriorStart
from tfagents_system.launch.python_path import ROOT
from tfagents_system.launch.run_settings import EDITS, FOLDER, FRESH, PRIOR_FOLDER, carried
from tfagents_system.launch.worker_kind_checks import check_evaluators, check_experts, check_saved_expert
from tfagents_system.machine.worker_slots import EVAL
from tfagents_system.run_files import kept_checkpoints, run_directory
from tfagents_system.run_files.kept_checkpoints import AgentSignature
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.run_files.taken import Taken, find
from tfagents_system.settings import own_attributes, params_check
from tfagents_system.settings.load_params import compute_config_of, load_env_config, load_params, load_params_class
from tfagents_system.settings.run_defaults import WITHOUT_RANDOM_STEPS, defaults_of, kept_defaults
from tfagents_system.settings.variable_values import AGENT
from tfagents_system.settings.variables import read_variables
from tfagents_system.train_params_base import TrainParamsBase

PARAMS, CONFIG = "params", "config"


@dataclasses.dataclass
class Inspection:
    """What the checks learned about the user's own files.

    Attributes:
      num_iter: Of the params; None if they can't be loaded.
      defaults: Those that the run has, see `run_defaults`.
      attributes: Of the params, by name, and `config`: with all overrides.
      specs: The content of specs.pbtxt; None if the environment could not be built.
      imported: Files beside the params file that it has imported, by relative path.
      taken: What a run that begins takes of the one that SAC_FROM names.
      prior_data: The ring that was made of prior data; None: there is none, or it is not needed.
      doing: The current activity; empty once the inspection is complete.
    """

    checks: Checklist = dataclasses.field(default_factory=Checklist)
    num_iter: int | None = None
    defaults: dict[str, Any] = dataclasses.field(default_factory=dict)
    attributes: dict[str, Any] = dataclasses.field(default_factory=dict)
    config: dict[str, Any] = dataclasses.field(default_factory=dict)
    specs: bytes | None = None
    imported: list[str] = dataclasses.field(default_factory=list)
    taken: Taken | None = None
    prior_data: Path | None = None
    doing: str = ""


class Inspector:
    """Loads params and configuration, builds the environment and tries it: all that runs a user's own code.

    The cheapest checks come first; each is made if what it needs exists.

    Args:
      tell: Called with the findings so far, whenever something begins that may take long.
    """

    def __init__(
        self,
        environ: Mapping[str, str],
        vars_file: Path | None,
        tell: Callable[[Inspection], None] = lambda found: None,
    ) -> None:
        self._values, _ = read_variables(environ, vars_file=vars_file, root=ROOT)
        self._environ = environ
        self._overrides = carried(environ)
        self._paths = RunPaths(self._values["exp_dir"]) if "exp_dir" in self._values else None
        self._run = None if environ.get(EDITS) == FRESH else self._paths  # The run to continue.
        self._seed = int(self._values.get("seed", 0))
        self._tell = tell
        self.found = Inspection()
        self._folder = environ.get(FOLDER)
        # The run of joining workers has begun elsewhere.
        self._uses_copies = "server" in self._values or run_directory.has_begun(self._run)

    def run(self, render: bool, plan: CpuPlan | None) -> Inspection:
        before_bytes = psutil.Process().memory_info().rss
        params = self.load_inputs()
        if params is not None:
            check_experts(params, self._values, self.found.checks, self._enter)
            check_evaluators(params, self._values, self.found.checks[PARAMS])
        if params is not None and not self.found.checks[PARAMS].errors:
            self._prior_start(params).check_files(self._origin().parent, self.found.checks["prior data"])
            if self.found.checks["prior data"].errors:  # Environment and agent take much longer to look at.
                return self.found
        if params is not None and params.env_config.get("horizon"):
            # Imported here: TensorFlow takes seconds, and earlier findings should not wait for a broken one.
            from tfagents_system.launch import environment_checks

            trial = environment_checks.check_environment(
                params,
                self._seed,
                self.found.checks,
                self._enter,
                render=render,
                deterministic=bool(self._values.get("deterministic")),
                plan=plan,
                **_of_workers(self._values),
            )
            if trial is not None:
                self.found.specs = _specs_file(trial.specs)
                if reason := self._why_not_of_its_checkpoint(trial.signature):
                    self.found.checks[environment_checks.AGENT].errors.append(reason)
                check_saved_expert(self._values, *trial.specs[:2], self.found.checks, self._enter)
                self._check_experience(params, trial)
                if self.found.taken is not None and not self.found.checks[PARAMS].errors:
                    from tfagents_system.launch.taken_checks import check_taken

                    check_taken(self.found.taken, params, trial, self.found.specs, self.found.checks["another run"])
                self.found.imported = self._imported()
                if not self.found.checks[PARAMS].errors:
                    start, folder = self._prior_start(params), self._origin().parent
                    self.found.prior_data = start.make(self.found.specs, folder, self.found.checks, self._enter)
                self._check_sizes(params, trial, max(0, trial.resident_bytes - before_bytes))
        self.found.doing = ""
        return self.found

    def _enter(self, doing: str) -> None:
        self.found.doing = doing
        self._tell(self.found)

    def load_inputs(self) -> TrainParamsBase | None:
        """Params and configuration, which are checked on their own and together; returns the params if they load."""
        checks = self.found.checks
        config = None
        if "config" in self._values:
            check, path = checks[CONFIG], self._choose(CONFIG)
            with check.catching():
                config = self._merged(load_env_config(path))
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
            load = functools.partial(
                load_params,
                path,
                config,
                origin=origin,
                compute_config=compute_config_of({"seed": 0, **self._values}),
                process=ProcessSettings.of(self._values),
            )
            params, attributes = _with_possible(load, self._overrides.params, check)
            errors = params_check.check_params(params)
            self.found.taken = self._taken()
            self.found.defaults = self._defaults(params) if not errors else {}
            if self.found.defaults:
                params = load(attributes=self.found.defaults | attributes)
                errors = params_check.check_params(params)
            check.errors += errors
            # A run that began before these were refused continues.
            (check.notes if self._uses_copies else check.errors).extend(own_attributes.findings(params))
            if self._values.get("deterministic"):
                check.errors += params_check.check_deterministic(params)
            if not check.errors:
                check.facts.append(f"{path}: {_in_words(params)}")
                check.notes += params_check.advice(params)
                self.found.num_iter = params.num_iter
                self.found.attributes, self.found.config = _plain(params_check.resolved_attributes(params)), config
        return params

    def _merged(self, config: dict[str, Any]) -> dict[str, Any]:
        """The configuration with what is overridden; keys that can't be are told."""
        try:
            return self._overrides.merged(config)
        except SettingsError as error:
            self.found.checks[CONFIG].errors += error.findings
            return self._overrides.without(error.names).merged(config)

    def _defaults(self, params: TrainParamsBase) -> dict[str, Any]:
        """For what the params leave open: those that the run has, or begins with."""
        if not params.env_config.get("horizon"):
            return {}
        workers = self._values.get("num_collect_workers", 1)
        if "server" in self._values or run_directory.has_begun(self._run):
            return kept_defaults(params, workers, self._overrides.defaults)
        return defaults_of(params, workers) | self._without_random_steps(params)

    def _without_random_steps(self, params: TrainParamsBase) -> dict[str, Any]:
        """An agent that is taken acts from the first step on; and rows count for the steps before the first update."""
        taken, given = self.found.taken, self._overrides.params
        if taken is None or {"initial_collect_steps", "num_initial_episodes"} & given.keys():
            return {}
        if taken.agent is not None:
            return WITHOUT_RANDOM_STEPS
        from tfagents_system.replay.stored_ring import StoredRing

        with contextlib.suppress(UserError):  # It is reported with all that is wrong with the other ring.
            return WITHOUT_RANDOM_STEPS if StoredRing(Path(taken.run)).steps >= random_steps(params) else {}
        return {}

    def _taken(self) -> Taken | None:
        """What a run that begins takes of another one."""
        source = self._values.get("from_")
        if source is None or self._uses_copies or self._paths is None:
            return None
        with self.found.checks["another run"].catching():
            return find(str(source), self._values.get("take", AGENT))
        return None

    def _imported(self) -> list[str]:
        """Modules of the params' folder, by relative path."""
        folder = self._origin().parent.resolve()
        files = {str(file) for module in list(sys.modules.values()) if (file := getattr(module, "__file__", None))}
        own = [Path(file) for file in files if file.startswith(f"{folder}{os.sep}")]
        return sorted(str(path.relative_to(folder)) for path in own if path != self._origin().resolve())

    def _choose(self, kind: str) -> Path:
        source: Path = self._values[kind]
        if self._run is None:
            return source
        copy: Path = getattr(self._run, kind)
        return copy if self._uses_copies and copy.exists() else source

    def _origin(self) -> Path:
        """The path under which the params file runs."""
        source: Path = self._values["params"]
        if self._folder:
            return Path(self._folder) / source.name
        if self._uses_copies and self._run is not None and self._run.params_folder.is_dir():
            return self._run.params_folder / source.name
        return source

    def _why_not_of_its_checkpoint(self, signature: AgentSignature | None) -> str:
        """Why the run can't continue with this agent; empty if it can, or is new."""
        if self._run is None or signature is None or "server" in self._values:
            return ""
        return kept_checkpoints.why_not_to_go_on(self._run, signature)

    def _check_experience(self, params: TrainParamsBase, trial: Any) -> None:
        """Whether the experience that the run has fits what observations and actions are now."""
        if "server" in self._values or not run_directory.has_begun(self._run):
            return
        from tfagents_system.launch.taken_checks import ring_findings

        assert self._run is not None
        folders = {folder.resolve(): folder for folder in (self._run.replay, self._values.get("replay_dir")) if folder}
        check = self.found.checks["experience"]
        for folder in folders.values():
            check.errors += ring_findings(params, trial.layout, folder, self._run)

    def _prior_start(self, params: TrainParamsBase) -> PriorStart:
        begins = not run_directory.has_begun(self._run)
        return PriorStart(params, self._values, self._run, begins, self._environ.get(PRIOR_FOLDER))

    def _check_sizes(self, params: TrainParamsBase, trial: Any, own_bytes: int) -> None:
        """Checks memory and disk, unless a value that they follow from is wrong."""
        if self._paths is None or self.found.checks[PARAMS].errors or self.found.checks[CONFIG].errors:
            return
        checks, values = self.found.checks, self._values
        workers = resources.workers_here(values)
        if "server" in values:  # Workers that join have neither a ring nor checkpoints here.
            resources.check_memory(checks["memory"], workers, own_bytes, 0)
            return
        has_ring = "trainer_server" not in values  # Else it is where the replay server is.
        ring_bytes = _ring_bytes(params, trial.layout) if has_ring else 0
        available = resources.memory_of_job(self._environ)
        replay_dir = self._paths.replay
        if available is None:  # In a job it may be a node's scratch.
            replay_dir = values.get("replay_dir", replay_dir)
        planned = values.get("num_collect_workers", 1)
        iterations = iterations_of_run(params, planned)
        steps = steps_of_run(params) or iterations * params.num_train_episodes_per_iter * planned * params.horizon
        checkpoints = int(costs.periods(params, "checkpoint", iterations, steps))
        run_bytes = resources.disk_of_run(trial.agent_bytes, trial.policy_bytes, checkpoints)
        needed = {self._paths.exp_dir: ("checkpoints, policies, logs", run_bytes)}
        # One on scratch is copied to the run directory.
        aside = self._paths.exp_dir if self._run is None else None
        for folder in dict.fromkeys((self._paths.replay, replay_dir)) if has_ring else ():
            needed[folder] = ("replay buffer", resources.bytes_to_reserve(ring_bytes, folder, aside))
        made = self.found.prior_data  # None of an agent that goes on, which has it already.
        kept = made or (self._run.prior_data if self._run is not None else None)
        prior_bytes = resources.size_bytes(kept) if kept is not None else 0
        if made is not None:
            needed[self._paths.prior_data] = ("prior data", prior_bytes)
        with contextlib.suppress(OSError):  # The run directory can't be read, which is reported elsewhere.
            resources.check_disk(checks["disk"], needed)
        resources.check_memory(checks["memory"], workers, own_bytes, ring_bytes, prior_bytes, available=available)


def _with_possible(
    load: Callable[..., TrainParamsBase], attributes: dict[str, Any], check: Check
) -> tuple[TrainParamsBase, dict[str, Any]]:
    """Params with all overridden attributes that are possible, and these; what is wrong with the others is told.

    So what is wrong with values is told at once with what is wrong with names.
    """
    while True:
        try:
            return load(attributes=attributes), attributes
        except SettingsError as error:
            check.errors += error.findings
            attributes = {name: value for name, value in attributes.items() if name not in error.names}


def _ring_bytes(params: TrainParamsBase, layout: Any) -> int:
    """Size of the replay server's files."""
    from tfagents_system.replay.ring_sizes import ring_bytes

    return ring_bytes(params, layout)


def _plain(attributes: dict[str, Any]) -> dict[str, Any]:
    """What another process can read without the user's code: values that JSON lacks are texts."""
    plain: dict[str, Any] = json.loads(json.dumps(attributes, default=_as_plain))
    return plain


def _as_plain(value: Any) -> Any:
    return value.tolist() if type(value).__module__ == "numpy" else repr(value)


def _in_words(params: TrainParamsBase) -> str:
    length = f"{params.num_iter} iterations"
    if params.num_env_steps is not None:
        length = f"{params.num_env_steps:,} environment steps in iterations"
    steps = "" if params.env_steps_per_iter is None else f" of {params.env_steps_per_iter} steps"
    updates = f"{steps} of {updates_of_iteration(params)} updates"
    if (ratio := updates_ratio(params)) is not None:
        updates = f"{steps}, {ratio:g} updates for each step"
    return f"{length}{updates}, with batches of {params.batch_size}"


def _of_workers(values: Mapping[str, Any]) -> dict[str, Any]:
    """What the checks of the environment need to know of those that will step it."""
    has_evaluators = bool(values.get("eval_workers")) or values.get("worker_role") == EVAL
    has_workers = "server" in values or resources.workers_here(values) > 0  # Those that join are workers.
    count = int(values.get("envs_per_worker") or 1)
    return {"envs_per_worker": count, "has_evaluators": has_evaluators, "has_workers": has_workers}


def _specs_file(specs: Any) -> bytes:
    from tfagents_system.envs.specs import save_specs

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "specs.pbtxt"
        save_specs(path, *specs)
        return path.read_bytes()
