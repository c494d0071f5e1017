"""Network namespaces as hosts, joined by cables that can be pulled. Needs root."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence

import pytest

_COUNT = itertools.count()


def why_not() -> str:
    """Why there can be no network namespaces here; empty where there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "ip (iproute2) is not installed"
    probe = f"sacprobe{os.getpid()}"
    if subprocess.run(["ip", "netns", "add", probe], capture_output=True).returncode != 0:
        return "this system does not allow network namespaces"
    subprocess.run(["ip", "netns", "del", probe], check=True)
    return ""


needs_namespaces = pytest.mark.skipif(bool(reason := why_not()), reason=reason)


@dataclasses.dataclass(frozen=True)
class Host:
    """A network namespace with one address."""

    namespace: str
    interface: str
    ipv4: str
    ipv6: str

    def command(self, command: Sequence[str]) -> list[str]:
        """The command, run on this host."""
        return ["ip", "netns", "exec", self.namespace, *command]

    def pull_the_cable(self) -> None:
        _ip("-n", self.namespace, "link", "set", self.interface, "down")

    def plug_in_the_cable(self) -> None:
        _ip("-n", self.namespace, "link", "set", self.interface, "up")


@contextlib.contextmanager
def two_hosts() -> Iterator[tuple[Host, Host]]:
    """Two hosts that reach each other and nobody else."""
    tag = f"{os.getpid()}n{next(_COUNT)}"
    hosts = [
        Host(f"sac{tag}{letter}", f"v{tag}{letter}"[:15], f"10.99.0.{k}", f"fd99::{k}")
        for k, letter in ((1, "a"), (2, "b"))
    ]
    try:
        for host in hosts:
            _ip("netns", "add", host.namespace)
        _ip("link", "add", hosts[0].interface, "type", "veth", "peer", "name", hosts[1].interface)
        for host in hosts:
            _ip("link", "set", host.interface, "netns", host.namespace)
            _ip("-n", host.namespace, "addr", "add", f"{host.ipv4}/24", "dev", host.interface)
            _ip("-n", host.namespace, "addr", "add", f"{host.ipv6}/64", "dev", host.interface, "nodad")
            _ip("-n", host.namespace, "link", "set", host.interface, "up")
            _ip("-n", host.namespace, "link", "set", "lo", "up")
        yield hosts[0], hosts[1]
    finally:
        for host in hosts:
            subprocess.run(["ip", "netns", "del", host.namespace], capture_output=True)


@contextlib.contextmanager
def hosts_at_a_switch(count: int) -> Iterator[list[Host]]:
    """Hosts that reach each other and nobody else, by a switch in a namespace of its own."""
    tag = f"{os.getpid()}s{next(_COUNT)}"
    switch = f"sac{tag}"
    hosts = [Host(f"sac{tag}h{k}", f"v{tag}h{k}"[:15], f"10.99.1.{k}", f"fd98::{k}") for k in range(1, count + 1)]
    try:
        _ip("netns", "add", switch)
        _ip("-n", switch, "link", "add", "switch", "type", "bridge")
        _ip("-n", switch, "link", "set", "switch", "up")
        for k, host in enumerate(hosts):
            _ip("netns", "add", host.namespace)
            _ip("-n", switch, "link", "add", f"port{k}", "type", "veth", "peer", "name", host.interface)
            _ip("-n", switch, "link", "set", host.interface, "netns", host.namespace)
            _ip("-n", switch, "link", "set", f"port{k}", "master", "switch", "up")
            _ip("-n", host.namespace, "addr", "add", f"{host.ipv4}/24", "dev", host.interface)
            for interface in (host.interface, "lo"):
                _ip("-n", host.namespace, "link", "set", interface, "up")
        yield hosts
    finally:
        for namespace in (*(host.namespace for host in hosts), switch):
            subprocess.run(["ip", "netns", "del", namespace], capture_output=True)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
