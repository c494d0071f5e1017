"""Lets another interpreter import this package: standard library only, Python 3.9."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# Where the package was installed with pip, ROOT has all packages of this Python. Another one must not find those: it
# would take NumPy from there, compiled for this one. `sys.argv[1]` is ROOT.
IMPORT_PACKAGE = """
import importlib.util
import os
import sys

sys.path[:] = [folder for folder in sys.path if folder]
if os.path.isfile(os.path.join(sys.argv[1], "setup.sh")):
    sys.path.insert(0, sys.argv[1])
folder = os.path.join(sys.argv[1], "tfagents_system")
spec = importlib.util.spec_from_file_location("tfagents_system", os.path.join(folder, "__init__.py"))
sys.modules["tfagents_system"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules["tfagents_system"])
"""


def environ_of_another_python(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without the packages of this Python in PYTHONPATH, where the launchers have put them."""
    if (ROOT / "setup.sh").is_file() or "PYTHONPATH" not in environ:
        return dict(environ)
    folders = [folder for folder in environ["PYTHONPATH"].split(os.pathsep) if folder and Path(folder) != ROOT]
    return {**environ, "PYTHONPATH": os.pathsep.join(folders)}
