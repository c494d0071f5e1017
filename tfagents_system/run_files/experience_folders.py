"""The folders of what a run has learned: a run's only where there is a run.json, else they may be anyone's."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

from tfagents_system.checks.called_as import option
from tfagents_system.run_files.run_paths import RunPaths


def fault_of(paths: RunPaths) -> str | None:
    """Why a new run can't begin in a directory without run.json; None if it can, or a run is there."""
    found = " and ".join(strays(paths))
    if not found:
        return None
    return (
        f"SAC_EXP_DIR={paths.exp_dir} has {found} and no {paths.run_json.name}, without which nothing says whose they "
        f"are: copy {paths.run_json.name} as well if it is a run that was copied in part, choose another SAC_EXP_NAME "
        f"for a new run, or give {option('fresh')}, which moves the whole folder aside"
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

    Of a link what is behind it goes, and the link stays. Without a run.json only `replay_dir`, whose name is of this
    run alone, is removed.

    Args:
      replay_dir: The ring's folder on scratch, if it is there.
    """
    folders = [*(_folders(paths) if paths.run_json.exists() else []), *([replay_dir] if replay_dir else [])]
    if any(folder.exists() for folder in folders) and paths.run_json.exists():
        print(f"no update was done in {paths.exp_dir} yet, and files or settings have changed: it starts over")
    for folder in folders:
        if folder.is_symlink():
            with contextlib.suppress(OSError):
                for path in list(folder.iterdir()):
                    _remove(path)
        else:
            shutil.rmtree(folder, ignore_errors=True)


def _folders(paths: RunPaths) -> list[Path]:
    return [paths.replay, paths.trainer_checkpoints, paths.policies, paths.episodes, paths.journals]


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink()
