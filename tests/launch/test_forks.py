"""Forks of a process that has imported everything are like programs: CPUs, descriptors, signals, marks, exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.waiting import gone, until
from tests.support.warm_starts import WarmPopen
from tfagents_system.launch.forks import MARK_VARIABLE
from tfagents_system.machine import processes
from tfagents_system.machine.processes import kill_session
from tfagents_system.machine.signals import SUPERVISOR_PID_VARIABLE

ROOT = Path(__file__).resolve().parents[2]
EXP_DIR = f"/nowhere/{uuid.uuid4()}"
# The names that scripts have: a starter of roles, which are tests/support/forked_role.py.
NAMES = f"""
import fcntl, json, os, signal, socket, subprocess, sys, time
from pathlib import Path
from tests.support import forked_role
from tfagents_system.launch import forks
from tfagents_system.machine import processes
forks._WORKER = "tests.support.forked_role"
starter = forks.RoleStarter()
folder = Path(sys.argv[1])
def environ(does="exit", **more):
    own = {{"FORKED_ROLE_DOES": does, "SAC_EXP_DIR": {EXP_DIR!r}, "PYTHONPATH": {str(ROOT)!r}}}
    return {{"PATH": os.environ["PATH"], **own, **more}}
def start(number, does="exit", cpus=(), **more):
    return starter.start(f"worker_{{number}}", cpus, environ(does, **more), folder / f"{{number}}.log")
def said(number):
    while True:
        text = (folder / f"{{number}}.log").read_text()
        if found := [line for line in text.splitlines() if line.startswith("{{")]:
            return json.loads(found[-1])
        time.sleep(0.01)
"""


def begin(folder: Path, script: str) -> WarmPopen:
    """Where all is imported; its standard error is shown with the output."""
    command = [sys.executable, "-c", NAMES + script, str(folder)]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return WarmPopen(command, cwd=ROOT, env=os.environ, **pipes)


def told(folder: Path, script: str) -> Any:
    """What a script prints as its last line, in JSON."""
    with begin(folder, script) as process:
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 0, out
    return json.loads(out.splitlines()[-1])


def test_the_import_leaves_one_thread_and_runs_no_operation() -> None:
    """A cold one, and what it says is held back."""
    script = (
        "import os, sys\nfrom tfagents_system.launch import forks\nforks.import_all()\n"
        "from tensorflow.python.eager import context\n"
        "print(len(os.listdir('/proc/self/task')), context._context, 'pyarrow' in sys.modules)\n"
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        "try:\n    forks.fork_program(lambda: 0, 'sac_worker_0', os.environ)\n"
        "except RuntimeError as error:\n    print(error)\n"
    )
    single = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    command = [sys.executable, "-P", "-c", script]
    environ = {**os.environ, **single, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=300)
    first, second = done.stdout.splitlines()
    assert first == "1 None False" and done.stderr == ""
    assert second.startswith("this process can't be forked, it has 2 threads: ")


def test_a_role_has_its_own_session_cpus_environment_log_and_random_numbers(tmp_path: Path) -> None:
    (tmp_path / "1.log").write_text("of an earlier start\n")
    cpu = max(os.sched_getaffinity(0))
    pid, pids, codes, roles = told(
        tmp_path,
        f"""
roles = [start(k, cpus=[{cpu}] if k == 0 else [], FORKED_NUMBER=str(k)) for k in range(2)]
codes = [role.wait() for role in roles]
print(json.dumps([os.getpid(), [role.pid for role in roles], codes, [said(k) for k in range(2)]]))
""",
    )
    assert codes == [75, 75]
    assert [role["pid"] for role in roles] == [role["session"] for role in roles] == pids
    assert [role["parent"] for role in roles] == [pid] * 2
    assert roles[0]["cpus"] == [cpu] and roles[1]["cpus"] == sorted(os.sched_getaffinity(0))
    assert [role["name"] for role in roles] == ["sac_worker_0", "sac_worker_1"]
    assert [role["own"] for role in roles] == [{"FORKED_ROLE_DOES": "exit", "FORKED_NUMBER": str(k)} for k in range(2)]
    assert all(role["home"] is None and role["threads"] == 1 and role["imported"] for role in roles)
    assert roles[0]["random"][0] != roles[1]["random"][0] and roles[0]["random"][1] != roles[1]["random"][1]
    assert (tmp_path / "1.log").read_text().startswith("of an earlier start\n")
    assert all("to stderr" in (tmp_path / f"{k}.log").read_text() for k in range(2))


def test_a_signal_that_comes_at_once_is_not_lost(tmp_path: Path) -> None:
    """Though the process that forks has a handler for it."""
    codes = told(
        tmp_path,
        """
signal.signal(signal.SIGTERM, lambda *_: None)
roles = [start(k, "wait") for k in range(20)]
for role in roles:
    role.send_signal(signal.SIGTERM)
codes = [role.wait() for role in roles]
processes.kill_session(*(role.pid for role in roles))
print(json.dumps(codes))
""",
    )
    assert codes == [-signal.SIGTERM] * 20


def test_after_the_death_of_the_supervisor_alone_nothing_of_it_is_held(tmp_path: Path) -> None:
    """By a role that outlives it: its lock, claims and port belong to open files, which a fork inherits."""
    script = """
lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT)
fcntl.flock(lock, fcntl.LOCK_EX)
port = socket.create_server(("127.0.0.1", 0))
claim = socket.socket(socket.AF_UNIX)
claim.bind(f"\\0{folder}")
claim.listen()
role, mortal = start(0, "outlive"), start(1, "wait")
said(0), said(1)
print(json.dumps([role.pid, mortal.pid, port.getsockname()[1]]), flush=True)
time.sleep(300)
"""
    held = f"""
import fcntl, os, socket
fcntl.flock(os.open({str(tmp_path / "lock")!r}, os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB)
socket.socket(socket.AF_UNIX).bind({chr(0) + str(tmp_path)!r})
socket.create_server(("127.0.0.1", int(os.environ["PORT"])))
"""

    def tries(port: int) -> int:
        environ = {**os.environ, "PORT": str(port)}
        return subprocess.run([sys.executable, "-c", held], env=environ, capture_output=True, timeout=60).returncode

    with begin(tmp_path, script) as process:
        assert process.stdout is not None
        role, mortal, port = json.loads(process.stdout.readline())
        assert tries(port) != 0
        process.kill()
        process.wait()
    try:
        assert gone(mortal, 20.0)
        assert not gone(role, 0.5) and tries(port) == 0
    finally:
        kill_session(role, mortal)


def test_forks_that_fail_are_errors(tmp_path: Path) -> None:
    """A role that can't be forked counts as one that has failed, and is tried again (test_roles.py)."""
    errors = told(
        tmp_path,
        """
def no_fork():
    raise BlockingIOError(11, "Resource temporarily unavailable")
os.fork, errors = no_fork, []
for _ in range(2):
    try:
        start(0)
    except OSError as error:
        errors.append(error.errno)
print(json.dumps([errors, len(os.listdir("/proc/self/fd")) < 6, signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()]))
""",
    )
    assert errors == [[11, 11], True, True]


# Marks, and what roles leave.


def test_what_a_role_forks_has_its_mark(tmp_path: Path) -> None:
    """Without another program, in a session of its own, as a child of the supervisor: like a simulator's daemon."""
    marks = [f"worker_{k}.{uuid.uuid4()}" for k in range(2)]
    script = f"""
roles = [start(k, "daemon", {MARK_VARIABLE}=mark) for k, mark in enumerate({marks!r})]
while not all("daemon" in said(k) for k in range(2)):
    time.sleep(0.01)
print(json.dumps([[role.pid, said(k)["daemon"]] for k, role in enumerate(roles)]), flush=True)
print(json.dumps([role.wait() for role in roles]), flush=True)
"""
    with begin(tmp_path, script) as process:
        assert process.stdout is not None
        try:
            pids = json.loads(process.stdout.readline())
            for mark, (role, daemon) in zip(marks, pids, strict=True):
                for pid in (role, daemon):
                    shown = processes.environment_of(pid)
                    wanted = {f"{MARK_VARIABLE}={mark}", f"SAC_EXP_DIR={EXP_DIR}"}
                    assert {word.encode() for word in wanted} <= shown
                    assert f"{SUPERVISOR_PID_VARIABLE}={process.pid}".encode() in shown
                    assert psutil.Process(pid).environ()["SAC_EXP_DIR"] == EXP_DIR
                assert os.getsid(daemon) != role
            assert processes.end_marked([f"{MARK_VARIABLE}={marks[0]}"]) == []
            # Its environment is gone a moment before the process is.
            assert processes.wait_until(lambda: not processes.is_alive(pids[0][1]), 10.0)
            assert processes.is_alive(pids[1][1]) and processes.is_alive(pids[1][0])
        finally:
            assert processes.end_marked([f"{MARK_VARIABLE}={mark}" for mark in marks]) == []
        assert json.loads(process.stdout.readline()) == [-signal.SIGKILL] * 2


def test_orphans_of_roles_are_reaped_and_exit_codes_of_others_are_left(tmp_path: Path) -> None:
    """Of roles, and of children that other code looks after, such as a tunnel."""
    zombie, code, others, was_there, is_there = told(
        tmp_path,
        """
import psutil
other = processes.start_apart(["sleep", "60"])
def is_zombie(pid):
    return psutil.pid_exists(pid) and psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
roles = [start(k, does) for k, does in enumerate(["wait", "exit"])]
while not (orphans := psutil.Process(roles[0].pid).children()):
    time.sleep(0.01)
roles[0].kill()
roles[0].wait()
processes.kill_session(roles[0].pid)
while not (is_zombie(orphans[0].pid) and is_zombie(roles[1].pid)):
    time.sleep(0.01)
was_there = psutil.pid_exists(orphans[0].pid)
other.kill()
starter.reap_orphans([roles[1].pid])
zombie, code = is_zombie(roles[1].pid), roles[1].poll()
print(json.dumps([zombie, code, other.wait(10), was_there, psutil.pid_exists(orphans[0].pid)]))
""",
    )
    assert (zombie, code, others, was_there, is_there) == (True, 75, -signal.SIGKILL, True, False)


# Calls.


def test_a_function_is_called_in_a_fork(tmp_path: Path) -> None:
    outcomes, left, others, variable, descriptors = told(
        tmp_path,
        """
outcomes = []
for function, number in [("answer", 2), ("fail", 0), ("crash", 0), ("raise_own_error", 0), ("leave_a_child", 0),
                         ("leave_players", 0), ("hang", 0), ("answer", 1)]:
    try:
        called = getattr(forked_role, function)
        heard = []
        def watch(told):
            heard.append(told)
            return told == "hangs"
        result = forks.call(called, "sac_check", environ(FORKED_NUMBER=str(number)), watch)
        outcomes.append([heard[-1] if heard else None, result])
    except forks.UserError as error:
        outcomes.append(list(error.findings))
    except forks.CallDiedError as error:
        outcomes.append(str(error))
left = [pid for outcome in outcomes[4:6] for pid in outcome[1] if processes.is_alive(pid)]
descriptors = len(os.listdir("/proc/self/fd"))
print(json.dumps([outcomes[:4], left, outcomes[6:], os.environ.get("FORKED_CALL"), descriptors]))
""",
    )
    assert outcomes == [[None, 42], ["the rule", "the remedy"], "SIGSEGV", "exit code 1"]
    assert (left, others, variable) == ([], ["SIGKILL", [None, 41]], None) and descriptors <= 5


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_when_the_calling_process_dies_the_called_function_and_its_children_end(tmp_path: Path, number: int) -> None:
    """At a stop signal in words; after SIGKILL the fork at least."""
    script = """
forks.end_early_on_signals()
forks.call(lambda tell: forked_role.stay(folder / "pids"), "sac_check", environ())
"""
    with begin(tmp_path, script) as process:
        until((tmp_path / "pids").exists, 60.0, "the function is called")
        pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
        process.send_signal(number)
        if number == signal.SIGKILL:
            assert gone(pids[0], 20.0)
            processes.kill_all(pids)
        out, _ = process.communicate(timeout=60)
    assert process.returncode == -number and len(pids) == 4
    if number != signal.SIGKILL:
        assert out == f"stopped by {signal.Signals(number).name}: nothing was started\n"
        assert all(gone(pid, within_secs=20.0) for pid in pids)
