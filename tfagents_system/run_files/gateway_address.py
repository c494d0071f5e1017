"""gateway.json: where other machines reach a run. Until the present start of it has a gateway, there is no address."""

from __future__ import annotations

from tfagents_system.run_files.heartbeat import read_json, write_json
from tfagents_system.run_files.run_paths import RunPaths


def gateway_address(paths: RunPaths) -> str | None:
    """`host:port` of a run's gateway; None before it is up."""
    gateway = read_json(paths.gateway_json) or {}
    return f"{gateway['host']}:{gateway['port']}" if {"host", "port"} <= gateway.keys() else None


def forget_address(paths: RunPaths) -> None:
    """For a start: that of the one before leads nowhere. The port stays: the gateway takes it again if it can.

    Raises:
      OSError: It can't be written.
    """
    if (gateway := read_json(paths.gateway_json)) is not None:
        write_json(paths.gateway_json, {name: gateway[name] for name in ("port",) if name in gateway})
