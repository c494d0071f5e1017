"""What a run holds of its machine while it lives: CPU ids and a port. Its directory is run_lock.py's.

They are claimed machine-wide by listening on abstract unix sockets, which the kernel releases when their process dies,
however it dies. They are seen by every process in the same network namespace. The port itself is held as well, so that
nobody else listens there while the replay server is down (see `machine/peers.py`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import re
import socket
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

from tfagents_system.errors import UserError
from tfagents_system.machine import peers

FIRST_PORT = 8008
_LAST_PORT = 8999
_PREFIX = "tfagents_system"


@dataclasses.dataclass(frozen=True)
class Holder:
    """The process that holds something; `pid` is 0 where it cannot be known."""

    pid: int
    description: str

    def __str__(self) -> str:
        return self.description


def describe_process(pid: int) -> str:
    """`pid 12 (python -m ... in /home/me)`, as far as /proc tells."""
    if pid <= 0:
        return "a process of another container or user"
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return f"pid {pid}"
    try:
        command += f" in {os.readlink(f'/proc/{pid}/cwd')}"
    except OSError:
        pass  # Another user's process.
    return f"pid {pid} ({command})"


class Claims:
    """Machine-wide claims of this process, each under a name such as `cpu/3`; all are released at its end."""

    def __init__(self) -> None:
        self._sockets: dict[str, socket.socket] = {}
        self._ports: dict[int, socket.socket] = {}

    def take(self, name: str) -> bool:
        """Claims `name` unless another process holds it."""
        if name in self._sockets:
            return True
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            claim.bind(_address(name))
            claim.listen(64)
        except OSError:
            claim.close()
            return False
        claim.setblocking(False)
        self._sockets[name] = claim
        return True

    def release(self, name: str) -> None:
        if name in self._sockets:
            self._sockets.pop(name).close()

    def release_all(self) -> None:
        for name in list(self._sockets):
            self.release(name)
        while self._ports:
            self._ports.popitem()[1].close()

    def answer(self) -> None:
        """Lets go of those who asked who holds a claim (see `holder`); call it now and then, or their queue fills."""
        for claim in self._sockets.values():
            with contextlib.suppress(OSError):  # Nobody asks, or there is no file descriptor left for it.
                while True:
                    claim.accept()[0].close()

    def take_cpus(self, ids: Iterable[int], *, exclusive: bool) -> list[int]:
        """Claims CPU ids: all or none where `exclusive`, else those that are free.

        Returns:
          Where `exclusive`, the ids that another run holds: empty when all were claimed.
        """
        wanted = list(ids)
        taken = [cpu for cpu in wanted if self.take(f"cpu/{cpu}")]
        missing = [cpu for cpu in wanted if cpu not in taken]
        if not exclusive:
            return []
        if missing:
            for cpu in taken:
                self.release(f"cpu/{cpu}")
        return missing

    def take_port(self, wanted: int | None) -> int:
        """Claims a TCP port for the replay server: `wanted`, or the first free one from FIRST_PORT upwards.

        No other user can listen on it until `release_all`, or this process's end.

        Raises:
          UserError: `wanted` is in use, or no port is free.
        """
        for port in [wanted] if wanted else range(FIRST_PORT, _LAST_PORT + 1):
            if self.take(f"port/{port}"):
                if self._hold(port):
                    return port
                self.release(f"port/{port}")
        if wanted:
            who = holder(f"port/{wanted}") or _listener(wanted)
            raise UserError(
                f"SAC_REVERB_PORT={wanted} is in use by {who or 'another program'}: "
                "choose another port, or unset SAC_REVERB_PORT to have a free one chosen"
            )
        raise UserError(f"no TCP port from {FIRST_PORT} to {_LAST_PORT} is free: set SAC_REVERB_PORT to one that is")

    def _hold(self, port: int) -> bool:
        """Holds a TCP port on which nobody listens; those of our own who wait for a server there hold it as well."""
        try:
            held = peers.hold_port(port)
        except OSError:
            return False
        if peers.users_listening(port):
            held.close()
            return False
        self._ports[port] = held
        return True


def holder(name: str) -> Holder | None:
    """Who holds a claim, None if nobody does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as question:
        question.setblocking(False)
        try:
            question.connect(_address(name))
        except ConnectionRefusedError:
            return None
        except OSError:
            return Holder(0, describe_process(0))
        pid, _, _ = struct.unpack("3i", question.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return Holder(pid, describe_process(pid))


def held_cpus(kind: str = "cpu") -> dict[int, str]:
    """Who holds which CPU id on this machine, in words, by id; this process's own claims are not among them.

    Args:
      kind: `cpu`, or `trainer`: those on which a trainer runs.
    """
    try:
        names = Path("/proc/net/unix").read_text()
    except OSError:
        return {}
    held = {}
    for cpu in sorted({int(text) for text in re.findall(rf"@{_PREFIX}/{kind}/(\d+)$", names, re.MULTILINE)}):
        who = holder(f"{kind}/{cpu}")
        if who is not None and who.pid != os.getpid():
            held[cpu] = str(who)
    return held


def port_is_free(port: int) -> bool:
    """Whether nobody listens on `port` at any address of this machine.

    Asked without SO_REUSEPORT: gRPC sets it, so that two Reverb servers would share a port without any error.
    SO_REUSEADDR, so that connections of an earlier run that are still closing do not count.
    """
    for family, address in ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
                probe.bind((address, port))
                probe.listen(1)
                return True
        except OSError as error:
            # A machine without IPv6 is asked for IPv4 alone.
            if family == socket.AF_INET6 and error.errno in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
                continue
            return False
    return False


def _listener(port: int) -> Holder | None:
    import psutil

    try:
        connections = psutil.net_connections("tcp")
    except (psutil.Error, OSError):
        return None
    for connection in connections:
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid:
            return Holder(connection.pid, describe_process(connection.pid))
    return None


def _address(name: str) -> str:
    return f"\0{_PREFIX}/{name}"


def processes_of_run(exp_dir: Path) -> Iterator[int]:
    """Pids of role processes on this machine that work in `exp_dir`: of a supervisor that died before them."""
    wanted, own = f"SAC_EXP_DIR={exp_dir}".encode(), f"TFAGENTS_SUPERVISOR_PID={os.getpid()}".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            environ = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue  # Another user's, or just gone.
        supervisors = [entry for entry in environ if entry.startswith(b"TFAGENTS_SUPERVISOR_PID=")]
        if wanted in environ and supervisors and own not in supervisors:
            yield int(entry.name)
