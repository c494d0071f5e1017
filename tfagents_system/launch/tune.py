"""Measures a run's own environment and updates for about a minute, and proposes how to split the CPUs.

    python -m tfagents_system.launch.tune VARS.sh [--cpus N] [--secs S]

Nothing is written and no run is started. Measurements run one after the other in forks, as roles do, each on the CPUs
and with the threads that a run would give it: a worker's steps, and the updates with 1, 2, 4, ... CPUs.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tfagents_system.agents.iteration_counts import updates_ratio
from tfagents_system.checks.called_as import called_as
from tfagents_system.errors import EXIT_DONE, UserError, exit_with
from tfagents_system.launch import forks
from tfagents_system.launch.costs import Cost, Costs, iteration_secs, time_steps, time_updates, updates_per_step
from tfagents_system.launch.cpus import plan_cpus
from tfagents_system.launch.python_path import ROOT
from tfagents_system.launch.vars_file import read_vars_file, run_environ
from tfagents_system.machine.cpus import allowed_cpus, cores_of, format_cpu_list, usable_cpus
from tfagents_system.run_files.run_paths import TRAINER, worker_role
from tfagents_system.settings.variables import RunVariables

_COMMAND = [sys.executable, "-P", "-m", "tfagents_system.launch.tune"]
_TRAIN_CPUS = (1, 2, 4, 8, 16)  # With which updates are measured, where there are so many.
_DEADLINE_SECS = 600.0
_MAX_SHOWN = 5


@dataclasses.dataclass(frozen=True)
class Collecting:
    """How a worker collects here.

    Attributes:
      step: An environment step of one worker on its CPUs.
      steps_per_episode: On average; the horizon if no episode ended during the measurement.
      updates_per_step: Updates per environment step, by the run's parameters.
      updates_per_iter: Of TrainParams, where the updates per step follow from it and the number of workers; else None.
    """

    step: Cost
    steps_per_episode: float
    updates_per_step: float
    updates_per_iter: int | None = None


@dataclasses.dataclass(frozen=True)
class Split:
    """One way to share the CPUs; the replay server has one CPU, perhaps a shared one.

    Attributes:
      train_cpus, workers: CPUs of the trainer, and how many workers collect.
      is_shared: Roles share CPUs: the replay server is on those of the workers, or all roles are on all CPUs.
      steps_per_s: Environment steps of the run that are expected, of all workers together.
    """

    train_cpus: int
    workers: int
    is_shared: bool
    steps_per_s: float


def propose(
    collecting: Collecting, updates: Mapping[int, Cost], cpus: int, worker_cpus: int, beside: int = 0
) -> list[Split]:
    """All splits of `cpus` CPUs, the fastest first; of equally fast ones the one with fewer CPUs.

    Args:
      updates: The cost of an update, by the number of CPUs of the trainer.
      beside: Evaluators and experts, which have CPUs of their own unless all are shared; what experts collect is not
        counted.

    Raises:
      UserError: There is none.
    """
    splits = list[Split]()
    for train_cpus, update in updates.items():
        for workers in range(1, cpus // worker_cpus + 1):
            needed, work, shared_cpus = train_cpus + (workers + beside) * worker_cpus, update, None
            if needed == cpus:  # The replay server is on the workers' CPUs, and the trainer has its own.
                work, shared_cpus = Cost(update.secs, 0.0), cpus - train_cpus
            elif needed > cpus and train_cpus == cpus:
                shared_cpus = cpus
            elif needed > cpus:
                continue
            costs = Costs(work, collecting.step, collecting.steps_per_episode)
            secs = iteration_secs(costs, 1.0, collecting.updates_per_step, workers, shared_cpus)
            splits.append(Split(train_cpus, workers, shared_cpus is not None, 1.0 / secs))
    if not splits:
        others = f" with {beside} evaluators and experts of as many" if beside else ""
        raise UserError(
            f"SAC_COLLECT_WORKER_CPUS={worker_cpus}{others} and at least one CPU of the trainer do not fit on {cpus} "
            "CPUs: lower SAC_COLLECT_WORKER_CPUS, or give more CPUs with --cpus"
        )
    # Within 2 % all count as the same: then the one that leaves most CPUs to others.
    return sorted(
        splits, key=lambda split: (-round(math.log(split.steps_per_s) / 0.02), split.workers + split.train_cpus)
    )


def advice(split: Split, worker_cpus: int, updates_per_iter: int | None, workers_now: int) -> list[str]:
    """The lines for the vars file, and what else must change so that updates per step stay as they are."""
    lines = [
        "SAC_REVERB_CPUS=1",
        f"SAC_TRAIN_CPUS={split.train_cpus}",
        f"SAC_NUM_COLLECT_WORKERS={split.workers}",
        f"SAC_COLLECT_WORKER_CPUS={worker_cpus}",
    ]
    if split.is_shared:
        lines.append("SAC_SHARE_CPUS=1")
    if split.workers != workers_now and updates_per_iter is not None:
        lines.append(
            f"# TrainParams.updates_per_iter={updates_per_iter * split.workers / workers_now:.0f} (now "
            f"{updates_per_iter}): {split.workers} workers instead of {workers_now} collect that much more in an "
            "iteration"
        )
    return lines


# Measuring.


def _measured(variables: RunVariables, vars_file: Path, measure: Callable[[], Any], role: str, train_cpus: int) -> Any:
    """The result of a measurement, in a fork on the CPUs of a role."""
    plan = plan_cpus(
        reverb_cpus=1,
        train_cpus=train_cpus,
        num_collect_workers=1,
        collect_worker_cpus=variables.collect_worker_cpus,
        cores=cores_of(allowed_cpus()),
        share=True,
    )
    what, ids = "trainer" if role == TRAINER else "worker", plan.by_role[role]
    print(f"measuring a {what} on CPU {format_cpu_list(ids)} ...", file=sys.stderr, flush=True)
    environ = os.environ | variables.to_environ() | plan.thread_environ(role)
    environ |= {"TF_CPP_MIN_LOG_LEVEL": "3"} | ({} if role == TRAINER else {"SLURM_PROCID": "0"})
    deadline = time.monotonic() + _DEADLINE_SECS

    def run(_: Callable[[Any], None]) -> Any:
        os.sched_setaffinity(0, ids)
        return measure()

    try:
        return forks.call(run, f"sac_{what}", environ, lambda _: time.monotonic() > deadline)
    except forks.CallDiedError:
        raise UserError(f"measuring a {what} failed (see above): ./run_script.sh {vars_file} says more") from None


def _collecting(variables: RunVariables, secs: float) -> Collecting:
    """A worker's steps, with environment, policy and segments but without the server."""
    params, envs, agent = _built(variables, variables.envs_per_worker)
    step, steps_per_episode = time_steps(params, agent, envs, secs, variables.seed)
    episode = steps_per_episode or float(params.horizon)
    follows = not params.asynchronous and updates_ratio(params) is None
    ratio = updates_per_step(params, variables.num_collect_workers, episode)
    return Collecting(step, episode, ratio, params.updates_per_iter if follows else None)


def _update(variables: RunVariables, secs: float) -> Cost:
    params, _, agent = _built(variables, 1)
    return time_updates(params, agent, secs, variables.seed)


def _built(variables: RunVariables, num_envs: int) -> tuple[Any, list[Any], Any]:
    """Params, environments and agent of a run."""
    from tfagents_system.envs import loading
    from tfagents_system.launch.environment_checks import make_agent_for

    params = _load(variables)
    envs = [loading.make_collect_env(params, 0, variables.seed + k, k) for k in range(num_envs)]
    return params, envs, make_agent_for(params, envs[0])


def _load(variables: RunVariables) -> Any:
    from tfagents_system.envs.env_process import ProcessSettings
    from tfagents_system.settings.load_params import compute_config_of, defaults_of, load_env_config, load_params

    load = functools.partial(
        load_params,
        variables.params,
        load_env_config(variables.config),
        origin=variables.params,
        compute_config=compute_config_of(vars(variables)),
        process=ProcessSettings.of(vars(variables)),
    )
    return load(attributes=defaults_of(load(), variables.num_collect_workers))


def main(argv: Sequence[str] | None = None) -> int:
    """The program; returns its exit code."""
    parser = argparse.ArgumentParser(
        prog=called_as("python -m tfagents_system.launch.tune"),
        description=__doc__.splitlines()[0] if __doc__ else None,
    )
    parser.add_argument("vars_file", type=Path, help="the vars file of the run")
    parser.add_argument(
        "--cpus", type=int, default=None, help="CPUs to share out; all that may be used here if not given"
    )
    parser.add_argument("--secs", type=float, default=15.0, help="seconds of the longest measurement")
    parser.add_argument("--sourced", action="store_true", help=argparse.SUPPRESS)
    arguments = list(sys.argv[1:] if argv is None else argv)
    args = parser.parse_args(arguments)
    if args.cpus is not None and args.cpus < 1:
        raise UserError(f"--cpus={args.cpus} must be at least 1: give the CPUs that the run may have")
    if not args.sourced:
        # Afresh, as a run starts: a user's modules, and libraries, may read their variables when they are imported.
        environ = forks.single_threaded(run_environ(read_vars_file(args.vars_file)))
        os.execve(sys.executable, [*_COMMAND, *arguments, "--sourced"], environ)
    forks.restore_variables()
    variables = RunVariables.from_environ(os.environ, vars_file=args.vars_file, root=ROOT)
    here, beside = usable_cpus(os.environ), variables.eval_workers + variables.expert_workers
    cpus, train_cpus = args.cpus or here, [count for count in _TRAIN_CPUS if count <= here]
    once = Cost(1.0, 1.0)  # Whether there is room at all is said before a minute is spent.
    propose(Collecting(once, 1.0, 1.0), dict.fromkeys(train_cpus, once), cpus, variables.collect_worker_cpus, beside)
    forks.import_all()
    measured = functools.partial(_measured, variables, args.vars_file)
    collecting = measured(functools.partial(_collecting, variables, args.secs), worker_role(0), 1)
    update = functools.partial(_update, variables, args.secs / 2)
    updates = {count: measured(update, TRAINER, count) for count in train_cpus}
    _print_proposal(variables, collecting, updates, cpus, beside)
    return EXIT_DONE


def _print_proposal(
    variables: RunVariables, collecting: Collecting, updates: Mapping[int, Cost], cpus: int, beside: int
) -> None:
    rates = ", ".join(f"{1 / update.secs:.0f} with {count} CPU(s)" for count, update in updates.items())
    print(
        f"a worker: {1 / collecting.step.secs:.0f} environment steps/s, {collecting.steps_per_episode:.0f} steps an "
        "episode"
    )
    print(
        f"the trainer: {rates} updates/s; {collecting.updates_per_step:.3g} updates for each step, by the run's "
        "parameters"
    )
    splits = propose(collecting, updates, cpus, variables.collect_worker_cpus, beside)
    print(f"\n{cpus} CPUs, by environment steps/s (not measured: computed from the figures above):")
    print("  steps/s  updates/s  train CPUs  workers  replay CPU")
    for split in splits[:_MAX_SHOWN]:
        rates = f"{split.steps_per_s:7.0f}  {split.steps_per_s * collecting.updates_per_step:9.0f}"
        replay = "shared" if split.is_shared else "own"
        print(f"  {rates}  {split.train_cpus:10}  {split.workers:7}  {replay:>10}")
    print("\nfor the vars file:")
    workers = variables.num_collect_workers
    for line in advice(splits[0], variables.collect_worker_cpus, collecting.updates_per_iter, workers):
        print(f"  {line}")


if __name__ == "__main__":
    exit_with(main)
