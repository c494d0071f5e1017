"""The environment variables of each role."""

from __future__ import annotations

import os
from collections.abc import Mapping

from tfagents_system.launch.cpus import CpuPlan
from tfagents_system.launch.python_path import run_python_path
from tfagents_system.machine.gpus import gpu_of_trainer
from tfagents_system.machine.signals import SUPERVISOR_PID_VARIABLE
from tfagents_system.run_files.run_paths import DISPENSABLE, REPLAY, TRAINER, is_worker, worker_role
from tfagents_system.settings.variables import RunVariables


def role_environ(role: str, common: dict[str, str], plan: CpuPlan, variables: RunVariables) -> dict[str, str]:
    """All variables of one role."""
    kinds = {worker_role(number): kind for number, kind in variables.kinds_beside.items()}
    threads = plan.thread_environ(REPLAY if role in DISPENSABLE else role)
    return common | threads | _worker_environ(role, kinds) | _trainer_environ(role, variables)


def common_environ(variables: RunVariables, port: int, seed: int) -> dict[str, str]:
    """What all roles have in common."""
    own = {
        "SAC_REVERB_PORT": str(port),
        "SAC_SEED": str(seed),
        "PYTHONPATH": run_python_path(os.environ),
        "PYTHONUNBUFFERED": "1",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "CUDA_VISIBLE_DEVICES": "-1",
        SUPERVISOR_PID_VARIABLE: str(os.getpid()),
    }
    return {**os.environ, **variables.to_environ(), **own}


def _worker_environ(role: str, kinds: Mapping[str, str]) -> dict[str, str]:
    if not is_worker(role):
        return {}
    return {"SLURM_PROCID": role.removeprefix("worker_")} | ({"SAC_WORKER_ROLE": kinds[role]} if role in kinds else {})


def _trainer_environ(role: str, variables: RunVariables) -> dict[str, str]:
    if role != TRAINER:
        return {}
    gpu = gpu_of_trainer(os.environ) if variables.train_gpus else None
    own = {"CUDA_VISIBLE_DEVICES": gpu, "SAC_SERVER": variables.trainer_server}
    return {name: value for name, value in own.items() if value is not None}
