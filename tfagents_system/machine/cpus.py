"""The CPUs that this process may use: their ids, cores and NUMA nodes, and how runs divide them; and the GPUs."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from tfagents_system.machine.processes import cgroups


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
    allowed, seen = set(ids), set[int]()
    cores: list[Core] = []
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
    quotas = []
    for is_v2, folders in cgroups("cpu", membership, mounts):
        names = ("cpu.max",) if is_v2 else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        for folder in folders:
            try:
                quota, period = " ".join((folder / name).read_text() for name in names).split()
                if quota not in ("max", "-1"):
                    quotas.append(int(quota) / int(period))
            except (OSError, ValueError):
                continue  # The root of version 2 has none.
    return min(quotas, default=None)


def slurm_allotment(environ: Mapping[str, str]) -> int | None:
    """CPUs that SLURM allotted to this job on this node; None outside a job."""
    if "SLURM_JOB_ID" not in environ:
        return None
    counts = [environ.get("SLURM_CPUS_ON_NODE", "")]
    # `8(x2),4`: two nodes with 8 CPUs, then one with 4; this node is number SLURM_NODEID of them.
    per_node = re.findall(r"([0-9]{1,9})(?:\(x([0-9]{1,5})\))?(?:,|$)", environ.get("SLURM_JOB_CPUS_PER_NODE", ""))
    node = environ.get("SLURM_NODEID", "")
    left = int(node) if re.fullmatch(r"[0-9]{1,9}", node) else 0
    for count, nodes in per_node:
        if left < int(nodes or 1):
            counts.append(count)
            break
        left -= int(nodes or 1)
    return min((int(count) for count in counts if re.fullmatch(r"0*[1-9][0-9]{0,8}", count)), default=None)


def available(ids: Collection[int], quota: float | None, allotment: int | None) -> tuple[int, str]:
    """How many CPUs a run may keep busy, and what limits them."""
    limits = [(len(ids), f"CPU ids {format_cpu_list(ids)}")]
    if allotment is not None:
        limits.append((allotment, "SLURM's allotment on this node"))
    if quota is not None:
        limits.append((max(1, math.floor(quota)), f"the cgroup's quota of {quota:g} CPUs"))
    return min(limits, key=lambda limit: limit[0])


def usable_cpus(environ: Mapping[str, str]) -> int:
    """How many CPUs a run may keep busy here."""
    return available(allowed_cpus(), cgroup_quota(), slurm_allotment(environ))[0]


def why_unpinned(ids: Collection[int], quota: float | None, allotment: int | None) -> str | None:
    """Why CPU ids are not ours to choose among `ids`, which this process may use; None where they are.

    Containers with a quota may all use the same ids: each of them would choose the first ones.
    """
    shown = format_cpu_list(ids)
    if allotment is not None and allotment < len(ids):
        return f"SLURM allotted {allotment} CPUs but does not confine the job to them (ids {shown} are open to it)"
    if quota is not None and quota < len(ids):
        return f"the cgroup's quota is the time of {quota:g} CPUs, on any of the ids {shown}"
    return None


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


# The GPUs of trainers. All other programs of a run see none.

FOUND_GPUS = "TFAGENTS_CUDA_VISIBLE_DEVICES"  # CUDA_VISIBLE_DEVICES as the launcher found it.
_ALL_GPUS = "all"  # It was not set.
_NO_GPU = ("", "-1", "NoDevFiles")  # The last one is SLURM's word for a job without a GPU.


def found_gpus(environ: Mapping[str, str]) -> str:
    """CUDA_VISIBLE_DEVICES as it was when the launcher was started."""
    return environ.get(FOUND_GPUS, environ.get("CUDA_VISIBLE_DEVICES", _ALL_GPUS))


def usable_gpus(environ: Mapping[str, str], devices: Path = Path("/dev")) -> list[str]:
    """The GPUs that may be used, as CUDA_VISIBLE_DEVICES names them; a trainer takes the first.

    Args:
      environ: The launcher's.
      devices: Where NVIDIA's device files are.
    """
    if found_gpus(environ) == _ALL_GPUS:
        # WSL 2 has one device file, whatever GPUs there are: at least one.
        count = len(list(devices.glob("nvidia[0-9]*"))) or int((devices / "dxg").exists())
        return [str(number) for number in range(count)]
    names = [name.strip() for name in found_gpus(environ).split(",")]
    # CUDA itself stops at the first invalid one.
    return list(itertools.takewhile(lambda name: name not in _NO_GPU, names))
