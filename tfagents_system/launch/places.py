"""Divides this machine among several runs at once: CPUs and GPUs for each of them."""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from tfagents_system.errors import UserError
from tfagents_system.machine import gpus, topology
from tfagents_system.machine.claims import held_cpus
from tfagents_system.settings.variables import COUNTS, has_automatic_workers

Run = tuple[
    Mapping[str, Any], Mapping[str, str]
]  # Its variables by field, as far as they could be read; its environment.


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
        devices = gpus.usable_gpus(trained[0])[:parallel]
        if len(devices) < parallel:
            raise UserError(
                f"SAC_TRAIN_GPUS=1: {parallel} runs at once need a GPU each, {len(devices)} may be used here "
                f"(CUDA_VISIBLE_DEVICES: {gpus.found(trained[0])}): lower --parallel, ask the cluster for more "
                f"(--gpus-per-node={parallel}), or unset SAC_TRAIN_GPUS"
            )
    return [Place(*place) for place in itertools.zip_longest(_cpus(runs, parallel), devices)]


def _cpus(runs: Sequence[Run], parallel: int) -> list[list[int]]:
    """CPU ids for each of the simultaneous runs; none where they are not ours to give."""
    complete = [(values, environ) for values, environ in runs if values.keys() >= COUNTS.keys()]
    cores, quota = topology.cores_of(topology.allowed_cpus()), topology.cgroup_quota()
    if not complete or not topology.is_confined(topology.slurm_allotment(os.environ), cores):
        return [[] for _ in range(parallel)]
    needed = max(_needed_cpus(values, environ, parallel) for values, environ in complete)
    share = all(values.get("share_cpus", False) for values, _ in complete)
    limit = None if quota is None else max(1, math.floor(quota))
    return topology.split_cpus(cores, parallel, needed, held=held_cpus(), share=share, limit=limit)


def _needed_cpus(values: Mapping[str, Any], environ: Mapping[str, str], parallel: int) -> int:
    if has_automatic_workers(environ):
        return max(1, topology.usable_cpus(os.environ) // parallel)
    workers = sum(values.get(f"{kind}_workers", 0) for kind in ("num_collect", "expert", "eval"))
    return int(values["reverb_cpus"] + values["train_cpus"] + workers * values["collect_worker_cpus"])
