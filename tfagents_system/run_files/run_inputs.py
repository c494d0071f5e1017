"""The run's own copies of the user's files: made once, when the run begins, and compared at each later start.

    params.py config.json   copies of SAC_PARAMS and of SAC_CONFIG
    input_files/            copies of the files that SAC_CONFIG names under `input_files`
    params/                 a copy of the folder of SAC_PARAMS
    run.json                "began_with": digests of the files that a later start compares

Compared are the params file, the JSON, its input files, and the modules of the params' folder that the check of the
first start had imported.
"""

from __future__ import annotations

import dataclasses
import difflib
import itertools
import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tfagents_system.errors import UserError, option
from tfagents_system.machine.files import leads_into, read_json, write_atomically
from tfagents_system.run_files.heartbeat import clean_text
from tfagents_system.run_files.params_folder import copy_files, sha256_of
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.run_files.taken import Taken
from tfagents_system.settings.load_params import INPUT_FILES, input_files_of
from tfagents_system.settings.resolved import Overrides, read_run

_IN_FOLDER = "params/"
_MOST_LINES, _MOST_COMPARED, _MOST_WIDE = 24, 50_000, 160  # Of the differences that are shown.


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
    """

    params: Path
    config: Path
    folder: Path | None = None
    digests: Mapping[str, str] = dataclasses.field(default_factory=dict)
    imported: Sequence[str] = ()
    input_files: Mapping[str, Path] = dataclasses.field(default_factory=dict)
    taken: Taken | None = None
    prior_data: Path | None = None

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
    run = read_json(paths.run_json) or {}
    source, kept = run.get("params_source"), run.get("params_kept")
    if not isinstance(source, str):
        return None
    # In its copy the params file has the name that it had then: the user may have renamed it since.
    candidates = [paths.params_folder / Path(kept or source).name, *([Path(kept)] if kept else []), Path(source)]
    return next((path for path in candidates if path.parent.is_dir()), None)


def kept_digests(paths: RunPaths) -> Mapping[str, str] | None:
    """Digests of the folder that the run keeps, as it was when it was copied: a run may write beside its params."""
    digests = (read_json(paths.run_json) or {}).get("params_files")
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
    for name, digest in ((read_json(paths.run_json) or {}).get("began_with") or {}).items():
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
    fresh = "" if why_not_moved(paths, used) else f"; {option('fresh')} moves the whole folder aside"
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
        f"the run directory {paths.exp_dir} {what}, so {option('fresh')} can't move it aside: choose another "
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
