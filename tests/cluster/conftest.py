"""A user's folder on a login node; a command that nobody stops."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.login_node import User
from tfagents_system.machine.signals import StopFlag


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> User:
    """This process is in that folder, too."""
    user = User(tmp_path)
    monkeypatch.chdir(user.folder)
    monkeypatch.setenv("PATH", user.environ()["PATH"])
    return user


@pytest.fixture
def stop() -> StopFlag:
    return StopFlag(signals=())
