"""A user's folder on a login node."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.login_node import User


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> User:
    """This process is in that folder, too."""
    user = User(tmp_path)
    monkeypatch.chdir(user.folder)
    monkeypatch.setenv("PATH", user.environ()["PATH"])
    return user
