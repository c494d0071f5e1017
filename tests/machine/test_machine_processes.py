"""Resident memory of a process and of what it has started."""

import functools
import os
import subprocess
import sys

import psutil

from tfagents_system.machine import processes


def test_it_is_what_the_system_says():
    assert abs(processes.resident_bytes(os.getpid()) - psutil.Process().memory_info().rss) < 2**22


def test_children_and_their_children_count(monkeypatch):
    grandchild = f"{sys.executable} -c \"kept = b'x' * (60 << 20); print('up', flush=True); input()\""
    process = subprocess.Popen(["bash", "-c", f"({grandchild}; true); true"], stdin=-1, stdout=-1, text=True)
    try:
        assert process.stdout.readline() == "up\n"
        alone, tree = processes.resident_bytes(process.pid), processes.tree_resident_bytes(process.pid)
        assert alone < 20 * 2**20 and 60 * 2**20 < tree < 120 * 2**20
        with monkeypatch.context() as patch:  # Each process once: meanwhile this one grows.
            patch.setattr(processes, "resident_bytes", functools.cache(processes.resident_bytes))
            own, tree = processes.resident_bytes(os.getpid()), processes.tree_resident_bytes(process.pid)
            assert processes.tree_resident_bytes(os.getpid()) >= own + tree
    finally:
        process.stdin.close()
        process.wait(30)
    assert processes.tree_resident_bytes(process.pid) == 0
