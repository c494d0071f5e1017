"""The folder of a params file, as runs and jobs keep it: what is imported and read from there stays as it was.

Left out: what is hidden or made by programs, environments, runs, the toolkit itself. Login nodes run this file, too: it
needs no package.
"""

import hashlib
import os
import shutil
import time
from collections.abc import Iterable, Mapping

MOST_FILES, LOOK_SECS, MOST_MB = 5000, 20.0, 100
_TOOLKIT = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
_MARKS = ("pyvenv.cfg", "conda-meta", "run.json")  # Of environments and of runs.
_OF_PROGRAMS = ("__pycache__", "node_modules", "logs")
_OF_THE_TOOLKIT = ("tests", "docs", "benchmarks")  # Beside the package, where the params are in its checkout.


Path = str | os.PathLike[str]


class TooLargeError(Exception):
    """The folder is too large to be kept; the text says how large it is, and the limits."""


def is_kept_otherwise(params: Path) -> bool:
    """Whether a params file comes with the toolkit: that is the same for all runs."""
    return os.path.realpath(str(params)).startswith(_TOOLKIT + os.sep)


def files_of(folder: Path, skipped: Iterable[Path] = ()) -> list[str]:
    """Relative paths of a folder's files, sorted; links are followed.

    Args:
      folder: The params file's.
      skipped: Files and folders that are left out, such as the run directory and passwords.

    Raises:
      TooLargeError: More than MOST_FILES, more than MOST_MB, or more than can be looked at in LOOK_SECS.
    """
    left_out = {os.path.realpath(path) for path in skipped} | {_TOOLKIT}
    if os.path.realpath(folder) == os.path.dirname(_TOOLKIT):
        left_out |= {os.path.join(os.path.dirname(_TOOLKIT), name) for name in _OF_THE_TOOLKIT}
    found: list[str] = []
    size_bytes, deadline = 0, time.time() + LOOK_SECS
    above = {str(folder): {os.path.realpath(str(folder))}}  # Of each folder, and itself: no link leads back up.
    for path, folders, files in os.walk(str(folder), followlinks=True):
        around = above.pop(path)
        folders[:] = sorted(name for name in folders if _is_own(os.path.join(path, name), left_out | around))
        above.update(
            (os.path.join(path, name), around | {os.path.realpath(os.path.join(path, name))}) for name in folders
        )
        for name in files:
            file = os.path.join(path, name)
            if not name.startswith(".") and os.path.isfile(file) and os.path.realpath(file) not in left_out:
                try:
                    size_bytes += os.path.getsize(file)
                except FileNotFoundError:  # Removed this moment.
                    continue
                found.append(os.path.relpath(file, str(folder)))
        is_late = time.time() > deadline
        if len(found) > MOST_FILES or size_bytes > MOST_MB << 20 or is_late:
            raise TooLargeError(
                "{} has {}{} files with {} MiB or more (at most {}, and {} MiB)".format(
                    folder, "more than " * is_late, len(found), size_bytes >> 20, MOST_FILES, MOST_MB
                )
            )
    return sorted(found)


def copy(folder: Path, files: Iterable[str], target: Path) -> None:
    """Copies files, by their relative paths, into a folder that is made."""
    for name in files:
        copied = os.path.join(str(target), name)
        os.makedirs(os.path.dirname(copied), exist_ok=True)
        shutil.copy2(os.path.join(str(folder), name), copied)


def digests(folder: Path, files: Iterable[str]) -> dict[str, str]:
    """SHA-256 of files, by their relative paths; without those that are gone by now, as temporary ones of others are.

    Raises:
      OSError: One can't be read.
    """
    found = {}
    for name in files:
        try:
            with open(os.path.join(str(folder), name), "rb") as file:
                found[name] = hashlib.sha256(file.read()).hexdigest()
        except FileNotFoundError:
            continue
    return found


def differences(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """`changed robot.py`, `new arm.xml`, `gone old.py`: how a folder differs from what was kept of it, by digests."""
    told = ["gone " + name for name in sorted(set(before) - set(now))]
    for name in sorted(now):
        if name not in before:
            told.append("new " + name)
        elif before[name] != now[name]:
            told.append("changed " + name)
    return told


def _is_own(path: str, skipped: set[str]) -> bool:
    name = os.path.basename(path)
    is_foreign = name.startswith(".") or name in _OF_PROGRAMS or os.path.realpath(path) in skipped
    return not is_foreign and not any(os.path.exists(os.path.join(path, mark)) for mark in _MARKS)
