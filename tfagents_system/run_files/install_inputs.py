"""How a run's copies of the user's files are replaced, all or none, and what was there is kept."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import re
import shutil
from pathlib import Path

from tfagents_system.machine.files import copy_tree, sync
from tfagents_system.run_files import params_folder, resets
from tfagents_system.run_files.resets import Reset
from tfagents_system.run_files.run_inputs import Inputs
from tfagents_system.run_files.run_paths import RunPaths

_STAGED, _RESET = ".inputs", "reset.json"
_REPLACED = ".replaced_"
_NO = "no_"  # `no_params` stands for a folder that the run is not to have.


def install(
    paths: RunPaths,
    inputs: Inputs | None,
    run_json: bytes,
    reset: Reset | None = None,
    overrides: bytes = b"",
    begins: Inputs | None = None,
    other: Inputs | None = None,
) -> None:
    """Replaces the run's copies and run.json, which describes them: all of these, even if this process is killed.

    Args:
      paths: The run directory.
      inputs: The user's files; None: the run's copies stay.
      run_json: Its content.
      reset: Before that, what it replaces is set aside. The next start completes an interrupted reset before it reads
        anything else, so a run is as it was before the reset or as it is after it.
      overrides: Content of overrides.json, with a reset.
      begins: An agent begins with these inputs, and what another one began with is removed.
      other: See `reward_copy.other_reward`.

    Raises:
      OSError: They can't be written; those that are there stay.
    """
    staged, partial = paths.exp_dir / _STAGED, paths.exp_dir / f"{_STAGED}.partial"
    finish_install(paths)
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    (partial / paths.run_json.name).write_bytes(run_json)
    if reset is not None:
        (partial / _RESET).write_text(json.dumps(dataclasses.asdict(reset)))
        (partial / paths.overrides.name).write_bytes(overrides)
    if inputs is not None:
        _stage_inputs(paths, inputs, partial)
    elif other is not None and other.reward is not None:
        (partial / paths.reward.name).write_bytes(other.reward.read_bytes())
    if begins is not None:
        _stage_beginning(paths, begins, partial)
    if reset is not None:  # After a power cut, too.
        for path in [*partial.rglob("*"), partial]:
            sync(path)
    os.rename(partial, staged)  # From here on it will be done, by the next start if not by this one.
    finish_install(paths)


def _stage_inputs(paths: RunPaths, inputs: Inputs, partial: Path) -> None:
    (partial / paths.params.name).write_bytes(inputs.params.read_bytes())
    (partial / paths.config.name).write_bytes(inputs.config.read_bytes())
    if inputs.reward is None:
        (partial / f"{_NO}{paths.reward.name}").touch()
    else:
        (partial / paths.reward.name).write_bytes(inputs.reward.read_bytes())
    if inputs.folder is None:
        (partial / f"{_NO}{paths.params_folder.name}").touch()
    else:
        params_folder.copy(inputs.folder, inputs.digests, partial / paths.params_folder.name)


def _stage_beginning(paths: RunPaths, inputs: Inputs, partial: Path) -> None:
    if inputs.agent is not None:
        inputs.agent.copy(partial / paths.agent_from.name)
    if inputs.prior_data is not None:
        copy_tree(inputs.prior_data, partial / paths.prior_data.name)
    for folder, given in ((paths.agent_from, inputs.agent), (paths.prior_data, inputs.prior_data)):
        if given is None:
            (partial / f"{_NO}{folder.name}").touch()


def is_interrupted(paths: RunPaths) -> bool:
    """Whether an `install` was killed that `finish_install` completes."""
    return (paths.exp_dir / _STAGED).is_dir()


def newest_run_json(paths: RunPaths) -> Path:
    """Where the run.json is that counts: of an `install` that is to be completed, else the run's own."""
    return paths.exp_dir / _STAGED / paths.run_json.name if is_interrupted(paths) else paths.run_json


def finish_install(paths: RunPaths) -> None:
    """Completes an `install` that was killed."""
    staged = paths.exp_dir / _STAGED
    if not staged.is_dir():
        return
    reset = staged / _RESET
    if reset.exists():
        found = Reset(**json.loads(reset.read_bytes()))
        resets.set_aside(paths, found.before)
        reset.unlink()  # Only now: what is set aside must not be what comes next.
    for folder in (paths.params_folder, paths.agent_from, paths.prior_data):
        new, none = staged / folder.name, staged / f"{_NO}{folder.name}"
        if new.is_dir() or none.exists():
            _put_away(folder)
        if new.is_dir():
            os.rename(new, folder)
        none.unlink(missing_ok=True)
    if (no_reward := staged / f"{_NO}{paths.reward.name}").exists():
        paths.reward.unlink(missing_ok=True)
        no_reward.unlink()
    for path in (paths.params, paths.config, paths.reward, paths.overrides, paths.run_json):
        if (staged / path.name).exists():
            os.replace(staged / path.name, path)
    staged.rmdir()
    for replaced in paths.exp_dir.glob(f"{_REPLACED}*"):
        shutil.rmtree(replaced, ignore_errors=True)


def _put_away(folder: Path) -> None:
    """Under a name that nobody uses. What it holds is deleted later: over NFS a file stays as long as it is open."""
    if folder.exists():
        names = (folder.with_name(f"{_REPLACED}{n}") for n in itertools.count(1))
        os.rename(folder, next(path for path in names if not path.exists()))


def copy_aside(paths: RunPaths) -> Path:
    """Copies the run's copies to `before_edits_<n>`, which is returned."""
    aside = next(path for n in itertools.count(1) if not (path := paths.exp_dir / f"before_edits_{n}").exists())
    aside.mkdir()
    for path in filter(Path.exists, (paths.params, paths.config, paths.reward)):
        shutil.copy2(path, aside / path.name)
    if paths.params_folder.is_dir():
        copy_tree(paths.params_folder, aside / paths.params_folder.name)
    return aside


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
