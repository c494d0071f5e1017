"""Who has a run directory: one start of a run at a time, on whatever machine.

The supervisor holds flock on a file in it, which the kernel releases when its process dies, however it dies.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import fcntl
import itertools
import json
import os
import socket
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tfagents_system.errors import UserError
from tfagents_system.run_files.beats import is_live, read_status
from tfagents_system.run_files.heartbeat import read_heartbeat, stale_secs
from tfagents_system.run_files.run_paths import RunPaths

TOKEN_VARIABLE = "TFAGENTS_RUN_TOKEN"  # Of the supervisor's RunLock, for its roles.
_LOCK_GRACE_SECS = 5.0
_MARGIN_SECS = 5.0
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)


class RunLock:
    """Holds one run directory for this process, from `acquire` to `release` or the process's end.

    Where two hosts see each other's flock, that decides. Some file systems have none, or one for each host: there, what
    the file says decides, and whether its owner is heard of.

    Args:
      paths: Of the run.
      environ: Tells the SLURM job, and how often it was requeued.
      host: Name of this machine.

    Attributes:
      token: In the file while this process has it.
    """

    def __init__(self, paths: RunPaths, environ: Mapping[str, str] = os.environ, host: str | None = None) -> None:
        self._paths = paths
        self._path = paths.lock
        self._host = host or socket.gethostname()
        self.token = uuid.uuid4().hex
        self._stale_secs = stale_secs(paths.exp_dir)  # Of other hosts, whose heartbeats come over the network.
        self._job = environ.get("SLURM_JOB_ID")
        self._restarts = _number(environ.get("SLURM_RESTART_COUNT"))
        self._fd: int | None = None

    def acquire(self) -> None:
        """Takes the lock.

        Raises:
          UserError: Another run works in this directory; names it.
        """
        self._paths.exp_dir.mkdir(parents=True, exist_ok=True)
        began = time.monotonic()
        told = False
        while grace_secs := self._try():
            owner = self._owner()
            if self._is_earlier_start_of_this_job(owner):
                # Its node died without telling the file server, or is about to: a new file has no lock on it.
                self._path.unlink(missing_ok=True)
                continue
            if time.monotonic() - began > grace_secs:
                raise UserError(
                    f"SAC_EXP_DIR={self._paths.exp_dir} is in use by {_describe_owner(owner)}: "
                    f"{self._remedy(owner)}stop that run first, or choose another SAC_EXP_NAME"
                )
            if grace_secs > _LOCK_GRACE_SECS and not told:
                told = True
                print(f"waiting up to {grace_secs:g} s until nothing is heard of {_describe_owner(owner)}", flush=True)
            time.sleep(0.1)

    def release(self) -> None:
        if self.is_own() and self._fd is not None:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, 0)  # Nobody has it, whatever can be seen of flock.
        self._close()

    def is_own(self) -> bool:
        """Whether no other start of this run has taken it since: one that has must not be written over.

        A file that somebody has removed is put back. Trouble of the file system is no proof of anything.
        """
        if self._fd is None:
            return False
        try:
            return self.token.encode() in self._path.read_bytes()
        except FileNotFoundError:
            self._close()
            with contextlib.suppress(OSError):  # The whole directory is gone.
                return not self._try()
            return False
        except OSError:
            return True

    def touch(self) -> None:
        """A sign of life for hosts that see no flock."""
        if self._fd is not None:
            with contextlib.suppress(OSError):
                os.utime(self._fd)

    def _close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def describe_owner(self) -> str:
        """Who has the lock, as the file says."""
        return _describe_owner(self._owner())

    def __enter__(self) -> RunLock:
        self.acquire()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.release()

    def _try(self) -> float:
        """Takes the lock: 0.0, or how long to try again.

        Whoever prepares or ends a run holds it for a moment only; one that was killed on another host seems alive until
        its last sign of life is old.
        """
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Somebody may have put a new file in its place between open and flock.
            if os.fstat(fd).st_ino != os.stat(self._path).st_ino:
                raise FileNotFoundError
        except (BlockingIOError, FileNotFoundError):
            os.close(fd)
            return _LOCK_GRACE_SECS
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                os.close(fd)
                raise
            # A file system without locks: what can be seen of its owner is all there is.
            if self.is_alive_here():
                os.close(fd)
                return _LOCK_GRACE_SECS
        if self.is_alive_elsewhere() and not self._is_earlier_start_of_this_job(self._owner()):
            os.close(fd)
            return self._stale_secs + _MARGIN_SECS
        content = {
            "pid": os.getpid(),
            "host": self._host,
            "started_at": time.time(),
            "started": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
            "slurm_job_id": self._job,
            "slurm_restart_count": self._restarts,
            "token": self.token,
        }
        os.ftruncate(fd, 0)
        os.pwrite(fd, json.dumps(content).encode() + b"\n", 0)
        self._fd = fd
        return 0.0

    def _owner(self) -> dict[str, Any]:
        try:
            owner = json.loads(self._path.read_text())
        except (OSError, ValueError):
            return {}
        return owner if isinstance(owner, dict) else {}

    def is_alive_here(self) -> bool:
        """Whether the file's owner is another process of this machine, whatever flock says."""
        owner = self._owner()
        pid = owner.get("pid")
        return owner.get("host") == self._host and pid != os.getpid() and Path(f"/proc/{pid}").exists()

    def is_alive_elsewhere(self) -> bool:
        """Whether the file's owner is on another host and was heard of lately, whatever flock says."""
        owner = self._owner()
        if owner.get("host") in (None, self._host):
            return False
        status = read_status(self._paths.status_json)
        run = status["run"] if status is not None and status["run"].get("host") == owner["host"] else {}
        if run and not is_live(run) and run.get("updated_at", 0.0) >= owner.get("started_at", 0.0):
            return False
        now = time.time()
        signs = itertools.chain([run.get("updated_at")], self._changes(), self._beats_of(owner["host"]))
        return any(isinstance(sign, int | float) and now - sign < self._stale_secs for sign in signs)

    def _changes(self) -> Iterator[float]:
        """When the file was written."""
        with contextlib.suppress(OSError):
            yield self._path.stat().st_mtime

    def _beats_of(self, host: str) -> Iterator[Any]:
        """The times of the last heartbeats from a host."""
        for path in self._paths.heartbeats.glob("*.json"):
            beat = read_heartbeat(path) or {}
            if beat.get("host") == host:
                yield beat.get("time")

    def _is_earlier_start_of_this_job(self, owner: Mapping[str, Any]) -> bool:
        """Whether SLURM has requeued the job since; with the same count it is `srun` on two nodes."""
        is_same_job = self._job is not None and owner.get("slurm_job_id") == self._job
        is_earlier = _number(owner.get("slurm_restart_count")) < self._restarts
        return is_same_job and is_earlier and not self.is_alive_here()

    def _remedy(self, owner: Mapping[str, Any]) -> str:
        if self._job is None or owner.get("slurm_job_id") != self._job or owner.get("host") == self._host:
            return ""
        return "one job runs it on one node (no srun over several), "


def _number(text: Any) -> int:
    try:
        return int(text or 0)
    except (TypeError, ValueError):
        return 0


def may_write(paths: RunPaths, environ: Mapping[str, str] = os.environ) -> bool:
    """For a role: whether the start that it belongs to still has the run directory, as far as can be seen."""
    token = environ.get(TOKEN_VARIABLE, "").encode()
    try:
        return token in paths.lock.read_bytes()
    except OSError:
        return True


def _describe_owner(owner: Mapping[str, Any]) -> str:
    if not owner:
        return "another run"
    job = f", SLURM job {owner['slurm_job_id']}" if owner.get("slurm_job_id") else ""
    return f"the run with pid {owner.get('pid')} on {owner.get('host')}{job}, started {owner.get('started')}"


def owner_of_run(paths: RunPaths) -> str | None:
    """Who holds a run directory, in words; None if nobody does. Nothing is written."""
    lock = RunLock(paths)
    try:
        fd = os.open(paths.lock, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        is_held = False
    except BlockingIOError:
        is_held = True
    except OSError:  # A file system without locks.
        is_held = lock.is_alive_here()
    finally:
        os.close(fd)
    return lock.describe_owner() if is_held or lock.is_alive_elsewhere() else None
