"""A second Python environment for tests of environments in processes of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import second_python


@pytest.fixture(scope="session")
def env_python() -> Path:
    """The Python of an environment with NumPy 2, of another version than this one where there is one."""
    return second_python.make_environment(second_python.interpreters()[-1])


@pytest.fixture(scope="session", params=second_python.interpreters(), ids=lambda python: python.parent.parent.name)
def each_python(request: pytest.FixtureRequest) -> Path:
    """The same for every version that there is to try."""
    return second_python.make_environment(request.param)
