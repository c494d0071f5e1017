"""Names of modules that documents had before: users' files and commands have them still."""

import importlib
import subprocess
import sys

import pytest

from tfagents_system.moved import MOVED, PACKAGE


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
