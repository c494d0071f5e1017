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
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tfagents_system.agents.iteration_counts import updates_ratio
from tfagents_system.checks.called_as import called_as
from tfagents_system.errors import EXIT_DONE, UserError, exit_with
from tfagents_system.launch.costs import (
    REPLAY_SECS_A_MINIBATCH,
    REPLAY_SECS_A_STEP,
    time_steps,
    time_updates,
    updates_per_step,
)
from tfagents_system.launch.cpus import CpuPlan, plan_cpus
from tfagents_system.launch.python_path import ROOT
from tfagents_system.launch.role_process import pinned
from tfagents_system.launch.vars_file import read_vars_file, run_environ
from tfagents_system.machine.topology import allowed_cpus, cores_of
from tfagents_system.run_files.run_paths import TRAINER, worker_role
from tfagents_system.settings.variables import RunVariables

_COMMAND = [sys.executable, "-P", "-m", "tfagents_system.launch.tune"]
_DEADLINE_SECS = 600.0
_MAX_SHOWN = 5


@dataclasses.dataclass(frozen=True)
class Measured:
    """Measured rates of this machine.

    Attributes:
      steps_per_s: Environment steps of one worker on its CPUs.
      steps_per_episode: On average; None if no episode ended during the measurement.
      updates_per_s: By the number of CPUs of the trainer.
    """

    steps_per_s: float
    steps_per_episode: float | None
    updates_per_s: Mapping[int, float]


@dataclasses.dataclass(frozen=True)
class Split:
    """One way to share the CPUs, and its expected rates.

    Attributes:
      is_shared: The replay server has no CPU of its own, nor has the trainer if it uses all of them.
      steps_per_s: Environment steps of the run, of all workers together.
      updates_per_s: Updates that go with them.
      trainer_share, worker_share: Part of the time in which trainer and workers have work.
    """

    reverb_cpus: int
    train_cpus: int
    workers: int
    is_shared: bool
    steps_per_s: float
    updates_per_s: float
    trainer_share: float
    worker_share: float


@dataclasses.dataclass(frozen=True)
class _Shape:
    """A way to share the CPUs, before its rates are known.

    Attributes:
      reverb_cpus: 0: the replay server is on the workers' CPUs.
      is_all_shared: All roles run on all CPUs.
    """

    train_cpus: int
    workers: int
    reverb_cpus: int
    is_all_shared: bool = False


def possible_shapes(train_cpus: Iterable[int], cpus: int, worker_cpus: int, beside: int = 0) -> list[_Shape]:
    """All ways to share `cpus` CPUs among a trainer with one of these numbers of CPUs, and workers of `worker_cpus`.

    Args:
      beside: Evaluators and experts, which have CPUs of their own like other workers unless all CPUs are shared.

    Raises:
      UserError: There is none.
    """
    shapes = []
    for count in train_cpus:
        if count == cpus and worker_cpus <= cpus:
            shapes.append(_Shape(count, cpus // worker_cpus, reverb_cpus=1, is_all_shared=True))
        for reverb_cpus in (0, 1):
            most = (cpus - count - reverb_cpus) // worker_cpus - beside
            shapes += [_Shape(count, workers, reverb_cpus) for workers in range(1, most + 1)]
    if not shapes:
        others = f" with {beside} evaluators and experts of as many" if beside else ""
        raise UserError(
            f"SAC_COLLECT_WORKER_CPUS={worker_cpus}{others} and at least one CPU of the trainer do not fit on {cpus} "
            "CPUs: lower SAC_COLLECT_WORKER_CPUS, or give more CPUs with --cpus"
        )
    return shapes


def propose(measured: Measured, cpus: int, worker_cpus: int, updates_per_step: float, beside: int = 0) -> list[Split]:
    """All splits of `cpus` CPUs, the fastest first; of equally fast ones the one with fewer CPUs.

    Args:
      updates_per_step: Updates per environment step, by the run's parameters.
      beside: Evaluators and experts; what experts collect is not counted.

    Raises:
      UserError: There is none.
    """
    splits = []
    for shape in possible_shapes(measured.updates_per_s, cpus, worker_cpus, beside):
        updates_per_s = measured.updates_per_s[shape.train_cpus]
        rates_of = _everything_shared if shape.is_all_shared else _split
        rate, trainer_share, worker_share = rates_of(measured, shape, updates_per_s, updates_per_step)
        splits.append(
            Split(
                max(1, shape.reverb_cpus),
                shape.train_cpus,
                shape.workers,
                is_shared=shape.is_all_shared or shape.reverb_cpus == 0,
                steps_per_s=rate,
                updates_per_s=rate * updates_per_step,
                trainer_share=trainer_share,
                worker_share=worker_share,
            )
        )
    # Within 2 % all count as the same: then the one that leaves most CPUs to others.
    return sorted(
        splits, key=lambda s: (-round(math.log(s.steps_per_s) / 0.02), s.reverb_cpus + s.workers + s.train_cpus)
    )


def workers_beside(variables: RunVariables) -> int:
    """Evaluators and experts of the run."""
    return variables.eval_workers + variables.expert_workers


def _everything_shared(
    measured: Measured, shape: _Shape, updates_per_s: float, updates_per_step: float
) -> tuple[float, float, float]:
    """Steps/s, and the shares of the time in which trainer and workers have work.

    The trainer has all CPUs, and gives way on each to a worker that has something to do.
    """
    worker_secs = (1 / measured.steps_per_s + _replay_secs(updates_per_step)) / shape.workers
    train_secs = updates_per_step / updates_per_s
    rate = 1 / (train_secs + worker_secs)
    return rate, rate * train_secs, min(1.0, rate * worker_secs)


def _split(
    measured: Measured, shape: _Shape, updates_per_s: float, updates_per_step: float
) -> tuple[float, float, float]:
    """The same if trainer and workers have CPUs of their own."""
    is_shared = shape.reverb_cpus == 0
    replay_secs = _replay_secs(updates_per_step)
    # Time that the workers' CPUs lose to a replay server among them, for each step.
    lost_secs = replay_secs / shape.workers if is_shared else 0.0
    collected = 1 / (1 / (shape.workers * measured.steps_per_s) + lost_secs)
    trained = updates_per_s / updates_per_step
    rate = min(collected, trained, math.inf if is_shared else 1 / replay_secs)
    return rate, rate / trained, rate / collected


def _replay_secs(updates_per_step: float) -> float:
    return REPLAY_SECS_A_STEP + updates_per_step * REPLAY_SECS_A_MINIBATCH


def advice(split: Split, worker_cpus: int, params: Any, workers_now: int) -> list[str]:
    """The lines for the vars file, and what else must change so that updates per step stay as they are."""
    lines = [
        f"SAC_REVERB_CPUS={split.reverb_cpus}",
        f"SAC_TRAIN_CPUS={split.train_cpus}",
        f"SAC_NUM_COLLECT_WORKERS={split.workers}",
        f"SAC_COLLECT_WORKER_CPUS={worker_cpus}",
    ]
    if split.is_shared:
        lines.append("SAC_SHARE_CPUS=1")
    if split.workers != workers_now and not params.asynchronous and updates_ratio(params) is None:
        steps = params.updates_per_iter * split.workers / workers_now
        lines.append(
            f"# TrainParams.updates_per_iter={steps:.0f} (now {params.updates_per_iter}): {split.workers} workers "
            f"instead of {workers_now} collect that much more in an iteration"
        )
    return lines


# Measuring.


def measure(variables: RunVariables, vars_file: Path, cpus: Sequence[int], secs: float) -> Measured:
    """Runs the measurements, each in a process of its own."""
    worker = _run("worker", variables, vars_file, _plan(variables, cpus, 1), worker_role(0), secs)
    updates = {}
    for count in train_cpu_counts(len(cpus)):
        told = _run("trainer", variables, vars_file, _plan(variables, cpus, count), TRAINER, secs / 2)
        updates[count] = told["updates_per_s"]
    return Measured(worker["steps_per_s"], worker["steps_per_episode"], updates)


def train_cpu_counts(cpus: int) -> list[int]:
    """The numbers of CPUs with which updates are measured, if there are so many."""
    return [count for count in (1, 2, 4, 8, 16) if count <= cpus]


def _plan(variables: RunVariables, cpus: Sequence[int], train_cpus: int) -> CpuPlan:
    return plan_cpus(
        reverb_cpus=1,
        train_cpus=train_cpus,
        num_collect_workers=1,
        collect_worker_cpus=variables.collect_worker_cpus,
        cores=cores_of(cpus),
        share=True,
    )


def _run(what: str, variables: RunVariables, vars_file: Path, plan: CpuPlan, role: str, secs: float) -> dict[str, Any]:
    ids = plan.by_role()[role]
    print(f"measuring a {what} on CPU {','.join(map(str, ids))} ...", file=sys.stderr, flush=True)
    environ = os.environ | variables.to_environ() | plan.thread_environ(role)
    environ |= {"TF_CPP_MIN_LOG_LEVEL": "3"} | ({"SLURM_PROCID": "0"} if what == "worker" else {})
    command = [*_COMMAND, str(vars_file), "--measure", what]
    done = subprocess.run(
        pinned([*command, "--secs", str(secs)], ids),
        env=environ,
        stdout=subprocess.PIPE,
        text=True,
        timeout=_DEADLINE_SECS,
        check=False,
    )
    if done.returncode:
        raise UserError(f"measuring a {what} failed (see above): ./run_script.sh {vars_file} says more")
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def _measure(what: str, params: Any, variables: RunVariables, secs: float) -> dict[str, Any]:
    """A worker's steps, with environment, policy and segments but without the server; or the trainer's updates."""
    from tfagents_system.envs import loading
    from tfagents_system.launch.agent_checks import make_agent_for

    seed, count = variables.seed, variables.envs_per_worker if what == "worker" else 1
    envs = [loading.make_collect_env(params, 0, seed + k, k) for k in range(count)]
    agent = make_agent_for(params, envs[0])
    if what == "trainer":
        return {"updates_per_s": 1 / time_updates(params, agent, secs, seed).secs}
    step, steps_per_episode = time_steps(params, agent, envs, secs, seed)
    return {"steps_per_s": 1 / step.secs, "steps_per_episode": steps_per_episode}


# The command.


def _load(variables: RunVariables) -> Any:
    from tfagents_system.envs.env_process import ProcessSettings
    from tfagents_system.settings.load_params import compute_config_of, load_env_config, load_params
    from tfagents_system.settings.run_defaults import defaults_of

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


def _print_proposal(variables: RunVariables, params: Any, measured: Measured, cpus: int) -> None:
    episode = measured.steps_per_episode or float(params.horizon)
    ratio = updates_per_step(params, variables.num_collect_workers, episode)
    rates = ", ".join(f"{rate:.0f} with {count} CPU(s)" for count, rate in measured.updates_per_s.items())
    print(f"a worker: {measured.steps_per_s:.0f} environment steps/s, {episode:.0f} steps an episode")
    print(f"the trainer: {rates} updates/s; {ratio:.3g} updates for each step, by the run's parameters")
    splits = propose(measured, cpus, variables.collect_worker_cpus, ratio, workers_beside(variables))
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
    else:
        here = allowed_cpus()
        cpus = args.cpus or len(here)
        # Before a minute is spent.
        possible_shapes(train_cpu_counts(len(here)), cpus, variables.collect_worker_cpus, workers_beside(variables))
        measured = measure(variables, args.vars_file, here, args.secs)
        _print_proposal(variables, params, measured, cpus)
    return EXIT_DONE


if __name__ == "__main__":
    exit_with(main)
