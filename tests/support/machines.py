"""Described CPUs, for what divides them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from tfagents_system.machine.cpus import Cpu, Usable


def flat(ids: Collection[int], **limits: Any) -> Usable:
    """A machine without hyper-threads and with one NUMA node; `limits`: quota and allotment."""
    return Usable({cpu: Cpu(0, frozenset([cpu])) for cpu in ids}, **limits)
