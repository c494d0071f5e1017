"""Modules that a user's code imports from folders of which a run keeps no copy."""

from __future__ import annotations

import sys
import sysconfig
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from tfagents_system.launch.python_path import ROOT

_OF_PACKAGES = ("site-packages", "dist-packages")
_GENERATED = "__"  # `__main__`, and what AutoGraph makes.
_MOST_NAMED = 4


def outside_notes(before: Collection[str], own: Iterable[Path]) -> list[str]:
    """A note for each folder from which the user's code has imported modules, and which is no part of the run.

    Args:
      before: Names of the modules that were imported before the user's code.
      own: Folders that the run keeps, or that are compared with what it keeps.
    """
    paths = sysconfig.get_paths()
    installed = [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    known = [folder.resolve() for folder in (*own, *map(Path, installed), ROOT / "tfagents_system")]
    found = defaultdict[Path, set[str]](set)
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if name in before or name.startswith(_GENERATED) or not isinstance(file, str):
            continue
        path = Path(file).absolute()
        if path.is_file() and not _is_of(path, known):
            depth = name.count(".") + (path.stem == "__init__")
            found[path.parents[min(depth, len(path.parents) - 1)]].add(name.partition(".")[0])
    return [_note(folder, sorted(names)) for folder, names in sorted(found.items()) if not _holds_packages(folder)]


def _is_of(path: Path, folders: Sequence[Path]) -> bool:
    """Whether a file, or what it links to, is in one of the folders, or in one for packages."""
    ways = path, path.resolve()
    is_package = any(name in path.parts for name in _OF_PACKAGES)
    return is_package or any(way.is_relative_to(folder) for way in ways for folder in folders)


def _holds_packages(folder: Path) -> bool:
    """Whether `pip install --target` made it."""
    return next(folder.glob("*.dist-info"), None) is not None


def _note(folder: Path, names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    are, them = ("are", "them") if len(names) > 1 else ("is", "it")
    return (
        f"{', '.join(names[:_MOST_NAMED])}{more} {are} imported from {folder}, which is no part of the run's copies: "
        "an edit there changes this run, and it plays only where that folder is on the path; "
        f"put {them} beside the params"
    )
