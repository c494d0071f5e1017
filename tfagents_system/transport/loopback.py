"""Confines a Reverb server to this machine: it listens on loopback or does not run.

Reverb binds every address (`[::]:port`, in C++), asks for no credentials, and executes code in items of a certain
type (CVE-2024-8375). No root, compiler or namespace may be needed to confine it. Therefore the entry of `bind` in the
global offset tables of Reverb's shared objects, which hold a gRPC of their own, is pointed at a function of ours. It
puts loopback in the place of "every address" and calls the real `bind`: at no moment does a socket listen elsewhere.

The result is checked in the kernel's tables, and a server that listens anywhere else is stopped.

Other users of the same machine reach loopback, too. The same is therefore done with `accept4`: a connection whose other
end is not a socket of our own user, by the kernel's tables, is closed before a byte of it is read. `peers.py` ensures
that clients connect to no other user's server.
"""

from __future__ import annotations

import ctypes
import errno
import ipaddress
import mmap
import os
import socket
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import reverb
from absl import logging

from tfagents_system.errors import UserError
from tfagents_system.machine import peers

_RTLD_DI_LINKMAP = 2
_DT_NULL, _DT_PLTRELSZ, _DT_STRTAB, _DT_SYMTAB, _DT_RELA, _DT_RELASZ, _DT_JMPREL = 0, 2, 5, 6, 7, 8, 23
_SYMBOL_BYTES = 24  # of 64-bit ELF
_MAPPED_LOOPBACK = ipaddress.IPv6Address("::ffff:127.0.0.1").packed
_EVERY_IPV6 = (ipaddress.IPv6Address("::").packed, ipaddress.IPv6Address("::ffff:0.0.0.0").packed)
_BIND = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_uint32, use_errno=True)
_ACCEPT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, use_errno=True)
_GETPID = ctypes.CFUNCTYPE(ctypes.c_int)
_WHY = "Reverb asks nobody for credentials, so whoever reaches its port can run programs as you"
_REMEDY = (
    "install the required packages (./setup.sh) on 64-bit Linux, or start the run in a network namespace of its own "
    "(unshare --map-root-user --net, then `ip link set lo up`)"
)
_NOT_CONFINED = f"the replay server can't be kept to this machine. {_WHY}: {_REMEDY}"


def start_confined(start: Callable[[], reverb.Server], port: int) -> reverb.Server:
    """Starts a Reverb server that only this machine can reach, at this port.

    Raises:
      UserError: It can't be confined; nothing listens then.
    """
    _redirect(b"bind", _bind_confined)
    keep_other_users_out()
    server = start()
    addresses = listening()
    open_ones = [(host, number) for host, number in addresses if not is_loopback(host)]
    if open_ones or port not in [number for _, number in addresses]:
        server.stop()
        where = ", ".join(f"{host} port {number}" for host, number in open_ones) or "no port that can be seen"
        raise UserError(
            f"the replay server must listen on 127.0.0.1 port {port} alone, but it did on {where}, and was stopped. "
            f"{_WHY}: {_REMEDY}"
        )
    return server


def listening() -> list[tuple[str, int]]:
    """Addresses and ports that this process listens on for TCP, from the kernel's tables."""
    connections = psutil.Process().net_connections("tcp")
    return [(c.laddr.ip, c.laddr.port) for c in connections if c.status == psutil.CONN_LISTEN]


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an IP address."""
    address = ipaddress.ip_address(host)
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def confined(address: bytes) -> bytes:
    """A `struct sockaddr` with loopback in place of "every address"; other addresses stay unchanged."""
    family = int.from_bytes(address[:2], sys.byteorder)
    if family == socket.AF_INET and address[4:8] == bytes(4):
        return address[:4] + socket.inet_aton("127.0.0.1") + address[8:]
    if family == socket.AF_INET6 and address[8:24] in _EVERY_IPV6:
        # gRPC makes dual-stack sockets: they accept both `localhost` and `127.0.0.1`.
        return address[:8] + _MAPPED_LOOPBACK + address[24:]
    return address


# Kept as long as the process lives: C holds pointers to it.
_real_bind = _BIND(("bind", ctypes.CDLL(None)))


@_BIND
def _bind_confined(fd: int, address: int, length: int) -> int:
    try:
        wanted = confined(ctypes.string_at(address, length))
        return int(_real_bind(fd, wanted, len(wanted)))
    except BaseException:  # ctypes would print it and return success.
        ctypes.set_errno(errno.EACCES)
        return -1


_real_accept = _ACCEPT(("accept4", ctypes.CDLL(None)))


@_ACCEPT
def _accept_own(fd: int, address: int, length: int, flags: int) -> int:
    # `length` is the size of the buffer at `address`: gRPC sets it once before it calls.
    room = ctypes.string_at(length, 4) if length else b""
    while True:
        connection = int(_real_accept(fd, address, length, flags))
        if connection < 0 or _is_own(connection):
            return connection
        os.close(connection)
        if length:
            ctypes.memmove(length, room, 4)


def _is_own(connection: int) -> bool:
    """Whether our own user is at the other end."""
    try:
        with socket.socket(fileno=os.dup(connection)) as accepted:
            if accepted.family not in (socket.AF_INET, socket.AF_INET6):
                return True
            uid, peer = peers.uid_of_peer(accepted), accepted.getpeername()
    except BaseException:  # The peer has disconnected already.
        return False
    if uid != os.geteuid():
        logging.log_every_n_seconds(logging.WARNING, "refused a connection of user %s from %s", 60, uid, peer[:2])
    return uid == os.geteuid()


def keep_other_users_out() -> None:
    """Makes Reverb's gRPC accept connections of our own user only.

    Raises:
      UserError: The kernel does not tell whose they are (unless SAC_ALLOW_STRANGERS=1), or accept4 can't be changed.
    """
    if peers.other_users_are_allowed():
        logging.warning("%s=1: other users of this machine reach the replay server", peers.ALLOW_STRANGERS)
        return
    peers.require_owners()
    _redirect(b"accept4", _accept_own)


@_GETPID
def _no_pid() -> int:
    return -1


def never_in_process() -> None:
    """Makes Reverb's clients in this process take no server for one of their own process.

    A server that a client seems to reach on its own machine, as through a tunnel, compares their pids. Where they are
    equal it answers with an address in its memory, which the client would use: on two machines that happens by chance.

    Raises:
      UserError: Their entry for `getpid` is not found, or can't be changed.
    """
    fault = "no run on another machine can be joined: install the required packages (./setup.sh) on 64-bit Linux"
    _redirect(b"getpid", _no_pid, fault)


def _redirect(symbol: bytes, function: Any, fault: str = _NOT_CONFINED) -> None:
    """Makes Reverb's shared objects call another function of C, from now on in this process."""
    folder = str(Path(reverb.__file__).parent)
    try:
        slots = [slot for base, dynamic in _objects_in(folder) for slot in _slots(base, dynamic, symbol)]
        if not slots:
            raise OSError(f"its shared objects in {folder} have no entry for {symbol.decode()}()")
        for slot in slots:
            _write_pointer(slot, ctypes.cast(function, ctypes.c_void_p).value or 0)
    except OSError as error:
        raise UserError(f"Reverb can't be redirected ({error}), so {fault}") from None


class _LinkMap(ctypes.Structure):
    """The first fields of `struct link_map`: a loaded shared object, in the loader's list of all of them."""


_LinkMap._fields_ = [
    ("base", ctypes.c_uint64),
    ("name", ctypes.c_char_p),
    ("dynamic", ctypes.c_uint64),
    ("next", ctypes.POINTER(_LinkMap)),
]


def _objects_in(folder: str) -> list[tuple[int, int]]:
    """Base address and address of the dynamic section of every loaded shared object below a folder."""
    program, link, sections = ctypes.CDLL(None), ctypes.POINTER(_LinkMap)(), []
    if program.dlinfo(ctypes.c_void_p(program._handle), _RTLD_DI_LINKMAP, ctypes.byref(link)) != 0:
        raise OSError("the loader does not list its shared objects")
    while link:
        if (link.contents.name or b"").decode(errors="surrogateescape").startswith(folder):
            sections.append((link.contents.base, link.contents.dynamic))
        link = link.contents.next
    return sections


def _slots(base: int, dynamic: int, symbol: bytes) -> Iterator[int]:
    """Addresses of the pointers through which an object calls a function of another object."""
    entries: dict[int, int] = {}
    while (entry := struct.unpack("=qQ", ctypes.string_at(dynamic, 16)))[0] != _DT_NULL:
        entries[entry[0]] = entry[1]
        dynamic += 16

    def pointer(tag: int) -> int:
        value = entries[tag]
        return value if value >= base else base + value  # glibc has made them absolute, other loaders have not.

    for table, size in ((_DT_JMPREL, _DT_PLTRELSZ), (_DT_RELA, _DT_RELASZ)):
        if table not in entries:
            continue
        relocations = ctypes.string_at(pointer(table), entries[size])
        for offset, info, _ in struct.iter_unpack("=QQq", relocations):
            if index := info >> 32:
                name = struct.unpack("=I", ctypes.string_at(pointer(_DT_SYMTAB) + index * _SYMBOL_BYTES, 4))[0]
                if ctypes.string_at(pointer(_DT_STRTAB) + name) == symbol:
                    yield base + offset


def _write_pointer(slot: int, value: int) -> None:
    """Writes one entry; its page, which is read-only where the object was linked with RELRO, stays writable."""
    page, libc = slot - slot % mmap.PAGESIZE, ctypes.CDLL(None, use_errno=True)
    if libc.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(mmap.PAGESIZE), mmap.PROT_READ | mmap.PROT_WRITE) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"mprotect: {errno.errorcode.get(number, number)}")
    ctypes.c_uint64.from_address(slot).value = value
