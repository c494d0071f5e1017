"""Files are replaced as a whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tfagents_system.machine.files import fault_of_private, write_atomically


def test_an_interrupted_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.json"
    write_atomically(path, b"old")

    def interrupted(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]


def test_a_folder_that_cannot_be_looked_at_is_told_in_a_sentence(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 300)
    assert (
        fault_of_private(folder) == f"{folder} can't be read (File name too long): set SAC_REPLAY_DIR to another folder"
    )
