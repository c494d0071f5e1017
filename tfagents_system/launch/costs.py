"""What a run costs on this machine: how long it takes, and whether its memory and disk suffice.

Updates and steps are measured with the roles' own parts: the compiled update of a block, and a worker's loop without
the server.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import re
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from tfagents_system.agents.iteration_counts import (
    most_updates_per_env_step,
    offline_updates,
    random_count,
    updates_of_iteration,
    updates_ratio,
)
from tfagents_system.checks.findings import Findings
from tfagents_system.machine.files import existing_ancestor
from tfagents_system.machine.processes import cgroups

# CPU of the replay server: per minibatch drawn and sent, and per step stored; measured by benchmarks/replay.py.
REPLAY_SECS_A_MINIBATCH, REPLAY_SECS_A_STEP = 4e-4, 2e-6
START_SECS = 12.0  # From the command to the first updates; measured by benchmarks/startup.py.
_MINIBATCHES = 20
JOB_MB = "TFAGENTS_JOB_MB"  # MiB of the job that is being submitted; empty: unknown.
# Memory, measured with Pendulum: a worker has 63 MiB of its own, of which the check sees all but this.
_WORKER_BYTES = 10 * 2**20
_OTHERS_BYTES = 600 * 2**20  # Replay server, trainer and supervisor.
_TIGHT = 0.8
_BEYOND = 10**6 * 2**30
# Of a run: the last two checkpoints and one being written, the best agent and one that is being evaluated.
_AGENTS = 5
_MODEL_BYTES = 2 * 2**20  # Of the SavedModel, beside the weights.
_POLICY_CHECKPOINT_BYTES, _LOGS_BYTES = 50 * 2**10, 200 * 2**20


@dataclasses.dataclass(frozen=True)
class Cost:
    """The cost of one update, or of one environment step in a worker.

    Attributes:
      secs: Wall time.
      cpu_secs: CPU time; waiting for a device takes none.
    """

    secs: float
    cpu_secs: float


@dataclasses.dataclass(frozen=True)
class Costs:
    """Measured costs.

    Attributes:
      update, step: An update of the trainer, and an environment step of one worker.
      steps_per_episode: On average.
    """

    update: Cost
    step: Cost
    steps_per_episode: float


@dataclasses.dataclass(frozen=True)
class Duration:
    """How long a run takes.

    Attributes:
      secs: From the command to the end.
      iterations: How many it has.
      iteration_secs: An iteration, without evaluations.
      train_secs, collect_secs: Updates and collecting in an iteration, each with its CPUs to itself.
      evaluation_secs: Time that evaluations add to the run, in total.
    """

    secs: float
    iterations: int
    iteration_secs: float
    train_secs: float
    collect_secs: float
    evaluation_secs: float


def updates_per_step(params: Any, workers: int, steps_per_episode: float) -> float:
    """Updates per environment step of a run with `workers` workers, by its parameters."""
    if params.asynchronous:
        return most_updates_per_env_step(params)
    if (ratio := updates_ratio(params)) is not None:
        return ratio
    return float(params.updates_per_iter / (params.num_train_episodes_per_iter * workers * steps_per_episode))


def periods(params: Any, kind: str, iterations: int, steps: float) -> float:
    """How often a period of evaluations, rows of metrics or checkpoints (`eval`, `log`, `checkpoint`) passes."""
    period_steps = getattr(params, f"{kind}_period_env_steps")
    return float(iterations / getattr(params, f"{kind}_period_iters") if period_steps is None else steps / period_steps)


def iteration_secs(
    costs: Costs, steps: float, updates: float, workers: int, cpus: int | None, *, takes_turns: bool = False
) -> float:
    """How long an iteration takes, without evaluations.

    Collecting overlaps the updates of the iteration before (docs/explanations/architecture.md, An iteration).

    Args:
      costs: As measured.
      steps, updates: Environment steps of all workers, and updates.
      workers: How many collect.
      cpus: CPUs that do the work of all roles, if they share them; None if each has its own.
      takes_turns: Collecting and updates never overlap.
    """
    train, collect = updates * costs.update.secs, steps * costs.step.secs / workers
    replay = updates * REPLAY_SECS_A_MINIBATCH + steps * REPLAY_SECS_A_STEP
    work = updates * costs.update.cpu_secs + steps * costs.step.cpu_secs + replay
    alone = train + collect if takes_turns else max(train, collect, replay)
    return alone if cpus is None else max(alone, work / cpus)


def foretell(
    params: Any, costs: Costs, workers: int, cpus: int | None, *, takes_turns: bool = False, eval_workers: int = 0
) -> Duration:
    """How long a run takes.

    A worker evaluates after its iteration, while the trainer has one iteration's updates to do. Workers that only
    evaluate do so beside that: the run waits for the last evaluation.

    Args:
      params: The run's.
      costs, workers, cpus: See `iteration_secs`.
      takes_turns: Collecting and updates never overlap, as with SAC_DETERMINISTIC=1.
      eval_workers: How many only evaluate.
    """
    steps, updates = _counts_of_iteration(params, workers, costs.steps_per_episode)
    turns = takes_turns or params.max_policy_lag == 0
    iteration = iteration_secs(costs, steps, updates, workers, cpus, takes_turns=turns)
    collect = steps * costs.step.secs / workers
    first_steps = random_count(params) * (costs.steps_per_episode if params.initial_collect_steps is None else 1)
    iterations = params.num_iter
    if params.num_env_steps is not None:
        iterations = min(iterations, math.ceil(max(0.0, params.num_env_steps - first_steps) / steps))
    episodes = math.ceil(params.num_eval_episodes / (eval_workers or workers))
    evaluations = episodes * costs.steps_per_episode * costs.step.secs
    if not eval_workers:
        later = math.ceil(periods(params, "eval", iterations, first_steps + iterations * steps))
        evaluations = (1 + later) * max(0.0, evaluations - max(0.0, iteration - collect))
    # `first_steps` of random actions are collected beside the offline updates.
    first = iteration_secs(costs, first_steps, offline_updates(params), workers, cpus, takes_turns=takes_turns)
    secs = START_SECS + first + iterations * iteration + evaluations
    return Duration(secs, iterations, iteration, updates * costs.update.secs, collect, evaluations)


def _counts_of_iteration(params: Any, workers: int, steps_per_episode: float) -> tuple[float, float]:
    """Environment steps and updates of an iteration."""
    ratio = updates_per_step(params, workers, steps_per_episode)
    if params.asynchronous:
        updates = float(updates_of_iteration(params) or 0)
        return updates / ratio, updates
    if params.env_steps_per_iter is not None:
        steps = float(params.env_steps_per_iter)
    else:
        steps = params.num_train_episodes_per_iter * workers * steps_per_episode
    return steps, steps * ratio


def duration_in_words(duration: Duration, costs: Costs, cpus: int | None) -> list[str]:
    """What a user learns about a run before it starts."""
    train, collect = duration.train_secs, duration.collect_secs
    waits = "the trainer waits for the workers" if train < collect else "workers wait for the trainer"
    idle = 1 - min(train, collect) / max(train, collect, 1e-9)
    facts = [
        f"about {_time(duration.secs)} for {duration.iterations} iterations of {_time(duration.iteration_secs)}",
        f"{1 / costs.update.secs:,.0f} updates/s",
        f"{1 / costs.step.secs:,.0f} steps/s of a worker with its policy, in episodes of {costs.steps_per_episode:.0f}",
        f"{waits} {idle:.0%} of the time",
    ]
    if duration.evaluation_secs > 0.02 * duration.secs:
        facts.append(f"evaluations take {duration.evaluation_secs / duration.secs:.0%} of it")
    if cpus is not None:
        facts.append(f"roles share {cpus} CPU{'' if cpus == 1 else 's'} (SAC_SHARE_CPUS=1)")
    return facts


def _time(secs: float) -> str:
    if secs < 120:
        return f"{secs:.2g} s" if secs < 10 else f"{secs:.0f} s"
    return f"{secs / 60:.{int(secs < 600)}f} min" if secs < 7200 else f"{secs / 3600:.1f} h"


# Measuring.


def time_updates(params: Any, agent: Any, secs: float, seed: int) -> Cost:
    """Updates on random minibatches of the environment's shapes, for `secs`; the agent learns nonsense."""
    import numpy as np

    from tfagents_system.agents.block_update import choose_precision, make_block_update

    update = make_block_update(params, agent, choose_precision(params.matmul_precision)[0])
    rng = np.random.default_rng(seed)
    one = [  # Weights of steps are not negative.
        rng.random((1, *spec.shape[1:]), np.float32).astype(spec.dtype.as_numpy_dtype) for spec in update.block_spec
    ]
    update(one)  # The first takes longer.
    began = time.perf_counter()
    update(one)
    count = max(1, min(_MINIBATCHES, int(0.2 * secs / (time.perf_counter() - began))))
    block = [np.repeat(array, count, axis=0) for array in one]
    updates, clock = 0, _Clock()
    while clock.secs < secs:
        update(block)
        updates += count
    return clock.cost(updates)


class _TimeIsUp(Exception):
    """Ends a measurement in the middle of an episode."""


def time_steps(params: Any, agent: Any, envs: Sequence[Any], secs: float, seed: int) -> tuple[Cost, float | None]:
    """Steps of a worker's whole path without the server, for `secs`.

    Returns:
      What a step costs, and the mean number of steps of an episode; None if none has ended.
    """
    from tfagents_system.envs import loading
    from tfagents_system.policies.worker_policy import make_worker_policy
    from tfagents_system.transport.run_layout import run_layout
    from tfagents_system.worker.actors import PolicyActor
    from tfagents_system.worker.rollout import Rollout
    from tfagents_system.worker.segment_builder import SegmentBuilder

    for env in envs:
        env.reset()  # Some simulators load their model now.
    envs = [loading.all_lanes(params, env) for env in envs]
    lanes = sum(getattr(env, "num_lanes", 1) for env in envs)
    actor = PolicyActor(
        make_worker_policy(agent, seed, lanes, params.frame_stack, params.actor_observations), greedy=False
    )
    layout = run_layout(params, envs[0].observation_spec(), envs[0].action_spec())
    steps, lengths = 0, []

    def on_step(count: int) -> None:
        nonlocal steps
        steps += count
        if clock.secs > secs:
            raise _TimeIsUp

    clock = _Clock()
    with contextlib.suppress(_TimeIsUp):
        Rollout(
            envs,
            actor,
            new_builder=lambda: SegmentBuilder(layout, layout.max_segment_steps(None), lambda segment: None),
            on_step=on_step,
            on_episode=lambda episode: lengths.append(episode.length),
        ).episodes(sys.maxsize)
    return clock.cost(steps), sum(lengths) / len(lengths) if lengths else None


class _Clock:
    """Time and CPU time since it was made."""

    def __init__(self) -> None:
        self._began, self._cpu_began = time.perf_counter(), time.process_time()

    @property
    def secs(self) -> float:
        return time.perf_counter() - self._began

    def cost(self, count: int) -> Cost:
        """The cost of each of `count`."""
        return Cost(self.secs / count, (time.process_time() - self._cpu_began) / count)


@contextlib.contextmanager
def on_cpus(cpus: Sequence[int]) -> Iterator[None]:
    """Moves all threads of this process to these CPUs; without any, or if that fails, they stay as they were."""
    before = os.sched_getaffinity(0)
    _pin(cpus or before)
    try:
        yield
    finally:
        _pin(before)


def _pin(cpus: Sequence[int] | set[int]) -> None:
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):  # It has just ended.
            os.sched_setaffinity(int(thread), cpus)


# Disk and memory.


def workers_here(values: Mapping[str, Any]) -> int:
    """How many workers a start has on this machine, of all kinds."""
    collectors = values.get("local_workers", values.get("num_collect_workers", 1))
    return int(collectors + values.get("expert_workers", 0) + values.get("eval_workers", 0))


def disk_of_run(agent_bytes: int, policy_bytes: int, checkpoints: int) -> int:
    """Bytes of checkpoints, policies, metrics and logs at the end of a run."""
    models = policy_bytes + _MODEL_BYTES
    return _AGENTS * agent_bytes + models + (checkpoints + 2) * (policy_bytes + _POLICY_CHECKPOINT_BYTES) + _LOGS_BYTES


def sizes(folder: Path) -> tuple[int, int]:
    """(disk space that a folder's own files take, what they may come to take); nothing without a folder."""
    try:
        stats = [entry.stat() for entry in os.scandir(folder) if entry.is_file()]
    except OSError:
        stats = []
    return sum(stat.st_blocks * 512 for stat in stats), sum(stat.st_size for stat in stats)


def check_disk(findings: Findings, needed: Mapping[Path, tuple[str, int]]) -> None:
    """Compares what is needed with what is free, once for each file system.

    Args:
      needed: What will be written, in words and bytes, by folder.
    """
    by_device: dict[int, list[Path]] = {}
    for folder in needed:
        by_device.setdefault(os.stat(existing_ancestor(folder)).st_dev, []).append(folder)
    for folders in by_device.values():
        free = shutil.disk_usage(existing_ancestor(folders[0])).free
        total = sum(needed[folder][1] for folder in folders)
        parts = " + ".join(f"{in_words(needed[folder][1])} {needed[folder][0]}" for folder in folders)
        parts += f" in {', '.join(map(str, folders))}"
        if total > free:
            findings.error(
                "disk",
                f"a run needs {in_words(total)} of disk ({parts}), {in_words(free)} are free: lower buffer_size, free "
                "space, or set SAC_LOGS_DIR or SAC_REPLAY_DIR to a larger disk",
            )
            continue
        findings.fact("disk", f"{parts}; {in_words(free)} free")
        if total > _TIGHT * free:
            findings.note("disk", f"disk is tight: {in_words(total)} of {in_words(free)} will be used ({parts})")


def memory_of_job(environ: Mapping[str, str]) -> tuple[int, str] | None:
    """As `available_memory`, for the job that is being submitted; None if there is none."""
    if JOB_MB not in environ:
        return None
    if not environ[JOB_MB]:
        return _BEYOND, "of memory, as the cluster has it,"
    return int(environ[JOB_MB]) * 2**20, "of the job's memory"


def available_memory(
    membership: Path = Path("/proc/self/cgroup"), mounts: Path = Path("/sys/fs/cgroup")
) -> tuple[int, str]:
    """(bytes that this job's processes may still take, what limits them): the machine or the tightest cgroup."""
    limits = [(int(psutil.virtual_memory().available), "of this machine's memory")]
    for is_v2, folders in cgroups("memory", membership, mounts):
        left = [_left_in_cgroup(folder, is_v2) for folder in folders]
        limits += [(num_bytes, "under the cgroup's limit") for num_bytes in left if num_bytes is not None]
    return min(limits)


def _left_in_cgroup(folder: Path, is_v2: bool) -> int | None:
    names = ("memory.max", "memory.current") if is_v2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    try:
        most, used = (int((folder / name).read_text()) for name in names)
        stat = (folder / "memory.stat").read_text()
    except (OSError, ValueError):  # No such group, or `max`.
        return None
    # Cached files count as used, but can be reclaimed: those that were read again, too.
    cached = re.findall(rf"^{'' if is_v2 else 'total_'}(?:in)?active_file (\d+)$", stat, re.MULTILINE)
    return max(0, most - used + sum(map(int, cached)))


def check_memory(
    findings: Findings,
    num_workers: int,
    own_bytes: int,
    ring_bytes: int,
    prior_bytes: int = 0,
    *,
    available: tuple[int, str] | None = None,
) -> None:
    """Compares the memory that the run's processes will take with what is available.

    Args:
      own_bytes: Memory of the user's own code in each of them, with one environment of a kind.
      ring_bytes, prior_bytes: Of the replay ring and of that of prior data, which are in files: they should fit, but
        need not.
      available: As `available_memory` returns it, which is called if None.
    """
    free, limit = available or available_memory()
    worker_bytes = _WORKER_BYTES + own_bytes
    needed = num_workers * worker_bytes + _OTHERS_BYTES + own_bytes  # The trainer builds the user's networks, too.
    what = (
        f"about {in_words(needed)} for {num_workers} worker{'' if num_workers == 1 else 's'} of "
        f"{in_words(worker_bytes)} and the other programs"
    )
    if needed > free:
        findings.error(
            "memory",
            f"a run needs {what}, {in_words(free)} {limit} are available: lower SAC_NUM_COLLECT_WORKERS or "
            "SAC_ENVS_PER_WORKER, or give it more memory (a job: --mem)",
        )
        return
    findings.fact("memory", f"{what}; {in_words(free)} {limit} available")
    if needed > _TIGHT * free:
        findings.note("memory", f"memory is tight: {what}, {in_words(free)} {limit} are available")
    elif needed + ring_bytes + prior_bytes > free:
        prior = f" and the prior data of {in_words(prior_bytes)} do" if prior_bytes else " does"
        findings.note(
            "memory",
            f"the replay buffer of {in_words(ring_bytes)}{prior} not fit into the {in_words(free - needed)} of memory "
            "that are left: minibatches will be read from the disk, which is slower. A lower buffer_size helps",
        )


def in_words(num_bytes: int) -> str:
    """`1.5 GiB`, of integers of any size: a user's may have hundreds of digits."""
    if num_bytes >= _BEYOND:
        return "more than 1,000,000 GiB"
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if num_bytes >= size:
            tenths = num_bytes * 10 // size
            return f"{tenths // 10:,}.{tenths % 10} {unit}" if tenths < 1000 else f"{tenths // 10:,} {unit}"
    return f"{num_bytes} bytes"
