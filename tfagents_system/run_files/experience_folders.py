"""The folders of what a run has learned: a run's only where there is a run.json, else they may be anyone's."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from tfagents_system.checks.called_as import option
from tfagents_system.errors import UserError
from tfagents_system.machine.files import leads_into
from tfagents_system.run_files.run_paths import RunPaths


def fault_of(paths: RunPaths, used: Iterable[Path] = ()) -> str | None:
    """Why a new run can't begin in a directory without run.json; None if it can, or a run is there.

    Args:
      used: See `why_not_moved`.
    """
    found = " and ".join(strays(paths))
    if not found:
        return None
    ways = [
        f"copy {paths.run_json.name} as well if it is a run that was copied in part",
        "choose another SAC_EXP_NAME for a new run",
    ]
    if why_not_moved(paths, used) is None:
        ways.append(f"give {option('fresh')}, which moves the whole folder aside")
    return (
        f"the run directory {paths.exp_dir} has {found} and no {paths.run_json.name}, without which nothing says whose "
        f"they are: {', '.join(ways[:-1])}{',' * (len(ways) > 2)} or {ways[-1]}"
    )


def why_not_moved(paths: RunPaths, used: Iterable[Path]) -> str | None:
    """Why `--fresh` can't move the run directory aside; None if it can, or there is nothing to move.

    Args:
      used: The user's files and folders that this start needs where they are.
    """
    if not (paths.run_json.exists() or strays(paths)):
        return None
    folder = paths.exp_dir.resolve()
    inside = [path for path in used if leads_into(path, folder)]
    if not (inside or os.path.ismount(folder)):
        return None
    what = f"has {' and '.join(map(str, dict.fromkeys(inside)))} in it" if inside else "is a mount point"
    return (
        f"the run directory {paths.exp_dir} {what}, so {option('fresh')} can't move it aside: choose another "
        f"SAC_EXP_NAME for a new run{', or name a copy elsewhere' if inside else ''}"
    )


def strays(paths: RunPaths) -> list[str]:
    """Names of such folders with something in them, where there is no run.json."""
    try:
        if paths.run_json.exists():
            return []
        return [folder.name for folder in _folders(paths) if folder.is_dir() and any(folder.iterdir())]
    except OSError:  # Out of reach, which others report.
        return []


def remove(paths: RunPaths, replay_dir: Path | None) -> None:
    """Removes what a run without an update has collected, and says so.

    Without a run.json only `replay_dir`, whose name is of this run alone, is removed.

    Args:
      replay_dir: The ring's folder on scratch, if it is there.

    Raises:
      UserError: A folder is a link, behind which there may be anything. Nothing was removed.
    """
    folders = [*(_folders(paths) if paths.run_json.exists() else []), *([replay_dir] if replay_dir else [])]
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
        if not folder.is_symlink():
            shutil.rmtree(folder, ignore_errors=True)


def _folders(paths: RunPaths) -> list[Path]:
    return [paths.replay, paths.trainer_checkpoints, paths.policies, paths.episodes, paths.journals]
