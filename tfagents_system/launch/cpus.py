"""Which role runs on which CPUs, and which of several runs at once: from what this process may use to a plan."""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tfagents_system.errors import UserError
from tfagents_system.machine.claims import held_cpus
from tfagents_system.machine.cpus import Cpu, Usable, format_cpu_list, found_gpus, in_order, usable_gpus
from tfagents_system.run_files.run_paths import REPLAY, TRAINER, worker_role
from tfagents_system.settings.variables import COUNTS, has_automatic_workers, own_workers


@dataclasses.dataclass(frozen=True)
class CpuPlan:
    """CPU ids by role.

    Attributes:
      by_role: CPU ids of the roles that run here; only workers, if they join a run from elsewhere. Empty where roles
        are not pinned.
      counts: Number of CPUs that each role may count on, by role; its threads follow from it.
      pinned: False if ids are not ours to choose.
      shared_cpus: CPUs of all roles together, where roles share some; None where each has its own.
      evaluators: How many of the workers, the last ones, only evaluate.
      notes: What the user should know about the plan, one sentence each.
    """

    by_role: Mapping[str, tuple[int, ...]]
    counts: Mapping[str, int]
    pinned: bool = True
    shared_cpus: int | None = None
    evaluators: int = 0
    notes: tuple[str, ...] = ()

    @property
    def trainer(self) -> tuple[int, ...]:
        return self.by_role.get(TRAINER, ())

    @property
    def workers(self) -> tuple[tuple[int, ...], ...]:
        return tuple(ids for role, ids in self.by_role.items() if role not in (REPLAY, TRAINER))

    def ids(self) -> list[int]:
        """Every CPU id of the plan, once."""
        return sorted({cpu for ids in self.by_role.values() for cpu in ids})

    def to_json(self) -> dict[str, list[int]]:
        return {role: list(ids) for role, ids in self.by_role.items()}

    def thread_environ(self, role: str) -> dict[str, str]:
        """Thread settings of one role: TensorFlow assumes the whole machine unless it is told."""
        count = self.counts.get(role, 1)
        # The update has two independent critics: running them side by side beats splitting each matrix product.
        inter = min(2, count) if role == TRAINER else 1
        return {
            "OMP_NUM_THREADS": str(count),
            "OPENBLAS_NUM_THREADS": "1",  # NumPy's products are too small to be shared among threads.
            "TF_NUM_INTRAOP_THREADS": str(max(1, count // inter)),
            "TF_NUM_INTEROP_THREADS": str(inter),
        }

    def table(self) -> str:
        """One line a role, then the notes."""
        is_shared = self.shared_cpus is not None
        lines = [f"CPU plan ({'pinned' if self.pinned else 'not pinned'}{', shared' if is_shared else ''}):"]
        for role, ids in self.by_role.items():
            share = f"CPU {format_cpu_list(ids)}" if ids else f"{self.counts[role]} CPU(s), any"
            lines.append(f"  {role:<12}{share}")
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def plan_for(
    values: Mapping[str, Any],
    environ: Mapping[str, str] = os.environ,
    *,
    held: Mapping[int, str] | None = None,
    usable: Usable | None = None,
) -> CpuPlan:
    """Gives every role of a run its CPUs, on this machine and in this job.

    Args:
      values: The run's variables, by field. Workers' numbers are in the order of collectors, experts, evaluators.
      held: Holders of CPUs, by CPU id: other runs on this machine. Where they leave fewer than two CPUs to a run that
        shares, it is not pinned, and the kernel divides all.
      usable: What this process may use, if that is not looked up.

    Raises:
      UserError: There are too few, and roles may not share them; with the numbers.
    """
    usable, share = usable or Usable.here(environ), values.get("share_cpus", False)
    reverb_cpus = 0 if values.get("trainer_server") else values["reverb_cpus"]
    train_cpus = values["train_cpus"] if values.get("local_trainer", True) else 0
    collectors, worker_cpus = values.get("local_workers"), values["collect_worker_cpus"]
    collectors = values["num_collect_workers"] if collectors is None else collectors
    beside = {f"SAC_{kind.upper()}": values.get(kind, 0) for kind in ("expert_workers", "eval_workers")}
    counts = {REPLAY: reverb_cpus, TRAINER: train_cpus}
    counts |= {worker_role(number): worker_cpus for number in range(collectors + sum(beside.values()))}
    counts = {role: count for role, count in counts.items() if count}
    why_unpinned = usable.why_unpinned()
    held = {} if why_unpinned else {cpu: holder for cpu, holder in (held or {}).items() if cpu in usable.cpus}
    needed, (available, reason) = sum(counts.values()), usable.available()
    free = in_order(usable.cpus, usable.cpus.keys() - held.keys(), needed)
    if needed > min(available, len(free)) and not share:
        if needed > available:
            lack = f"{available} are available ({reason}): "
        else:
            lack = f"{len(free)} of {available} are free ({_holders(held)}): wait for that run, or "
        what, remedy = _wishes(reverb_cpus, train_cpus, collectors, beside, worker_cpus)
        raise UserError(f"{what} needs {needed} CPUs, {lack}{remedy}")
    if not why_unpinned and len(free) < min(2, needed, available):
        why_unpinned = f"CPUs are shared with another run ({_holders(held)})"
    if not why_unpinned:
        plan = _pinned_plan(counts, usable.cpus, free, min(len(free), available))
        return dataclasses.replace(plan, evaluators=beside["SAC_EVAL_WORKERS"])
    plan = _pinned_plan(counts, {}, range(available), available)  # Its numbers of threads hold all the same.
    notes = (f"{why_unpinned}: roles are not pinned",)
    ids = dict.fromkeys(counts, ())
    return dataclasses.replace(plan, by_role=ids, pinned=False, evaluators=beside["SAC_EVAL_WORKERS"], notes=notes)


def _wishes(reverb: int, train: int, workers: int, beside: Mapping[str, int], worker_cpus: int) -> tuple[str, str]:
    """What was asked for, and how to ask for less."""
    if not reverb and not train:  # Workers that join a run.
        what = f"{workers} workers * SAC_COLLECT_WORKER_CPUS={worker_cpus}"
        return what, "lower --workers or set SAC_SHARE_CPUS=1"
    all_workers = own_workers(workers, beside)
    if any(beside.values()):
        all_workers = f"({all_workers})"
    what = f"SAC_REVERB_CPUS={reverb} + SAC_TRAIN_CPUS={train} + {all_workers} * SAC_COLLECT_WORKER_CPUS={worker_cpus}"
    of_workers = "SAC_NUM_COLLECT_WORKERS" if workers > 1 else "SAC_COLLECT_WORKER_CPUS"
    shares = {of_workers: workers * worker_cpus, "SAC_TRAIN_CPUS": train, "SAC_REVERB_CPUS": reverb}
    largest = max(shares, key=lambda name: shares[name])
    return what, f"{f'lower {largest} or ' if max(shares.values()) > 1 else ''}set SAC_SHARE_CPUS=1"


def _pinned_plan(counts: Mapping[str, int], cpus: Mapping[int, Cpu], free: Sequence[int], room: int) -> CpuPlan:
    """The plan for `room` CPUs among the free ones.

    The trainer's CPUs are its own, unless it has all; the rest is dealt to the other roles in turn. This fits a cheap
    simulator: workers and replay server need only a few per cent of a CPU.
    """
    needed, n_trainer = sum(counts.values()), min(counts.get(TRAINER, 0), room)
    first = min(counts.get(REPLAY, 0), room - n_trainer)
    trainer = sorted(free[first : first + n_trainer])
    # Other threads of the trainer's cores come last.
    beside = frozenset[int]().union(*(cpus[cpu].core for cpu in trainer if cpu in cpus))
    others = sorted((cpu for cpu in free if cpu not in trainer), key=lambda cpu: cpu in beside)[: room - n_trainer]
    dealt, num_others = itertools.cycle(others or trainer), len(others or trainer)
    by_role = {
        role: tuple(trainer if role == TRAINER else sorted(itertools.islice(dealt, min(count, num_others))))
        for role, count in counts.items()
    }
    note = f"{needed} CPUs are wanted, {room} are used: roles share CPUs (SAC_SHARE_CPUS=1)"
    return CpuPlan(
        by_role,
        counts={role: len(ids) for role, ids in by_role.items()},
        shared_cpus=room if needed > room else None,
        notes=(note,) if needed > room else (),
    )


def _holders(held: Mapping[int, str]) -> str:
    """`4-7 held by run logs/a (pid 12), 9 held by ...`."""
    by_holder: dict[str, list[int]] = {}
    for cpu, holder in held.items():
        by_holder.setdefault(holder, []).append(cpu)
    return ", ".join(f"{format_cpu_list(ids)} held by {holder}" for holder, ids in by_holder.items())


# Several runs at once.

# A run's variables by field, as far as they could be read, and its environment.
Run = tuple[Mapping[str, Any], Mapping[str, str]]


@dataclasses.dataclass(frozen=True)
class Place:
    """What one of the simultaneous runs has for itself.

    Attributes:
      cpus: Its CPU ids; none leaves them to the run.
      gpu: Its GPU, as CUDA_VISIBLE_DEVICES names it; None without one of its own.
    """

    cpus: Sequence[int] = ()
    gpu: str | None = None


def places_of(runs: Sequence[Run], parallel: int) -> list[Place]:
    """Gives so many runs at once places that have room for the largest of `runs`.

    Raises:
      UserError: There is too little room.
    """
    devices, trained = list[str](), [environ for values, environ in runs if values.get("train_gpus")]
    if trained:
        devices = usable_gpus(trained[0])[:parallel]
        if len(devices) < parallel:
            raise UserError(
                f"SAC_TRAIN_GPUS=1: {parallel} runs at once need a GPU each, {len(devices)} may be used here "
                f"(CUDA_VISIBLE_DEVICES: {found_gpus(trained[0])}): lower --parallel, ask the cluster for more "
                f"(--gpus-per-node={parallel}), or unset SAC_TRAIN_GPUS"
            )
    usable = Usable.here(os.environ)
    complete = [(values, environ) for values, environ in runs if values.keys() >= COUNTS.keys()]
    available = usable.available()[0]
    parts: list[tuple[int, ...]] = [()] * parallel
    needed = max((_needed_cpus(values, environ, available // parallel) for values, environ in complete), default=0)
    share = all(values.get("share_cpus", False) for values, _ in complete)
    if not complete or usable.why_unpinned():
        _require_room(parallel, needed, available, share)
    else:
        parts = split_cpus(usable.cpus, parallel, needed, held=held_cpus(), share=share)
    return [Place(*place) for place in itertools.zip_longest(parts, devices)]


def split_cpus(
    cpus: Mapping[int, Cpu], parallel: int, needed: int, *, held: Collection[int] = (), share: bool = False
) -> list[tuple[int, ...]]:
    """CPU ids for each of `parallel` runs: disjoint, unless there are fewer CPUs than runs.

    They are stretches in the order of NUMA nodes and cores, whose lengths differ by one at most.

    Args:
      needed: CPUs of one run.
      held: CPU ids that other runs have; used only where `share` is true and nothing else is free.
      share: Whether the roles of a run may share CPUs.

    Raises:
      UserError: There are too few and `share` is False.
    """
    ids = sorted(cpus, key=lambda cpu: (cpus[cpu].node, min(cpus[cpu].core & cpus.keys()), cpu))
    free = [cpu for cpu in ids if cpu not in held]
    _require_room(parallel, needed, len(free), share)
    ids = free if len(free) >= parallel else ids
    if len(ids) < parallel:
        return [(ids[number % len(ids)],) for number in range(parallel)]
    starts = [-(-number * len(ids) // parallel) for number in range(parallel + 1)]
    return [tuple(sorted(ids[start:end])) for start, end in itertools.pairwise(starts)]


def _require_room(parallel: int, needed: int, free: int, share: bool) -> None:
    if not share and needed * parallel > free:
        raise UserError(
            f"--parallel {parallel} runs of {needed} CPUs need {needed * parallel}, {free} are free: "
            "lower --parallel or SAC_NUM_COLLECT_WORKERS, or set SAC_SHARE_CPUS=1"
        )


def _needed_cpus(values: Mapping[str, Any], environ: Mapping[str, str], share: int) -> int:
    if has_automatic_workers(environ):
        return max(1, share)
    workers = sum(values.get(f"{kind}_workers", 0) for kind in ("num_collect", "expert", "eval"))
    return int(values["reverb_cpus"] + values["train_cpus"] + workers * values["collect_worker_cpus"])
