"""Describes the process that holds something of a run, from its own record or from the kernel."""

from __future__ import annotations

import contextlib
import datetime
import os
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from tfagents_system.machine import processes


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """A process that holds something. Unknown fields are None or 0.

    Attributes:
      pid, host: The process's id, and its machine's name.
      begun: When the process began, see `processes.begun`.
      command: The run whose process it is, else what runs there, and in which folder.
      started_at, started: When it took hold, in Unix seconds and for people.
      slurm_job_id, slurm_restart_count: Its job, and how often that had been requeued.
      token: Unique to this process's record.
    """

    pid: int = 0
    host: str | None = None
    begun: str | None = None
    command: str | None = None
    started_at: float = 0.0
    started: str | None = None
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
            started=datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
            slurm_job_id=environ.get("SLURM_JOB_ID"),
            slurm_restart_count=int(restarts) if restarts.isdecimal() else 0,
            token=token,
        )

    @classmethod
    def of_pid(cls, pid: int) -> Holder:
        """A process of this machine, as far as /proc shows it; pid 0 if its number is unknown."""
        command = None
        run = b"SAC_EXP_DIR="
        for entry in processes.environment_of(pid):
            if entry.startswith(run):
                return cls(pid=pid, command=f"run {entry.removeprefix(run).decode(errors='replace')}")
        with contextlib.suppress(OSError):
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            command += f" in {os.readlink(f'/proc/{pid}/cwd')}"  # Hidden for another user's process.
        return cls(pid=pid, command=command)

    @classmethod
    def read(cls, path: Path) -> Holder:
        """Reads its record; without a readable one, all fields are unknown."""
        try:
            return msgspec.json.decode(path.read_bytes(), type=cls)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            return cls()

    def is_another_here(self, host: str) -> bool:
        """Whether it is a different process on this machine, whose name is `host`."""
        is_another = self.host == host and self.pid not in (0, os.getpid())
        return is_another and processes.is_alive(self.pid, self.begun)

    def __str__(self) -> str:
        if not self.pid:
            return "a process of another container or user"
        command = f" ({self.command})" if self.command is not None else ""
        if self.host is None:
            return f"pid {self.pid}{command}"
        job = f", SLURM job {self.slurm_job_id}" if self.slurm_job_id else ""
        return f"pid {self.pid}{command} on {self.host}{job}, started {self.started}"
