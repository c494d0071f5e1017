"""Resident memory of a process and of what it has started."""

import functools
import os
import subprocess
import sys

import psutil

from tfagents_system.machine import memory


def test_it_is_what_the_system_says():
    assert abs(memory.resident_bytes(os.getpid()) - psutil.Process().memory_info().rss) < 2**22


def test_children_and_their_children_count(monkeypatch):
    grandchild = f"{sys.executable} -c \"kept = b'x' * (60 << 20); print('up', flush=True); input()\""
    process = subprocess.Popen(["bash", "-c", f"({grandchild}; true); true"], stdin=-1, stdout=-1, text=True)
    try:
        assert process.stdout.readline() == "up\n"
        alone, tree = memory.resident_bytes(process.pid), memory.tree_resident_bytes(process.pid)
        assert alone < 20 * 2**20 and 60 * 2**20 < tree < 120 * 2**20
        with monkeypatch.context() as patch:  # Each process once: meanwhile this one grows.
            patch.setattr(memory, "resident_bytes", functools.cache(memory.resident_bytes))
            own, tree = memory.resident_bytes(os.getpid()), memory.tree_resident_bytes(process.pid)
            assert memory.tree_resident_bytes(os.getpid()) >= own + tree
    finally:
        process.stdin.close()
        process.wait(30)
    assert memory.tree_resident_bytes(process.pid) == 0
