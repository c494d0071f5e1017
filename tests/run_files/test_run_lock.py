"""One start of a run has its directory, on whatever machine, file system and attempt of a job."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tfagents_system.errors import UserError
from tfagents_system.machine.files import write_json
from tfagents_system.run_files import run_lock
from tfagents_system.run_files.run_lock import RunLock, may_write, owner_of_run
from tfagents_system.run_files.run_paths import RunPaths

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_lock, "_LOCK_GRACE_SECS", 0.3)
    monkeypatch.setattr(run_lock, "STALE_SECS", 0.5)


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    return RunPaths(tmp_path / "run")


def start(paths: RunPaths, host: str, job: str = "12", restarts: int | None = None) -> RunLock:
    """An attempt of a job on a host, as SLURM tells it."""
    count = {} if restarts is None else {"SLURM_RESTART_COUNT": str(restarts)}
    return RunLock(paths, {"SLURM_JOB_ID": job} | count, host)


def write_owner(paths: RunPaths, **owner: Any) -> None:
    paths.exp_dir.mkdir(exist_ok=True)
    paths.lock.write_text(json.dumps({"pid": 1, "host": "node1"} | owner))


def test_a_directory_in_use_is_refused_until_its_process_is_dead(paths: RunPaths) -> None:
    program = (
        "import sys, time\nfrom pathlib import Path\nfrom tfagents_system.run_files.run_lock import RunLock\n"
        "from tfagents_system.run_files.run_paths import RunPaths\n"
        f"lock = RunLock(RunPaths(Path({str(paths.exp_dir)!r})))\nlock.acquire()\n"
        "print('ready', flush=True)\ntime.sleep(60)\n"
    )
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=environ) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        with pytest.raises(UserError, match=f"in use by the run with pid {process.pid} on {socket.gethostname()}"):
            RunLock(paths).acquire()
        assert f"pid {process.pid} on" in str(owner_of_run(paths))
        process.kill()
    with RunLock(paths):
        assert json.loads(paths.lock.read_text())["pid"] == os.getpid()
    assert paths.lock.read_text() == "" and owner_of_run(paths) is None


def test_a_run_at_work_is_named_at_once_and_whoever_prepares_or_ends_one_is_waited_for(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_lock, "_LOCK_GRACE_SECS", 1.0)

    def refused_after_secs() -> float:
        began = time.monotonic()
        with pytest.raises(UserError, match="is in use by the run with pid"):
            RunLock(paths).acquire()
        return time.monotonic() - began

    with RunLock(paths):
        run: dict[str, Any] = {"state": "running", "pid": os.getpid(), "host": socket.gethostname()}
        states: list[tuple[dict[str, Any], bool]] = [
            ({}, True),
            ({"message": "stopped by SIGINT"}, False),
            ({"state": "done"}, False),
            ({"pid": 1}, False),  # An earlier start's.
        ]
        for state, is_at_once in states:
            write_json(paths.status_json, {"run": run | state, "roles": {}})
            assert (refused_after_secs() < 0.9) == is_at_once, state


def test_a_requeued_job_is_not_refused_for_its_earlier_start(paths: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    with start(paths, "node1") as earlier:
        run = {"state": "running", "pid": os.getpid(), "host": "node1", "updated_at": time.time()}
        write_json(paths.status_json, {"run": run, "roles": {}})
        for job, is_earlier in (("12", True), ("13", False)):
            monkeypatch.setenv("SLURM_JOB_ID", job)
            monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
            assert (owner_of_run(paths) is None) == is_earlier, "a sweep asks before it starts its runs"
        assert earlier.is_own()


def test_the_holder_has_the_directory_that_is_new_in_the_place_of_the_one_it_moved(paths: RunPaths) -> None:
    aside = RunPaths(paths.exp_dir.with_name("aside"))
    with RunLock(paths) as lock:
        paths.exp_dir.rename(aside.exp_dir)
        lock.acquire()
        assert lock.is_own() and aside.lock.read_text() == "" and owner_of_run(aside) is None
        with pytest.raises(UserError, match=f"pid {os.getpid()}"):
            RunLock(paths).acquire()


@pytest.mark.parametrize("is_moved_early", [True, False])
def test_whoever_waits_for_a_directory_that_is_moved_takes_the_next_one(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch, is_moved_early: bool
) -> None:
    lock, waits = RunLock(paths), RunLock(paths)
    lock.acquire()

    makes = Path.mkdir

    def move(secs: float) -> None:
        if not (paths.exp_dir.with_name("aside")).exists():
            paths.exp_dir.rename(paths.exp_dir.with_name("aside"))

    def make_first(path: Path, **options: Any) -> None:
        """It is moved between two looks at it, or after the second one."""
        monkeypatch.setattr(Path, "mkdir", makes)
        move(0.0)

    monkeypatch.setattr(time, "sleep", move)
    if is_moved_early:
        monkeypatch.setattr(Path, "mkdir", make_first)
    waits.acquire()
    assert waits.is_own() and not lock.is_own()
    waits.release()


def test_a_requeued_job_takes_over_from_its_earlier_attempt_and_from_nothing_else(paths: RunPaths) -> None:
    """The lock of a node that died may live on at the file server."""
    earlier = start(paths, "node1")
    earlier.acquire()
    assert earlier.is_own()
    with pytest.raises(UserError, match="SLURM job 12"):
        start(paths, "node2", job="13", restarts=5).acquire()
    again = start(paths, "node2", restarts=1)
    again.acquire()
    assert again.is_own() and not earlier.is_own()
    with pytest.raises(UserError, match="on node2, SLURM job 12"):
        start(paths, "node1", restarts=0).acquire()  # A straggler of the attempt before.
    earlier.release()
    assert again.is_own() and json.loads(paths.lock.read_text())["host"] == "node2"
    again.release()


@pytest.mark.parametrize("restarts", [None, 3])
def test_srun_on_two_nodes_is_refused_on_the_second_with_the_remedy(paths: RunPaths, restarts: int | None) -> None:
    with start(paths, "node1", restarts=restarts) as first:
        with pytest.raises(UserError, match=r"pid \d+ on node1, SLURM job 12.*one node \(no srun over several\)"):
            start(paths, "node2", restarts=restarts).acquire()
        assert first.is_own()


def test_an_attempt_on_this_machine_that_is_alive_is_not_taken_over(paths: RunPaths) -> None:
    write_owner(paths, host="node2", pid=os.getppid(), slurm_job_id="12")
    with open(paths.lock) as held:
        fcntl.flock(held, fcntl.LOCK_SH)
        with pytest.raises(UserError):
            start(paths, "node2", restarts=1).acquire()


@pytest.mark.parametrize("clock_secs", [0.0, 3600.0])
def test_the_lock_of_a_dead_node_is_taken_over_once_its_heartbeat_has_stood_still_by_the_readers_clock(
    paths: RunPaths, clock_secs: float, capfd: pytest.CaptureFixture[str]
) -> None:
    write_owner(paths)
    os.utime(paths.lock, (time.time() + clock_secs,) * 2)
    began = time.monotonic()
    with RunLock(paths, {}, "node2") as lock:
        assert lock.is_own() and 0.5 <= time.monotonic() - began < 5.0
    assert capfd.readouterr().out.count("waiting up to 0.5 s for a heartbeat of the run with pid 1 on node1") == 1


@pytest.mark.parametrize("clock_secs", [0.0, 3600.0])
def test_a_holder_whose_flock_cannot_be_seen_is_refused_at_its_next_heartbeat(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch, clock_secs: float
) -> None:
    monkeypatch.setattr(run_lock, "STALE_SECS", 20.0)
    write_owner(paths)
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(0.2):
            os.utime(paths.lock, (time.time() + clock_secs,) * 2)

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        with pytest.raises(UserError, match="in use by the run with pid 1 on node1"):
            RunLock(paths, {}, "node2").acquire()
    finally:
        ended.set()
        thread.join()


def test_a_file_system_without_flock_is_refused(paths: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(fd: Any, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(UserError, match=r"run.lock can't be locked, its file system has no locks.*SAC_LOGS_DIR"):
        RunLock(paths).acquire()


def test_a_start_and_its_roles_see_that_it_was_taken_over_and_a_removed_file_is_put_back(paths: RunPaths) -> None:
    with RunLock(paths) as lock:
        environ = {run_lock.TOKEN_VARIABLE: lock.token}
        assert may_write(paths, environ) and may_write(paths, {})
        paths.lock.unlink()
        assert may_write(paths, environ), "no proof of anything"
        assert lock.is_own() and json.loads(paths.lock.read_text())["pid"] == os.getpid()
        write_owner(paths, token="other")
        assert not may_write(paths, environ) and not lock.is_own()
    assert json.loads(paths.lock.read_text())["token"] == "other"
    with RunLock(RunPaths(paths.exp_dir.with_name("second"))) as lock:
        lock._paths.exp_dir.rename(paths.exp_dir.with_name("elsewhere"))
        assert not lock.is_own()
