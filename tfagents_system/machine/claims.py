"""What a run claims on its machine while it runs: CPU ids and a port. run_lock.py locks the run directory.

They are claimed machine-wide by listening on abstract unix sockets, which the kernel releases when their process dies,
however it dies. They are seen by every process in the same network namespace. The port itself is held as well, so that
nobody else listens there while the replay server is down (see `machine/peers.py`).
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import struct
from collections.abc import Collection, Iterable
from pathlib import Path

from tfagents_system.errors import UserError
from tfagents_system.machine import peers
from tfagents_system.machine.holders import Holder

FIRST_PORT = 8008
_LAST_PORT = 8999
_PREFIX = "tfagents_system"


class Claims:
    """Machine-wide claims of this process, each under a name such as `cpu/3`; all are released at its end."""

    def __init__(self) -> None:
        self._sockets: dict[str, socket.socket] = {}

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

    def answer(self) -> None:
        """Disconnects those who asked who holds a claim (see `holder`); call it regularly, or their queue fills."""
        for claim in self._sockets.values():
            with contextlib.suppress(OSError):  # Nobody is asking, or no file descriptor is left.
                while True:
                    claim.accept()[0].close()

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

    def take_port(self, wanted: int | None, without: Collection[int] = ()) -> int:
        """Claims a TCP port for the replay server: `wanted`, or the first free one from FIRST_PORT upwards.

        No other user can listen on it until it is released, or this process's end.

        Args:
          without: Ports that are free and won't do.

        Raises:
          UserError: `wanted` is in use, or no port is free.
        """
        for port in [wanted] if wanted else range(FIRST_PORT, _LAST_PORT + 1):
            if port not in without and self.take(f"port/{port}"):
                if self._hold(port):
                    return port
                self.release(f"port/{port}")
        if wanted:
            who = holder(f"port/{wanted}")
            raise UserError(
                f"SAC_REVERB_PORT={wanted} is in use by {who or 'another program'}: "
                "choose another port, or unset SAC_REVERB_PORT to have a free one chosen"
            )
        raise UserError(f"no TCP port from {FIRST_PORT} to {_LAST_PORT} is free: set SAC_REVERB_PORT to one that is")

    def release_port(self, port: int) -> None:
        for name in (f"tcp/{port}", f"port/{port}"):
            self.release(name)

    def _hold(self, port: int) -> bool:
        """Holds a TCP port on which nobody listens; those of our own who wait for a server there hold it as well."""
        with contextlib.suppress(OSError):
            held = peers.hold_port(port)
            if not peers.users_listening(port):
                self._sockets[f"tcp/{port}"] = held
                return True
            held.close()
        return False


def holder(name: str) -> Holder | None:
    """Who holds a claim, None if nobody does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as question:
        question.setblocking(False)
        try:
            question.connect(_address(name))
        except ConnectionRefusedError:
            return None
        except OSError:
            return Holder.of_pid(0)
        pid, _, _ = struct.unpack("3i", question.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return Holder.of_pid(pid)


def held_cpus(kind: str = "cpu") -> dict[int, str]:
    """Who holds each CPU id on this machine, in words, by id; without this process's own claims.

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


def _address(name: str) -> str:
    return f"\0{_PREFIX}/{name}"
