"""The folder of a params file, as runs and jobs keep it: what is imported and read from there stays as it was.

Login nodes run this file, too: it needs no package.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

# Beyond these limits a folder is not kept.
MOST_FILES, MOST_MB = 5000, 100
_TOOLKIT = Path(__file__).resolve().parents[1]
_MARKS = ("pyvenv.cfg", "conda-meta", "run.json")  # Of environments and of runs.
_OF_PROGRAMS = ("__pycache__", "node_modules", "logs")
_OF_THE_TOOLKIT = ("tests", "docs", "benchmarks")  # Beside the package, where the params are in its checkout.


class TooLargeError(Exception):
    """The params folder is too large to be kept; the text says how large it is, and the limits."""


def is_kept_otherwise(params: Path) -> bool:
    """Whether a params file comes with the toolkit: that is the same for all runs."""
    return params.resolve().is_relative_to(_TOOLKIT)


def files_of(folder: Path, skipped: Iterable[Path] = ()) -> list[str]:
    """Relative paths of the files of a params folder, sorted; links are followed.

    Left out: what is hidden or made by programs, environments, runs, the toolkit itself.

    Args:
      folder: The params file's.
      skipped: Files and folders that are left out, such as the run directory and passwords.

    Raises:
      TooLargeError: More than MOST_FILES, or more than MOST_MB.
    """
    left_out = {*map(os.path.realpath, skipped), str(_TOOLKIT)}
    if folder.resolve() == _TOOLKIT.parent:
        left_out |= {str(_TOOLKIT.parent / name) for name in _OF_THE_TOOLKIT}
    names: list[str] = []
    size_bytes = 0
    for path in _files_below(folder, left_out):
        try:
            size_bytes += path.stat().st_size
        except FileNotFoundError:  # Removed this moment.
            continue
        names.append(str(path.relative_to(folder)))
        if len(names) > MOST_FILES or size_bytes > MOST_MB << 20:
            raise TooLargeError(
                f"{folder} has more than {len(names) - 1} files with {size_bytes >> 20} MiB or more (at most "
                f"{MOST_FILES}, and {MOST_MB} MiB)"
            )
    return sorted(names)


def _files_below(folder: Path, left_out: set[str]) -> Iterator[Path]:
    # Folders that nobody may read are passed over: what is imported from there is missed by the trial.
    for place, folders, names in os.walk(folder, followlinks=True):
        here = Path(place)
        kept = [n for n in (*folders, *names) if not n.startswith(".") and os.path.realpath(here / n) not in left_out]
        yield from (here / name for name in kept if os.path.isfile(here / name))
        folders[:] = [name for name in folders if name in kept and _is_of_the_user(here / name, folder)]


def _is_of_the_user(path: Path, top: Path) -> bool:
    """Whether it is a folder that no program made for itself, and no link back up to one from the top to it."""
    is_marked = any(os.path.exists(path / mark) for mark in _MARKS)
    leads_up = os.path.realpath(path) in (os.path.realpath(each) for each in path.parents if each.is_relative_to(top))
    return path.name not in _OF_PROGRAMS and not is_marked and not leads_up


def copy_files(folder: Path, names: Iterable[str], target: Path) -> None:
    """Copies files, by their relative paths, into a folder that is made."""
    for name in names:
        copied = target / name
        copied.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(folder / name, copied)


def digests_of(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """SHA-256 of files, by their relative paths; without those that are gone by now, as temporary ones of others are.

    Raises:
      OSError: One can't be read.
    """
    digests = {}
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            digests[name] = sha256_of(folder / name)
    return digests


def sha256_of(path: Path) -> str:
    """SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
