"""Supervisors with small shell programs as roles, and such programs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from tests.support.fake_run import SAVES, ProgramStarter, command_of, variables_of
from tfagents_system.launch.cpus import plan_for
from tfagents_system.launch.supervisor import Supervisor
from tfagents_system.machine.claims import Claims
from tfagents_system.machine.cpus import Usable
from tfagents_system.machine.signals import StopFlag
from tfagents_system.run_files.heartbeat import read_status
from tfagents_system.run_files.run_lock import RunLock


def make_supervisor(
    exp_dir: Path, stop: StopFlag, roles: dict[str, str], lock: RunLock | None = None, **more: Any
) -> Supervisor:
    spec = {"exp_dir": str(exp_dir), "roles": {"replay": SAVES, "trainer": SAVES, "worker": SAVES} | roles, **more}
    variables = variables_of(spec)
    plan = plan_for(vars(variables), usable=Usable.here({}))
    starter = ProgramStarter(command_of(spec))
    return Supervisor(variables, plan, Claims(), 8123, stop, starter, step_secs=0.02, lock=lock)


def log(exp_dir: Path, role: str) -> str:
    return (exp_dir / "logs" / f"{role}.log").read_text()


def status_of(exp_dir: Path) -> dict[str, Any]:
    status = read_status(exp_dir / "status.json")
    assert status is not None
    return status


def once_up(
    run_dir: Path, then: Callable[[], object], roles: Collection[str] = ("trainer", "replay", "worker_0")
) -> None:
    """Calls `then` in a thread once each of these roles has said "up"."""

    def is_up(role: str) -> bool:
        path = run_dir / "logs" / f"{role}.log"
        return path.exists() and "up\n" in path.read_text()

    once(lambda: all(map(is_up, roles)), then)


def once_stopping(run_dir: Path, then: Callable[[], object]) -> None:
    """Calls `then` in a thread once the run's status says what stops it."""

    once(lambda: bool((read_status(run_dir / "status.json") or {"run": {}})["run"].get("message")), then)


def works(role: str, key: str, number: str) -> str:
    """A role that tells how far it has come."""
    beat = f'{{\\"state\\": \\"at work\\", \\"pid\\": $$, \\"{key}\\": {number}}}'
    return f'echo "{beat}" > $SAC_EXP_DIR/heartbeats/{role}.json; '


def once(condition: Callable[[], bool], then: Callable[[], object]) -> None:
    """Calls `then` in a thread once the condition holds, or after 30 s: the run that waits for it ends in any case."""

    def wait() -> None:
        deadline = time.monotonic() + 30.0
        while not condition() and time.monotonic() < deadline:
            time.sleep(0.02)
        then()

    threading.Thread(target=wait, daemon=True).start()


def waits_for(path: Path) -> str:
    return f"until [ -e {path} ]; do sleep 0.02; done; "


def waits_for_up(*roles: str, said: str = "up") -> str:
    """A role that continues once each of these has said "up": it then saves when it is told to stop."""
    return "".join(f"until grep -qsx {said} $SAC_EXP_DIR/logs/{role}.log; do sleep 0.02; done; " for role in roles)


def waits_for_lines(path: Path, count: int | str) -> str:
    return f"until [ $(cat {path} 2>/dev/null | wc -l) -ge {count} ]; do sleep 0.02; done; "


def beating(exp_dir: Path, state: str) -> str:
    """A trainer that has told what it does."""
    return (
        f"""echo '{{"role": "trainer", "state": "{state}", "train_step": 1}}' > {exp_dir}/heartbeats/trainer.json; """
    )
