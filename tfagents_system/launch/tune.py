"""Measures a run's own environment and updates for about a minute, and proposes how to split the CPUs.

    python -m tfagents_system.launch.tune VARS.sh [--cpus N] [--secs S]

Nothing is written and no run is started. Measurements run one after the other, each on the CPUs and with the
threads that a run would give it: a worker's steps, and the updates with 1, 2, 4, ... CPUs.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import math
import os
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from tfagents_system.agents.iteration_counts import updates_ratio
from tfagents_system.checks.called_as import called_as
from tfagents_system.errors import EXIT_DONE, UserError, exit_with
from tfagents_system.launch.costs import Cost, Costs, iteration_secs, time_steps, time_updates, updates_per_step
from tfagents_system.launch.cpus import plan_cpus
from tfagents_system.launch.python_path import ROOT
from tfagents_system.launch.vars_file import read_vars_file, run_environ
from tfagents_system.machine.cpus import allowed_cpus, cores_of, usable_cpus
from tfagents_system.run_files.run_paths import TRAINER, worker_role
from tfagents_system.settings.variables import RunVariables

_COMMAND = [sys.executable, "-P", "-m", "tfagents_system.launch.tune"]
_TRAIN_CPUS = (1, 2, 4, 8, 16)  # With which updates are measured, where there are so many.
_DEADLINE_SECS = 600.0
_MAX_SHOWN = 5


@dataclasses.dataclass(frozen=True)
class Measured:
    """What this machine was measured to take.

    Attributes:
      step: An environment step of one worker on its CPUs.
      steps_per_episode: On average; None if no episode ended during the measurement.
      updates: An update, by the number of CPUs of the trainer.
    """

    step: Cost
    steps_per_episode: float | None
    updates: Mapping[int, Cost]


@dataclasses.dataclass(frozen=True)
class Split:
    """One way to share the CPUs, and its expected rates; the replay server has one CPU, perhaps a shared one.

    Attributes:
      train_cpus, workers: CPUs of the trainer, and how many workers collect.
      is_shared: Roles share CPUs: the replay server is on those of the workers, or all roles are on all CPUs.
      steps_per_s: Environment steps of the run, of all workers together.
      updates_per_s: Updates that go with them.
      trainer_share, worker_share: Part of the time in which trainer and workers have work.
    """

    train_cpus: int
    workers: int
    is_shared: bool
    steps_per_s: float
    updates_per_s: float
    trainer_share: float
    worker_share: float


def require_room(train_cpus: Collection[int], cpus: int, worker_cpus: int, beside: int) -> None:
    """Raises:
    UserError: A trainer, a worker, and `beside` evaluators and experts do not fit on `cpus` CPUs.
    """
    fits_apart = 1 + (1 + beside) * worker_cpus <= cpus
    if not fits_apart and not (cpus in train_cpus and worker_cpus <= cpus):
        others = f" with {beside} evaluators and experts of as many" if beside else ""
        raise UserError(
            f"SAC_COLLECT_WORKER_CPUS={worker_cpus}{others} and at least one CPU of the trainer do not fit on {cpus} "
            "CPUs: lower SAC_COLLECT_WORKER_CPUS, or give more CPUs with --cpus"
        )


def propose(measured: Measured, cpus: int, worker_cpus: int, updates_per_step: float, beside: int = 0) -> list[Split]:
    """All splits of `cpus` CPUs, the fastest first; of equally fast ones the one with fewer CPUs.

    Args:
      updates_per_step: Updates per environment step, by the run's parameters.
      beside: Evaluators and experts, which have CPUs of their own unless all are shared; what experts collect is not
        counted.

    Raises:
      UserError: There is none.
    """
    require_room(measured.updates.keys(), cpus, worker_cpus, beside)
    splits = []
    for train_cpus, update in measured.updates.items():
        for workers in range(1, cpus // worker_cpus + 1):
            needed, work, shared_cpus = train_cpus + (workers + beside) * worker_cpus, update, None
            if needed == cpus:  # The replay server is on the workers' CPUs, and the trainer has its own.
                work, shared_cpus = Cost(update.secs, 0.0), cpus - train_cpus
            elif needed > cpus and train_cpus == cpus:
                shared_cpus = cpus
            elif needed > cpus:
                continue
            costs = Costs(work, measured.step, measured.steps_per_episode or 0.0)
            secs = iteration_secs(costs, 1.0, updates_per_step, workers, shared_cpus)
            splits.append(
                Split(
                    train_cpus,
                    workers,
                    is_shared=shared_cpus is not None,
                    steps_per_s=1.0 / secs,
                    updates_per_s=updates_per_step / secs,
                    trainer_share=updates_per_step * update.secs / secs,
                    worker_share=measured.step.secs / workers / secs,
                )
            )
    # Within 2 % all count as the same: then the one that leaves most CPUs to others.
    return sorted(
        splits, key=lambda split: (-round(math.log(split.steps_per_s) / 0.02), split.workers + split.train_cpus)
    )


def advice(split: Split, worker_cpus: int, params: Any, workers_now: int) -> list[str]:
    """The lines for the vars file, and what else must change so that updates per step stay as they are."""
    lines = [
        "SAC_REVERB_CPUS=1",
        f"SAC_TRAIN_CPUS={split.train_cpus}",
        f"SAC_NUM_COLLECT_WORKERS={split.workers}",
        f"SAC_COLLECT_WORKER_CPUS={worker_cpus}",
    ]
    if split.is_shared:
        lines.append("SAC_SHARE_CPUS=1")
    if split.workers != workers_now and not params.asynchronous and updates_ratio(params) is None:
        updates = params.updates_per_iter * split.workers / workers_now
        lines.append(
            f"# TrainParams.updates_per_iter={updates:.0f} (now {params.updates_per_iter}): {split.workers} workers "
            f"instead of {workers_now} collect that much more in an iteration"
        )
    return lines


# Measuring.


def measure(variables: RunVariables, vars_file: Path, cpus: int, secs: float) -> Measured:
    """Runs the measurements, each in a process of its own."""
    worker = _measure_apart(variables, vars_file, worker_role(0), 1, secs)
    counts = [count for count in _TRAIN_CPUS if count <= cpus]
    updates = {count: _measure_apart(variables, vars_file, TRAINER, count, secs / 2) for count in counts}
    return Measured(
        Cost(worker["secs"], worker["cpu_secs"]),
        worker["steps_per_episode"],
        {count: Cost(update["secs"], update["cpu_secs"]) for count, update in updates.items()},
    )


def _measure_apart(variables: RunVariables, vars_file: Path, role: str, train_cpus: int, secs: float) -> dict[str, Any]:
    plan = plan_cpus(
        reverb_cpus=1,
        train_cpus=train_cpus,
        num_collect_workers=1,
        collect_worker_cpus=variables.collect_worker_cpus,
        cores=cores_of(allowed_cpus()),
        share=True,
    )
    what, ids = "trainer" if role == TRAINER else "worker", ",".join(map(str, plan.by_role[role]))
    print(f"measuring a {what} on CPU {ids} ...", file=sys.stderr, flush=True)
    environ = os.environ | variables.to_environ() | plan.thread_environ(role)
    environ |= {"TF_CPP_MIN_LOG_LEVEL": "3"} | ({} if role == TRAINER else {"SLURM_PROCID": "0"})
    done = subprocess.run(
        ["taskset", "-c", ids, *_COMMAND, str(vars_file), "--measure", what, "--secs", str(secs)],
        env=environ,
        stdout=subprocess.PIPE,
        text=True,
        timeout=_DEADLINE_SECS,
        check=False,
    )
    if done.returncode:
        raise UserError(f"measuring a {what} failed (see above): ./run_script.sh {vars_file} says more")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def _measure(what: str, params: Any, variables: RunVariables, secs: float) -> dict[str, Any]:
    """A worker's steps, with environment, policy and segments but without the server; or the trainer's updates."""
    from tfagents_system.envs import loading
    from tfagents_system.launch.environment_checks import make_agent_for

    seed, count = variables.seed, variables.envs_per_worker if what == "worker" else 1
    envs = [loading.make_collect_env(params, 0, seed + k, k) for k in range(count)]
    agent = make_agent_for(params, envs[0])
    if what == "trainer":
        return dataclasses.asdict(time_updates(params, agent, secs, seed))
    step, steps_per_episode = time_steps(params, agent, envs, secs, seed)
    return {**dataclasses.asdict(step), "steps_per_episode": steps_per_episode}


# The command.


def _load(variables: RunVariables) -> Any:
    from tfagents_system.envs.env_process import ProcessSettings
    from tfagents_system.settings.load_params import compute_config_of, defaults_of, load_env_config, load_params

    config = load_env_config(variables.config)
    load = functools.partial(
        load_params,
        variables.params,
        config,
        origin=variables.params,
        compute_config=compute_config_of(vars(variables)),
        process=ProcessSettings.of(vars(variables)),
    )
    return load(attributes=defaults_of(load(), variables.num_collect_workers))


def _print_proposal(variables: RunVariables, params: Any, measured: Measured, cpus: int, beside: int) -> None:
    episode = measured.steps_per_episode or float(params.horizon)
    ratio = updates_per_step(params, variables.num_collect_workers, episode)
    rates = ", ".join(f"{1 / update.secs:.0f} with {count} CPU(s)" for count, update in measured.updates.items())
    print(f"a worker: {1 / measured.step.secs:.0f} environment steps/s, {episode:.0f} steps an episode")
    print(f"the trainer: {rates} updates/s; {ratio:.3g} updates for each step, by the run's parameters")
    splits = propose(measured, cpus, variables.collect_worker_cpus, ratio, beside)
    print(f"\n{cpus} CPUs, by environment steps/s (not measured: computed from the figures above):")
    print("  steps/s  updates/s  train CPUs  workers  replay CPU  trainer busy  workers busy")
    for split in splits[:_MAX_SHOWN]:
        print(
            f"  {split.steps_per_s:7.0f}  {split.updates_per_s:9.0f}  {split.train_cpus:10}  {split.workers:7}  "
            f"{'shared' if split.is_shared else 'own':>10}  {split.trainer_share:12.0%}  {split.worker_share:12.0%}"
        )
    print("\nfor the vars file:")
    for line in advice(splits[0], variables.collect_worker_cpus, params, variables.num_collect_workers):
        print(f"  {line}")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog=called_as("python -m tfagents_system.launch.tune"),
        description=__doc__.splitlines()[0] if __doc__ else None,
    )
    parser.add_argument("vars_file", type=Path, help="the vars file of the run")
    parser.add_argument(
        "--cpus", type=int, default=None, help="CPUs to share out; all that may be used here if not given"
    )
    parser.add_argument("--secs", type=float, default=15.0, help="seconds of the longest measurement")
    parser.add_argument("--measure", choices=("worker", "trainer"), default=None, help=argparse.SUPPRESS)
    parser.add_argument("--sourced", action="store_true", help=argparse.SUPPRESS)
    arguments = list(sys.argv[1:] if argv is None else argv)
    args = parser.parse_args(arguments)
    if args.cpus is not None and args.cpus < 1:
        raise UserError(f"--cpus={args.cpus} must be at least 1: give the CPUs that the run may have")
    if not args.sourced and args.measure is None:
        # Afresh, as a run starts: a user's modules, and libraries, may read their variables when they are imported.
        os.execve(sys.executable, [*_COMMAND, *arguments, "--sourced"], run_environ(read_vars_file(args.vars_file)))
    variables = RunVariables.from_environ(os.environ, vars_file=args.vars_file, root=ROOT)
    params = _load(variables)
    if args.measure is not None:
        print(json.dumps(_measure(args.measure, params, variables, args.secs)))
        return EXIT_DONE
    here, beside = usable_cpus(os.environ), variables.eval_workers + variables.expert_workers
    cpus = args.cpus or here
    # Before a minute is spent.
    require_room([count for count in _TRAIN_CPUS if count <= here], cpus, variables.collect_worker_cpus, beside)
    _print_proposal(variables, params, measure(variables, args.vars_file, here, args.secs), cpus, beside)
    return EXIT_DONE


if __name__ == "__main__":
    exit_with(main)
