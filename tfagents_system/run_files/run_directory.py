"""The run directory's own copies of what the user gave, and whether the run is finished."""

from __future__ import annotations

import dataclasses
import datetime
import importlib.metadata
import json
import math
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tfagents_system.checks.hyperparameters import described_by
from tfagents_system.errors import UserError, shown
from tfagents_system.machine.files import write_atomically
from tfagents_system.run_files import (
    experience_folders,
    install_inputs,
    reward_copy,
    run_checkpoints,
    run_inputs,
    run_starts,
    task_edits,
)
from tfagents_system.run_files.best import edits_taken
from tfagents_system.run_files.heartbeat import read_json
from tfagents_system.run_files.metrics import read_metrics
from tfagents_system.run_files.resets import Reset, next_folder, resets_of_run
from tfagents_system.run_files.run_inputs import Inputs
from tfagents_system.run_files.run_paths import TRAINER, RunPaths
from tfagents_system.settings.early_end import depends_on_files, is_same_end
from tfagents_system.settings.grid import by_name, in_words
from tfagents_system.settings.overrides import CONFIG, Overrides
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


def has_begun(paths: RunPaths | None) -> bool:
    """Whether a run has learned something: it then keeps the files and settings that it began with.

    A run without an update yet takes all of them as they are now.
    """
    if paths is None or not os.path.exists(paths.run_json):  # If it is out of reach, others report that.
        return False
    trainer = _trainer(paths)
    return (
        bool(resets_of_run(paths))
        or bool(trainer.get("train_step"))
        or trainer.get("state") == "done"
        or run_checkpoints.newest_train_step(paths.trainer_checkpoints) > 0
        or any((row.get("train_step") or 0) > 0 for row in read_metrics(paths.metrics_csv))
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


def overrides_of_run(
    paths: RunPaths | None, given: Overrides, *, joins: bool = False, has_new_agent: bool = False
) -> Overrides:
    """The overrides that the run began with, plus given ones that may change; `given` for a run that has not begun.

    Workers that join take those of the run in any case. With another agent, any setting may change.

    Raises:
      UserError: An attribute or a key that must stay is given another value than the run began with.
    """
    if paths is None or not (has_begun(paths) or (joins and os.path.exists(paths.run_json))):
        return given
    began = Overrides.read(paths.overrides)
    if has_new_agent:
        return began.replaced_by(given)
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
        files = dict.fromkeys(str(paths.overrides if name in known else _copy_with(paths, name)) for name in changed)
        raise UserError(
            f"{in_words(changed)} is not what this run began with ({began.in_words() or 'no settings'}): choose "
            f"another SAC_EXP_NAME, or change {' and '.join(files)} to go on with this run in another way (--set may "
            f"change num_iter and others, which `sac parameters` marks with *)"
        )
    params = {name: value for name, value in given.params.items() if name in MAY_CHANGE}
    return began.replaced_by(unknown).replaced_by(Overrides(params, variables=given.variables))


def _may_change(name: str) -> bool:
    """Of a setting's name: `exploration_epsilon.by` is a part of an attribute that may change."""
    return name.split(".")[0] in MAY_CHANGE


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


def _copy_with(paths: RunPaths, name: str) -> Path:
    """The run's own copy of the file whose value a setting overrides."""
    return paths.config if name.partition(".")[0] == CONFIG else paths.params


def write_inputs(
    paths: RunPaths,
    variables: RunVariables,
    num_iter: int,
    overrides: Overrides | None = None,
    *,
    inputs: Inputs | None = None,
    take_edits: bool = False,
    ends_for: str | None = None,
    reset: Reset | None = None,
    jobs: Sequence[str] = (),
) -> None:
    """Copies the user's files and writes run.json; a run that has begun keeps those that it has. If one that has not
    begun gets different ones, its experience, of another task or other settings, is removed.

    Args:
      inputs: The user's files; by default without a folder.
      take_edits: A run that has begun gets new copies, where they differ; old ones of another task are kept aside.
      ends_for: When it ends, see `early_end.settings_of_end`; None: after its number of iterations.
      reset: What it resets of a run that has begun, see `new_reset`.
      jobs: The SLURM job of this start, and what it does once, as run.json records them.
    """
    paths.exp_dir.mkdir(parents=True, exist_ok=True)
    install_inputs.finish_install(paths)
    inputs = inputs or Inputs(variables.params, variables.config)
    is_begun, before, seed = has_begun(paths), read_run_json(paths), seed_of_run(paths, variables.seed)
    kept = _kept(overrides or Overrides(), seed)
    begins = not is_begun or reset is not None
    agent_from = _agent_from(inputs) if begins else before.get("agent_from")
    if not (is_begun or keeps_experience(paths, inputs, kept, seed, variables.replay_from)):
        experience_folders.remove(paths, variables.replay_dir)
    takes_edits = take_edits and not run_inputs.are_same(paths, inputs)
    new = inputs if not is_begun or takes_edits or not (paths.params.exists() and paths.config.exists()) else None
    other = reward_copy.other_reward(paths, inputs, kept) if new is None else None
    task = task_edits.digests_of_task(new or other or run_inputs.inputs_of_run(paths), kept, MAY_CHANGE)
    takes = is_begun and takes_edits and task_edits.is_other_task(paths, inputs, kept, MAY_CHANGE)
    run = {
        **run_inputs.of_params(paths, variables.params, new, other, before),
        **_of_start(variables, num_iter, ends_for, kept),
        "edits": task_edits.edits_after(paths, before, task, takes=takes, goes_on=not begins, now=_now()),
        "task": task,
        **_if_any(defaults=kept.defaults, agent_from=agent_from, resets=_resets(before, reset)),
        **_of_run(before, seed, jobs, None if is_begun else variables.replay_from),
    }
    _write_overrides(paths, kept, reset)
    content = json.dumps(run, indent=2).encode() + b"\n"
    if reset is not None or new is not None or other is not None:
        install_inputs.install(paths, new, content, reset, kept.to_json().encode(), inputs if begins else None, other)
    else:
        write_atomically(paths.run_json, content)


def keeps_experience(
    paths: RunPaths, inputs: Inputs, overrides: Overrides, seed: int, replay_from: Sequence[Path]
) -> bool:
    """Whether a run without an update yet goes on with the experience that it has: of the same task and settings, after
    that of the same other runs.

    Args:
      inputs, overrides, seed, replay_from: Those of the start.
    """
    before = read_run_json(paths)
    began = before.get("seed"), before.get("agent_from"), before.get("replay_from"), Overrides.read(paths.overrides)
    wanted = seed, _agent_from(inputs), _names(replay_from), _kept(overrides, seed)
    return began == wanted and run_inputs.fit_experience(paths, inputs)


def new_reset(paths: RunPaths, kind: str, *, catch_up: bool, stored_steps: int = 0) -> Reset:
    """A reset of the run as it is now; nothing is done. `stored_steps`: its environment steps as its ring tells."""
    newest = run_checkpoints.newest_train_step(paths.trainer_checkpoints)
    steps = max((row.get("env_steps") or 0 for row in read_metrics(paths.metrics_csv)), default=0)
    return Reset(kind, next_folder(paths), max(0, newest), max(int(steps), stored_steps), catch_up, _now())


def _agent_from(inputs: Inputs) -> dict[str, Any] | None:
    """What run.json records of what an agent begins with."""
    start = inputs.agent
    return {"source": start.source, "parts": list(start.parts), "sha256": start.digest()} if start else None


def _names(sources: Sequence[Path]) -> list[str]:
    """What run.json records of SAC_REPLAY_FROM."""
    return [str(source) for source in sources]


def _resets(before: Mapping[str, Any], reset: Reset | None) -> list[dict[str, Any]]:
    """What run.json records of them."""
    return [*before.get("resets", []), *([dataclasses.asdict(reset)] if reset else [])]


def _if_any(**values: Any) -> dict[str, Any]:
    """Without those that are empty."""
    return {name: value for name, value in values.items() if value}


def _of_start(variables: RunVariables, num_iter: int, ends_for: str | None, kept: Overrides) -> dict[str, Any]:
    """What run.json has as the newest start found it."""
    return {
        "config_source": str(variables.config),
        "num_iter": num_iter,
        "ends_for": ends_for,
        "settings": {name: getattr(variables, name) for name in (*SETTINGS, "train_cpus")},
        "env_python": str(variables.env_python) if variables.env_python else None,
        "versions": versions(),
        **run_starts.settings_after(kept),
    }


def _of_run(
    before: Mapping[str, Any], seed: int, jobs: Sequence[str], replay_from: Sequence[Path] | None
) -> dict[str, Any]:
    """What run.json has from the first start on, and its SLURM jobs; `replay_from`: None where the run has begun."""
    sources = before.get("replay_from") if replay_from is None else _names(replay_from)
    return {
        "seed": seed,
        **({} if sources is None else {"replay_from": sources}),
        **run_starts.jobs_after(before, jobs),
        "created": before.get("created", _now()),
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


def _write_overrides(paths: RunPaths, kept: Overrides, reset: Reset | None) -> None:
    """With a reset they come together with all that it changes."""
    if reset is not None:
        return
    if kept == Overrides():
        paths.overrides.unlink(missing_ok=True)
    elif not paths.overrides.exists() or Overrides.read(paths.overrides) != kept:
        write_atomically(paths.overrides, kept.to_json().encode())


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
        has_edits = trainer.get("ended_edits", 0) != edits_taken(paths) and depends_on_files(trainer["ended_early"])
        has_other_end = has_edits or not is_same_end(trainer.get("ended_for"), ends_for, given or {})
    is_done = trainer.get("state") == "done" and num_iter is not None and trainer.get("num_iter") == num_iter
    return is_done and not has_other_end


def why_early(paths: RunPaths) -> str | None:
    """Why a finished run has ended before its last iteration; None where it has not."""
    return _trainer(paths).get("ended_early")


def _trainer(paths: RunPaths) -> Mapping[str, Any]:
    """What the trainer reported last."""
    return (read_json(paths.status_json) or {}).get("roles", {}).get(TRAINER, {})
