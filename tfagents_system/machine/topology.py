"""The CPUs that this process may use: their ids, cores and NUMA nodes, and how runs divide them."""

from __future__ import annotations

import dataclasses
import functools
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from tfagents_system.errors import UserError
from tfagents_system.machine import cgroups


@dataclasses.dataclass(frozen=True)
class Core:
    """A core, and what of it may be used.

    Attributes:
      node: Its NUMA node.
      threads: CPU ids of its threads that may be used.
      others: How many other threads it has; somebody else may be using those.
    """

    node: int
    threads: tuple[int, ...]
    others: int = 0


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


def allowed_cpus() -> list[int]:
    """The CPU ids that this process may use; unlike the host's count, this knows cpusets and affinity."""
    return sorted(os.sched_getaffinity(0))


def cores_of(ids: Collection[int], sysfs: Path = Path("/sys/devices/system")) -> list[Core]:
    """The cores of `ids`, by their lowest one. A CPU that the kernel does not describe is a core of node 0."""
    nodes: dict[int, int] = {}
    for cpulist in sysfs.glob("node/node[0-9]*/cpulist"):
        nodes |= dict.fromkeys(_read_cpu_list(cpulist), int(cpulist.parent.name.removeprefix("node")))
    allowed = set(ids)
    cores: list[Core] = []
    seen: set[int] = set()
    for cpu in sorted(allowed):
        if cpu not in seen:
            siblings = {cpu, *_read_cpu_list(sysfs / f"cpu/cpu{cpu}/topology/thread_siblings_list")}
            threads = siblings & allowed
            seen |= threads
            cores.append(Core(nodes.get(cpu, 0), tuple(sorted(threads)), len(siblings - allowed)))
    return cores


@functools.cache  # A machine does not change, and planning may ask a hundred times in a row.
def _read_cpu_list(path: Path) -> Sequence[int]:
    try:
        return parse_cpu_list(path.read_text())
    except (OSError, ValueError):
        return ()


def cgroup_quota(membership: Path = Path("/proc/self/cgroup"), mounts: Path = Path("/sys/fs/cgroup")) -> float | None:
    """CPUs' worth of time that this process's cgroups may use: the tightest on the way up, None without a limit."""
    groups = cgroups.groups("cpu", membership, mounts)
    quotas = [_quota_v2(folder) if is_v2 else _quota_v1(folder) for is_v2, folders in groups for folder in folders]
    return min((quota for quota in quotas if quota is not None), default=None)


def usable_cpus(environ: Mapping[str, str]) -> int:
    """How many CPUs a run may keep busy here: those allowed to this process, its cgroup's quota, SLURM's allotment."""
    quota, allotment = cgroup_quota(), slurm_allotment(environ)
    limits = [len(allowed_cpus()), allotment, None if quota is None else max(1, int(quota))]
    return min(limit for limit in limits if limit is not None)


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


def is_confined(allotment: int | None, cores: Sequence[Core]) -> bool:
    """Whether the cluster keeps this job to CPUs of its own."""
    return allotment is None or allotment >= sum(len(core.threads) for core in cores)


def only(cores: Iterable[Core], ids: Collection[int]) -> list[Core]:
    """`cores` with those of their threads that are in `ids`; the rest is somebody else's."""
    kept = []
    for core in cores:
        if threads := tuple(cpu for cpu in core.threads if cpu in ids):
            kept.append(Core(core.node, threads, core.others + len(core.threads) - len(threads)))
    return kept


def in_order(cores: Sequence[Core], needed: int) -> list[int]:
    """All CPU ids, in the order in which a run that needs `needed` of them should take them.

    One thread of each core comes first; second threads follow, as does what shares a core with somebody else. Among
    equals, the NUMA node that has most of what is needed comes first.
    """
    ranked = [(core.others + k, core.node, cpu) for core in cores for k, cpu in enumerate(core.threads)]

    def rank(node: int) -> tuple[int, int, int]:
        loads = [load for load, where, _ in ranked if where == node]
        return -min(needed, loads.count(0)), -min(needed, len(loads)), node

    ranks = {node: rank(node) for node in {core.node for core in cores}}
    return [cpu for *_, cpu in sorted((load, ranks[node], cpu) for load, node, cpu in ranked)]


def split_cpus(
    cores: Sequence[Core],
    parallel: int,
    needed: int,
    *,
    held: Collection[int] = (),
    share: bool = False,
    limit: int | None = None,
) -> list[list[int]]:
    """CPU ids for each of `parallel` runs: disjoint, unless there are fewer CPUs than runs.

    They are stretches in the order of NUMA nodes, of whole cores where there are enough.

    Args:
      cores: What may be used.
      parallel: Runs at once.
      needed: CPUs of one run.
      held: CPU ids that other runs have; used only where `share` is true and nothing else is free.
      share: Whether the roles of a run may share CPUs.
      limit: CPUs that all runs together may keep busy; None without a limit.

    Raises:
      UserError: There are too few and `share` is False.
    """
    free = only(cores, {cpu for core in cores for cpu in core.threads} - set(held))
    usable = in_order(free, needed * parallel)[:limit]
    if not share and needed * parallel > len(usable):
        raise UserError(
            f"--parallel {parallel} runs of {needed} CPUs need {needed * parallel}, {len(usable)} are free: "
            "lower --parallel or SAC_NUM_COLLECT_WORKERS, or set SAC_SHARE_CPUS=1"
        )
    if len(usable) < parallel:
        usable = in_order(cores, needed * parallel)[:limit]
    return [sorted(part) for part in _split(sorted(only(cores, usable), key=lambda core: core.node), parallel, needed)]


def _split(cores: Sequence[Core], parallel: int, needed: int) -> list[list[int]]:
    by_core = [core.threads for core in cores]
    by_thread: list[tuple[int, ...]] = [(cpu,) for threads in by_core for cpu in threads]
    enough = [pieces for pieces in (by_core, by_thread) if len(pieces) >= parallel]
    for pieces in enough:
        if min(map(len, parts := _evenly(pieces, parallel))) >= needed:
            return parts
    # Roles share what their run has; where there are fewer CPUs than runs, runs do so, too.
    if enough:
        return _evenly(enough[0], parallel)
    return [list(by_thread[number % len(by_thread)]) for number in range(parallel)]


def _evenly(pieces: Sequence[tuple[int, ...]], count: int) -> list[list[int]]:
    """`count` stretches of the pieces, whose numbers of pieces differ by one at most."""
    size, rest = divmod(len(pieces), count)
    starts = [number * size + min(number, rest) for number in range(count + 1)]
    return [[cpu for piece in pieces[a:b] for cpu in piece] for a, b in zip(starts, starts[1:], strict=False)]
