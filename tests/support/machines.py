"""Described CPUs, for what splits them."""

from __future__ import annotations

from collections.abc import Sequence

from tfagents_system.machine.cpus import (
    Core,
)


def flat(ids: Sequence[int]) -> list[Core]:
    """A machine without hyper-threads and with one NUMA node."""
    return [Core(0, (cpu,)) for cpu in ids]
