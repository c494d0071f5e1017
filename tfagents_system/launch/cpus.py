"""Which role runs on which CPUs: from what this process may use to a plan, by pure functions."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from tfagents_system.errors import UserError
from tfagents_system.machine.topology import (
    Core,
    allowed_cpus,
    cgroup_quota,
    cores_of,
    format_cpu_list,
    in_order,
    is_confined,
    only,
    slurm_allotment,
)
from tfagents_system.run_files.run_paths import REPLAY, TRAINER, worker_role
from tfagents_system.settings.variables import own_workers


@dataclasses.dataclass(frozen=True)
class CpuPlan:
    """CPU ids by role.

    Attributes:
      replay: CPU ids of the replay server; empty where not pinned.
      trainer: CPU ids of the policy updates; empty where not pinned.
      workers: CPU ids of each worker; empty tuples where not pinned.
      counts: Number of CPUs that each role may count on, by role; its threads follow from it.
      pinned: False if ids are left to the cluster's scheduler.
      shared: True if some CPU belongs to more than one role.
      evaluators: How many of the workers, the last ones, only evaluate.
      notes: What the user should know about the plan, one sentence each.
      spare: A CPU that is free and belongs to no role; None without one, or if not pinned. It is not held: another
        run may take it.
    """

    replay: tuple[int, ...]
    trainer: tuple[int, ...]
    workers: tuple[tuple[int, ...], ...]
    counts: Mapping[str, int]
    pinned: bool = True
    shared: bool = False
    evaluators: int = 0
    notes: tuple[str, ...] = ()
    spare: int | None = None

    @property
    def beside(self) -> tuple[int, ...]:
        """CPU ids of gateway and tracker: those of the replay server, which works when they do, and the spare one."""
        return self.replay if self.spare is None else tuple(sorted({*self.replay, self.spare}))

    def by_role(self) -> dict[str, tuple[int, ...]]:
        """CPU ids of the roles that run here; only workers, if they join a run from elsewhere."""
        roles = {REPLAY: self.replay, TRAINER: self.trainer}
        workers = {worker_role(number): ids for number, ids in enumerate(self.workers)}
        return {role: ids for role, ids in roles.items() if self.counts[role]} | workers

    def ids(self) -> list[int]:
        """Every CPU id of the plan, once."""
        return sorted({cpu for ids in self.by_role().values() for cpu in ids})

    def to_json(self) -> dict[str, list[int]]:
        return {role: list(ids) for role, ids in self.by_role().items()}

    def thread_environ(self, role: str) -> dict[str, str]:
        """Thread settings of one role: TensorFlow assumes the whole machine unless it is told."""
        cpus = self.counts[role]
        # The update has two independent critics: running them side by side beats splitting each matrix product.
        inter = min(2, cpus) if role == TRAINER else 1
        return {
            "OMP_NUM_THREADS": str(cpus),
            "OPENBLAS_NUM_THREADS": "1",  # NumPy's products are too small to be shared among threads.
            "TF_NUM_INTRAOP_THREADS": str(max(1, cpus // inter)),
            "TF_NUM_INTEROP_THREADS": str(inter),
        }

    def table(self) -> str:
        """One line a role, then the notes."""
        lines = [f"CPU plan ({'pinned' if self.pinned else 'not pinned'}{', shared' if self.shared else ''}):"]
        for role, ids in self.by_role().items():
            share = f"CPU {format_cpu_list(ids)}" if ids else f"{self.counts[role]} CPU(s), any"
            lines.append(f"  {role:<12}{share}")
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def plan_cpus(
    *,
    reverb_cpus: int,
    train_cpus: int,
    num_collect_workers: int,
    collect_worker_cpus: int,
    cores: Sequence[Core],
    expert_workers: int = 0,
    eval_workers: int = 0,
    share: bool = False,
    held: Mapping[int, str] | None = None,
    trainers: Collection[int] = (),
    quota: float | None = None,
    allotment: int | None = None,
) -> CpuPlan:
    """Gives every role its CPUs.

    Args:
      reverb_cpus, train_cpus, collect_worker_cpus: CPUs of the replay server, the trainer, and each worker.
      num_collect_workers, expert_workers, eval_workers: How many there are; their numbers are in this order.
      cores: What this process may use; a CPU is a hardware thread.
      share: Whether roles may share CPUs where there are too few.
      held: Holders of CPUs, by CPU id: other runs on this machine.
      trainers: Those of them on which a trainer runs: where CPUs are shared with it, this run's trainer takes others.
      quota, allotment: CPUs' worth of time that the cgroup allows, and CPUs that SLURM allotted; None without them.

    Raises:
      UserError: There are too few and `share` is False; with the numbers.
    """
    beside = {"SAC_EXPERT_WORKERS": expert_workers, "SAC_EVAL_WORKERS": eval_workers}
    counts = {REPLAY: reverb_cpus, TRAINER: train_cpus}
    counts |= {worker_role(number): collect_worker_cpus for number in range(num_collect_workers + sum(beside.values()))}
    is_ours = is_confined(allotment, cores)
    ids = {cpu for core in cores for cpu in core.threads}
    held = {cpu: who for cpu, who in (held or {}).items() if cpu in ids} if is_ours else {}
    needed, (available, reason) = sum(counts.values()), _available(ids, quota, allotment)
    free = in_order(only(cores, ids - held.keys()), needed)
    if not share and (lack := _lack(needed, available, reason, len(free), held)):
        what, remedy = _wishes(reverb_cpus, train_cpus, num_collect_workers, beside, collect_worker_cpus)
        raise UserError(f"{what} needs {needed} CPUs, {lack}{remedy}")
    if is_ours:
        # One free CPU among held ones would be shared by the trainer and all else: sharing with others is better.
        usable = free if len(free) >= min(2, available) else free + in_order(only(cores, held), needed)
        plan = _pinned_plan(counts, cores, usable, min(len(usable), available), trainers, held)
    else:
        plan = _unpinned_plan(counts, available, allotment, ids)
    return dataclasses.replace(plan, evaluators=eval_workers)


def _available(ids: Collection[int], quota: float | None, allotment: int | None) -> tuple[int, str]:
    """How many CPUs a run may keep busy, and what limits them."""
    limits = [(len(ids), f"CPU ids {format_cpu_list(ids)}")]
    if allotment is not None:
        limits.append((allotment, "SLURM's allotment on this node"))
    if quota is not None:
        limits.append((max(1, math.floor(quota)), f"the cgroup's quota of {quota:g} CPUs"))
    return min(limits, key=lambda limit: limit[0])


def _lack(needed: int, available: int, reason: str, n_free: int, held: Mapping[int, str]) -> str:
    """What is missing, up to the remedy; empty if nothing is."""
    if needed > available:
        return f"{available} are available ({reason}): "
    if needed > n_free:
        return f"{n_free} of {available} are free ({_holders(held)}): wait for that run, or "
    return ""


def _wishes(reverb: int, train: int, workers: int, beside: Mapping[str, int], worker_cpus: int) -> tuple[str, str]:
    """What was asked for, and how to ask for less."""
    if not reverb and not train:  # Workers that join a run.
        what = f"{workers} workers * SAC_COLLECT_WORKER_CPUS={worker_cpus}"
        return what, "lower --workers or set SAC_SHARE_CPUS=1"
    all_workers = own_workers(workers, beside)
    if any(beside.values()):
        all_workers = f"({all_workers})"
    what = f"SAC_REVERB_CPUS={reverb} + SAC_TRAIN_CPUS={train} + {all_workers} * SAC_COLLECT_WORKER_CPUS={worker_cpus}"
    return what, "lower SAC_NUM_COLLECT_WORKERS or set SAC_SHARE_CPUS=1"


def _unpinned_plan(counts: Mapping[str, int], available: int, allotment: int | None, ids: Collection[int]) -> CpuPlan:
    """The plan if ids are not ours to give: as many threads as a shared plan over `available` CPUs has."""
    if sum(counts.values()) > available:
        n_trainer = min(counts[TRAINER], available)
        n_others = available - n_trainer or available
        counts = {role: n_trainer if role == TRAINER else min(count, n_others) for role, count in counts.items()}
    note = (
        f"SLURM allotted {allotment} CPUs but does not confine the job to them (ids {format_cpu_list(ids)} are "
        "open to it): roles are not pinned, so that they stay off other jobs' CPUs"
    )
    unpinned = tuple(() for role in counts if role not in (REPLAY, TRAINER))
    shared = sum(counts.values()) > available
    return CpuPlan((), (), unpinned, counts, pinned=False, shared=shared, notes=(note,))


def _pinned_plan(
    counts: Mapping[str, int],
    cores: Sequence[Core],
    usable: Sequence[int],
    room: int,
    trainers: Collection[int],
    held: Mapping[int, str],
) -> CpuPlan:
    """The plan for `room` CPUs among the usable ones."""
    core = {cpu: core for core in cores for cpu in core.threads}
    needed, n_trainer = sum(counts.values()), min(counts[TRAINER], room)
    trainer = _trainer_cpus(usable, core, min(counts[REPLAY], room - n_trainer), n_trainer, trainers)
    beside = {thread for cpu in trainer for thread in core[cpu].threads}
    others = sorted((cpu for cpu in usable if cpu not in trainer), key=lambda cpu: cpu in beside)[: room - n_trainer]
    by_role = _dealt(counts, trainer, others or trainer)
    notes = []
    if not held.keys().isdisjoint([*trainer, *others]):
        notes.append(f"CPUs are shared with another run ({_holders(held)})")
    if needed > room:
        notes.append(f"{needed} CPUs are wanted, {room} are used: roles share CPUs (SAC_SHARE_CPUS=1)")
    unused = [cpu for cpu in others[needed - n_trainer :] if cpu not in held]
    unused = [cpu for cpu in unused if cpu not in beside] or unused
    return CpuPlan(
        replay=by_role[REPLAY],
        trainer=by_role[TRAINER],
        workers=tuple(ids for role, ids in by_role.items() if role not in (REPLAY, TRAINER)),
        counts={role: len(ids) for role, ids in by_role.items()},
        shared=needed > room,
        notes=tuple(notes),
        spare=unused[-1] if unused else None,
    )


def _trainer_cpus(
    usable: Sequence[int],
    core: Mapping[int, Core],
    n_replay: int,
    n_trainer: int,
    trainers: Collection[int],
) -> list[int]:
    """The trainer's CPUs: on one NUMA node, and without another run's trainer, if possible.

    Its memory is then on that node as well: the kernel takes a page from the node of the CPU that first writes it.
    Trainers are busy all the time, other roles mostly wait. The replay server's CPUs come first where the node has
    room for both.
    """
    by_node: dict[int, list[int]] = {}
    for cpu in usable:
        by_node.setdefault(core[cpu].node, []).append(cpu)
    first, *further = sorted(by_node.values(), key=lambda ids: -min(n_trainer, sum(cpu not in trainers for cpu in ids)))
    n_before = min(n_replay, max(0, len({core[cpu] for cpu in first}) - n_trainer))
    by_preference = [*first[n_before:], *first[:n_before], *(cpu for ids in further for cpu in ids)]
    if n_trainer > len(first):
        by_preference = list(usable)
    return sorted(sorted(by_preference, key=lambda cpu: cpu in trainers)[:n_trainer])


def _dealt(counts: Mapping[str, int], trainer: Sequence[int], others: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """The trainer's CPUs are its own, unless it has all; the rest is dealt to the other roles in turn.

    This fits a cheap simulator: workers and replay server need only a few per cent of a CPU.
    """
    by_role, start = {}, 0
    for role, count in counts.items():
        if role == TRAINER:
            by_role[role] = tuple(trainer)
            continue
        count = min(count, len(others))
        by_role[role] = tuple(sorted(others[(start + k) % len(others)] for k in range(count)))
        start += count
    return by_role


def _holders(held: Mapping[int, str]) -> str:
    """`4-7 by run logs/a (pid 12), 9 by ...`."""
    by_holder: dict[str, list[int]] = {}
    for cpu, who in held.items():
        by_holder.setdefault(who, []).append(cpu)
    return ", ".join(f"{format_cpu_list(ids)} held by {who}" for who, ids in by_holder.items())


def plan_for(
    variables: Any,
    environ: Mapping[str, str] = os.environ,
    *,
    held: Mapping[int, str] | None = None,
    trainers: Collection[int] = (),
    allowed: Callable[[], list[int]] = allowed_cpus,
    cores: Callable[[Collection[int]], list[Core]] = cores_of,
) -> CpuPlan:
    """`plan_cpus` for the counts of `variables`, on this machine and in this job."""
    local_workers = getattr(variables, "local_workers", None)
    return plan_cpus(
        reverb_cpus=0 if getattr(variables, "trainer_server", None) else variables.reverb_cpus,
        train_cpus=variables.train_cpus if getattr(variables, "local_trainer", True) else 0,
        num_collect_workers=variables.num_collect_workers if local_workers is None else local_workers,
        collect_worker_cpus=variables.collect_worker_cpus,
        cores=cores(allowed()),
        expert_workers=getattr(variables, "expert_workers", 0),
        eval_workers=getattr(variables, "eval_workers", 0),
        share=variables.share_cpus,
        held=held,
        trainers=trainers,
        quota=cgroup_quota(),
        allotment=slurm_allotment(environ),
    )
