"""Files are replaced as a whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tfagents_system.machine.files import write_atomically, write_json


def test_an_interrupted_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.json"
    write_atomically(path, b"old")

    def interrupted(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]


def test_a_file_is_on_the_disk_before_it_replaces_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: sizes.append(os.fstat(descriptor).st_size))
    write_atomically(tmp_path / "params.py", b"12345")
    write_json(tmp_path / "heartbeat.json", {}, is_durable=False)
    assert sizes == [5], "all of it; a heartbeat may be lost"
