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

    def command(self, command: Sequence[str]) -> list[str]:
        """The command, run on this host."""
        return ["ip", "netns", "exec", self.namespace, *command]

    def pull_the_cable(self) -> None:
        _ip("-n", self.namespace, "link", "set", self.interface, "down")

    def plug_in_the_cable(self) -> None:
        _ip("-n", self.namespace, "link", "set", self.interface, "up")


@contextlib.contextmanager
def hosts_at_a_switch(count: int) -> Iterator[list[Host]]:
    """Hosts that reach each other and nobody else, by a switch in a namespace of its own."""
    tag = f"{os.getpid()}s{next(_COUNT)}"
    switch = f"sac{tag}"
    hosts = [Host(f"sac{tag}h{k}", f"v{tag}h{k}"[:15], f"10.99.0.{k}") for k in range(1, count + 1)]
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
