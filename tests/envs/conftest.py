"""A second Python environment for tests of environments in processes of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import second_python
from tests.support.user_environments import Folder, folder_for


@pytest.fixture(scope="session")
def env_python() -> Path:
    """The Python of an environment with NumPy 2, of another version than this one where there is one."""
    return second_python.make_environment(second_python.interpreters()[-1])


@pytest.fixture(scope="session", params=second_python.interpreters(), ids=lambda python: python.parent.parent.name)
def each_python(request: pytest.FixtureRequest) -> Path:
    """The same for every version that there is to try."""
    return second_python.make_environment(request.param)


@pytest.fixture
def user(tmp_path: Path, env_python: Path) -> Iterator[Folder]:
    """With the newest Python that there is."""
    with folder_for(tmp_path, env_python) as folder:
        yield folder


@pytest.fixture
def each_user(tmp_path: Path, each_python: Path) -> Iterator[Folder]:
    """With every Python."""
    with folder_for(tmp_path, each_python) as folder:
        yield folder
