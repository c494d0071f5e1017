"""The run directory's own copies of what the user gave, its run.json, and whether the run is finished."""

from __future__ import annotations

import dataclasses
import datetime
import importlib.metadata
import os
import platform
import secrets
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tfagents_system.checks.rules import is_meant
from tfagents_system.errors import UserError
from tfagents_system.hyperparameters import described_by
from tfagents_system.machine.files import read_json, write_json
from tfagents_system.run_files import kept_checkpoints, run_inputs
from tfagents_system.run_files.metrics import read_rows
from tfagents_system.run_files.run_inputs import Inputs
from tfagents_system.run_files.run_paths import TRAINER, RunPaths
from tfagents_system.run_files.taken import taken_by
from tfagents_system.settings.resolved import (
    SETTINGS_OF_END,
    Overrides,
    Setting,
    Settings,
    of_start,
    read_run,
    settings_of_end,
)
from tfagents_system.settings.values import by_name, in_words, overridden
from tfagents_system.settings.variables import SEED, RunVariables
from tfagents_system.train_params_base import TrainParamsBase

# Attributes that `--set` may give a run which has begun.
MAY_CHANGE = tuple(name for name, each in described_by(TrainParamsBase).items() if each.may_change)
_PACKAGES = ("tensorflow", "tf-agents", "dm-reverb", "numpy", "gym", "gymnasium", "mujoco", "pybullet")
_NAMES_OF_RUN = ("SAC_EXP_NAME", "SAC_EXP_DIR", "SAC_LOGS_DIR", "SAC_GRID")
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
    """What the run is and where it came from; empty for a run that was never prepared."""
    return read_run(paths.run_json)


def overrides_of_run(paths: RunPaths | None, given: Overrides, *, joins: bool = False) -> tuple[Overrides, list[str]]:
    """The overrides that the run began with, plus given ones that may change; `given` for a run that has not begun.

    Workers that join take those of the run in any case. A value that must stay and is given anew is a finding.
    """
    if paths is None or not (has_begun(paths) or (joins and os.path.exists(paths.run_json))):
        return given, []
    run = read_run_json(paths)
    began = Overrides.of_run(run)
    known = began.settings()
    changed = {
        name: value
        for name, value in given.settings().items()
        if not (name in given.variables or _may_change(name) or (name in known and known[name] == value))
    }
    names = [*run.get("attributes", {}), *by_name({}, run.get("config", {}), {}), *described_by(TrainParamsBase)]
    meant = "".join(is_meant(name, names, 0.8) for name in changed)
    findings = [
        f"{in_words(changed)} is not what this run began with ({began.in_words() or 'no settings'}){meant}, and a run "
        f"stays what it is: begin another one that goes on from it with {from_line(paths)} (--set may change num_iter "
        "and others, which `sac parameters` marks with *)"
    ]
    params = {name: value for name, value in given.params.items() if name in MAY_CHANGE}
    return began.replaced_by(Overrides(params, variables=given.variables)), findings if changed else []


def _may_change(name: str) -> bool:
    """Of a setting's name: `exploration_epsilon.by` is a part of an attribute that may change."""
    return name.split(".")[0] in MAY_CHANGE


def from_line(paths: RunPaths) -> str:
    """The options of a start that make another run of this one."""
    return f"--from {paths.exp_dir} --set SAC_EXP_NAME={paths.exp_dir.name}_2"


def write_inputs(paths: RunPaths, settings: Settings, inputs: Inputs | None = None, *, job: str | None = None) -> None:
    """Copies the user's files and writes run.json; a run that has begun keeps those that it has. If one that has not
    begun gets different ones, its experience, of another task or other settings, is removed.

    Args:
      inputs: The user's files; by default without a folder.
      job: The SLURM job of this start.
    """
    paths.exp_dir.mkdir(parents=True, exist_ok=True)
    variables = settings.variables
    inputs = inputs or Inputs(variables.params, variables.config)
    is_begun, before = has_begun(paths), read_run_json(paths)
    settings = dataclasses.replace(settings, overrides=_kept(settings.overrides))
    keeps = is_begun or keeps_experience(paths, inputs, settings.overrides, variables.seed)
    if not keeps:
        run_inputs.remove_experience(paths, variables.replay_dir)
    if not (is_begun and paths.params.exists() and paths.config.exists()):
        run_inputs.install(paths, inputs)
        before |= {**inputs.to_json(paths), "from": inputs.taken.to_json() if inputs.taken else before.get("from")}
    jobs = before.get("jobs", [])
    run = {
        **{name: before[name] for name in _OF_INPUTS if before.get(name) is not None},
        "id": (before.get("id") if keeps else None) or secrets.randbelow(2**31),
        "jobs": jobs if job is None or job in jobs else [*jobs, job],
        "created": before.get("created", _now()),
        **settings.of_run(),
    }
    _write(paths, run, variables)


def write_start(paths: RunPaths, variables: RunVariables) -> None:
    """Writes the variables of a start into the run.json of a prepared run."""
    _write(paths, read_run_json(paths), variables)


def _write(paths: RunPaths, run: Mapping[str, Any], variables: RunVariables) -> None:
    start = {"variables": of_start(variables), "versions": versions()}
    # For its owner alone: attributes of a user's own may be keys.
    write_json(paths.run_json, {**run, "start": start}, indent=2, mode=0o600)


def keeps_experience(paths: RunPaths, inputs: Inputs, overrides: Overrides, seed: int) -> bool:
    """Whether a run without an update yet goes on with the experience that it has: of the same files and settings.

    Args:
      inputs, overrides, seed: Those of the start.
    """
    before = read_run_json(paths)
    began = before.get("seed"), before.get("began_with"), Overrides.of_run(before)
    return began == (seed, inputs.began_with(), _kept(overrides))


def _now() -> str:
    return datetime.datetime.now().astimezone().isoformat(timespec="seconds")


def _kept(overrides: Overrides) -> Overrides:
    """Without the variables that name the run: its directory may be moved."""
    variables = {name: text for name, text in overrides.variables.items() if name not in _NAMES_OF_RUN}
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
    trainer, attributes = _trainer(paths), read_run_json(paths).get("attributes", {})
    given = wanted.params if wanted is not None else {}
    try:
        end = {
            name: overridden(name, attributes.get(name), given[name]) if name in given else attributes.get(name)
            for name in SETTINGS_OF_END
        }
        ends_for = settings_of_end(end)
    except (UserError, AttributeError, TypeError, ValueError, OverflowError):
        return False  # Not prepared yet; what is impossible in `wanted`, checks tell.
    if trainer.get("state") != "done" or trainer.get("num_iter") != end["num_iter"]:
        return False
    if given.get("num_env_steps") is not None and trainer.get("num_env_steps") != given["num_env_steps"]:
        return False
    return not trainer.get("ended_early") or trainer.get("ended_for") == ends_for


def why_early(paths: RunPaths) -> str | None:
    """Why a finished run has ended before its last iteration; None where it has not."""
    return _trainer(paths).get("ended_early")


def _trainer(paths: RunPaths) -> Mapping[str, Any]:
    """What the trainer reported last."""
    return (read_json(paths.status_json) or {}).get("roles", {}).get(TRAINER, {})


def faults_of_task(paths: RunPaths, own: Sequence[Setting], variables: Collection[str] = ()) -> list[str]:
    """Why the run in a task's directory is not that of the task: it has other values of the task's settings.

    They are compared with the overrides of the run's newest start and with its seed. Settings that say when a run ends
    may change. Those of a key that has left the grid are not compared.

    Args:
      own: The settings of the grid and of --seeds for this task.
      variables: SAC_ names that are known beside our own.
    """
    if not own or not has_begun(paths):
        return []
    run = read_run_json(paths)
    began = Overrides.of_run(run).settings() | {SEED: str(run["seed"])}

    def is_same(name: str, value: Any) -> bool:
        if name == SEED and value.strip().isdecimal():
            return int(value) == int(began[name])
        return name.split(".")[0] in SETTINGS_OF_END or (name in began and began[name] == value)

    wanted = Overrides.from_settings(own, variables)[0].settings()
    if not (other := {name: value for name, value in wanted.items() if not is_same(name, value)}):
        return []
    found = in_words({name: began[name] for name in other if name in began})
    return [
        f"{in_words(other)} is not what the run in {paths.exp_dir} began with ({found or 'nothing was given for it'}): "
        "it is the run of another task, so choose another SAC_EXP_NAME for changed seeds or another grid"
    ]
