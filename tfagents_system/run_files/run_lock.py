"""Locks a run directory: for one start of a run at a time, on any machine.

A start holds flock on a file in it, from before it writes its inputs until the run has ended; the kernel releases it
when its process dies, however it dies. The file says who it is (machine/claims.py), and its time of modification is a
heartbeat. Where machines do not see each other's flock, as after a node has died, the lock is taken over once the
heartbeat has stood still for STALE_SECS on the monotonic clock of whoever waits: no two clocks are compared.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import time
import uuid
from collections.abc import Mapping

import msgspec

from tfagents_system.errors import UserError
from tfagents_system.machine import claims
from tfagents_system.machine.claims import Holder
from tfagents_system.run_files.heartbeat import STALE_SECS, is_live, read_status
from tfagents_system.run_files.run_paths import RunPaths

TOKEN_VARIABLE = "TFAGENTS_RUN_TOKEN"  # Of the supervisor's RunLock, for its roles.
_LOCK_GRACE_SECS = 5.0


class RunLock:
    """Holds one run directory for this process, from `acquire` to `release` or the process's end.

    Args:
      paths: Of the run.
      environ: Names the SLURM job, and how often it was requeued.
      host: Name of this machine.

    Attributes:
      token: In the file while this process holds the lock.
    """

    def __init__(self, paths: RunPaths, environ: Mapping[str, str] = os.environ, host: str | None = None) -> None:
        self._paths = paths
        self._path = paths.lock
        self._host, self._environ = host or socket.gethostname(), environ
        self.token = uuid.uuid4().hex
        self._fd: int | None = None
        self._made_directory = False
        # Of a holder on another machine: its heartbeats so far, and when the last one was first seen.
        self._beats, self._beat_seen_at = list[tuple[str, int]](), 0.0

    def acquire(self) -> None:
        """Takes the lock; again after the directory was moved: that of the one that is new in its place.

        Raises:
          UserError: Another run works in this directory; names it.
        """
        self._give_up()
        began, is_told = time.monotonic(), False
        while (is_locked := self._try()) is not None:
            owner = Holder.read(self._path)
            if self._is_earlier_start_of_this_job(owner):
                # Its node died without telling the file server, or is about to: a new file has no lock on it.
                self._path.unlink(missing_ok=True)
                continue
            # Whoever prepares or ends a run has the lock for a moment only.
            is_over = self._is_at_work(owner) or time.monotonic() - began >= _LOCK_GRACE_SECS
            if is_over if is_locked else len(self._beats) > 1:
                raise self._in_use(owner)
            if not (is_locked or is_told):
                is_told = True
                print(f"waiting up to {STALE_SECS:g} s for a heartbeat of {_in_words(owner)}", flush=True)
            time.sleep(0.1)

    def _in_use(self, owner: Holder) -> UserError:
        is_srun = owner.host != self._host and self._is_of_this_job(owner)
        return UserError(
            f"the run directory {self._paths.exp_dir} is in use by {_in_words(owner)}: "
            f"{'one job runs it on one node (no srun over several), ' * is_srun}stop that run first, or choose another "
            "SAC_EXP_NAME"
        )

    def release(self) -> None:
        if self.is_own():
            self._give_up()
        self._close()

    def abandon(self) -> None:
        """Releases it, and removes a directory that it has made if that has nothing but the lock."""
        with contextlib.suppress(OSError):
            if self._made_directory and self.is_own() and os.listdir(self._paths.exp_dir) == [self._path.name]:
                self._path.unlink()
                self._paths.exp_dir.rmdir()
        self.release()

    def is_own(self) -> bool:
        """Whether no other start of this run has taken the lock since: its files must not be overwritten.

        A file that somebody has removed is put back. An error of the file system proves nothing.
        """
        if self._fd is None:
            return False
        try:
            return self.token.encode() in self._path.read_bytes()
        except FileNotFoundError:
            self._close()
            return self._paths.exp_dir.is_dir() and self._try() is None  # Else the whole directory is gone.
        except OSError:
            return True

    def touch(self) -> None:
        """The heartbeat."""
        if self._fd is not None:
            with contextlib.suppress(OSError):
                os.utime(self._fd)

    def _give_up(self) -> None:
        if self._fd is not None:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, 0)  # Nobody has it, even where flock can't be seen.
        self._close()

    def _close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def describe_owner(self) -> str:
        """Who has the lock, as the file says."""
        return _in_words(Holder.read(self._path))

    def __enter__(self) -> RunLock:
        if self._fd is None:
            self.acquire()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.release()

    def _try(self) -> bool | None:
        """Tries to take the lock: returns None, or whether another process has it by what this machine sees."""
        with contextlib.suppress(FileNotFoundError), contextlib.ExitStack() as unless_taken:
            self._made_directory |= not self._paths.exp_dir.exists()
            self._paths.exp_dir.mkdir(parents=True, exist_ok=True)
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            unless_taken.callback(os.close, fd)
            # Somebody may have put a new file in its place between open and flock.
            if not claims.lock(fd, self._path, waits=False) or os.fstat(fd).st_ino != os.stat(self._path).st_ino:
                return True
            if self._may_live_elsewhere(Holder.read(self._path), os.fstat(fd).st_mtime_ns):
                return False
            os.ftruncate(fd, 0)
            os.pwrite(fd, msgspec.json.encode(self._own()) + b"\n", 0)
            self._fd = fd
            unless_taken.pop_all()
            return None
        return True  # Another start has moved the directory aside.

    def _may_live_elsewhere(self, owner: Holder, modified_ns: int) -> bool:
        """Whether the file's owner is on another host, and its heartbeat has not stood still for long enough."""
        if owner.host in (None, self._host) or self._is_earlier_start_of_this_job(owner):
            return False
        if (owner.token, modified_ns) not in self._beats[-1:]:
            self._beats.append((owner.token, modified_ns))
            self._beat_seen_at = time.monotonic()
        return time.monotonic() - self._beat_seen_at < STALE_SECS

    def _is_at_work(self, owner: Holder) -> bool:
        """Whether it supervises a run that is not about to end, as the run's status says."""
        status = read_status(self._paths.status_json)
        run = status["run"] if status is not None else {}
        is_its = owner.pid != 0 and (run.get("pid"), run.get("host")) == (owner.pid, owner.host)
        return is_its and is_live(run) and not run.get("message")

    def _own(self) -> Holder:
        return Holder.this_process(self._host, self._environ, self.token)

    def _is_of_this_job(self, owner: Holder) -> bool:
        return owner.slurm_job_id is not None and owner.slurm_job_id == self._own().slurm_job_id

    def _is_earlier_start_of_this_job(self, owner: Holder) -> bool:
        """Whether SLURM has requeued the job since; with the same count it is `srun` on two nodes."""
        is_earlier = owner.slurm_restart_count < self._own().slurm_restart_count
        return self._is_of_this_job(owner) and is_earlier and not owner.is_another_here(self._host)


def may_write(paths: RunPaths, environ: Mapping[str, str] = os.environ) -> bool:
    """For a role: whether the start that it belongs to still has the run directory, as far as can be seen."""
    token = environ.get(TOKEN_VARIABLE, "").encode()
    try:
        return token in paths.lock.read_bytes()
    except OSError:
        return True


def _in_words(owner: Holder) -> str:
    return f"the run with {owner}" if owner.pid else "another run"


def owner_of_run(paths: RunPaths) -> str | None:
    """Who holds a run directory, in words; None if nobody does, or an earlier start of this job. Nothing is written.

    A holder whose flock this machine does not see is none: `RunLock.acquire` waits for its heartbeat.
    """
    owner = Holder.read(paths.lock)
    with contextlib.suppress(OSError), open(paths.lock, "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return None if RunLock(paths)._is_earlier_start_of_this_job(owner) else _in_words(owner)
    return None


def start_of_run(paths: RunPaths, run: Mapping[str, object]) -> float | None:
    """Since when a start of a run is under way that has not written its status yet; None if none is.

    Args:
      run: `run` of status.json, which an earlier start has written.
    """
    owner = Holder.read(paths.lock)
    is_its = (owner.pid, owner.host) == (run.get("pid"), run.get("host"))
    return owner.started_at if owner.pid and not is_its and owner_of_run(paths) is not None else None
