"""Ports that are free."""

from __future__ import annotations

import socket


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True) as probe:
        return int(probe.getsockname()[1])
