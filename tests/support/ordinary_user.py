"""For what the kernel refuses to everybody but root."""

from __future__ import annotations

import contextlib
import mmap  # noqa: F401  NumPy imports it with the first file that it maps; only root may read the files of root's Python.
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

_NOBODY = 65534


@contextlib.contextmanager
def as_ordinary_user() -> Iterator[None]:
    """What is done inside has the rights of a user without any, where the tests are run by root."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(_NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def ordinary_users_folder() -> Iterator[Path]:
    """An empty folder that belongs to this user; pytest's own lie below folders that root alone may enter."""
    with tempfile.TemporaryDirectory(prefix="ordinary_") as folder:
        if os.geteuid() == 0:
            os.chown(folder, _NOBODY, _NOBODY)
        yield Path(folder)
