"""Fixtures of runs with shell programs as roles, of runs that are prepared, of a user on a login node."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.login_node import User
from tests.support.prepared_runs import variables_of_run
from tfagents_system.launch import environment_checks, run_status, supervisor
from tfagents_system.machine.processes import processes_of_run
from tfagents_system.machine.signals import StopFlag


@pytest.fixture
def user(tmp_path: Path) -> User:
    return User(tmp_path)


@pytest.fixture
def environ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Of a small run that is prepared and not started."""
    monkeypatch.setattr(environment_checks, "_MEASURING_SECS", 0.05)
    return variables_of_run(tmp_path)


@pytest.fixture
def stop() -> StopFlag:
    return StopFlag(signals=())


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits of hundredths instead of seconds, and no plot at the end."""
    monkeypatch.setattr(supervisor, "_FIRST_BACKOFF_SECS", 0.01)
    monkeypatch.setattr(supervisor, "_MAX_BACKOFF_SECS", 0.05)
    monkeypatch.setattr(run_status, "write_results", lambda *args, **kwargs: ["results"])


@pytest.fixture
def run_dir(tmp_path: Path) -> Iterator[Path]:
    exp_dir = tmp_path / "run"
    yield exp_dir
    assert list(processes_of_run(exp_dir)) == []
