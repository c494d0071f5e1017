"""The run directory's own copies of what the user gave, its run.json, and whether the run has begun or is finished.

    params.py config.json   copies of SAC_PARAMS and of SAC_CONFIG
    input_files/            copies of the files that SAC_CONFIG names under `input_files`
    params/                 a copy of the folder of SAC_PARAMS
    run.json                all settings; "began_with": digests of the files that a later start compares

The copies are made once, when the run begins. Compared are the params file, the JSON, its input files, and the modules
of the params' folder that the check of the first start had imported.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import difflib
import functools
import importlib.metadata
import itertools
import os
import platform
import re
import secrets
import shutil
import subprocess
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tfagents_system import __version__
from tfagents_system.checks.rules import is_meant
from tfagents_system.errors import UserError
from tfagents_system.hyperparameters import described_by
from tfagents_system.machine.cpus import allowed_cpus, cpu_model
from tfagents_system.machine.files import leads_into, read_json, sync, sync_all, write_atomically, write_json
from tfagents_system.run_files import kept_checkpoints
from tfagents_system.run_files.heartbeat import clean_text
from tfagents_system.run_files.metrics import read_rows
from tfagents_system.run_files.params_folder import copy_files, sha256_of
from tfagents_system.run_files.run_paths import TRAINER, RunPaths
from tfagents_system.run_files.taken import Taken, taken_by
from tfagents_system.settings.load_params import INPUT_FILES, input_files_of
from tfagents_system.settings.resolved import (
    FIXED,
    SETTINGS_OF_END,
    Overrides,
    Setting,
    Settings,
    of_start,
    read_run,
    settings_of_end,
)
from tfagents_system.settings.values import as_text, by_name, in_words, overridden
from tfagents_system.settings.variables import SEED, RunVariables, variable_name
from tfagents_system.train_params_base import TrainParamsBase

# Attributes that `--set` may give a run which has begun.
MAY_CHANGE = tuple(name for name, each in described_by(TrainParamsBase).items() if each.may_change)
_PACKAGES = ("tensorflow", "tf-agents", "dm-reverb", "numpy", "gym", "gymnasium", "mujoco", "pybullet")
_NAMES_OF_RUN = ("SAC_EXP_NAME", "SAC_EXP_DIR", "SAC_LOGS_DIR", "SAC_GRID")
# What run.json keeps from the first start.
_OF_INPUTS = ("params_source", "params_kept", "params_files", "began_with", "environment", "from")
_IN_FOLDER = "params/"
_MOST_LINES, _MOST_COMPARED, _MOST_WIDE = 24, 50_000, 160  # Of the differences that are shown.


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
    began, known = Overrides.of_run(read_run_json(paths)), settings_of_run(paths)
    changed = {
        name: value
        for name, value in given.settings().items()
        # `exploration_epsilon.by` is a part of an attribute that may change.
        if not (name in given.variables or name.split(".")[0] in MAY_CHANGE or (name in known and known[name] == value))
    }
    names = [*known, *described_by(TrainParamsBase)]
    meant = {name: is_meant(name, names, 0.8) for name in changed if name.split(".")[0] not in names}
    findings = [f"{name} is not known{words}" for name, words in meant.items() if words]
    if others := {name: value for name, value in changed.items() if not meant.get(name)}:
        findings.append(
            f"{in_words(others)} is not what this run began with ({began.in_words() or 'no settings'}), and a run "
            f"stays what it is: begin another one that continues from it with {from_line(paths)} (--set may change "
            "num_iter and others, which `sac parameters` marks with *)"
        )
    params = {name: value for name, value in given.params.items() if name in MAY_CHANGE}
    return began.replaced_by(Overrides(params, variables=given.variables)), findings


def settings_of_run(paths: RunPaths) -> dict[str, Any]:
    """All values by name that a run has now, as --set takes them."""
    run = read_run_json(paths)
    values = {**run.get("start", {}).get("variables", {}), **{name: run[name] for name in FIXED if name in run}}
    variables = {variable_name(field): as_text(value) for field, value in values.items()}
    return by_name(run.get("attributes", {}), run.get("config", {}), variables) | Overrides.of_run(run).settings()


def from_line(paths: RunPaths) -> str:
    """The options of a start that make another run of this one."""
    return f"--from {paths.exp_dir} --name {paths.exp_dir.name}_2"


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
    began = before.get("seed"), before.get("began_with"), Overrides.of_run(before)
    # A run without an update continues with the experience that it has, if that is of the same files and settings.
    if not (keeps := is_begun or began == (variables.seed, inputs.began_with(), settings.overrides)):
        remove_experience(paths, variables.replay_dir)
    if not (is_begun and paths.params.exists() and paths.config.exists()):
        install(paths, inputs)
        before |= inputs.to_json(paths)
    jobs = before.get("jobs", [])
    run = {
        **{name: before[name] for name in _OF_INPUTS if before.get(name) is not None},
        "id": (before.get("id") if keeps else None) or secrets.randbelow(2**31),
        "jobs": jobs if job is None or job in jobs else [*jobs, job],
        "created": before.get("created", datetime.datetime.now().astimezone().isoformat(timespec="seconds")),
        **settings.of_run(),
    }
    _write(paths, run, variables)


def write_start(paths: RunPaths, variables: RunVariables) -> None:
    """Writes the variables of a start into the run.json of a prepared run."""
    _write(paths, read_run_json(paths), variables)


def _write(paths: RunPaths, run: Mapping[str, Any], variables: RunVariables) -> None:
    machine = {"host": platform.node(), "cpus": len(allowed_cpus()), "cpu": cpu_model()}
    start = {"variables": of_start(variables), "versions": versions(), "commit": git_commit(), "machine": machine}
    # For its owner alone: attributes of a user's own may be keys.
    write_json(paths.run_json, {**run, "start": start}, indent=2, mode=0o600)


def _kept(overrides: Overrides) -> Overrides:
    """Without the variables that name the run: its directory may be moved."""
    variables = {name: text for name, text in overrides.variables.items() if name not in _NAMES_OF_RUN}
    return dataclasses.replace(overrides, variables=variables)


def versions() -> dict[str, str]:
    """Versions of the toolkit, of Python and of the packages that results depend on."""
    found = {"tfagents_system": __version__, "python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


@functools.cache
def git_commit() -> str | None:
    """The commit of the toolkit's repository, with `+` where files differ from it; None outside of one."""
    root = Path(__file__).resolve().parents[2]
    command = ["git", "describe", "--always", "--dirty=+", "--abbrev=12", "--exclude=*"]
    if (root / ".git").exists():  # Else Git may find that of a user's own folder around an installed package.
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            return subprocess.check_output(command, cwd=root, stderr=subprocess.DEVNULL, timeout=60, text=True).strip()
    return None


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


# The user's files.


@dataclasses.dataclass(frozen=True)
class Inputs:
    """The user's files as a start finds them.

    Attributes:
      params, config: SAC_PARAMS and SAC_CONFIG.
      folder: A copy of the folder of SAC_PARAMS; None where the file alone is kept.
      digests: Of that folder's files, by relative path.
      imported: Those of them that the params had imported.
      input_files: Those that the JSON names, by the names of the copies.
      taken: What the run takes from another one.
      prior_data: The ring of prior data; None: there is none.
      environment: Its name.
    """

    params: Path
    config: Path
    folder: Path | None = None
    digests: Mapping[str, str] = dataclasses.field(default_factory=dict)
    imported: Sequence[str] = ()
    input_files: Mapping[str, Path] = dataclasses.field(default_factory=dict)
    taken: Taken | None = None
    prior_data: Path | None = None
    environment: str = ""

    def began_with(self) -> dict[str, str]:
        """SHA-256 of each file that later starts compare: `params`, `config`, `input_files/...`, `params/...`."""
        files = {"params": self.params, "config": self.config}
        files |= {f"{INPUT_FILES}/{name}": path for name, path in self.input_files.items()}
        own = {name: sha256_of(path) for name, path in files.items()}
        return own | {f"{_IN_FOLDER}{name}": self.digests[name] for name in self.imported if name in self.digests}

    def to_json(self, paths: RunPaths) -> dict[str, Any]:
        """What run.json has of them."""
        kept = str(paths.params_folder / self.params.name) if self.folder is not None else None
        return {
            "params_source": str(self.params),
            "params_kept": kept,
            "params_files": dict(self.digests),
            "began_with": self.began_with(),
            "environment": self.environment,
            **({"from": dataclasses.asdict(self.taken)} if self.taken is not None else {}),
        }


def install(paths: RunPaths, inputs: Inputs) -> None:
    """Makes the run's copies, in place of those of an earlier start that has learned nothing.

    run.json is written after them: a start that is killed in between is repeated by the next one.

    Raises:
      OSError: They can't be written.
    """
    write_atomically(paths.params, inputs.params.read_bytes())
    write_atomically(paths.config, inputs.config.read_bytes())
    # Of workers that join, they are the copies themselves.
    contents = {name: path.read_bytes() for name, path in inputs.input_files.items()}
    for folder in (paths.input_files, paths.params_folder, paths.prior_data, paths.taken):
        shutil.rmtree(folder, ignore_errors=True)
    if contents:
        paths.input_files.mkdir()
    for name, content in contents.items():
        write_atomically(paths.input_files / name, content)
    if inputs.folder is not None:
        copy_files(inputs.folder, inputs.digests, paths.params_folder)
    if inputs.prior_data is not None:
        paths.prior_data.mkdir()
        for file in inputs.prior_data.iterdir():
            shutil.copy2(file, paths.prior_data)
    if inputs.taken is not None and inputs.taken.agent is not None:
        inputs.taken.copy_agent(paths.taken)
    for folder in filter(Path.is_dir, (paths.params_folder, paths.prior_data, paths.taken)):
        sync_all(folder)
    sync(paths.exp_dir)


def move_aside(paths: RunPaths) -> Path:
    """Moves a whole run to `<its directory>_before_<n>`, for a fresh one; returns where it is.

    For the holder of its RunLock. Task 3 of a sweep goes to `<name>_before_<n>_task_3`: it is none of `<name>_task_*`
    any more.
    """
    name = re.sub(r"_task_\d+$", "", paths.exp_dir.name)
    task = paths.exp_dir.name.removeprefix(name)
    names = (paths.exp_dir.with_name(f"{name}_before_{n}{task}") for n in itertools.count(1))
    aside = next(path for path in names if not path.exists())
    os.rename(paths.exp_dir, aside)
    return aside


def origin_of_run(paths: RunPaths) -> Path | None:
    """The path of the run's params.py for `__file__` and sys.path: modules and data files are found beside it.

    In the run's own copy of the folder; in the folder itself if none is kept; None if neither can be found.
    """
    run = read_run_json(paths)
    source, kept = run.get("params_source"), run.get("params_kept")
    if not isinstance(source, str):
        return None
    # In its copy the params file has the name that it had then: the user may have renamed it since.
    candidates = [paths.params_folder / Path(kept or source).name, *([Path(kept)] if kept else []), Path(source)]
    return next((path for path in candidates if path.parent.is_dir()), None)


def kept_digests(paths: RunPaths) -> Mapping[str, str] | None:
    """Digests of the folder that the run keeps, as it was when it was copied: a run may write beside its params."""
    digests = read_run_json(paths).get("params_files")
    return digests if isinstance(digests, dict) and paths.params_folder.is_dir() else None


def edits(paths: RunPaths, params: Path, config: Path) -> dict[str, list[str]]:
    """What was edited since the run began: differences to the run's copies, by the file as the user knows it.

    Args:
      paths: Of a run that has begun.
      params, config: SAC_PARAMS and SAC_CONFIG.

    Raises:
      OSError: A file can't be read.
    """
    found = {}
    for name, digest in (read_run_json(paths).get("began_with") or {}).items():
        copy, source = _copy_and_source(paths, name, params, config)
        if source is not None and not source.exists():
            found[f"{source} (gone)"] = _differences(copy, source, "gone")
        elif source is not None and sha256_of(source) != digest:
            found[str(source)] = _differences(copy, source, str(source))
    return found


def _differences(copy: Path, source: Path, now: str) -> list[str]:
    """Lines of a unified diff; none where the run has no copy, or difflib would take minutes."""
    before, after = _lines(copy), _lines(source)
    if not copy.exists() or len(before) + len(after) > _MOST_COMPARED:
        return []
    return list(difflib.unified_diff(before, after, f"{source} of the run", now, n=1, lineterm=""))


def _copy_and_source(paths: RunPaths, name: str, params: Path, config: Path) -> tuple[Path, Path | None]:
    if name.startswith(f"{INPUT_FILES}/"):
        merged = Overrides.of_run(read_run(paths.run_json)).merged(read_json(paths.config) or {})
        sources = input_files_of(merged, params.parent)
        return paths.exp_dir / name, sources.get(Path(name).name)  # One that is gone is not missed.
    if name.startswith(_IN_FOLDER):
        relative = name.removeprefix(_IN_FOLDER)
        return paths.params_folder / relative, params.parent / relative
    return (paths.params, params) if name == "params" else (paths.config, config)


def shown(found: Mapping[str, Sequence[str]]) -> list[str]:
    """Differences, cut where they are long."""
    lines = [clean_text(line, _MOST_WIDE) for differences in found.values() for line in differences]
    left = len(lines) - _MOST_LINES
    return lines if left <= 0 else [*lines[:_MOST_LINES], f"... and {left} lines more"]


def _lines(path: Path) -> list[str]:
    """The lines of a text file; an empty list if it is binary or not there."""
    content = path.read_bytes() if path.exists() else b""
    return [] if b"\0" in content else content.decode(errors="replace").splitlines()


def why_not_begun(paths: RunPaths, used: Iterable[Path] = ()) -> str | None:
    """Why a new run can't begin in a directory without run.json; None if it can, or a run is there.

    Args:
      used: See `why_not_moved`.
    """
    if not (names := strays(paths)):
        return None
    fresh = "" if why_not_moved(paths, used) else "; --fresh moves the whole folder aside"
    return (
        f"the run directory {paths.exp_dir} has {' and '.join(names)} and no {paths.run_json.name}, without which "
        f"nothing says whose they are: copy {paths.run_json.name} as well if it is a run that was copied in part, "
        f"or choose another SAC_EXP_NAME for a new run{fresh}"
    )


def why_not_moved(paths: RunPaths, used: Iterable[Path]) -> str | None:
    """Why `--fresh` can't move the run directory aside; None if it can, or there is nothing to move.

    Args:
      used: The user's files and folders that this start needs where they are.
    """
    if not (paths.run_json.exists() or strays(paths)):
        return None
    inside = [str(path) for path in dict.fromkeys(used) if leads_into(path, paths.exp_dir)]
    if not inside and not os.path.ismount(paths.exp_dir):
        return None
    what = f"has {' and '.join(inside)} in it" if inside else "is a mount point"
    return (
        f"the run directory {paths.exp_dir} {what}, so --fresh can't move it aside: choose another "
        "SAC_EXP_NAME for a new run"
    )


def strays(paths: RunPaths) -> list[str]:
    """Names of a run's folders with something in them, where there is no run.json: they may be anyone's."""
    try:
        if paths.run_json.exists():
            return []
        return [folder.name for folder in _learned(paths) if folder.is_dir() and any(folder.iterdir())]
    except OSError:  # Out of reach, which others report.
        return []


def remove_experience(paths: RunPaths, replay_dir: Path | None) -> None:
    """Removes what a run without an update has collected, and says so.

    Without a run.json only `replay_dir`, whose name is of this run alone, is removed.

    Args:
      replay_dir: The ring's folder on scratch, if it is there.

    Raises:
      UserError: A folder is a link, behind which there may be anything. Nothing was removed.
    """
    folders = [*(_learned(paths) if paths.run_json.exists() else []), *([replay_dir] if replay_dir else [])]
    faults = [
        f"{folder} is a link to {folder.resolve()}, and a start over would empty that folder: empty it yourself, or "
        "choose another SAC_EXP_NAME"
        for folder in folders
        if folder.is_symlink() and folder.is_dir() and any(folder.iterdir())
    ]
    if faults:
        raise UserError(*faults)
    if any(folder.exists() for folder in folders) and paths.run_json.exists():
        print(f"no update was done in {paths.exp_dir} yet, and files or settings have changed: it starts over")
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)  # Leaves links alone.


def _learned(paths: RunPaths) -> list[Path]:
    return [paths.replay, paths.trainer_checkpoints, paths.policies, paths.episodes, paths.journals]
