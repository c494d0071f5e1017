"""Keeps other users of this machine off the other end of a run's TCP connections.

It has two halves, which both rely on the kernel:

- Clients: only our own user can listen on a port that a process of ours holds (`hold_port`). The supervisor holds the
  replay server's for the life of the run, whether the server is up or not, and each client before it first connects.
- The server: the kernel's tables say whose socket is at the other end of an accepted connection (`uid_of_peer`).
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import socket
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

from tfagents_system.errors import UserError

ALLOW_STRANGERS = "SAC_ALLOW_STRANGERS"
_TABLES = (Path("/proc/self/net/tcp"), Path("/proc/self/net/tcp6"))
_LOCAL, _REMOTE, _STATE, _UID, _INODE = 1, 2, 3, 7, 9  # Columns.
_LISTENS = "0A"


def hold_port(port: int) -> socket.socket:
    """A socket that keeps all other users from a port, at every address of this machine, while it is open.

    It is bound but never listens: no connection reaches it. The kernel lets sockets share a port where all of them set
    SO_REUSEPORT, as gRPC's do, and belong to one user. It therefore refuses this one while another user has the port.

    Raises:
      OSError: EADDRINUSE: another user has it, or a program of our own that does not share it.
    """
    try:
        return _bound(socket.AF_INET6, "::", port)
    except OSError as error:  # On a machine without IPv6: IPv4 alone.
        if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
            raise
    return _bound(socket.AF_INET, "0.0.0.0", port)


def _bound(family: socket.AddressFamily, everywhere: str, port: int) -> socket.socket:
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        # Without SO_REUSEADDR: whoever sets it shares the port with another user's socket that sets it, too.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        bound.bind((everywhere, port))
    except OSError:
        bound.close()
        raise
    return bound


def users_listening(port: int) -> set[int]:
    """The users who listen on a port at any address of this machine, as far as the kernel's tables can be read."""
    return {int(row[_UID]) for row in _rows() if row[_STATE] == _LISTENS and _parse(row[_LOCAL])[1] == port}


def uid_of_peer(connection: socket.socket) -> int | None:
    """The user of the socket at the other end; None where it is closed already, or not on this machine."""
    ours, theirs = _end(connection.getsockname()), _end(connection.getpeername())
    for row in _rows():
        # Without an inode it belongs to nobody any more, and the kernel says 0 for its user.
        if row[_INODE] != "0" and _parse(row[_LOCAL]) == theirs and _parse(row[_REMOTE]) == ours:
            return int(row[_UID])
    return None


def can_tell() -> bool:
    """Whether the kernel's tables can be read, and know our own user: tried with a connection to ourselves."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()):
            accepted, _ = listener.accept()
            with accepted:
                return uid_of_peer(accepted) == os.geteuid()
    except OSError:  # Such as in a network namespace whose loopback is down.
        return False


def other_users_are_allowed(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the user has said that nobody on this machine needs to be kept out."""
    return environ.get(ALLOW_STRANGERS) == "1"


def require_owners(environ: Mapping[str, str] = os.environ) -> None:
    """Requires that a replay server here can tell its own user's connections from others'.

    Raises:
      UserError: It can't, and the user has not allowed that.
    """
    if not other_users_are_allowed(environ) and not can_tell():
        raise UserError(
            "the kernel does not tell whose a connection is (/proc/self/net/tcp): other users of this machine could "
            f"reach the replay server, and run programs as you. Make /proc readable, or set {ALLOW_STRANGERS}=1 where "
            "all users of this machine may do what you may"
        )


def _rows() -> Iterator[list[str]]:
    """Columns of each TCP socket of this network namespace."""
    for table in _TABLES:
        with contextlib.suppress(OSError):  # Such as tcp6 on a machine without IPv6.
            yield from map(str.split, table.read_text().splitlines()[1:])


def _end(address: tuple[str, int]) -> tuple[bytes, int]:
    return _mapped(ipaddress.ip_address(address[0].partition("%")[0]).packed), address[1]


def _parse(text: str) -> tuple[bytes, int]:
    """`0100007F:1F48`: words of 32 bits in the machine's order."""
    host, port = text.split(":")
    words = [int(host[start : start + 8], 16) for start in range(0, len(host), 8)]
    return _mapped(struct.pack(f"={len(words)}I", *words)), int(port, 16)


def _mapped(packed: bytes) -> bytes:
    """An IPv4 address in IPv6 form: the two ends of a connection may have different families."""
    return packed if len(packed) == 16 else bytes(10) + b"\xff\xff" + packed
