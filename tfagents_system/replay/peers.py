"""Which user is at the other end of a TCP connection on this machine, as the kernel's tables tell."""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
from pathlib import Path

_TABLES = (Path("/proc/self/net/tcp"), Path("/proc/self/net/tcp6"))
_LOCAL, _REMOTE, _UID, _INODE = 1, 2, 7, 9  # Columns.


def uid_of_peer(connection: socket.socket) -> int | None:
    """The user of the socket at the other end; None where it is closed already, or not on this machine."""
    ours, theirs = _end(connection.getsockname()), _end(connection.getpeername())
    for table in _TABLES:
        try:
            lines = table.read_text().splitlines()[1:]
        except OSError:
            continue  # Such as tcp6 on a machine without IPv6.
        for line in lines:
            columns = line.split()
            # Without an inode it belongs to nobody any more, and the kernel says 0 for its user.
            if columns[_INODE] != "0" and _parse(columns[_LOCAL]) == theirs and _parse(columns[_REMOTE]) == ours:
                return int(columns[_UID])
    return None


def can_tell() -> bool:
    """Whether the kernel's tables can be read, and know our own user: tried with a connection to ourselves."""
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            return uid_of_peer(accepted) == os.geteuid()


def _end(address: tuple[str, int]) -> tuple[bytes, int]:
    return _mapped(ipaddress.ip_address(address[0].partition("%")[0]).packed), address[1]


def _parse(text: str) -> tuple[bytes, int]:
    """`0100007F:1F48`: words of 32 bits in the machine's order."""
    host, port = text.split(":")
    words = [int(host[start : start + 8], 16) for start in range(0, len(host), 8)]
    return _mapped(struct.pack(f"={len(words)}I", *words)), int(port, 16)


def _mapped(packed: bytes) -> bytes:
    """An IPv4 address as IPv6 has it: the two ends of a connection may be of different families."""
    return packed if len(packed) == 16 else bytes(10) + b"\xff\xff" + packed
