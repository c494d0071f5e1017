"""The CPUs that this process may use: their ids, cores and NUMA nodes, and how runs divide them; and the GPUs."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import os
import platform
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tfagents_system.machine.processes import cgroups


class Cpu(NamedTuple):
    """A hardware thread.

    Attributes:
      node: Its NUMA node.
      core: The CPU ids of all threads of its core, whoever may use them.
    """

    node: int
    core: frozenset[int]


@dataclasses.dataclass(frozen=True)
class Usable:
    """What this process may use.

    Attributes:
      cpus: The CPUs, by their ids.
      quota: CPUs' worth of time that its cgroups allow; None without a limit.
      allotment: CPUs that SLURM allotted to its job on this node; None outside a job.
    """

    cpus: Mapping[int, Cpu]
    quota: float | None = None
    allotment: int | None = None

    @classmethod
    def here(cls, environ: Mapping[str, str]) -> Usable:
        return cls(described(allowed_cpus()), cgroup_quota(), slurm_allotment(environ))

    def available(self) -> tuple[int, str]:
        """How many CPUs a run may keep busy, and what limits them."""
        limits = [(len(self.cpus), f"CPU ids {format_cpu_list(self.cpus)}")]
        if self.allotment is not None:
            limits.append((self.allotment, "SLURM's allotment on this node"))
        if self.quota is not None:
            limits.append((max(1, math.floor(self.quota)), f"the cgroup's quota of {self.quota:g} CPUs"))
        return min(limits, key=lambda limit: limit[0])

    def why_unpinned(self) -> str | None:
        """Why CPU ids are not ours to choose; None where they are.

        Containers with a quota may all use the same ids: each of them would choose the first ones.
        """
        shown, count = format_cpu_list(self.cpus), len(self.cpus)
        if self.allotment is not None and self.allotment < count:
            words = "but does not confine the job to them"
            return f"SLURM allotted {self.allotment} CPUs {words} (ids {shown} are open to it)"
        if self.quota is not None and self.quota < count:
            return f"the cgroup's quota is the time of {self.quota:g} CPUs, on any of the ids {shown}"
        return None


def cpu_model() -> str:
    """`AMD EPYC 7B13`, or the kind of machine where the kernel names no model."""
    named = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return named[1] if named else platform.machine()


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


def described(ids: Collection[int], sysfs: Path = Path("/sys/devices/system")) -> dict[int, Cpu]:
    """CPUs by their ids. One that the kernel does not describe is a core of node 0."""
    nodes: dict[int, int] = {}
    for cpulist in sysfs.glob("node/node[0-9]*/cpulist"):
        nodes |= dict.fromkeys(_read_cpu_list(cpulist), int(cpulist.parent.name.removeprefix("node")))
    siblings = {cpu: _read_cpu_list(sysfs / f"cpu/cpu{cpu}/topology/thread_siblings_list") for cpu in sorted(ids)}
    return {cpu: Cpu(nodes.get(cpu, 0), frozenset([cpu, *threads])) for cpu, threads in siblings.items()}


@functools.cache  # A machine does not change, and planning may ask a hundred times in a row.
def _read_cpu_list(path: Path) -> Sequence[int]:
    try:
        return parse_cpu_list(path.read_text())
    except (OSError, ValueError):
        return ()


def cgroup_quota() -> float | None:
    """CPUs' worth of time that this process's cgroups may use: the tightest on the way up, None without a limit."""
    quotas = []
    for is_v2, folders in cgroups("cpu"):
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


def usable_cpus(environ: Mapping[str, str]) -> int:
    """How many CPUs a run may keep busy here."""
    return Usable.here(environ).available()[0]


def in_order(cpus: Mapping[int, Cpu], free: Collection[int], needed: int) -> list[int]:
    """The free CPU ids, in the order in which a run that needs `needed` of them should take them.

    One thread of each core comes first; second threads follow, as does what shares a core with somebody else. Among
    equals, the NUMA node that has most of what is needed comes first.
    """
    loads = {
        cpu: sum(other < cpu or other not in free for other in cpus[cpu].core if other != cpu) for cpu in sorted(free)
    }

    def rank(node: int) -> tuple[int, int, int]:
        there = [load for cpu, load in loads.items() if cpus[cpu].node == node]
        return -min(needed, there.count(0)), -min(needed, len(there)), node

    ranks = {node: rank(node) for node in {cpus[cpu].node for cpu in loads}}
    return sorted(loads, key=lambda cpu: (loads[cpu], ranks[cpus[cpu].node], cpu))


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
