"""The worker program: collects experience with the newest policy and evaluates the greedy one.

    SAC_EXP_DIR=RUN SLURM_PROCID=3 python -m tfagents_system.sac_collect

Load parameters, connect, loop until told to stop, close. SAC_WORKER_ROLE may select another kind (worker/worker.py).
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from tfagents_system.envs.faults import EnvironmentFault
from tfagents_system.errors import EXIT_DONE, EXIT_FAILED, EXIT_RENEW, EXIT_RESUMABLE
from tfagents_system.role import Role, run_role
from tfagents_system.run_files.run_paths import worker_role
from tfagents_system.transport.tunnel import SlotLostError
from tfagents_system.worker.newest_policy import OtherRunError
from tfagents_system.worker.worker import make_worker
from tfagents_system.workers import MAX_FAULTS_IN_A_ROW, TooLargeError


def collect(role: Role) -> int:
    """Runs one worker; returns its exit code."""
    worker = make_worker(role)
    code, last_line = EXIT_DONE, ""
    try:
        worker.run()
        if role.joined is not None:
            role.joined.check()
    except EnvironmentFault as fault:
        code, last_line = EXIT_FAILED, f"{fault}; {MAX_FAULTS_IN_A_ROW} faults in a row end the worker"
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
    run_role(worker_role(int(os.environ["SLURM_PROCID"])), collect)


if __name__ == "__main__":
    main()
