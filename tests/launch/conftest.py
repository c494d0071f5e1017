"""Fixtures of runs with shell programs as roles, of runs that are prepared, of sweeps, of a user on a login node."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.login_node import User
from tests.support.prepared_runs import variables_of_run
from tests.support.sweeps import PARAMS
from tfagents_system.launch import environment_checks, role_process, sweep, wrap_up
from tfagents_system.launch.sweep_tasks import Place, Task
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
    monkeypatch.setattr(role_process, "_FIRST_BACKOFF_SECS", 0.01)
    monkeypatch.setattr(role_process, "_MAX_BACKOFF_SECS", 0.05)
    monkeypatch.setattr(wrap_up, "write_results", lambda *args, **kwargs: ["results"])


@pytest.fixture
def run_dir(tmp_path: Path) -> Iterator[Path]:
    exp_dir = tmp_path / "run"
    yield exp_dir
    assert list(processes_of_run(exp_dir)) == []


@pytest.fixture
def vars_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a sweep in the working directory."""
    (tmp_path / "p.py").write_text(PARAMS)
    (tmp_path / "c.json").write_text('{"horizon": 20}')
    (tmp_path / "v.sh").write_text(
        "SAC_REVERB_CPUS=1 SAC_TRAIN_CPUS=1 SAC_NUM_COLLECT_WORKERS=1 SAC_COLLECT_WORKER_CPUS=1 SAC_SHARE_CPUS=1\n"
        "SAC_PARAMS=p.py SAC_CONFIG=c.json SAC_EXP_NAME=try SAC_LOGS_DIR=logs SAC_ALLOW_LOGIN=1\n"
    )
    monkeypatch.delenv("SLURM_ARRAY_TASK_ID", raising=False)
    for name in [name for name in os.environ if name.startswith("SAC_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "v.sh"


@pytest.fixture
def started_places() -> list[Place]:
    """Where the tasks of the last sweep would be run."""
    return []


@pytest.fixture
def started(started_places: list[Place], monkeypatch: pytest.MonkeyPatch) -> list[Task]:
    """The tasks of sweeps, which are not run."""
    tasks: list[Task] = []

    class Runner:
        def __init__(self, all_tasks: Sequence[Task], places: Sequence[Place], *more: Any) -> None:
            tasks.extend(all_tasks)
            started_places[:] = places

        def run(self) -> int:
            return 0

    monkeypatch.setattr(sweep, "TaskRunner", Runner)
    monkeypatch.setattr(StopFlag, "of_supervisor", lambda: None)
    return tasks
