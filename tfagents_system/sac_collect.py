"""The worker program: collects experience with the newest policy and evaluates the greedy one.

    SLURM_PROCID=3 python -m tfagents_system.sac_collect

Load parameters, connect, loop until told to stop, close. SAC_WORKER_ROLE may select another kind (worker/kinds.py).
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from tfagents_system.envs.faults import EnvironmentFault
from tfagents_system.errors import EXIT_DONE, EXIT_FAILED, EXIT_RENEW, EXIT_RESUMABLE
from tfagents_system.machine.worker_slots import COLLECT
from tfagents_system.role import Role, run_role
from tfagents_system.run_files.run_paths import worker_role
from tfagents_system.transport.joining import ROLE
from tfagents_system.transport.remote.errors import SlotLostError
from tfagents_system.worker.environments import MAX_FAULTS_IN_A_ROW, TooLargeError
from tfagents_system.worker.kinds import make_worker
from tfagents_system.worker.progress import OtherRunError
from tfagents_system.worker.worker_settings import WorkerSettings


def collect(role: Role, worker_id: int, settings: WorkerSettings) -> int:
    """Runs one worker; returns its exit code."""
    worker = make_worker(os.environ.get(ROLE) or COLLECT, role, worker_id, settings)
    code, last_line = EXIT_DONE, ""
    try:
        worker.run()
    except EnvironmentFault as fault:
        code, last_line = EXIT_FAILED, f"{fault}; that were {MAX_FAULTS_IN_A_ROW} faults in a row: the worker ends"
    except (TooLargeError, OtherRunError, SlotLostError) as error:
        code, last_line = EXIT_RENEW, f"{error}: it starts anew"
    finally:
        try:
            worker.close()
        finally:
            if role.joined is not None:
                role.joined.leave()
    if role.stop.is_set() or (role.joined is not None and role.joined.ended() == "stopped"):
        return EXIT_RESUMABLE
    if last_line:
        print(f"error: {last_line}", file=sys.stderr)
    return code


def main() -> NoReturn:
    # The run that it joins provides its number and its environment settings, so they are read after joining.
    run_role(
        worker_role(int(os.environ["SLURM_PROCID"])),
        lambda role: collect(role, int(os.environ["SLURM_PROCID"]), WorkerSettings.from_environ(os.environ)),
    )


if __name__ == "__main__":
    main()
