"""Fixtures of runs with shell programs as roles, of runs that are prepared, of a user on a login node."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.login_node import User
from tests.support.prepared_runs import try_in_this_process, variables_of_run
from tests.support.starts_of_a_project import load_only
from tfagents_system.launch import environment_checks, prepare, role_process, supervisor
from tfagents_system.machine.processes import processes_of_run
from tfagents_system.machine.signals import StopFlag


@pytest.fixture
def user(tmp_path: Path) -> User:
    return User(tmp_path)


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's code is tried without a fork; processes that tests start have forks."""
    try_in_this_process(monkeypatch)


@pytest.fixture
def environ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Of a small run that is prepared and not started."""
    monkeypatch.setattr(environment_checks, "_MEASURING_SECS", 0.05)
    return variables_of_run(tmp_path)


@pytest.fixture
def untried(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment is not built: what is checked and kept of files and settings is the same."""
    monkeypatch.setattr(prepare, "run_trial", load_only)


@pytest.fixture
def without_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    """No agent is built: that takes a second."""
    monkeypatch.setattr(environment_checks.EnvironmentTrial, "_build_agent", lambda *_: None)


@pytest.fixture
def stop() -> StopFlag:
    return StopFlag(signals=())


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits of hundredths instead of seconds, and no plot at the end."""
    monkeypatch.setattr(role_process, "_FIRST_BACKOFF_SECS", 0.01)
    monkeypatch.setattr(role_process, "_MAX_BACKOFF_SECS", 0.05)
    monkeypatch.setattr(supervisor, "write_results", lambda *args, **kwargs: ["results"])


@pytest.fixture
def run_dir(tmp_path: Path) -> Iterator[Path]:
    exp_dir = tmp_path / "run"
    yield exp_dir
    assert list(processes_of_run(exp_dir)) == []
