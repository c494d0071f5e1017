"""Where the programs of a run find their modules."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

LAUNCHERS = Path(__file__).resolve().parent  # Of run_script.sh and the other shell scripts.
ROOT = LAUNCHERS.parents[1]


def folders_of_python_path(environ: Mapping[str, str]) -> list[str]:
    """The folders that PYTHONPATH names; an empty entry, which Python takes for the current folder, is left out."""
    return [folder for folder in environ.get("PYTHONPATH", "").split(os.pathsep) if folder]


def run_python_path(environ: Mapping[str, str], *last: str) -> str:
    """PYTHONPATH of a run's programs: the repository first, then its existing entries, then `last`; each once."""
    return os.pathsep.join(dict.fromkeys([str(ROOT), *folders_of_python_path(environ), *last]))
