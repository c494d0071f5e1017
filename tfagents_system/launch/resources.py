"""Memory, disk and open files: compares what a run needs with what is available.

Pure functions judge; the others only look. None of them writes anything.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from tfagents_system.checks.checklist import Check
from tfagents_system.machine.files import existing_ancestor
from tfagents_system.machine.processes import cgroups

# Memory, measured with Pendulum: a worker has 63 MiB of its own, of which the check sees all but this.
_WORKER_BYTES = 10 * 2**20
_OTHERS_BYTES = 600 * 2**20  # Fork server, replay server, trainer and supervisor.
_TIGHT = 0.8
JOB_MB = "TFAGENTS_JOB_MB"  # MiB of the job that is being submitted; empty: unknown.

# Open files: the replay server has 28 with 2 workers and 32 with 8, all others fewer.
_FILES = 64
_FILES_A_WORKER = 4

# Of a cgroup: its limit, its usage, and how the parts of that which can be reclaimed begin (in memory.stat).
_FILES_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
_FILES_V2 = ("memory.max", "memory.current", "")

_CHECKPOINTS = 3  # The last two, and one being written.
_BEST_AGENTS = 2  # Of the best policy, and of one that is being evaluated.
_MODEL_BYTES = 2 * 2**20  # Of a SavedModel, beside the weights.
_MODELS = 3
_POLICY_CHECKPOINT_BYTES = 50 * 2**10  # Beside the weights.
_LOGS_BYTES = 200 * 2**20
_BEYOND = 10**6 * 2**30


def in_words(num_bytes: int) -> str:
    """`1.5 GiB`, of integers of any size: a user's may have hundreds of digits."""
    if num_bytes >= _BEYOND:
        return "more than 1,000,000 GiB"
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if num_bytes >= size:
            tenths = num_bytes * 10 // size
            return f"{tenths // 10:,}.{tenths % 10} {unit}" if tenths < 1000 else f"{tenths // 10:,} {unit}"
    return f"{num_bytes} bytes"


# The run directory.


def folder_fault(path: Path, variable: str) -> str | None:
    """Why a folder can't be made or written; None if it can. Writes nothing."""
    there = existing_ancestor(path)
    remedy = f"set {variable} to a folder that is yours"
    if max(map(len, map(os.fsencode, path.parts))) > 255:
        return f"{path} has a name of more than 255 bytes: shorten SAC_EXP_NAME or {variable}"
    if not there.is_dir():
        return f"{path} can't be a folder, {there} is none: {remedy}"
    try:
        flags = os.statvfs(there).f_flag
    except OSError as error:
        return f"{there} can't be looked at ({error.strerror}): {remedy}"
    if flags & os.ST_RDONLY:
        return f"{there} is on a file system that is mounted read-only: mount it writable, or {remedy}"
    if not os.access(there, os.W_OK | os.X_OK):
        return f"{there} can't be written by this user: change its permissions, or {remedy}"
    return None


# Disk.


def disk_of_run(agent_bytes: int, policy_bytes: int, checkpoints: int) -> int:
    """Bytes of checkpoints, policies, metrics and logs at the end of a run."""
    policies = checkpoints + 2
    return (
        (_CHECKPOINTS + _BEST_AGENTS) * agent_bytes
        + _MODELS * (policy_bytes + _MODEL_BYTES)
        + policies * (policy_bytes + _POLICY_CHECKPOINT_BYTES)
        + _LOGS_BYTES
    )


def reserved_bytes(folder: Path) -> int:
    """Disk space that a folder's own files take already; 0 without a folder."""
    try:
        return sum(entry.stat().st_blocks * 512 for entry in os.scandir(folder) if entry.is_file())
    except OSError:
        return 0


def bytes_to_reserve(num_bytes: int, folder: Path, aside: Path | None) -> int:
    """Of the bytes that files in a folder will take those that they do not take yet.

    Args:
      aside: A folder that is moved aside before: what is in it stays, and takes its space.
    """
    is_moved = aside is not None and folder.is_relative_to(aside)
    return num_bytes if is_moved else max(0, num_bytes - reserved_bytes(folder))


def size_bytes(folder: Path) -> int:
    """Disk space that a folder's own files may come to take, with what is reserved later; 0 without a folder."""
    try:
        return sum(entry.stat().st_size for entry in os.scandir(folder) if entry.is_file())
    except OSError:
        return 0


def check_disk(check: Check, needed: Mapping[Path, tuple[str, int]]) -> None:
    """Compares what is needed with what is free, once for each file system.

    Args:
      check: Gets facts, notes and errors.
      needed: What will be written, in words and bytes, by folder.
    """
    by_device: dict[int, list[Path]] = {}
    for folder in needed:
        by_device.setdefault(os.stat(existing_ancestor(folder)).st_dev, []).append(folder)
    for folders in by_device.values():
        free = shutil.disk_usage(existing_ancestor(folders[0])).free
        total = sum(needed[folder][1] for folder in folders)
        parts = " + ".join(f"{in_words(needed[folder][1])} {needed[folder][0]}" for folder in folders)
        where = f"in {', '.join(map(str, folders))}"
        judge_disk(check, total, free, f"{parts} {where}")


def judge_disk(check: Check, needed: int, free: int, what: str) -> None:
    """Adds an error if it does not fit, a note if it is tight."""
    if needed > free:
        check.errors.append(
            f"a run needs {in_words(needed)} of disk ({what}), {in_words(free)} are free: lower buffer_size, "
            "free space, or set SAC_LOGS_DIR or SAC_REPLAY_DIR to a larger disk"
        )
        return
    check.facts.append(f"{what}; {in_words(free)} free")
    if needed > _TIGHT * free:
        check.notes.append(f"disk is tight: {in_words(needed)} of {in_words(free)} will be used ({what})")


# Memory.


def memory_of_job(environ: Mapping[str, str]) -> tuple[int, str] | None:
    """As `available_memory`, for the job that is being submitted; None if there is none."""
    if JOB_MB not in environ:
        return None
    megabytes = environ[JOB_MB]
    return (
        (int(megabytes) * 2**20, "of the job's memory") if megabytes else (_BEYOND, "of memory, as the cluster has it,")
    )


def available_memory(
    membership: Path = Path("/proc/self/cgroup"), mounts: Path = Path("/sys/fs/cgroup")
) -> tuple[int, str]:
    """(bytes that this job's processes may still take, what limits them): the machine or the tightest cgroup."""
    limits = [(int(psutil.virtual_memory().available), "of this machine's memory")]
    for is_v2, folders in cgroups("memory", membership, mounts):
        left = [_left_in_cgroup(folder, *(_FILES_V2 if is_v2 else _FILES_V1)) for folder in folders]
        limits += [(num_bytes, "under the cgroup's limit") for num_bytes in left if num_bytes is not None]
    return min(limits)


def _left_in_cgroup(folder: Path, limit: str, usage: str, prefix: str) -> int | None:
    try:
        most, used = int((folder / limit).read_text()), int((folder / usage).read_text())
        stat = (folder / "memory.stat").read_text()
    except (OSError, ValueError):  # No such group, or `max`.
        return None
    # Cached files count as used, but can be reclaimed: those that were read again, too.
    cached = re.findall(rf"^{prefix}(?:in)?active_file (\d+)$", stat, re.MULTILINE)
    return max(0, most - used + sum(map(int, cached)))


def workers_here(values: Mapping[str, Any]) -> int:
    """How many workers a start has on this machine, of all kinds.

    Args:
      values: Its SAC_ variables, by field.
    """
    collectors = values.get("local_workers", values.get("num_collect_workers", 1))
    return int(collectors + values.get("expert_workers", 0) + values.get("eval_workers", 0))


def check_memory(
    check: Check,
    num_workers: int,
    own_bytes: int,
    ring_bytes: int,
    prior_bytes: int = 0,
    *,
    available: tuple[int, str] | None = None,
) -> None:
    """Compares the memory that the run's processes will take with what is available.

    Args:
      check: Gets facts, notes and errors.
      num_workers: Workers of the run.
      own_bytes: Memory of the user's own code in each of them, with one environment of a kind.
      ring_bytes: Size of the replay ring, which is in files: it should fit, but need not.
      prior_bytes: Size of the ring of prior data, likewise.
      available: As `available_memory` returns it, which is called if None.
    """
    free, limit = available or available_memory()
    worker_bytes = _WORKER_BYTES + own_bytes
    others_bytes = _OTHERS_BYTES + own_bytes  # The trainer builds the user's networks, too.
    needed = num_workers * worker_bytes + others_bytes
    what = (
        f"about {in_words(needed)} for {num_workers} worker{'' if num_workers == 1 else 's'} of "
        f"{in_words(worker_bytes)} and the other programs"
    )
    if needed > free:
        check.errors.append(
            f"a run needs {what}, {in_words(free)} {limit} are available: "
            "lower SAC_NUM_COLLECT_WORKERS or SAC_ENVS_PER_WORKER, or give it more memory (a job: --mem)"
        )
        return
    check.facts.append(f"{what}; {in_words(free)} {limit} available")
    if needed > _TIGHT * free:
        check.notes.append(f"memory is tight: {what}, {in_words(free)} {limit} are available")
    elif needed + ring_bytes + prior_bytes > free:
        prior = f" and the prior data of {in_words(prior_bytes)} do" if prior_bytes else " does"
        check.notes.append(
            f"the replay buffer of {in_words(ring_bytes)}{prior} not fit into the {in_words(free - needed)} of memory "
            "that are left: minibatches will be read from the disk, which is slower. A lower buffer_size helps"
        )


# Open files.


def check_open_files(check: Check, num_workers: int, limit: int | None = None) -> None:
    """Whether every process may open as many files as it needs: the replay server has connections of every worker.

    Args:
      check: Gets facts and errors.
      num_workers: Workers of the run, including those that may join.
      limit: The soft limit; None: looked up.
    """
    if limit is None:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    needed = _FILES + _FILES_A_WORKER * num_workers
    if limit == resource.RLIM_INFINITY or limit >= needed:
        check.facts.append(f"{'any number' if limit == resource.RLIM_INFINITY else limit} allowed, {needed} needed")
        return
    check.errors.append(
        f"a process may open {limit} files (ulimit -n), with {num_workers} workers the replay server needs "
        f"{needed}: run `ulimit -n {needed}` first, or lower SAC_NUM_COLLECT_WORKERS or SAC_MAX_WORKERS"
    )
