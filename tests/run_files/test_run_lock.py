"""One start of a run has its directory, on whatever machine, file system and attempt of a job."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import select
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tfagents_system.errors import UserError
from tfagents_system.machine import processes
from tfagents_system.run_files import run_lock
from tfagents_system.run_files.heartbeat import write_json
from tfagents_system.run_files.run_lock import RunLock, may_write, owner_of_run
from tfagents_system.run_files.run_paths import RunPaths

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_lock, "_LOCK_GRACE_SECS", 0.3)
    monkeypatch.setattr(run_lock, "_MARGIN_SECS", -29.6)


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    return RunPaths(tmp_path / "run")


@pytest.fixture
def no_flock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system without locks."""

    def refuse(fd: Any, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)


def start(paths: RunPaths, host: str, job: str = "12", restarts: int | None = None) -> RunLock:
    """An attempt of a job on a host, as SLURM tells it."""
    count = {} if restarts is None else {"SLURM_RESTART_COUNT": str(restarts)}
    return RunLock(paths, {"SLURM_JOB_ID": job} | count, host)


def write_owner(paths: RunPaths, age_secs: float = 0.0, **owner: Any) -> None:
    paths.exp_dir.mkdir(exist_ok=True)
    paths.lock.write_text(json.dumps({"pid": 1, "host": "node1"} | owner))
    os.utime(paths.lock, (time.time() - age_secs,) * 2)


def write_run(paths: RunPaths, state: str, age_secs: float = 0.0, host: str = "node1") -> None:
    run = {"state": state, "host": host, "updated_at": time.time() - age_secs}
    write_json(paths.status_json, {"run": run, "roles": {}})


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
            if is_at_once:
                with pytest.raises(UserError, match=f"pid {os.getpid()}"):
                    RunLock(paths).refuse_at_work()
            else:
                RunLock(paths).refuse_at_work()
            assert (refused_after_secs() < 0.9) == is_at_once, state
    write_json(paths.status_json, {"run": run, "roles": {}})
    RunLock(paths).refuse_at_work()  # It has ended.


@pytest.mark.parametrize(
    ("age_secs", "host", "is_refused"), [(0.0, "node1", True), (3600.0, "node1", False), (0.0, "node2", False)]
)
def test_a_run_of_another_host_is_at_work_while_it_is_heard_of_and_one_of_this_host_while_its_process_lives(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch, age_secs: float, host: str, is_refused: bool
) -> None:
    """A node that died, or a supervisor that was killed, wrote that it is running; another start holds the file."""
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
    write_owner(paths, age_secs, pid=ended.pid, host=host)
    run = {"state": "running", "pid": ended.pid, "host": host, "updated_at": time.time() - age_secs}
    write_json(paths.status_json, {"run": run, "roles": {}})
    with open(paths.lock) as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        lock = RunLock(paths, {}, "node2")
        if is_refused:
            with pytest.raises(UserError, match=f"pid {ended.pid} on node1"):
                lock.refuse_at_work()
        else:
            lock.refuse_at_work()
            monkeypatch.setattr(run_lock, "_LOCK_GRACE_SECS", 30.0)
            threading.Timer(0.1, fcntl.flock, (held, fcntl.LOCK_UN)).start()
            with lock:
                assert lock.is_own()


def test_a_requeued_job_is_not_refused_for_its_earlier_start(paths: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    with start(paths, "node1") as earlier:
        run = {"state": "running", "pid": os.getpid(), "host": "node1", "updated_at": time.time()}
        write_json(paths.status_json, {"run": run, "roles": {}})
        start(paths, "node2", restarts=1).refuse_at_work()
        with pytest.raises(UserError, match="SLURM job 12"):
            start(paths, "node2", job="13", restarts=1).refuse_at_work()
        for job, is_earlier in (("12", True), ("13", False)):
            monkeypatch.setenv("SLURM_JOB_ID", job)
            monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
            assert (owner_of_run(paths) is None) == is_earlier, "a sweep asks before it starts its runs"
        assert earlier.is_own()


def test_a_lock_stays_with_its_process_when_another_program_replaces_it(paths: RunPaths) -> None:
    """Others are refused from before to after."""
    own = (
        "import os, sys, time\nfrom pathlib import Path\nfrom tfagents_system.run_files.run_lock import *\n"
        f"from tfagents_system.run_files.run_paths import RunPaths\npaths = RunPaths(Path({str(paths.exp_dir)!r}))\n"
    )
    then = own + (
        "lock = RunLock.inherited(paths)\nprint(lock.token, lock.is_own(), RunLock.inherited(paths), flush=True)\n"
        "assert HANDLE_VARIABLE not in os.environ\nwith lock:\n    time.sleep(60)\n"
    )
    program = own + (
        "lock = RunLock(paths)\nlock.acquire()\nprint(lock.token, flush=True)\n"
        "_, os.environ[HANDLE_VARIABLE] = lock.hand_over()\n"
        f"os.execv(sys.executable, [sys.executable, '-c', {then!r}])\n"
    )
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", program]
    # Without a buffer: `select` sees no line that was read ahead.
    with subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=0, env=environ) as process:
        assert process.stdout is not None
        token = process.stdout.readline().decode().strip()
        with open(paths.lock, "rb") as file:
            refused = 0
            while not select.select([process.stdout], [], [], 0.01)[0]:
                refused += RunLock(paths).is_held(file.fileno(), fcntl.LOCK_SH)
                assert process.poll() is None and (RunLock(paths).is_held(file.fileno(), fcntl.LOCK_SH))
        assert process.stdout.readline().decode() == f"{token} True None\n" and refused > 0
        with pytest.raises(UserError, match=f"in use by the run with pid {process.pid} on"):
            RunLock(paths).acquire()
        process.kill()


def test_a_handle_of_another_run_or_of_no_open_file_is_no_lock(
    paths: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RunLock(RunPaths(tmp_path / "other")) as other, RunLock(paths) as lock:
        for handle in (other.hand_over()[1], f"999,{lock.token}", "", f"{lock.hand_over()[0]},another"):
            monkeypatch.setenv(run_lock.HANDLE_VARIABLE, handle)
            assert RunLock.inherited(paths) is None, handle


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

    def move(secs: float) -> None:
        if not (paths.exp_dir.with_name("aside")).exists():
            paths.exp_dir.rename(paths.exp_dir.with_name("aside"))

    makes = Path.mkdir

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


@pytest.mark.parametrize("has_flock", [True, False])
def test_srun_on_two_nodes_is_refused_on_the_second_with_the_remedy(
    paths: RunPaths, has_flock: bool, request: pytest.FixtureRequest
) -> None:
    if not has_flock:
        request.getfixturevalue("no_flock")
    for restarts in (None, 3):
        first = start(paths, "node1", restarts=restarts)
        first.acquire()
        with pytest.raises(UserError, match=r"pid \d+ on node1, SLURM job 12.*one node \(no srun over several\)"):
            start(paths, "node2", restarts=restarts).acquire()
        assert first.is_own()
        first.release()


def test_an_attempt_on_this_machine_that_is_alive_is_not_taken_over(paths: RunPaths) -> None:
    write_owner(paths, host="node2", pid=os.getppid(), slurm_job_id="12")
    with open(paths.lock) as held:
        fcntl.flock(held, fcntl.LOCK_SH)
        with pytest.raises(UserError):
            start(paths, "node2", restarts=1).acquire()


@pytest.mark.parametrize(
    ("sign", "is_alive"),
    [
        ("nothing", False),
        ("lock", True),
        ("status", True),
        ("heartbeat", True),
        ("ended", False),
        ("ended before", True),
        ("another's", False),
    ],
)
@pytest.mark.parametrize("has_flock", [True, False])
def test_an_owner_on_another_host_counts_as_alive_while_it_is_heard_of(
    paths: RunPaths, sign: str, is_alive: bool, has_flock: bool, request: pytest.FixtureRequest
) -> None:
    """Also where each host sees its own locks alone."""
    if not has_flock:
        request.getfixturevalue("no_flock")
    paths.heartbeats.mkdir(parents=True)
    write_owner(paths, age_secs=0.0 if sign == "lock" else 100.0, started_at=time.time() - 100.0)
    match sign:
        case "status" | "heartbeat":
            write_run(paths, "running", age_secs=1.0 if sign == "status" else 100.0)
            write_json(
                paths.heartbeat("trainer"),
                {"state": "waiting", "host": "node1", "time": time.time() if sign[0] == "h" else 0.0},
            )
        case "ended" | "ended before":
            write_run(paths, "stopped", age_secs=1.0 if sign == "ended" else 200.0)
            write_json(paths.heartbeat("trainer"), {"state": "waiting", "host": "node1", "time": time.time()})
        case "another's":
            write_run(paths, "running", host="node3")
            write_json(
                paths.heartbeat("worker_5"), {"state": "waiting", "host": "node3", "time": time.time(), "remote": True}
            )
    assert (owner_of_run(paths) is not None) == is_alive
    lock = RunLock(paths, {}, "node2")
    if is_alive:
        with pytest.raises(UserError, match="in use by the run with pid 1 on node1"):
            lock.acquire()
    else:
        lock.acquire()
        lock.release()


def test_one_that_was_killed_elsewhere_is_waited_for_until_its_last_sign_is_old(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch, no_flock: None, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run_lock, "stale_secs", lambda folder: 1.0)
    monkeypatch.setattr(run_lock, "_MARGIN_SECS", 29.0)
    write_owner(paths)
    began = time.monotonic()
    with RunLock(paths, {}, "node2") as lock:
        assert lock.is_own() and 0.5 < time.monotonic() - began < 10.0
    assert "waiting up to 30 s until nothing is heard of the run with pid 1 on node1" in capfd.readouterr().out


@pytest.mark.parametrize("is_alive", [False, True])
def test_a_host_whose_clock_is_ahead_is_alive_only_while_newer_signs_of_it_come(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch, is_alive: bool
) -> None:
    monkeypatch.setattr(run_lock, "stale_secs", lambda folder: 1.0)
    monkeypatch.setattr(run_lock, "_MARGIN_SECS", 1.0 if is_alive else 20.0)
    write_owner(paths, age_secs=-3600.0)
    write_run(paths, "running", age_secs=-3600.0)
    ended = threading.Event()

    def beat() -> None:
        while is_alive and not ended.wait(0.2):
            write_run(paths, "running", age_secs=-3600.0)

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        lock, began = RunLock(paths, {}, "node2"), time.monotonic()
        if is_alive:
            with pytest.raises(UserError, match="in use by the run with pid 1 on node1"):
                lock.acquire()
        else:
            with lock:
                assert lock.is_own() and 1.0 <= time.monotonic() - began < 15.0
    finally:
        ended.set()
        thread.join()


def test_who_only_asks_is_not_held_up_by_a_clock_that_was_ahead(paths: RunPaths) -> None:
    """A sweep, `--check` and trials ask once; the start that follows waits for newer signs."""
    for secs_ahead, is_alive in ((5.0, True), (3600.0, False)):
        write_owner(paths, age_secs=-secs_ahead)
        write_run(paths, "running", age_secs=100.0)
        assert (owner_of_run(paths) is not None) == is_alive, "clocks always differ a little"
        assert RunLock(paths, {}, "node2").is_alive_elsewhere(), "whoever starts it waits"
    write_run(paths, "running", age_secs=1.0)
    assert owner_of_run(paths) is not None


def test_a_stuck_sign_from_the_future_hides_no_other_one(paths: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as of a worker that has ended since its host's clock was set right."""
    monkeypatch.setattr(run_lock, "stale_secs", lambda folder: 1.0)
    write_owner(paths, age_secs=-3600.0)
    lock, began = RunLock(paths, {}, "node2"), time.monotonic()
    while time.monotonic() - began < 1.5:
        write_run(paths, "running")
        assert lock.is_alive_elsewhere()
        time.sleep(0.1)
    write_run(paths, "running", age_secs=2.0)
    assert not lock.is_alive_elsewhere()


def test_a_start_that_only_imports_gives_signs_of_life(paths: RunPaths, no_flock: None) -> None:
    lock = start(paths, "node1")
    lock.acquire()
    os.utime(paths.lock, (time.time() - 100.0,) * 2)
    other = RunLock(paths, {}, "node2")
    assert not other.is_alive_elsewhere()
    lock.touch()
    assert other.is_alive_elsewhere() and lock.is_own()


def test_where_two_took_it_at_once_the_first_one_sees_that_it_has_lost(paths: RunPaths, no_flock: None) -> None:
    first = start(paths, "node1")
    first.acquire()
    write_owner(paths, host="node2", token="other")
    assert not first.is_own()
    first.release()
    assert json.loads(paths.lock.read_text())["host"] == "node2"


@pytest.mark.parametrize(
    ("begun", "is_alive"),
    [("before it began", False), ("when it began", True), ("not told", True), ("it has ended", False)],
)
def test_without_flock_a_pid_counts_for_the_process_that_had_it_when_it_was_written(
    paths: RunPaths, no_flock: None, begun: str, is_alive: bool
) -> None:
    """A machine that was off gives the same pids again; records of earlier versions tell the pid alone."""
    with subprocess.Popen(["sleep", "60"]) as process:
        known = {"before it began": "another-boot 12345", "when it began": processes.begun(process.pid)}.get(begun)
        told: dict[str, Any] = {} if known is None else {"begun": known}
        write_owner(paths, pid=process.pid, host="node1", started="earlier", **told)
        if begun == "it has ended":
            process.kill()
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # Nobody has waited for it yet.
        if is_alive:
            with pytest.raises(UserError, match=f"in use by the run with pid {process.pid} on node1, started earlier"):
                RunLock(paths, {}, "node1").acquire()
        else:
            with RunLock(paths, {}, "node1") as lock:
                assert lock.is_own()
        process.kill()


def test_the_record_has_what_earlier_versions_look_for(paths: RunPaths) -> None:
    with start(paths, "node1", restarts=2) as lock:
        record = json.loads(paths.lock.read_text())
        assert time.time() - 60 < record["started_at"] <= time.time() and record["started"][4] == "-"
        assert record | {"started_at": 0, "started": "", "begun": ""} == {
            "pid": os.getpid(), "host": "node1", "started_at": 0, "started": "", "begun": "", "command": None,
            "slurm_job_id": "12", "slurm_restart_count": 2, "token": lock.token,
        }  # fmt: skip


def test_the_same_process_takes_it_again_and_a_removed_file_is_put_back(paths: RunPaths, no_flock: None) -> None:
    """A program that takes another one's place has its pid."""
    RunLock(paths).acquire()
    with RunLock(paths) as lock:
        paths.lock.unlink()
        assert lock.is_own() and json.loads(paths.lock.read_text())["pid"] == os.getpid()
        paths.lock.unlink()
        paths.exp_dir.rename(paths.exp_dir.with_name("elsewhere"))
        assert not lock.is_own()


def test_a_role_may_write_while_its_own_start_has_the_lock(paths: RunPaths) -> None:
    with RunLock(paths) as lock:
        environ = {run_lock.TOKEN_VARIABLE: lock.token}
        assert may_write(paths, environ) and may_write(paths, {})
        write_owner(paths, token="other")
        assert not may_write(paths, environ)
        paths.lock.unlink()
        assert may_write(paths, environ), "no proof of anything"
