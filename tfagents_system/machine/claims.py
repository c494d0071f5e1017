"""What a run claims on its machine while it runs: CPU ids and a port; who holds a claim or a lock; slots of workers.

A claim is an abstract unix socket that listens: the kernel releases it when its process dies, however it dies. Every
process in the same network namespace sees it, other users' too, as they see each other's ports. Containers that have
networks of their own do not: where their CPUs are limited by time alone, no run pins itself (cpus.why_unpinned), and
`--cpuset-cpus` gives each of them CPUs of its own. The port itself is held as well (peers.py), so that nobody else
listens there while the replay server is down.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import errno
import fcntl
import json
import os
import re
import socket
import struct
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from tfagents_system.errors import UserError
from tfagents_system.machine import peers, processes

FIRST_PORT = 8008
_LAST_PORT = 8999
_PREFIX = "tfagents_system"
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


class Claims:
    """Claims of this process on its machine, each under a name such as `cpu/3`; all are released at its end."""

    def __init__(self) -> None:
        self._sockets: dict[str, socket.socket] = {}

    def take(self, name: str) -> bool:
        """Claims `name` unless another process holds it."""
        if name in self._sockets:
            return True
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            claim.bind(_address(name))
            claim.listen(4096)  # Who asks who it is stays in the queue; once it is full, the holder is not named.
        except OSError:
            claim.close()
            return False
        self._sockets[name] = claim
        return True

    def release(self, name: str) -> None:
        if name in self._sockets:
            self._sockets.pop(name).close()

    def release_all(self) -> None:
        for name in list(self._sockets):
            self.release(name)

    def take_cpus(self, ids: Iterable[int], *, exclusive: bool) -> list[int]:
        """Claims CPU ids: all or none if `exclusive`, else those that are free.

        Returns:
          If `exclusive`, the ids that another run holds: empty when all were claimed.
        """
        wanted = list(ids)
        missing = [cpu for cpu in wanted if not self.take(f"cpu/{cpu}")]
        if not exclusive:
            return []
        for cpu in wanted if missing else ():
            self.release(f"cpu/{cpu}")
        return missing

    def take_port(self, wanted: int | None) -> int:
        """Claims a TCP port for the replay server: `wanted`, or the first free one from FIRST_PORT upwards.

        No other user can listen on it until it is released, or this process's end.

        Raises:
          UserError: `wanted` is in use, or no port is free.
        """
        for port in [wanted] if wanted else range(FIRST_PORT, _LAST_PORT + 1):
            if self.take(f"port/{port}"):
                with contextlib.suppress(OSError):
                    held = peers.hold_port(port)
                    # Those of our own who wait for a server there hold it as well.
                    if not peers.users_listening(port):
                        self._sockets[f"tcp/{port}"] = held
                        return port
                    held.close()
                self.release(f"port/{port}")
        if wanted:
            pid = holder(f"port/{wanted}")
            raise UserError(
                f"SAC_REVERB_PORT={wanted} is in use by {'another program' if pid is None else process_in_words(pid)}: "
                "choose another port, or unset SAC_REVERB_PORT to have a free one chosen"
            )
        raise UserError(f"no TCP port from {FIRST_PORT} to {_LAST_PORT} is free: set SAC_REVERB_PORT to one that is")


def _address(name: str) -> str:
    return f"\0{_PREFIX}/{name}"


def holder(name: str) -> int | None:
    """The pid of the process that holds a claim, 0 for one of another container or user; None if nobody does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as question:
        question.setblocking(False)
        try:
            question.connect(_address(name))
        except ConnectionRefusedError:
            return None
        except OSError:
            return 0
        pid, _, _ = struct.unpack("3i", question.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(pid)


def process_in_words(pid: int) -> str:
    """A process of this machine: the run that it belongs to, else its command; 0: its number is unknown."""
    for entry in processes.environment_of(pid):
        if entry.startswith(b"SAC_EXP_DIR="):
            return f"pid {pid} (run {entry.partition(b'=')[2].decode(errors='replace')})"
    with contextlib.suppress(OSError):
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        return f"pid {pid} ({command})"
    return f"pid {pid}" if pid else "a process of another container or user"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Holder:
    """The record of a process that holds a lock. Unknown fields are None or 0.

    Attributes:
      pid, host: The process's id, and its machine's name.
      begun: When the process began, see `processes.begun`.
      started_at: When it took hold, in Unix seconds.
      slurm_job_id, slurm_restart_count: Its job, and how often that had been requeued.
      token: Unique to this process's record.
    """

    pid: int = 0
    host: str | None = None
    begun: str | None = None
    started_at: float = 0.0
    slurm_job_id: str | None = None
    slurm_restart_count: int = 0
    token: str = ""

    @classmethod
    def this_process(cls, host: str, environ: Mapping[str, str], token: str) -> Holder:
        """This process, as holder from now on."""
        restarts = environ.get("SLURM_RESTART_COUNT", "")
        return cls(
            pid=os.getpid(),
            host=host,
            begun=processes.begun(os.getpid()),
            started_at=time.time(),
            slurm_job_id=environ.get("SLURM_JOB_ID"),
            slurm_restart_count=int(restarts) if restarts.isdecimal() else 0,
            token=token,
        )

    @classmethod
    def read(cls, path: Path) -> Holder:
        """Reads its record; without a readable one, all fields are unknown."""
        with contextlib.suppress(OSError, ValueError, TypeError):
            holder = cls(**json.loads(path.read_bytes()))
            if isinstance(holder.pid, int) and isinstance(holder.slurm_restart_count, int):
                return holder
        return cls()

    def is_another_here(self, host: str) -> bool:
        """Whether it is a different process on this machine, whose name is `host`."""
        is_another = self.host == host and self.pid not in (0, os.getpid())
        return is_another and processes.is_alive(self.pid, self.begun)

    def __str__(self) -> str:
        job = f", SLURM job {self.slurm_job_id}" if self.slurm_job_id else ""
        started = datetime.datetime.fromtimestamp(self.started_at).astimezone().isoformat(timespec="seconds")
        return f"pid {self.pid} on {self.host}{job}, started {started if self.started_at else 'at an unknown time'}"


def held_cpus() -> dict[int, str]:
    """Who holds each CPU id on this machine, in words, by id; without this process's own claims."""
    try:
        names = Path("/proc/net/unix").read_text()
    except OSError:
        return {}
    held = {}
    for cpu in sorted({int(text) for text in re.findall(rf"@{_PREFIX}/cpu/(\d+)$", names, re.MULTILINE)}):
        if (pid := holder(f"cpu/{cpu}")) not in (None, os.getpid()):
            held[cpu] = process_in_words(pid or 0)
    return held


def lock(descriptor: int, path: Path, *, waits: bool = True) -> bool:
    """Locks an open file by flock until it is closed; the kernel does that when its process dies.

    Args:
      descriptor, path: Of the file.
      waits: For a process that has it. Without, False is returned then.

    Raises:
      UserError: Its file system has no locks.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        raise UserError(
            f"{path} can't be locked, its file system has no locks ({error.strerror}): put it on one that has "
            "(SAC_LOGS_DIR; NFS needs version 4, or the lock service and no `nolock`)"
        ) from None
    return True


# Slots of workers.

# Kinds of workers (see worker/worker.py). Only the first may have a planned slot: the run waits for its experience.
COLLECT, EVAL, EXPERT, TEST = "collect", "eval", "expert", "test"
KINDS = (COLLECT, EVAL, EXPERT, TEST)


@dataclasses.dataclass(frozen=True)
class SlotCounts:
    """How many slots a run has: first those of planned workers, then of its experts, its evaluators, and of those who
    join, to whom the gateway gives them (cluster/gateway.py).

    Attributes:
      local: Workers that the run itself starts (SAC_LOCAL_WORKERS); their slots come first.
      planned: Planned workers (SAC_NUM_COLLECT_WORKERS), including the local ones.
      most: All slots (SAC_MAX_WORKERS).
      experts, evaluators: SAC_EXPERT_WORKERS and SAC_EVAL_WORKERS, which the run itself starts. With any of these all
        planned workers are local.
    """

    local: int
    planned: int
    most: int
    experts: int = 0
    evaluators: int = 0

    @property
    def beside(self) -> range:
        """Slots of the workers that the run starts beside the planned ones."""
        return range(self.planned, self.planned + self.experts + self.evaluators)

    @property
    def sharing_evaluations(self) -> range:
        """Workers among whom each evaluation is divided: the run's evaluators, without any the planned workers."""
        return self.beside[self.experts :] if self.evaluators else range(self.planned)

    def for_kind(self, kind: str) -> range:
        """The slots that a worker of this kind may have when it joins."""
        if kind == COLLECT and self.local < self.planned:
            return range(self.local, self.most)
        return range(self.beside.stop, self.most)

    def refusal(self, kind: str) -> str:
        """The message for a worker of this kind that gets no slot."""
        remedy = "start the run with a larger SAC_MAX_WORKERS"
        if not (fitting := self.for_kind(kind)):
            return f"this run has no slot for a worker of kind {kind} that joins ({self}): {remedy}"
        what = f"all {len(fitting)} slots for workers of kind {kind} that join are taken"
        return f"{what} ({self}): {remedy}, or end some workers"

    def __str__(self) -> str:
        experts = f", SAC_EXPERT_WORKERS={self.experts}" if self.experts else ""
        evaluators = f", SAC_EVAL_WORKERS={self.evaluators}" if self.evaluators else ""
        return f"SAC_MAX_WORKERS={self.most}, SAC_NUM_COLLECT_WORKERS={self.planned}{experts}{evaluators}"
