"""What counts as an installed package."""

from __future__ import annotations

from pathlib import Path

import pytest

from tfagents_system.machine.installed import is_installed


def test_a_folder_of_data_is_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose name is that of an extra: W&B makes a `wandb/` in the current folder, which is on sys.path."""
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("data_of_a_tracker", "whole_package", "numpy"):
        (tmp_path / name).mkdir()
    (tmp_path / "whole_package/__init__.py").touch()
    (tmp_path / "single_file.py").touch()
    found = {
        name: is_installed(name) for name in ("data_of_a_tracker", "whole_package", "single_file", "numpy", "none_")
    }
    assert found == {
        "data_of_a_tracker": False, "whole_package": True, "single_file": True, "numpy": True, "none_": False,
    }  # fmt: skip
    assert is_installed("sys") and is_installed("_socket")
