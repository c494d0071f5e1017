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
from tfagents_system.errors import EXIT_DONE, UserError, called_as, exit_with
from tfagents_system.launch import forks
from tfagents_system.launch.costs import Cost, Costs, iteration_secs, time_steps, time_updates, updates_per_step
from tfagents_system.launch.cpus import plan_cpus
from tfagents_system.launch.python_path import ROOT, read_vars_file, run_environ
from tfagents_system.machine.cpus import allowed_cpus, cores_of, usable_cpus
from tfagents_system.run_files.run_paths import TRAINER, worker_role
from tfagents_system.settings.variables import RunVariables

_COMMAND = [sys.executable, "-P", "-m", "tfagents_system.launch.tune"]
_TRAIN_CPUS = (1, 2, 4, 8, 16)  # With which updates are measured, where there are so many.
_DEADLINE_SECS = 600.0
_MAX_SHOWN = 5


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
    step: Cost, ratio: float, updates: Mapping[int, Cost], cpus: int, worker_cpus: int, beside: int = 0
) -> list[Split]:
    """All splits of `cpus` CPUs, the fastest first; of equally fast ones the one with fewer CPUs.

    Args:
      step: An environment step of one worker.
      ratio: Updates per environment step.
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
            secs = iteration_secs(Costs(work, step, 1.0), 1.0, ratio, workers, shared_cpus)
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
    print(f"measuring: {role} on {len(plan.by_role[role])} CPU(s) ...", file=sys.stderr, flush=True)
    environ = os.environ | variables.to_environ() | plan.thread_environ(role)
    environ |= {"TF_CPP_MIN_LOG_LEVEL": "3"} | ({} if role == TRAINER else {"SLURM_PROCID": "0"})
    deadline = time.monotonic() + _DEADLINE_SECS

    def run(_: Callable[[Any], None]) -> Any:
        os.sched_setaffinity(0, plan.by_role[role])
        return measure()

    try:
        return forks.call(run, "sac_measure", environ, lambda _: time.monotonic() > deadline)
    except forks.CallDiedError:
        raise UserError(f"measuring {role} failed (see above): ./run_script.sh {vars_file} says more") from None


def _collecting(variables: RunVariables, secs: float) -> tuple[Cost, float, float, bool]:
    """A worker's step, steps of an episode, updates per step, and whether these follow from updates_per_iter."""
    params, envs, agent = _built(variables, variables.envs_per_worker)
    step, steps_per_episode = time_steps(params, agent, envs, secs, variables.seed)
    episode = steps_per_episode or float(params.horizon)
    follows = not params.asynchronous and updates_ratio(params) is None
    return step, episode, updates_per_step(params, variables.num_collect_workers, episode), follows


def _update(variables: RunVariables, secs: float) -> Cost:
    params, _, agent = _built(variables, 1)
    return time_updates(params, agent, secs, variables.seed)


def _built(variables: RunVariables, num_envs: int) -> tuple[Any, list[Any], Any]:
    """Params, environments and agent of a run."""
    from tfagents_system.envs import loading
    from tfagents_system.envs.env_process import ProcessSettings
    from tfagents_system.launch.environment_checks import make_agent_for
    from tfagents_system.settings.load_params import compute_config_of, defaults_of, load_env_config, load_params

    load = functools.partial(
        load_params,
        variables.params,
        load_env_config(variables.config),
        origin=variables.params,
        compute_config=compute_config_of(vars(variables)),
        process=ProcessSettings.of(vars(variables)),
    )
    params = load(attributes=defaults_of(load(), variables.num_collect_workers))
    envs = [loading.make_collect_env(params, 0, variables.seed + k, k) for k in range(num_envs)]
    return params, envs, make_agent_for(params, envs[0])


def main(argv: Sequence[str] | None = None) -> int:
    """The program; returns its exit code."""
    parser = argparse.ArgumentParser(
        prog=called_as("python -m tfagents_system.launch.tune"),
        description=__doc__.splitlines()[0] if __doc__ else None,
    )
    parser.add_argument("vars_file", type=Path, help="the vars file of the run")
    parser.add_argument("--cpus", type=int, default=None, help="CPUs to share out (default: all that may be used here)")
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
    cpus, worker_cpus = args.cpus or here, variables.collect_worker_cpus
    train_cpus, once = [count for count in _TRAIN_CPUS if count <= here], Cost(1.0, 1.0)
    propose(once, 1.0, dict.fromkeys(train_cpus, once), cpus, worker_cpus, beside)  # Told before a minute is spent.
    forks.import_all()
    measured = functools.partial(_measured, variables, args.vars_file)
    step, episode, ratio, follows = measured(functools.partial(_collecting, variables, args.secs), worker_role(0), 1)
    update = functools.partial(_update, variables, args.secs / 2)
    updates = {count: measured(update, TRAINER, count) for count in train_cpus}
    rates = ", ".join(f"{1 / update.secs:.0f} with {count} CPU(s)" for count, update in updates.items())
    print(f"a worker: {1 / step.secs:.0f} environment steps/s, {episode:.0f} steps an episode")
    print(f"the trainer: {rates} updates/s; {ratio:.3g} updates for each step, by the run's parameters")
    splits = propose(step, ratio, updates, cpus, worker_cpus, beside)
    print(f"\n{cpus} CPUs, by environment steps/s (not measured: computed from the figures above):")
    print("  steps/s  updates/s  train CPUs  workers  replay CPU")
    for split in splits[:_MAX_SHOWN]:
        words = f"{split.train_cpus:10}  {split.workers:7}  {'shared' if split.is_shared else 'own':>10}"
        print(f"  {split.steps_per_s:7.0f}  {split.steps_per_s * ratio:9.0f}  {words}")
    best = splits[0]
    print(
        f"\nfor the vars file:\n  SAC_REVERB_CPUS=1\n  SAC_TRAIN_CPUS={best.train_cpus}\n"
        f"  SAC_NUM_COLLECT_WORKERS={best.workers}\n  SAC_COLLECT_WORKER_CPUS={worker_cpus}\n"
        f"  SAC_SHARE_CPUS={int(best.is_shared)}"
    )
    if follows and best.workers != variables.num_collect_workers:
        factor = best.workers / variables.num_collect_workers
        print(f"  # so many workers collect {factor:.3g} times as much in an iteration: scale updates_per_iter with it")
    return EXIT_DONE


if __name__ == "__main__":
    exit_with(main)
