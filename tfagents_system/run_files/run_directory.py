"""The run directory's own copies of what the user gave, and whether the run is finished."""

from __future__ import annotations

import dataclasses
import datetime
import importlib.metadata
import json
import math
import os
import platform
import secrets
from collections.abc import Mapping
from typing import Any

from tfagents_system.checks.hyperparameters import described_by
from tfagents_system.errors import UserError, shown
from tfagents_system.machine.files import read_json, write_atomically
from tfagents_system.run_files import kept_checkpoints, run_inputs
from tfagents_system.run_files.metrics import read_rows
from tfagents_system.run_files.run_inputs import Inputs
from tfagents_system.run_files.run_paths import TRAINER, RunPaths
from tfagents_system.run_files.taken import taken_by
from tfagents_system.settings.early_end import is_same_end
from tfagents_system.settings.grid import by_name, in_words
from tfagents_system.settings.overrides import Overrides
from tfagents_system.settings.variables import RunVariables, as_text, variable_name
from tfagents_system.train_params_base import TrainParamsBase

# Variables that a worker which joins from elsewhere takes over from the run, by their field's names.
SETTINGS = (
    "num_collect_workers",
    "local_workers",
    "expert_workers",
    "eval_workers",
    "max_workers",
    "envs_per_worker",
    "deterministic",
    "step_timeout_secs",
)
# What tells those workers which defaults the run began with, see `Overrides.defaults`.
DEFAULTS = "SAC_RUN_DEFAULTS"
# Attributes that `--set` may give a run which has begun.
MAY_CHANGE = tuple(name for name, each in described_by(TrainParamsBase).items() if each.may_change)
_PACKAGES = ("tensorflow", "tf-agents", "dm-reverb", "numpy", "gym", "gymnasium", "mujoco", "pybullet")
_NAMES_OF_RUN = ("SAC_EXP_NAME", "SAC_EXP_DIR", "SAC_LOGS_DIR", "SAC_GRID")
_SEED = variable_name("seed")
# What run.json keeps from the first start.
_OF_INPUTS = ("params_source", "params_kept", "params_files", "began_with", "from")


def has_begun(paths: RunPaths | None) -> bool:
    """Whether a run has learned something, or took something from another one: it then keeps its files and settings.

    Others take all of them as they are now.
    """
    if paths is None or not os.path.exists(paths.run_json):  # If it is out of reach, others report that.
        return False
    trainer = _trainer(paths)
    return (
        taken_by(paths) is not None
        or bool(trainer.get("train_step"))
        or trainer.get("state") == "done"
        or kept_checkpoints.newest_train_step(paths.trainer_checkpoints) > 0
        or any((row.get("train_step") or 0) > 0 for row in read_rows(paths.metrics_csv))
    )


def read_run_json(paths: RunPaths) -> dict[str, Any]:
    """Where the run came from; empty for a run that was never prepared."""
    return read_json(paths.run_json) or {}


def environ_of_run(run: Mapping[str, Any]) -> dict[str, str]:
    """What run.json says of a run, as the variables of a worker that joins it."""
    settings = {name: value for name, value in run["settings"].items() if name in SETTINGS and value is not None}
    environ = {variable_name(name): as_text(value) for name, value in [("seed", run["seed"]), *settings.items()]}
    return environ | _told_defaults(run)


def defaults_of_run(paths: RunPaths) -> dict[str, str]:
    """The defaults that the run began with, as a variable of a worker that joins it; empty without any."""
    return _told_defaults(read_run_json(paths))


def _told_defaults(run: Mapping[str, Any]) -> dict[str, str]:
    return {DEFAULTS: json.dumps(run["defaults"])} if run.get("defaults") else {}


def seed_of_run(paths: RunPaths | None, wanted: int) -> int:
    """The seed that the run began with; `wanted` for one that has not begun."""
    seed = read_run_json(paths).get("seed") if paths is not None and has_begun(paths) else None
    return seed if isinstance(seed, int) else wanted


def overrides_of_run(paths: RunPaths | None, given: Overrides, *, joins: bool = False) -> Overrides:
    """The overrides that the run began with, plus given ones that may change; `given` for a run that has not begun.

    Workers that join take those of the run in any case.

    Raises:
      UserError: An attribute or a key that must stay is given another value than the run began with.
    """
    if paths is None or not (has_begun(paths) or (joins and os.path.exists(paths.run_json))):
        return given
    began = Overrides.read(paths.overrides)
    known = began.settings()
    resolved = read_json(paths.resolved) or {}
    unknown = given.unknown(resolved.get("params"), resolved.get("config"))  # The check of the params refuses them.
    misspelt = unknown.settings()
    changed = {
        name: value
        for name, value in given.settings().items()
        if not (name in (*given.variables, *misspelt) or _may_change(name) or (name in known and known[name] == value))
    }
    if changed:
        raise UserError(
            f"{in_words(changed)} is not what this run began with ({began.in_words() or 'no settings'}), and a run "
            f"stays what it is: begin another one that goes on from it with {from_line(paths)} (--set may change "
            "num_iter and others, which `sac parameters` marks with *)"
        )
    params = {name: value for name, value in given.params.items() if name in MAY_CHANGE}
    return began.replaced_by(unknown).replaced_by(Overrides(params, variables=given.variables))


def _may_change(name: str) -> bool:
    """Of a setting's name: `exploration_epsilon.by` is a part of an attribute that may change."""
    return name.split(".")[0] in MAY_CHANGE


def from_line(paths: RunPaths) -> str:
    """The options of a start that make another run of this one."""
    return f"--from {paths.exp_dir} --set SAC_EXP_NAME={paths.exp_dir.name}_2"


def changes(paths: RunPaths, overrides: Overrides, variables: RunVariables) -> str:
    """`num_iter=250 (was 100)`: what a start changes in a run that has begun; empty if nothing."""
    if not has_begun(paths):
        return ""
    resolved = Overrides((read_json(paths.resolved) or {}).get("params", {}))
    before = resolved.replaced_by(Overrides.read(paths.overrides))
    settings = read_run_json(paths).get("settings", {})
    workers = {name: getattr(variables, name) for name in SETTINGS}
    return " ".join(
        [
            f"{in_words({name: value})} (was {shown(before.of_attribute(name))})"
            for name, value in by_name(overrides.params, {}, {}).items()
            if _may_change(name) and before.of_attribute(name) != value
        ]
        + [
            f"{variable_name(name)}={as_text(workers[name])} (was {as_text(value)})"
            for name, value in settings.items()
            if value is not None and workers.get(name) is not None and workers[name] != value
        ]
    )


def write_inputs(
    paths: RunPaths,
    variables: RunVariables,
    num_iter: int,
    overrides: Overrides | None = None,
    *,
    inputs: Inputs | None = None,
    ends_for: str | None = None,
    job: str | None = None,
) -> None:
    """Copies the user's files and writes run.json; a run that has begun keeps those that it has. If one that has not
    begun gets different ones, its experience, of another task or other settings, is removed.

    Args:
      inputs: The user's files; by default without a folder.
      ends_for: When it ends, see `early_end.settings_of_end`; None: after its number of iterations.
      job: The SLURM job of this start.
    """
    paths.exp_dir.mkdir(parents=True, exist_ok=True)
    inputs = inputs or Inputs(variables.params, variables.config)
    is_begun, before, seed = has_begun(paths), read_run_json(paths), seed_of_run(paths, variables.seed)
    kept = _kept(overrides or Overrides(), seed)
    keeps = is_begun or keeps_experience(paths, inputs, kept, seed)
    if not keeps:
        run_inputs.remove_experience(paths, variables.replay_dir)
    if not (is_begun and paths.params.exists() and paths.config.exists()):
        run_inputs.install(paths, inputs)
        before |= {**inputs.to_json(paths), "from": inputs.taken.to_json() if inputs.taken else before.get("from")}
    jobs = before.get("jobs", [])
    run = {
        **{name: before[name] for name in _OF_INPUTS if before.get(name) is not None},
        **_of_start(variables, num_iter, ends_for, kept),
        "id": (before.get("id") if keeps else None) or secrets.randbelow(2**31),
        "seed": seed,
        "jobs": jobs if job is None or job in jobs else [*jobs, job],
        "created": before.get("created", _now()),
    }
    if kept == Overrides():
        paths.overrides.unlink(missing_ok=True)
    else:
        write_atomically(paths.overrides, kept.to_json().encode())
    write_atomically(paths.run_json, json.dumps(run, indent=2).encode() + b"\n")


def keeps_experience(paths: RunPaths, inputs: Inputs, overrides: Overrides, seed: int) -> bool:
    """Whether a run without an update yet goes on with the experience that it has: of the same files and settings.

    Args:
      inputs, overrides, seed: Those of the start.
    """
    before = read_run_json(paths)
    began = before.get("seed"), before.get("began_with"), Overrides.read(paths.overrides)
    return began == (seed, inputs.began_with(), _kept(overrides, seed))


def _of_start(variables: RunVariables, num_iter: int, ends_for: str | None, kept: Overrides) -> dict[str, Any]:
    """What run.json has as the newest start found it."""
    return {
        "config_source": str(variables.config),
        "num_iter": num_iter,
        "ends_for": ends_for,
        "settings": {name: getattr(variables, name) for name in (*SETTINGS, "train_cpus")},
        "env_python": str(variables.env_python) if variables.env_python else None,
        "versions": versions(),
        **({"defaults": kept.defaults} if kept.defaults else {}),
    }


def _now() -> str:
    return datetime.datetime.now().astimezone().isoformat(timespec="seconds")


def write_resolved(
    paths: RunPaths, variables: RunVariables, attributes: Mapping[str, Any], config: Mapping[str, Any]
) -> None:
    """Writes resolved.json, for people: every value of the last start, wherever it comes from.

    Args:
      attributes: Of TrainParams, by name.
      config: The configuration with what is merged into it.
    """
    values = dataclasses.asdict(variables) | {"seed": seed_of_run(paths, variables.seed)}
    texts = {variable_name(name): as_text(value) for name, value in values.items() if value is not None}
    resolved = _finite({"params": attributes, "config": config, "variables": texts})
    # People put tokens into variables such as SAC_JOB_PRELUDE.
    write_atomically(paths.resolved, json.dumps(resolved, indent=2).encode() + b"\n", mode=0o600)


def _finite(value: Any) -> Any:
    """With texts instead of the numbers that JSON lacks, `inf` and `nan`."""
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _kept(overrides: Overrides, seed: int) -> Overrides:
    """With the seed in use, and without the variables that name the run: its directory may be moved."""
    variables = {name: text for name, text in overrides.variables.items() if name not in _NAMES_OF_RUN}
    if _SEED in variables:
        variables[_SEED] = str(seed)
    return dataclasses.replace(overrides, variables=variables)


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that results depend on."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def is_finished(paths: RunPaths, wanted: Overrides | None = None) -> bool:
    """Whether the trainer reported that it is done: with as many iterations as the run's params ask for, or early for
    the reasons that they give.

    Args:
      wanted: What a start that is not prepared yet asks for: perhaps another end than the previous start.
    """
    run, given = read_run_json(paths), (wanted or Overrides()).params
    steps = given.get("num_env_steps")
    if steps is not None and _trainer(paths).get("num_env_steps") != steps:
        return False
    return has_ended_with(paths, given.get("num_iter", run.get("num_iter")), run.get("ends_for"), given)


def has_ended_with(
    paths: RunPaths, num_iter: int | None, ends_for: str | None, given: Mapping[str, Any] | None = None
) -> bool:
    """Whether the trainer reported that it is done, with so many iterations, or early with the files that it has.

    Args:
      num_iter: None: with no number.
      ends_for: When it ends early, see `early_end.settings_of_end`; None: for whatever reason.
      given: Attributes that are other ones than in `ends_for`.
    """
    trainer = _trainer(paths)
    has_other_end = False
    if trainer.get("ended_early") and ends_for is not None:
        has_other_end = not is_same_end(trainer.get("ended_for"), ends_for, given or {})
    is_done = trainer.get("state") == "done" and num_iter is not None and trainer.get("num_iter") == num_iter
    return is_done and not has_other_end


def why_early(paths: RunPaths) -> str | None:
    """Why a finished run has ended before its last iteration; None where it has not."""
    return _trainer(paths).get("ended_early")


def _trainer(paths: RunPaths) -> Mapping[str, Any]:
    """What the trainer reported last."""
    return (read_json(paths.status_json) or {}).get("roles", {}).get(TRAINER, {})
