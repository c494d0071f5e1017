"""TMRL's folder of a user, as `--install` makes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tfagents_system.launch.tmrl_data import TmrlData


def installed_in(home: Path, monkeypatch: pytest.MonkeyPatch) -> TmrlData:
    """That of a user with this home, with a reward that nobody reads."""
    monkeypatch.setenv("HOME", str(home))
    data = TmrlData.of_user()
    data.install()
    data.reward_file.parent.mkdir()
    data.reward_file.write_bytes(b"recorded")
    return data
