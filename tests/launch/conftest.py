"""Fixtures of runs with small shell programs as roles."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tfagents_system.launch import role_process, wrap_up
from tfagents_system.machine.processes import processes_of_run
from tfagents_system.machine.signals import StopFlag


@pytest.fixture
def stop() -> StopFlag:
    return StopFlag(signals=())


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits of hundredths instead of seconds, and no plot at the end."""
    monkeypatch.setattr(role_process, "_FIRST_BACKOFF_SECS", 0.01)
    monkeypatch.setattr(role_process, "_MAX_BACKOFF_SECS", 0.05)
    monkeypatch.setattr(wrap_up, "write_results", lambda *args, **kwargs: ["results"])


@pytest.fixture
def run_dir(tmp_path: Path) -> Iterator[Path]:
    exp_dir = tmp_path / "run"
    yield exp_dir
    assert list(processes_of_run(exp_dir)) == []
