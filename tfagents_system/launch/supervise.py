"""The supervisor's program: holds what a run needs, and supervises its roles.

    python -m tfagents_system.launch.supervise --vars_file VARS.sh

Started by train_script.sh once the run directory is prepared. Exit codes: 0 the run is finished, 1 it failed, 2 bad
input, 75 it was stopped and everything is saved: the same command continues.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import os
import time
from pathlib import Path

from tfagents_system.errors import EXIT_DONE, UserError, exit_with
from tfagents_system.launch.cpus import CpuPlan, plan_for
from tfagents_system.launch.fork_client import ForkServer
from tfagents_system.launch.orphans import end_orphans, wait_for_orphans
from tfagents_system.launch.python_path import ROOT
from tfagents_system.launch.role_starter import RoleStarter
from tfagents_system.launch.run_rules import RunRules
from tfagents_system.launch.supervisor import Supervisor
from tfagents_system.machine.claims import Claims, held_cpus
from tfagents_system.machine.signals import StopFlag
from tfagents_system.machine.worker_slots import claim_of
from tfagents_system.report.tracking.settings import TrackingSettings, keep_tracked
from tfagents_system.run_files import run_directory
from tfagents_system.run_files.run_lock import RunLock
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.settings.variables import RunVariables

_PLAN_TRIES = 5
_PORT_TRIES = 5


def main() -> int:
    parser = argparse.ArgumentParser(description="Supervise a prepared run.")
    parser.add_argument("--vars_file", type=Path, default=None, help="the sourced vars file, for messages and paths")
    args = parser.parse_args()
    stop = StopFlag.of_supervisor()
    variables = RunVariables.from_environ(os.environ, vars_file=args.vars_file, root=ROOT)
    lock = RunLock.inherited(RunPaths(variables.exp_dir))
    start_server = functools.partial(ForkServer.start, {**os.environ, **variables.to_environ()})
    fork_server = ForkServer.inherited() or start_server()
    return supervise(variables, stop, RoleStarter(fork_server=fork_server, start_server=start_server), lock)


def supervise(variables: RunVariables, stop: StopFlag, starter: RoleStarter, lock: RunLock | None = None) -> int:
    """Holds what the run needs and runs it to its end.

    Args:
      lock: Of the run directory, if the program before this one has taken it.

    Raises:
      UserError: Its directory, its CPUs or its port are in use.
    """
    paths = RunPaths(variables.exp_dir)
    if lock is None:
        wait_for_orphans(paths, variables.save_deadline_secs)
    with lock or RunLock(paths) as lock:
        if run_directory.is_finished(paths):
            return EXIT_DONE
        end_orphans(paths, variables.save_deadline_secs)
        claims = Claims()
        plan = claim_cpus(variables, claims)
        port = claim_port(variables, claims) if variables.trainer_server is None else 0
        seed = run_directory.read_run_json(paths).get("seed", variables.seed)
        if (tracking := TrackingSettings.of(vars(variables))).is_wanted:
            keep_tracked(paths, tracking)
        now = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
        where = f"port {port}" if port else f"the trainer of the run at {variables.trainer_server}"
        print(f"{now} starting {variables.exp_name} in {paths.exp_dir}, {where}", flush=True)
        print(plan.table(), flush=True)
        return Supervisor(variables, plan, claims, port, seed, stop, starter, RunRules, lock=lock).run()


def claim_cpus(variables: RunVariables, claims: Claims) -> CpuPlan:
    """Plans and claims CPU ids; plans again if another run was faster.

    Raises:
      UserError: Too few are left.
    """
    for _ in range(_PLAN_TRIES):
        plan = plan_for(variables, held=held_cpus(), trainers=held_cpus("trainer"))
        if not claims.take_cpus(plan.ids(), exclusive=not variables.share_cpus):
            for cpu in plan.trainer:
                claims.take(f"trainer/{cpu}")
            return plan
        time.sleep(0.05)
    raise UserError(
        f"CPUs were taken by other runs {_PLAN_TRIES} times in a row while this one was planned: start again"
    )


def claim_port(variables: RunVariables, claims: Claims) -> int:
    """Claims a port, and the slots of the run's experts and evaluators at it.

    A worker that is about to leave a run that has ended may still hold a slot at that run's port: unless a port is
    set, the next one is taken then.

    Raises:
      UserError: The port that is set is in use, or such a slot; or no port is free.
    """
    refused = list[int]()
    while True:
        port = claims.take_port(variables.reverb_port, without=refused)
        try:
            claim_slots_beside(variables, claims, port)
            return port
        except UserError:
            claims.release_port(port)
            refused.append(port)
            if variables.reverb_port is not None or len(refused) == _PORT_TRIES:
                raise


def claim_slots_beside(variables: RunVariables, claims: Claims, port: int) -> None:
    """Takes all slots of the run's experts and evaluators; none if a worker that joined an earlier start has one.

    Raises:
      UserError: A worker has one.
    """
    numbers = list(variables.kinds_beside)
    taken = [str(number) for number in numbers if not claims.take(claim_of(port, number))]
    if taken:
        for number in numbers:
            claims.release(claim_of(port, number))
        counts = {"SAC_EXPERT_WORKERS": variables.expert_workers, "SAC_EVAL_WORKERS": variables.eval_workers}
        wished = " + ".join(f"{name}={count}" for name, count in counts.items() if count)
        raise UserError(
            f"{wished} needs slots {numbers[0]} to {numbers[-1]}, a worker that has joined an earlier start of the run "
            f"has {', '.join(taken)}: end it, and start again"
        )


if __name__ == "__main__":
    exit_with(main)
