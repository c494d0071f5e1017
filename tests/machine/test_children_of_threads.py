"""Children that a thread of the process looks after."""

from __future__ import annotations

from tfagents_system.launch.role_starter import RoleStarter
from tfagents_system.machine import processes


def test_a_child_that_a_thread_looks_after_is_nobodys_orphan() -> None:
    starter = RoleStarter()
    starter._adopts = True  # As `adopt` has it, without making this process a subreaper.
    process = processes.start_apart(["sleep", "60"])
    try:
        assert process.pid in processes.started_apart()
        assert process.pid not in starter.orphans([])
        process.kill()
        starter.reap_orphans([])
    finally:
        process.kill()
        assert process.wait(10) == -9, "nobody else has taken its exit code"
