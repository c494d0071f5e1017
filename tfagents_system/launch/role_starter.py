"""Starts the roles' processes on their CPUs: forked if there is a fork server, else as programs of their own."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from tfagents_system.launch.fork_client import ForkServer
from tfagents_system.launch.fork_messages import ForkServerError
from tfagents_system.launch.forked_process import become_subreaper, has_ended, reap_orphans
from tfagents_system.launch.role_process import Process, RoleProcess, start_program
from tfagents_system.machine import memory, processes
from tfagents_system.run_files.run_paths import GATEWAY, REPLAY, TRACKER, TRAINER

_MODULES = {REPLAY: "sac_replay_buffer", TRAINER: "sac_train", GATEWAY: "sac_gateway", TRACKER: "sac_tracker"}


def module_of_role(role: str) -> str:
    """The program of a role; a worker finds its number in SLURM_PROCID."""
    return "tfagents_system." + _MODULES.get(role, "sac_collect")


def command_for_role(role: str) -> list[str]:
    """The command for that program."""
    # -P: the current folder does not lead sys.path. PYTHONPATH says where modules come from.
    return [sys.executable, "-P", "-m", module_of_role(role)]


class RoleStarter:
    """Starts the roles' processes: forked if there is a fork server, else as programs of their own.

    Args:
      start_server: Starts another one after that has died.
    """

    def __init__(
        self,
        command: Callable[[str], Sequence[str]] = command_for_role,
        fork_server: ForkServer | None = None,
        start_server: Callable[[], ForkServer] | None = None,
    ) -> None:
        self._command = command
        self._fork_server = fork_server
        self._start_server = start_server
        self._adopts = False  # Whether this process may have become the parent of processes that it did not start.
        self._others: set[int] = set()  # Children that it has for another reason.

    def adopt(self) -> None:
        """From now on, this process adopts what a role has started when its own parent has ended."""
        with contextlib.suppress(ForkServerError):  # Then its mark must suffice, see role_process.py.
            become_subreaper()
            self._adopts = True
        self._others = set(memory.children(os.getpid())) - processes.started_apart()

    def wait_until_ready(self, stop: Callable[[], bool]) -> None:
        """Waits for the fork server's imports; returns early when the run is to stop."""
        if self._fork_server is not None:
            try:
                self._fork_server.wait_until_ready(stop)
            except ForkServerError as error:
                if not stop():
                    self._say(f"{error}: roles are started as programs of their own")
                    self.close()

    def start(self, role: str, cpus: Sequence[int], environ: Mapping[str, str], log: Path) -> Process:
        """Starts the process of a role on these CPUs, or on any if none are given."""
        if self._fork_server is not None:
            try:
                if self._fork_server.is_ready():
                    self._adopts = True
                    return self._fork_server.fork(module_of_role(role), f"sac_{role}", environ, log, cpus)
            except ForkServerError as error:
                self._say(f"{error}: {role} is started as a program of its own")
                self.close()
                self._fork_server = self._start_server() if self._start_server is not None else None
        return start_program(pinned(self._command(role), cpus), environ, log)

    def start_module(
        self, module: str, arguments: Sequence[str], cpus: Sequence[int], environ: Mapping[str, str], log: Path
    ) -> Process:
        """Starts a module's `main` with these arguments, as `start` does a role's."""
        if self._fork_server is not None:
            try:
                if self._fork_server.is_ready():
                    name = f"sac_{module.rpartition('.')[2]}"
                    return self._fork_server.fork(module, name, environ, log, cpus, arguments)
            except ForkServerError as error:
                self._say(f"{error}: {module} is started as a program of its own")
                self.close()
        return start_program(pinned([sys.executable, "-P", "-m", module, *arguments], cpus), environ, log)

    def reap_orphans(self, roles: Collection[int]) -> None:
        """Reaps ended children that are neither a role nor the fork server: orphans of roles.

        Args:
          roles: Pids of the roles' processes.
        """
        if self._fork_server is not None:
            self._fork_server.reap()
        if self._adopts:
            # By their pids: one that has ended would hide all orphans that end after it.
            self._others = {pid for pid in self._others if not has_ended(pid)}
            reap_orphans(self._own(roles))

    def orphans(self, roles: Collection[int]) -> set[int]:
        """Pids of the children that this process has adopted and that have not ended.

        Args:
          roles: Pids of the roles' processes.
        """
        if not self._adopts:
            return set()
        found = set(memory.children(os.getpid())) - self._own(roles)
        return {pid for pid in found if processes.is_alive(pid)}

    def end_orphans(self, roles: Sequence[RoleProcess], spared: set[int]) -> list[int]:
        """Ends what roles that are over have left to this process outside their sessions and without their marks:
        what it has adopted since a moment at which they were alive.

        Args:
          roles: All; what is in a living one's session or has its mark is spared.
          spared: What was adopted before. It may belong to a role that continues.

        Returns:
          Pids of those that can't be ended.
        """

        def find() -> list[int]:
            living = [role for role in roles if role.is_running()]
            marks, sessions = {role.mark.encode() for role in living}, {role.pid for role in living}
            return [
                pid
                for pid in self.orphans(pids) - spared
                if not marks & processes.environment_of(pid) and processes.session_of(pid) not in sessions
            ]

        pids = [role.pid for role in roles if role.pid is not None]
        stuck = processes.end_all(find)
        self.reap_orphans(pids)
        return stuck

    def _own(self, roles: Collection[int]) -> set[int]:
        server = [] if self._fork_server is None else [self._fork_server.pid]
        return {*roles, *self._others, *server, *processes.started_apart()}

    def close(self) -> None:
        """Ends the fork server."""
        if self._fork_server is not None:
            self._fork_server.close()
            self._fork_server = None

    def _say(self, text: str) -> None:
        # A closed terminal or a full disk behind the output is no reason to end a run.
        with contextlib.suppress(OSError):
            print(f"note: {text}", flush=True)


def pinned(command: Sequence[str], ids: Sequence[int]) -> list[str]:
    """The command pinned to these CPUs; unchanged without any."""
    if not ids:
        return list(command)
    return ["taskset", "-c", ",".join(map(str, ids)), *command]
