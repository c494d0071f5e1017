"""Names of modules that documents had before: users' files and commands have them still."""

import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

from tfagents_system.moved import MOVED, PACKAGE
from tfagents_system.settings import load_params


@pytest.mark.parametrize("old", [name for name in MOVED if name != "channel"])
def test_an_old_name_is_the_same_module(old: str) -> None:
    assert importlib.import_module(PACKAGE + old) is importlib.import_module(PACKAGE + MOVED[old])
    parent, _, name = (PACKAGE + old).rpartition(".")
    assert getattr(importlib.import_module(parent), name) is sys.modules[PACKAGE + MOVED[old]]


@pytest.mark.parametrize("old", ["channel.machines", "grid", "launch.variables"])
def test_an_old_command_goes_on(old: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error::RuntimeWarning", "-m", PACKAGE + old, "--help"],
        capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "usage" in done.stdout or "| `SAC_" in done.stdout


@pytest.mark.parametrize("example", ["minitaur"])
def test_an_examples_old_path_is_its_file(example: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As vars files and run directories of then name it: no resumed run tells of an edit."""
    package = Path(load_params.__file__).resolve().parents[1]
    before, now = package / f"{example}_params.py", package / "examples" / example / "params.py"
    assert before.resolve() == now
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder != str(now.parent)])
    params_class = load_params.load_params_class(before)
    assert inspect.getsourcefile(params_class) == str(now)
    assert sys.path.index(str(now.parent)) == len(sys.path) - 1, "the toolkit's folders hide no module of the user's"
