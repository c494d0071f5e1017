"""A real supervisor with small shell programs in the place of its roles: `fake_run.py JSON`.

JSON: {"exp_dir", "prefix", "workers", "share", "cpus", "port", "save_deadline_secs", "roles": {role: bash program}}.
The programs are found by role name, or under "worker" for every worker.
"""

from __future__ import annotations

import functools
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.machines import flat
from tfagents_system.errors import exit_with
from tfagents_system.launch import cpus, supervisor
from tfagents_system.launch.forks import RoleStarter
from tfagents_system.launch.role_process import end_orphans
from tfagents_system.machine import claims
from tfagents_system.machine.signals import STOP_SIGNALS, StopFlag
from tfagents_system.run_files import run_lock
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.settings.variables import RunVariables

# Programs that behave like a role which saves when it is told to.
SAVES = "trap 'echo saved; exit 75' TERM; echo up; while :; do sleep 0.05; done"
DONE = "sleep 0.3; exit 0"
CRASHES = "echo about to crash; echo ValueError: no luck >&2; exit 1"
STUBBORN = "trap '' TERM; echo up; while :; do sleep 0.05; done"


def start_program(command: Sequence[str], environ: Mapping[str, str], log: Path) -> Any:
    """A program in a session of its own, as a fork has one."""
    with open(log, "ab") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=dict(environ),
            start_new_session=True,
        )


class ProgramStarter(RoleStarter):
    """Starts programs in the place of forks, each on its CPUs.

    Args:
      command: Of a role.
      is_pinned: False on a machine without the planned CPUs.
    """

    def __init__(self, command: Callable[[str], Sequence[str]] = lambda role: [], is_pinned: bool = True) -> None:
        super().__init__()
        self._command, self._is_pinned = command, is_pinned

    def start(
        self, role: str, cpus: Sequence[int], environ: Mapping[str, str], log: Path, arguments: Sequence[str] = ()
    ) -> Any:
        pins = ["taskset", "-c", ",".join(map(str, cpus))] if cpus and self._is_pinned else []
        return start_program([*pins, *self._command(role), *arguments], environ, log)


def variables_of(spec: Mapping[str, Any]) -> RunVariables:
    exp_dir = Path(spec["exp_dir"])
    return RunVariables(
        reverb_cpus=1,
        train_cpus=1,
        num_collect_workers=spec.get("workers", 1),
        expert_workers=spec.get("experts", 0),
        eval_workers=spec.get("evaluators", 0),
        max_workers=spec.get("max_workers"),
        collect_worker_cpus=1,
        params=exp_dir / "params.py",
        config=exp_dir / "config.json",
        exp_name=exp_dir.name,
        exp_dir=exp_dir,
        reverb_port=spec.get("port"),
        share_cpus=spec.get("share", True),
        save_deadline_secs=spec.get("save_deadline_secs", 10.0),
        max_restarts=spec.get("max_restarts", 10),
        deterministic=spec.get("deterministic", False),
        gateway_port=spec.get("gateway_port"),
        train_gpus=spec.get("train_gpus", False),
        local_trainer=spec.get("local_trainer", True),
        trainer_server=spec.get("trainer_server"),
        wandb=spec.get("wandb"),
        mlflow_uri=spec.get("mlflow_uri"),
    )


def command_of(spec: Mapping[str, Any]) -> Callable[[str], list[str]]:
    roles = spec["roles"]
    return lambda role: ["bash", "-c", roles.get(role) or roles.get("worker" if role.startswith("worker_") else role)]


def main() -> int:
    spec = json.loads(sys.argv[1])
    claims._PREFIX = spec["prefix"]
    run_lock._LOCK_GRACE_SECS = 0.5
    if "cpus" in spec:
        # A machine with these CPUs: planned and claimed, but not there to be pinned to.
        supervisor.plan_for = functools.partial(cpus.plan_for, usable=flat(spec["cpus"]))
    supervisor.write_results = lambda *args, **kwargs: ["results"]
    stop = StopFlag([*STOP_SIGNALS, signal.SIGHUP])
    variables = variables_of(spec)
    paths, starter = RunPaths(variables.exp_dir), ProgramStarter(command_of(spec), is_pinned="cpus" not in spec)
    end_orphans(paths, variables.save_deadline_secs)
    return supervisor.supervise(variables, stop, starter, run_lock.RunLock(paths))


if __name__ == "__main__":
    exit_with(main)
