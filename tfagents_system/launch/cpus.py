"""Which role runs on which CPUs: from what this process may use to a plan, by pure functions."""

from __future__ import annotations

import dataclasses
import math
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tfagents_system.errors import UserError
from tfagents_system.launch.run_paths import REPLAY, TRAINER, worker_role


def parse_cpu_list(text: str) -> list[int]:
    """`"0-3,8"` -> `[0, 1, 2, 3, 8]`, as the kernel writes lists of CPUs."""
    ids: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        ids.update(range(int(first), int(last or first) + 1))
    return sorted(ids)


def format_cpu_list(ids: Collection[int]) -> str:
    """`[0, 1, 2, 3, 8]` -> `"0-3,8"`, the inverse of `parse_cpu_list`."""
    ranges: list[list[int]] = []
    for cpu in sorted(ids):
        if ranges and cpu == ranges[-1][1] + 1:
            ranges[-1][1] = cpu
        else:
            ranges.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def allowed_cpus(status: Path = Path("/proc/self/status")) -> list[int]:
    """The CPU ids that this process may use; unlike the host's count, this knows cpusets and affinity."""
    match = re.search(r"^Cpus_allowed_list:\s*(\S+)$", status.read_text(), re.MULTILINE)
    if match is None:
        return sorted(os.sched_getaffinity(0))
    return parse_cpu_list(match[1])


def physical_cores(ids: Sequence[int], sysfs: Path = Path("/sys/devices/system/cpu")) -> list[tuple[int, ...]]:
    """`ids` by core: threads of the same one stand together. One that the kernel tells nothing of is a core."""
    cores: dict[tuple[int, ...], list[int]] = {}
    for cpu in sorted(ids):
        try:
            threads = tuple(parse_cpu_list((sysfs / f"cpu{cpu}/topology/thread_siblings_list").read_text()))
        except (OSError, ValueError):
            threads = (cpu,)
        cores.setdefault(threads, []).append(cpu)
    return [tuple(core) for core in cores.values()]


def cgroup_quota(membership: Path = Path("/proc/self/cgroup"), mounts: Path = Path("/sys/fs/cgroup")) -> float | None:
    """CPUs' worth of time that this process's cgroups may use: the tightest on the way up, None without a limit."""
    quotas = []
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if controllers == "":
            top, read = mounts, _quota_v2
        elif "cpu" in controllers.split(","):
            top, read = next((m for m in (mounts / controllers, mounts / "cpu") if m.is_dir()), mounts), _quota_v1
        else:
            continue
        folder = top / group.strip("/")
        # Inside a container the path may be the host's, which is not there: the container's own group is the top.
        for level in (folder, *folder.parents):
            quotas.append(read(level))
            if level == top:
                break
    return min((quota for quota in quotas if quota is not None), default=None)


def _quota_v2(folder: Path) -> float | None:
    try:
        quota, period = (folder / "cpu.max").read_text().split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else int(quota) / int(period)


def _quota_v1(folder: Path) -> float | None:
    try:
        quota = int((folder / "cpu.cfs_quota_us").read_text())
        period = int((folder / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError):
        return None
    return quota / period if quota > 0 and period > 0 else None


def slurm_allotment(environ: Mapping[str, str]) -> int | None:
    """CPUs that SLURM allotted to this job on this node; None outside a job."""
    if "SLURM_JOB_ID" not in environ:
        return None
    # `8(x2),4`: two nodes with 8 CPUs, then one with 4; this node is number SLURM_NODEID of them.
    per_node: list[tuple[int, int]] = []
    for part in environ.get("SLURM_JOB_CPUS_PER_NODE", "").split(","):
        if match := re.fullmatch(r"([0-9]{1,9})(?:\(x([0-9]{1,9})\))?", part):
            per_node.append((int(match[1]), int(match[2] or 1)))
    node = _small_integer(environ.get("SLURM_NODEID", "")) or 0
    counts = [_small_integer(environ.get("SLURM_CPUS_ON_NODE", "")) or 0]
    for count, nodes in per_node:
        if node < nodes:
            counts.append(count)
            break
        node -= nodes
    return min((count for count in counts if count > 0), default=None)


def _small_integer(text: str) -> int | None:
    return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else None


@dataclasses.dataclass(frozen=True)
class CpuPlan:
    """CPU ids by role.

    Attributes:
      replay: CPU ids of the replay server; empty where not pinned.
      trainer: CPU ids of the policy updates; empty where not pinned.
      workers: CPU ids of each worker; empty tuples where not pinned.
      counts: CPUs that each role may reckon with, by role; its threads follow from it.
      pinned: False where ids are left to the cluster's scheduler.
      shared: True where some CPU belongs to more than one role.
      notes: What the user should know about the plan, one sentence each.
      spare: A CPU that is free and belongs to no role; None without one, or where not pinned. It is not held: another
        run may take it.
    """

    replay: tuple[int, ...]
    trainer: tuple[int, ...]
    workers: tuple[tuple[int, ...], ...]
    counts: Mapping[str, int]
    pinned: bool = True
    shared: bool = False
    notes: tuple[str, ...] = ()
    spare: int | None = None

    @property
    def gateway(self) -> tuple[int, ...]:
        """CPU ids of the gateway: it works when the replay server does, so it also has a CPU that nobody else has."""
        return self.replay if self.spare is None else tuple(sorted({*self.replay, self.spare}))

    def by_role(self) -> dict[str, tuple[int, ...]]:
        """Of the roles that run here; where workers join a run from elsewhere, they are alone."""
        roles = {REPLAY: self.replay, TRAINER: self.trainer}
        workers = {worker_role(number): ids for number, ids in enumerate(self.workers)}
        return {role: ids for role, ids in roles.items() if self.counts[role]} | workers

    def ids(self) -> list[int]:
        """Every CPU id of the plan, once."""
        return sorted({cpu for ids in self.by_role().values() for cpu in ids})

    def to_json(self) -> dict[str, list[int]]:
        return {role: list(ids) for role, ids in self.by_role().items()}

    def thread_environ(self, role: str) -> dict[str, str]:
        """Thread settings of one role: TensorFlow reckons with the whole machine unless it is told."""
        cpus = self.counts[role]
        # The update has two independent critics: running them side by side beats splitting each matrix product.
        inter = min(2, cpus) if role == TRAINER else 1
        return {
            "OMP_NUM_THREADS": str(cpus),
            "OPENBLAS_NUM_THREADS": "1",  # NumPy's products are too small to be shared among threads.
            "TF_NUM_INTRAOP_THREADS": str(max(1, cpus // inter)),
            "TF_NUM_INTEROP_THREADS": str(inter),
        }

    def on_whole_cores(self, cores: Iterable[tuple[int, ...]]) -> CpuPlan:
        """The same plan with all threads of each core that it names by the first one; the counts stay."""
        threads = {core[0]: core for core in cores}

        def all_of(ids: tuple[int, ...]) -> tuple[int, ...]:
            return tuple(sorted(cpu for first in ids for cpu in threads[first]))

        workers = tuple(map(all_of, self.workers))
        return dataclasses.replace(self, replay=all_of(self.replay), trainer=all_of(self.trainer), workers=workers)

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
    allowed: Sequence[int],
    share: bool = False,
    held: Mapping[int, str] | None = None,
    trainers: Collection[int] = (),
    quota: float | None = None,
    allotment: int | None = None,
) -> CpuPlan:
    """Gives every role its CPUs.

    Args:
      reverb_cpus: CPUs of the replay server.
      train_cpus: CPUs of the trainer.
      num_collect_workers: Number of workers.
      collect_worker_cpus: CPUs of each worker.
      allowed: CPU ids that this process may use, any gaps.
      share: Whether roles may share CPUs where there are too few.
      held: Who holds a CPU already, by CPU id: other runs on this machine.
      trainers: Those of them on which a trainer runs: where CPUs are shared with it, this run's trainer takes others.
      quota: CPUs' worth of time that the cgroup may use, None without a limit.
      allotment: CPUs that SLURM allotted on this node, None outside a job.

    Raises:
      UserError: There are too few and `share` is False; with the numbers.
    """
    counts = {REPLAY: reverb_cpus, TRAINER: train_cpus}
    counts |= {worker_role(number): collect_worker_cpus for number in range(num_collect_workers)}
    needed = sum(counts.values())
    limits = [(len(allowed), f"CPU ids {format_cpu_list(allowed)}")]
    if allotment is not None:
        limits.append((allotment, "SLURM's allotment on this node"))
    if quota is not None:
        limits.append((max(1, math.floor(quota)), f"the cgroup's quota of {quota:g} CPUs"))
    available, reason = min(limits, key=lambda limit: limit[0])
    unconfined = allotment is not None and allotment < len(allowed)
    held = {} if unconfined else {cpu: who for cpu, who in (held or {}).items() if cpu in set(allowed)}
    free = [cpu for cpu in sorted(allowed) if cpu not in held]
    demand = (
        f"SAC_REVERB_CPUS={reverb_cpus} + SAC_TRAIN_CPUS={train_cpus} + SAC_NUM_COLLECT_WORKERS={num_collect_workers} "
        f"* SAC_COLLECT_WORKER_CPUS={collect_worker_cpus} needs {needed} CPUs, "
    )
    remedy = "lower SAC_NUM_COLLECT_WORKERS or set SAC_SHARE_CPUS=1"
    if not reverb_cpus and not train_cpus:  # Workers that join a run.
        workers = f"{num_collect_workers} workers * SAC_COLLECT_WORKER_CPUS={collect_worker_cpus}"
        demand, remedy = f"{workers} needs {needed} CPUs, ", "lower --workers or set SAC_SHARE_CPUS=1"
    if needed > available and not share:
        raise UserError(f"{demand}{available} are available ({reason}): {remedy}")
    if needed > len(free) and not share:
        raise UserError(
            f"{demand}{len(free)} of {available} are free ({_holders(held)}): wait for that run, or {remedy}"
        )
    notes = []
    if unconfined:
        notes.append(
            f"SLURM allotted {allotment} CPUs but does not confine the job to them (ids {format_cpu_list(allowed)} are "
            "open to it): roles are not pinned, so that they stay off other jobs' CPUs"
        )
        if needed > available:
            counts = _scaled(counts, available)
        unpinned = tuple(() for _ in range(num_collect_workers))
        shared = sum(counts.values()) > available
        return CpuPlan((), (), unpinned, counts, pinned=False, shared=shared, notes=tuple(notes))
    # One free CPU among held ones would be shared by the trainer and everything else: then rather share with others.
    usable = free if len(free) >= min(2, available) else free + [cpu for cpu in sorted(allowed) if cpu in held]
    usable = usable[:available]
    if held and set(usable) & set(held):
        notes.append(f"CPUs are shared with another run ({_holders(held)})")
    usable = _trainers_apart(usable, counts, trainers)
    if needed <= len(usable):
        by_role = _exclusive(counts, usable)
    else:
        by_role = _round_robin(counts, usable)
        notes.append(f"{needed} CPUs are wanted, {len(usable)} are used: roles share CPUs (SAC_SHARE_CPUS=1)")
    return CpuPlan(
        replay=by_role[REPLAY],
        trainer=by_role[TRAINER],
        workers=tuple(by_role[worker_role(number)] for number in range(num_collect_workers)),
        counts={role: len(ids) for role, ids in by_role.items()},
        shared=needed > len(usable),
        notes=tuple(notes),
        spare=usable[-1] if needed < len(usable) and usable[-1] not in held else None,
    )


def _trainers_apart(usable: Sequence[int], counts: Mapping[str, int], trainers: Collection[int]) -> list[int]:
    """`usable` in an order that gives CPUs without another run's trainer to this one's, as far as there are any.

    Trainers are busy all the time, other roles mostly wait. The replay server's CPUs come first, then the trainer's.
    """
    if not set(usable) & set(trainers):
        return list(usable)
    n_replay, n_trainer = counts[REPLAY], counts[TRAINER]
    by_preference = sorted([*usable[n_replay:], *usable[:n_replay]], key=lambda cpu: cpu in trainers)
    wanted = sorted(by_preference[:n_trainer])
    others = [cpu for cpu in usable if cpu not in wanted]
    n_before = min(n_replay, len(others))
    return [*others[:n_before], *wanted, *others[n_before:]]


def _exclusive(counts: Mapping[str, int], usable: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """Consecutive stretches of `usable`, which is long enough."""
    by_role, start = {}, 0
    for role, count in counts.items():
        by_role[role] = tuple(usable[start : start + count])
        start += count
    return by_role


def _round_robin(counts: Mapping[str, int], usable: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """Goes round the roles; what the trainer has stays its own, unless it is wanted to have all there are.

    With a cheap simulator that is what fits: workers and replay server need but a few per cent of a CPU.
    """
    n_trainer = min(counts[TRAINER], len(usable))
    n_replay = min(counts[REPLAY], len(usable) - n_trainer)
    trainer = tuple(usable[n_replay : n_replay + n_trainer])
    others = [cpu for cpu in usable if cpu not in trainer] or list(usable)
    by_role, start = {}, 0
    for role, count in counts.items():
        if role == TRAINER:
            by_role[role] = trainer
            continue
        count = min(count, len(others))
        by_role[role] = tuple(sorted(others[(start + k) % len(others)] for k in range(count)))
        start += count
    return by_role


def _scaled(counts: Mapping[str, int], available: int) -> dict[str, int]:
    """Threads by role where ids are not ours to give: as many as a shared plan over `available` CPUs has."""
    return {role: len(ids) for role, ids in _round_robin(counts, range(available)).items()}


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
    cores_of: Callable[[Sequence[int]], list[tuple[int, ...]]] = physical_cores,
) -> CpuPlan:
    """`plan_cpus` for the counts and the two choices of `variables`, on this machine and in this job."""
    local_workers = getattr(variables, "local_workers", None)
    ids = allowed()
    cores: list[tuple[int, ...]] = [(cpu,) for cpu in ids] if variables.use_hyperthreads else cores_of(ids)
    first = {cpu: core[0] for core in cores for cpu in core}
    plan = plan_cpus(
        reverb_cpus=variables.reverb_cpus,
        train_cpus=variables.train_cpus,
        num_collect_workers=variables.num_collect_workers if local_workers is None else local_workers,
        collect_worker_cpus=variables.collect_worker_cpus,
        allowed=[core[0] for core in cores],
        share=variables.share_cpus,
        held={first[cpu]: who for cpu, who in (held or {}).items() if cpu in first},
        trainers={first[cpu] for cpu in trainers if cpu in first},
        quota=cgroup_quota(),
        allotment=slurm_allotment(environ),
    )
    return plan.on_whole_cores(cores)
