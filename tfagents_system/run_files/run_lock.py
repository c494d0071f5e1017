"""Locks a run directory: for one start of a run at a time, on any machine.

A start holds flock on a file in it, from before it writes its inputs until the run has ended; the kernel releases it
when its process dies, however it dies. The file says who it is (machine/holders.py).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import time
import uuid
from collections.abc import Iterator, Mapping

import msgspec

from tfagents_system.errors import UserError
from tfagents_system.machine import processes
from tfagents_system.machine.holders import Holder
from tfagents_system.run_files.beats import is_live, read_status
from tfagents_system.run_files.heartbeat import read_heartbeat, stale_secs
from tfagents_system.run_files.run_paths import RunPaths

TOKEN_VARIABLE = "TFAGENTS_RUN_TOKEN"  # Of the supervisor's RunLock, for its roles.
HANDLE_VARIABLE = "TFAGENTS_RUN_LOCK"  # `<file descriptor>,<token>`, for the program that replaces prepare.
_LOCK_GRACE_SECS = 5.0
_MARGIN_SECS = 5.0
_TRIES, _TRY_AGAIN_SECS = 10, 0.01
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)


class _Signs:
    """Signs of life of another host, whose clock may be ahead.

    A sign from the future says nothing of how old it is; it is an old one if no newer one has come from the same source
    while this object has looked. Until then that is in doubt, unless it is so little ahead that clocks may just differ.
    """

    def __init__(self, stale_secs: float) -> None:
        self._stale_secs = stale_secs
        self._ahead: dict[str, tuple[float, float]] = {}  # By source: a sign from the future, since when it is that.

    def are_recent(self, source: str, newest: float, in_doubt: bool) -> bool:
        """Whether the newest one of a source, in Unix seconds, is recent; `in_doubt` where that is in doubt."""
        ahead_secs = newest - time.time()
        if ahead_secs <= 0.0:
            return -ahead_secs < self._stale_secs
        before, since = self._ahead.get(source, (newest, time.monotonic()))
        self._ahead[source] = (newest, since if before == newest else time.monotonic())
        if before == newest and time.monotonic() - since >= self._stale_secs:
            return False
        return in_doubt or before != newest or ahead_secs < self._stale_secs


class RunLock:
    """Holds one run directory for this process, from `acquire` to `release` or the process's end.

    Where two hosts see each other's flock, that decides. Some file systems have none, or one for each host: there, the
    file's content decides, and whether its owner shows signs of life.

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
        self._stale_secs = stale_secs(paths.exp_dir)  # Of other hosts, whose heartbeats come over the network.
        self._fd: int | None = None
        self._signs = _Signs(self._stale_secs)

    @classmethod
    def inherited(cls, paths: RunPaths) -> RunLock | None:
        """The lock that the program before this one, in the same process, has taken; None if there is none."""
        descriptor, _, token = os.environ.pop(HANDLE_VARIABLE, "").partition(",")
        if not descriptor:
            return None
        lock = cls(paths)
        lock.token = token
        try:
            os.set_inheritable(int(descriptor), False)
            lock._fd = int(descriptor)
            is_its = os.path.samestat(os.fstat(lock._fd), os.stat(paths.lock))
        except OSError:
            return None
        return lock if is_its and lock.is_own() else None

    def hand_over(self) -> tuple[int, str]:
        """For `inherited` in the program that replaces this one: an flock belongs to the open file.

        Returns:
          The file descriptor to leave open, and the value of HANDLE_VARIABLE.
        """
        assert self._fd is not None
        os.set_inheritable(self._fd, True)
        return self._fd, f"{self._fd},{self.token}"

    def acquire(self) -> None:
        """Takes the lock; again after the directory was moved: that of the one that is new in its place.

        Raises:
          UserError: Another run works in this directory; names it.
        """
        self._give_up()
        began = time.monotonic()
        told = False
        while (grace_secs := self._try_in_directory()) is not None:
            owner = Holder.read(self._path)
            if self._is_earlier_start_of_this_job(owner):
                # Its node died without telling the file server, or is about to: a new file has no lock on it.
                self._path.unlink(missing_ok=True)
                continue
            if time.monotonic() - began >= grace_secs:
                raise self._in_use(owner)
            if grace_secs > _LOCK_GRACE_SECS and not told:
                told = True
                print(f"waiting up to {grace_secs:g} s until nothing is heard of {_in_words(owner)}", flush=True)
            time.sleep(0.1)

    def refuse_at_work(self) -> None:
        """Says at once what `acquire` would, where a run is at work; nothing is taken or written.

        Raises:
          UserError: Another run works in this directory; names it.
        """
        owner = Holder.read(self._path)
        if self._is_earlier_start_of_this_job(owner) or not self._is_at_work(owner):
            return
        with contextlib.suppress(FileNotFoundError), open(self._path, "rb") as file:
            if self.is_held(file.fileno(), fcntl.LOCK_SH):
                raise self._in_use(owner)

    def _in_use(self, owner: Holder) -> UserError:
        return UserError(
            f"the run directory {self._paths.exp_dir} is in use by {_in_words(owner)}: "
            f"{self._remedy(owner)}stop that run first, or choose another SAC_EXP_NAME"
        )

    def release(self) -> None:
        if self.is_own():
            self._give_up()
        self._close()

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
            with contextlib.suppress(OSError):  # The whole directory is gone.
                return self._try() is None
            return False
        except OSError:
            return True

    def touch(self) -> None:
        """A sign of life for hosts that see no flock."""
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

    def _try_in_directory(self) -> float | None:
        with contextlib.suppress(FileNotFoundError):  # Another start has moved it aside.
            self._paths.exp_dir.mkdir(parents=True, exist_ok=True)
            return self._try()
        return _LOCK_GRACE_SECS

    def _try(self) -> float | None:
        """Tries to take the lock: returns None, or how long to keep trying."""
        with contextlib.ExitStack() as unless_taken:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            unless_taken.callback(os.close, fd)
            if (secs := self._secs_to_wait(fd)) is not None:
                return secs
            os.ftruncate(fd, 0)
            os.pwrite(fd, msgspec.json.encode(self._own()) + b"\n", 0)
            self._fd = fd
            unless_taken.pop_all()
        return None

    def _secs_to_wait(self, fd: int) -> float | None:
        """How long to keep trying: None if nobody else has the file, which is then locked if possible.

        A run at work keeps it; whoever prepares or ends one holds it for a moment only; one that was killed on another
        host seems alive until its last sign of life is old.
        """
        try:
            if self.is_held(fd, fcntl.LOCK_EX):
                return 0.0 if self._is_at_work(Holder.read(self._path)) else _LOCK_GRACE_SECS
            # Somebody may have put a new file in its place between open and flock.
            if os.fstat(fd).st_ino != os.stat(self._path).st_ino:
                return _LOCK_GRACE_SECS
        except FileNotFoundError:
            return _LOCK_GRACE_SECS
        if self.is_alive_elsewhere() and not self._is_earlier_start_of_this_job(Holder.read(self._path)):
            return self._stale_secs + _MARGIN_SECS
        return None

    def is_held(self, fd: int, operation: int) -> bool:
        """Whether a process that this machine knows of has the file: asked by `operation`, a flock that stays."""
        try:
            fcntl.flock(fd, operation | fcntl.LOCK_NB)
            return False
        except BlockingIOError:
            return True
        except OSError as error:
            if error.errno not in _NO_LOCKS and operation == fcntl.LOCK_EX:
                raise
            # A file system without locks: only the owner's signs of life are left, also for whoever only asks.
            return Holder.read(self._path).is_another_here(self._host)

    def _is_at_work(self, owner: Holder) -> bool:
        """Whether it supervises a run that is not about to end, as the run's status says."""
        status = read_status(self._paths.status_json)
        run = status["run"] if status is not None else {}
        is_its = owner.pid != 0 and (run.get("pid"), run.get("host")) == (owner.pid, owner.host)
        if not is_its or not is_live(run) or run.get("message"):
            return False
        return processes.is_alive(owner.pid, owner.begun) if owner.host == self._host else self.is_alive_elsewhere()

    def is_alive_elsewhere(self, in_doubt: bool = True) -> bool:
        """Whether the file's owner is on another host and was heard of lately, whatever flock says.

        Args:
          in_doubt: The answer where only more looks by this object would tell, see `_Signs`.
        """
        owner = Holder.read(self._path)
        if owner.host in (None, self._host):
            return False
        status = read_status(self._paths.status_json)
        run = status["run"] if status is not None and status["run"].get("host") == owner.host else {}
        if run and not is_live(run) and run.get("updated_at", 0.0) >= owner.started_at:
            return False
        beats = {path.name: read_heartbeat(path) or {} for path in self._paths.heartbeats.glob("*.json")}
        signs = {source: beat.get("time", 0.0) for source, beat in beats.items() if beat.get("host") == owner.host}
        signs["run"] = run.get("updated_at", 0.0)
        with contextlib.suppress(OSError):
            signs["lock"] = self._path.stat().st_mtime
        return any([self._signs.are_recent(source, sign, in_doubt) for source, sign in signs.items()])

    def _own(self) -> Holder:
        return Holder.this_process(self._host, self._environ, self.token)

    def _is_of_this_job(self, owner: Holder) -> bool:
        return owner.slurm_job_id is not None and owner.slurm_job_id == self._own().slurm_job_id

    def _is_earlier_start_of_this_job(self, owner: Holder) -> bool:
        """Whether SLURM has requeued the job since; with the same count it is `srun` on two nodes."""
        is_earlier = owner.slurm_restart_count < self._own().slurm_restart_count
        return self._is_of_this_job(owner) and is_earlier and not owner.is_another_here(self._host)

    def may_take_over(self) -> bool:
        """Whether `acquire` takes the lock of whoever has it: it was requeued, and may not know of it yet."""
        return self._is_earlier_start_of_this_job(Holder.read(self._path))

    def _remedy(self, owner: Holder) -> str:
        is_elsewhere = owner.host != self._host and self._is_of_this_job(owner)
        return "one job runs it on one node (no srun over several), " if is_elsewhere else ""


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

    Asked once, a clock that is far ahead leaves in doubt whether a host is alive: `RunLock.acquire` will tell.
    """
    lock = RunLock(paths)
    try:
        fd = os.open(paths.lock, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        is_held = lock.is_held(fd, fcntl.LOCK_SH) or lock.is_alive_elsewhere(in_doubt=False)
        return lock.describe_owner() if is_held and not lock.may_take_over() else None
    finally:
        os.close(fd)


@contextlib.contextmanager
def being_checked(paths: RunPaths | None) -> Iterator[None]:
    """Shows others, by `start_of_run`, that a start of a run is checked, which takes seconds.

    Nothing is written, since the start may be refused: the status of the start before is locked. Without one, or on a
    file system that can't, nobody sees it.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            if paths is not None:
                fd = os.open(paths.status_json, os.O_RDONLY | os.O_CLOEXEC)
                stack.callback(os.close, fd)
                _lock_soon(fd)
        yield


def _lock_soon(fd: int) -> None:
    """Raises:
    OSError: Others have had it all the time, or it can't be locked.
    """
    for _ in range(_TRIES):  # Who looks has it for a moment.
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(_TRY_AGAIN_SECS)
    raise BlockingIOError(errno.EWOULDBLOCK, "locked by others")


def start_of_run(paths: RunPaths, run: Mapping[str, object]) -> float | None:
    """Since when a start of a run is under way that has not written its status yet; None if none is.

    Args:
      run: `run` of status.json, which an earlier start has written.
    """
    owner = Holder.read(paths.lock)
    is_its = (owner.pid, owner.host) == (run.get("pid"), run.get("host"))
    if owner.pid and owner_of_run(paths) is not None:
        return None if is_its else owner.started_at
    with contextlib.suppress(OSError), open(paths.status_json, "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return time.time()  # It is checked.
    return None
