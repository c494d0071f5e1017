"""The worker program: collects experience with the newest policy and evaluates the greedy one.

    SLURM_PROCID=3 python -m tfagents_system.sac_collect

Load parameters, connect, loop until told to stop, close.
"""

from __future__ import annotations

import os
from typing import NoReturn

from tfagents_system.errors import EXIT_DONE, EXIT_RESUMABLE
from tfagents_system.launch.run_paths import worker_role
from tfagents_system.role import Role, run_role
from tfagents_system.workers import Worker


def collect(role: Role, worker_id: int, envs_per_worker: int) -> int:
    """Runs one worker; returns its exit code."""
    worker = Worker(role, worker_id, envs_per_worker)
    try:
        worker.run()
    finally:
        worker.close()
    return EXIT_RESUMABLE if role.stop.is_set() else EXIT_DONE


def main() -> NoReturn:
    worker_id = int(os.environ["SLURM_PROCID"])
    envs_per_worker = int(os.environ.get("SAC_ENVS_PER_WORKER", "1"))
    run_role(worker_role(worker_id), lambda role: collect(role, worker_id, envs_per_worker))


if __name__ == "__main__":
    main()
