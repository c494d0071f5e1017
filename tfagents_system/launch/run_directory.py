"""The run directory's own copies of what the user gave, and whether the run is finished."""

from __future__ import annotations

import dataclasses
import datetime
import difflib
import importlib.metadata
import json
import math
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tfagents_system.errors import UserError
from tfagents_system.grid import in_words
from tfagents_system.launch.run_paths import TRAINER, RunPaths
from tfagents_system.launch.variables import RunVariables, as_text, variable_name
from tfagents_system.overrides import CONFIG, Overrides
from tfagents_system.report.heartbeat import read_json

# Variables that a worker which joins from elsewhere takes over from the run, by their field's names.
SETTINGS = (
    "num_collect_workers",
    "local_workers",
    "max_workers",
    "envs_per_worker",
    "deterministic",
    "step_timeout_secs",
)
_PACKAGES = ("tensorflow", "tf-agents", "dm-reverb", "numpy", "gym", "gymnasium", "mujoco", "pybullet")
_NAMES_OF_RUN = ("SAC_EXP_NAME", "SAC_EXP_DIR", "SAC_GRID")
_SEED = variable_name("seed")


def choose_input(copy: Path, source: Path) -> tuple[Path, str | None]:
    """The run's own copy wins over its source, where there is one; a difference is told as a unified diff."""
    if not copy.exists():
        return source, None
    if copy.read_bytes() == source.read_bytes():
        return copy, None
    return copy, (
        f"{source} is not what this run began with; the run goes on with its own copy {copy}. "
        f"Choose another SAC_EXP_NAME for a run with the changes:\n{_diff(copy, source)}"
    )


def _diff(copy: Path, source: Path) -> str:
    ours, theirs = (path.read_text(errors="replace").splitlines(keepends=True) for path in (copy, source))
    lines = difflib.unified_diff(ours, theirs, str(copy), str(source))
    return "".join(line if line.endswith("\n") else line + "\n" for line in lines).rstrip("\n")


def read_run_json(paths: RunPaths) -> dict[str, Any]:
    """Where the run came from; empty for a run that was never prepared."""
    return read_json(paths.run_json) or {}


def environ_of_run(run: Mapping[str, Any]) -> dict[str, str]:
    """What run.json says of a run, as the variables of a worker that joins it."""
    settings = {name: value for name, value in run["settings"].items() if name in SETTINGS and value is not None}
    return {variable_name(name): as_text(value) for name, value in [("seed", run["seed"]), *settings.items()]}


def seed_of_run(paths: RunPaths | None, wanted: int) -> int:
    """The seed that the run began with; `wanted` for one that was never prepared."""
    seed = read_run_json(paths).get("seed") if paths is not None else None
    return seed if isinstance(seed, int) else wanted


def overrides_of_run(paths: RunPaths | None, given: Overrides) -> Overrides:
    """The overrides that the run began with, with the variables that are given now; `given` for a new run.

    Raises:
      UserError: An attribute or a key is given another value than the run began with.
    """
    if paths is None or not os.path.exists(paths.run_json):  # Where it is out of reach, others say so.
        return given
    began = Overrides.read(paths.overrides)
    known = began.settings()
    changed = {
        name: value
        for name, value in given.settings().items()
        if name not in given.variables and (name not in known or known[name] != value)
    }
    if changed:
        files = dict.fromkeys(str(paths.overrides if name in known else _copy_with(paths, name)) for name in changed)
        raise UserError(
            f"{in_words(changed)} is not what this run began with ({began.in_words() or 'no settings'}): choose "
            f"another SAC_EXP_NAME, or change {' and '.join(files)} to go on with this run in another way"
        )
    return dataclasses.replace(began, variables=began.variables | given.variables)


def _copy_with(paths: RunPaths, name: str) -> Path:
    """The run's own copy that has what a setting overrides."""
    return paths.config if name.partition(".")[0] == CONFIG else paths.params


def write_inputs(paths: RunPaths, variables: RunVariables, num_iter: int, overrides: Overrides | None = None) -> None:
    """Copies params and configuration unless they are there, and writes run.json; the first start's seed stays."""
    paths.exp_dir.mkdir(parents=True, exist_ok=True)
    for copy, source in ((paths.params, variables.params), (paths.config, variables.config)):
        if not copy.exists():
            write_atomically(copy, source.read_bytes())
    before, seed = read_run_json(paths), seed_of_run(paths, variables.seed)
    _write_overrides(paths, overrides or Overrides(), seed)
    run = {
        "params_source": str(variables.params),
        "config_source": str(variables.config),
        "seed": seed,
        "num_iter": num_iter,
        "settings": {name: getattr(variables, name) for name in SETTINGS},
        "env_python": str(variables.env_python) if variables.env_python else None,
        "created": before.get("created", datetime.datetime.now().astimezone().isoformat(timespec="seconds")),
        "versions": versions(),
    }
    write_atomically(paths.run_json, json.dumps(run, indent=2).encode() + b"\n")


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
    """With texts in the place of numbers that JSON does not have, `inf` and `nan`."""
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _write_overrides(paths: RunPaths, overrides: Overrides, seed: int) -> None:
    """With the seed in use, and without the variables that name the run: its directory may be moved."""
    variables = {name: text for name, text in overrides.variables.items() if name not in _NAMES_OF_RUN}
    if _SEED in variables:
        variables[_SEED] = str(seed)
    kept = dataclasses.replace(overrides, variables=variables)
    if kept == Overrides():
        paths.overrides.unlink(missing_ok=True)
    elif not paths.overrides.exists() or Overrides.read(paths.overrides) != kept:
        write_atomically(paths.overrides, kept.to_json().encode())


def write_atomically(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Nobody ever reads half a file, whenever this process is killed. The umask takes its part of the mode."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.unlink(missing_ok=True)  # One that was left behind would keep its mode.
    with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)
    os.replace(beside, path)


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that results depend on."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def is_finished(paths: RunPaths) -> bool:
    """The trainer has said that it is done, with as many iterations as the run's params ask for."""
    trainer: Mapping[str, Any] = (read_json(paths.status_json) or {}).get("roles", {}).get(TRAINER, {})
    num_iter = read_run_json(paths).get("num_iter")
    return trainer.get("state") == "done" and num_iter is not None and trainer.get("num_iter") == num_iter
