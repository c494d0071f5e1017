"""Resident memory of a process and of what it has started."""

import functools
import os
import subprocess
import sys

import psutil
import pytest

from tfagents_system.machine import memory


def test_it_is_what_the_system_says():
    assert abs(memory.resident_bytes(os.getpid()) - psutil.Process().memory_info().rss) < 2**22


def test_a_kill_for_lack_of_memory_counts_from_when_it_is_seen(monkeypatch):
    kills, now = iter([3, 3, 4, 4, 0, 4, 4, 6]), [0.0]
    monkeypatch.setattr(memory, "oom_kills", lambda: next(kills))
    monkeypatch.setattr(memory.time, "monotonic", lambda: now[0])
    watch = memory.OomWatch()
    assert not watch.has_killed(), "those before are of others"
    now[0] = 0.5
    watch.look()  # Too soon.
    now[0] = 2.0
    watch.look()
    for now[0], killed in [(31.9, True), (32.1, False), (33.0, False), (34.0, False), (35.0, True)]:
        assert watch.has_killed() == killed, now


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


@pytest.mark.parametrize(
    ("membership", "counter", "kills"),
    [
        ("0::/system.slice/job_7/step_0\n", "system.slice/job_7/step_0/memory.events", 3),
        ("9:cpu,cpuacct:/x\n4:memory:/slurm/job_7/step_0\n0::/\n", "memory/slurm/job_7/step_0/memory.oom_control", 3),
        ("4:memory:/slurm/job_7\n", "memory/slurm/job_8/memory.oom_control", 40),
        ("0::/\n", "elsewhere", 40),
    ],
)
def test_kills_are_those_of_the_own_cgroup_where_it_counts_them(tmp_path, membership, counter, kills):
    proc, mounts = tmp_path / "proc", tmp_path / "cgroup"
    for path, text in (
        (proc / "self/cgroup", membership),
        (proc / "vmstat", "pgfault 9\noom_kill 40\n"),
        (mounts / counter, "under_oom 0\noom_kill 3\n"),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert memory.oom_kills(proc, mounts) == kills
    assert memory.oom_kills(tmp_path / "none", mounts) == 0
