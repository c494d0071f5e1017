"""Modules of a user's code that come from a folder of which a run has no copy."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from tfagents_system.launch.outside_modules import outside_notes


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the path; what is imported from it is forgotten."""
    folder = tmp_path / "elsewhere"
    for name in ("out_env.py", "out_arm/__init__.py", "out_arm/deep/hub.py", "out_known.py", "kept/out_params.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    for path in (folder, folder / "kept"):
        monkeypatch.syspath_prepend(str(path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    return folder


def test_a_folder_of_which_there_is_no_copy_is_told_once(elsewhere: Path) -> None:
    importlib.import_module("out_known")
    before = set(sys.modules)
    for name in ("out_env", "out_arm.deep.hub", "out_params", "tfagents_system.testing", "this"):
        sys.modules.pop(name, None)
        importlib.import_module(name)
    sys.modules["__autograph_generated_file1"] = sys.modules["out_env"]
    assert outside_notes(before, [elsewhere / "kept"]) == [
        f"out_arm, out_env are imported from {elsewhere}, which is no part of the run's copies: an edit there changes "
        "this run, and it plays only where that folder is on the path; put them beside the params"
    ]
    assert outside_notes(before, [elsewhere]) == []
    (elsewhere / "out_env-1.0.dist-info").mkdir()
    assert outside_notes(before, [elsewhere / "kept"]) == [], "pip install --target"


def test_a_link_beside_the_params_is_copied_and_not_told(elsewhere: Path) -> None:
    (elsewhere / "kept/out_linked.py").symlink_to(elsewhere / "out_env.py")
    before = set(sys.modules)
    importlib.import_module("out_linked")
    assert outside_notes(before, [elsewhere / "kept"]) == []
