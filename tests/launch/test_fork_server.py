"""Roles forked from one process are like programs of their own: CPUs, logs, environment, exit codes, deaths."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.waiting import gone
from tests.support.warm_starts import WarmPopen, warm_fork_server
from tfagents_system.errors import UserError
from tfagents_system.launch import fork_client, role_starter
from tfagents_system.launch.fork_client import HANDLE_VARIABLE, ForkServer
from tfagents_system.launch.fork_messages import CallDiedError, ForkServerError
from tfagents_system.launch.forked_process import ForkedProcess
from tfagents_system.launch.role_process import MARK_VARIABLE
from tfagents_system.launch.role_starter import RoleStarter
from tfagents_system.machine import processes
from tfagents_system.machine.processes import kill_session, processes_of_run
from tfagents_system.machine.signals import SUPERVISOR_PID_VARIABLE

ROOT = Path(__file__).resolve().parents[2]
ROLE = "tests.support.forked_role"
EXP_DIR = f"/nowhere/{uuid.uuid4()}"


def environ(does: str = "exit", **more: str) -> dict[str, str]:
    own = {"FORKED_ROLE_DOES": does, "SAC_EXP_DIR": EXP_DIR, SUPERVISOR_PID_VARIABLE: str(os.getpid())}
    return {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **own, **more}


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    server = ForkServer.start({**os.environ, "SAC_EXP_DIR": EXP_DIR, "FORKED_SERVER": "1"})
    server.wait_until_ready()
    yield server
    server.close()


def asks(script: str, **options: Any) -> WarmPopen:
    """A program that has a server of its own."""
    options = {"env": os.environ, **options}
    return WarmPopen([sys.executable, "-c", script], exp_dir=Path(EXP_DIR), cwd=ROOT, text=True, **options)


def ended(process: ForkedProcess, secs: float = 30.0) -> int | None:
    deadline = time.monotonic() + secs
    while process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    return process.poll()


def told(log: Path, secs: float = 30.0) -> dict[str, Any]:
    """What the role has said of itself, once it has."""
    deadline = time.monotonic() + secs
    while time.monotonic() < deadline:
        lines = log.read_text().splitlines() if log.exists() else []
        found = [line for line in lines if line.startswith("{")]
        if found:
            said: dict[str, Any] = json.loads(found[-1])
            return said
        time.sleep(0.01)
    raise AssertionError(f"nothing in {log}: {log.read_text() if log.exists() else 'no file'}")


def test_the_server_has_one_thread_and_has_imported_tensorflow(server: ForkServer, tmp_path: Path) -> None:
    assert psutil.Process(server.pid).num_threads() == 1
    log = tmp_path / "role.log"
    assert ended(server.fork(ROLE, "sac_worker_0", environ(), log, [])) == 75
    assert told(log)["imported"]


def test_a_role_is_a_child_of_this_process_with_its_own_session_cpus_environment_and_log(
    server: ForkServer, tmp_path: Path
) -> None:
    cpu = max(os.sched_getaffinity(0))
    logs = [tmp_path / "a.log", tmp_path / "b.log"]
    logs[1].write_text("of an earlier start\n")
    roles = [
        server.fork(ROLE, f"sac_worker_{k}", environ(FORKED_NUMBER=str(k)), log, [cpu] if k == 0 else [])
        for k, log in enumerate(logs)
    ]
    assert [ended(role) for role in roles] == [75, 75]
    said = [told(log) for log in logs]
    assert [s["pid"] for s in said] == [role.pid for role in roles]
    assert [s["parent"] for s in said] == [os.getpid()] * 2
    assert [s["session"] for s in said] == [role.pid for role in roles]
    assert said[0]["cpus"] == [cpu]
    assert said[1]["cpus"] == sorted(os.sched_getaffinity(0))
    assert [s["name"] for s in said] == ["sac_worker_0", "sac_worker_1"]
    assert [s["own"] for s in said] == [{"FORKED_ROLE_DOES": "exit", "FORKED_NUMBER": str(k)} for k in range(2)]
    assert all(s["home"] is None and s["threads"] == 1 for s in said)
    assert logs[1].read_text().startswith("of an earlier start\n")
    assert all("to stderr" in log.read_text() for log in logs)


def test_random_numbers_differ_between_roles(server: ForkServer, tmp_path: Path) -> None:
    logs = [tmp_path / f"{k}.log" for k in range(2)]
    for log in logs:
        ended(server.fork(ROLE, "sac_worker_0", environ(), log, []))
    first, second = (told(log)["random"] for log in logs)
    assert first[0] != second[0] and first[1] != second[1]


@pytest.mark.parametrize("fails", [False, True])
def test_what_imports_say_is_shown_only_where_they_fail(fails: bool) -> None:
    script = f"""
import os
from tfagents_system.launch.fork_server import _stderr_held_back
try:
    with _stderr_held_back():
        os.system("echo said >&2")
        if {fails}:
            raise ImportError
except ImportError:
    os.system("echo failed >&2")
os.system("echo later >&2")
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stderr == ("said\nfailed\nlater\n" if fails else "later\n")


def test_an_exception_is_exit_code_1_with_its_traceback_in_the_log(server: ForkServer, tmp_path: Path) -> None:
    log = tmp_path / "role.log"
    assert ended(server.fork(ROLE, "sac_trainer", environ("raise"), log, [])) == 1
    assert "ValueError: on purpose" in log.read_text()


def test_a_killed_role_is_told_by_its_signal(server: ForkServer, tmp_path: Path) -> None:
    log = tmp_path / "role.log"
    role = server.fork(ROLE, "sac_trainer", environ("wait"), log, [])
    told(log)
    assert role.poll() is None
    role.kill()
    assert role.wait() == -signal.SIGKILL
    assert role.returncode == -signal.SIGKILL
    kill_session(role.pid)


def test_a_function_is_called_in_a_process_of_its_own(server: ForkServer) -> None:
    for _ in range(2):
        assert server.call(ROLE, "answer", 20, environ=environ(FORKED_NUMBER="2")) == 42
    with pytest.raises(UserError, match="the rule\nthe remedy"):
        server.call(ROLE, "fail", environ=environ())
    with pytest.raises(CallDiedError, match="SIGSEGV"):
        server.call(ROLE, "crash", environ=environ())
    with pytest.raises(CallDiedError, match="exit code 1"):
        server.call(ROLE, "raise_own_error", environ=environ())
    assert server.call(ROLE, "answer", 0, environ=environ(FORKED_NUMBER="1")) == 1  # It goes on all the same.


def test_what_a_called_function_leaves_behind_is_killed_and_not_waited_for(server: ForkServer) -> None:
    assert gone(server.call(ROLE, "leave_a_child", environ=environ()), within_secs=5.0)


def test_players_of_a_called_function_end_with_it_and_roles_are_not_the_servers_children(
    server: ForkServer, tmp_path: Path
) -> None:
    players = server.call(ROLE, "leave_players", environ=environ())
    assert len(players) == 2 and all(gone(pid, within_secs=1.0) for pid in players)
    with pytest.raises(CallDiedError, match="SIGSEGV"):
        server.call(ROLE, "crash", environ=environ())
    assert ended(server.fork(ROLE, "sac_worker_0", environ(), tmp_path / "role.log", [])) == 75
    assert told(tmp_path / "role.log")["parent"] == os.getpid()


@pytest.mark.parametrize("job", [{}, {"SLURM_JOB_ID": "7"}], ids=["", "in a SLURM job"])
def test_when_the_asking_process_dies_the_called_function_and_its_children_end(
    tmp_path: Path, job: dict[str, str]
) -> None:
    told_at = tmp_path / "pids"
    script = f"""
from tfagents_system.launch.fork_client import ForkServer
server = ForkServer.inherited()
server.call({ROLE!r}, "stay", {str(told_at)!r}, environ={environ()!r})
"""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    with asks(script, env={**clean, **job}) as asking:
        deadline = time.monotonic() + 60.0
        while not told_at.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        pids = [int(pid) for pid in told_at.read_text().split()]
        asking.kill()
    assert len(pids) == 4 and all(gone(pid, within_secs=20.0) for pid in pids)


def test_forked_roles_are_found_by_a_later_start_but_not_while_their_own_is_there(
    server: ForkServer, tmp_path: Path
) -> None:
    log = tmp_path / "role.log"
    deadline = time.monotonic() + 20.0
    while list(processes_of_run(Path(EXP_DIR))) and time.monotonic() < deadline:
        time.sleep(0.05)  # What the test before has killed may still be ending.
    role = server.fork(ROLE, "sac_trainer", environ("wait"), log, [])
    told(log)
    try:
        assert list(processes_of_run(Path(EXP_DIR))) == []  # Of this process: nobody's orphans.
        script = f"""
from pathlib import Path
from tfagents_system.machine import processes
print(*processes.processes_of_run(Path({EXP_DIR!r})))
processes.ancestors = lambda pid: [1]  # As if this test had died.
print(*processes.processes_of_run(Path({EXP_DIR!r})))
"""
        found = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60)
        beside, later = found.stdout.splitlines()
        assert beside == "" and {role.pid, server.pid} <= {int(pid) for pid in later.split()}
    finally:
        role.kill()
        kill_session(role.pid)


def test_when_the_server_is_killed_roles_go_on_the_next_is_a_program_and_later_ones_are_forked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start_server() -> ForkServer:
        servers.append(warm_fork_server({**os.environ, "SAC_EXP_DIR": EXP_DIR}))
        return servers[-1]

    servers: list[ForkServer] = []
    start_server().wait_until_ready()
    log, second, third = (tmp_path / f"{k}.log" for k in range(3))
    role = servers[0].fork(ROLE, "sac_worker_0", environ("wait"), log, [])
    told(log)
    os.kill(servers[0].pid, signal.SIGKILL)
    monkeypatch.setattr(role_starter, "module_of_role", lambda name: ROLE)
    starter = RoleStarter(lambda name: ["sh", "-c", f"echo {name} as a program; exit 7"], servers[0], start_server)
    try:
        assert starter.start("worker_1", [], environ(), second).wait() == 7
        assert second.read_text() == "worker_1 as a program\n"
        servers[1].wait_until_ready()
        assert starter.start("worker_2", [], environ(), third).wait() == 75
        assert told(third)["name"] == "sac_worker_2" and len(servers) == 2
        assert role.poll() is None
    finally:
        role.kill()
        kill_session(role.pid)
        starter.close()


def test_a_module_gets_its_arguments_and_tells_mistakes_whether_it_is_forked_or_not(
    server: ForkServer, tmp_path: Path
) -> None:
    arguments = ["--exp_dir", str(tmp_path / "missing")]
    for starter in (RoleStarter(fork_server=server), RoleStarter()):
        log = tmp_path / f"{starter._fork_server is not None}.log"
        process = starter.start_module("tfagents_system.run", arguments, [], environ(), log)
        assert isinstance(process, ForkedProcess) == (starter._fork_server is not None)
        assert process.wait() == 2
        text = log.read_text()
        assert text.startswith("error: ") and str(tmp_path / "missing") in text and "Traceback" not in text, text


@pytest.mark.parametrize("is_killed", [False, True], ids=["late", "killed"])
def test_a_role_that_was_forked_but_not_told_of_in_time_never_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_killed: bool
) -> None:
    server = warm_fork_server({**os.environ, "SAC_EXP_DIR": EXP_DIR})
    answer, forked = server._answer, []

    def late_answer(*args: Any) -> Any:
        forked.append(answer(*args))
        if is_killed:
            os.kill(server.pid, signal.SIGKILL)
        time.sleep(0.5)  # Time enough to begin for a role that does not wait.
        raise ForkServerError("too late")

    monkeypatch.setattr(server, "_answer", late_answer)
    monkeypatch.setattr(role_starter, "module_of_role", lambda name: ROLE)
    starter = RoleStarter(lambda name: ["echo", "as a program"], server)
    log = tmp_path / "role.log"
    try:
        assert starter.start("replay", [], environ("wait"), log).wait() == 0
        assert ended(ForkedProcess(forked[0])) == 1
        assert "as a program\n" in log.read_text() and "{" not in log.read_text()
    finally:
        starter.close()
        kill_session(forked[0])


@pytest.mark.parametrize("dies_by", ["an error", "SIGKILL"])
def test_a_fork_that_fails_in_the_process_between_is_told_and_never_doubles_the_server(dies_by: str) -> None:
    script = f"""
import errno, os, signal
from tfagents_system.launch import fork_server
fork, server = os.fork, os.getpid()
def fork_once():
    if os.getpid() != server:
        if {dies_by == "SIGKILL"}:
            os.kill(os.getpid(), signal.SIGKILL)
        raise OSError(errno.EAGAIN, "no more processes")
    return fork()
os.fork = fork_once
request = fork_server.ForkRequest("no_module", "sac_worker_0", {{}}, "/nowhere/log", ())
connection, begin = fork_server.Pipe()
try:
    fork_server._fork_role(request, connection, begin)
except fork_server.ForkServerError as error:
    print(f"{{os.getpid() == server}} {{error}}", flush=True)
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60)
    reason = "no more processes" if dies_by == "an error" else "the process in between died"
    assert done.stdout == f"True sac_worker_0 can't be forked ({reason})\n", done.stderr
    assert done.stderr == ""


def is_zombie(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_orphans_of_roles_are_waited_for_and_exit_codes_of_roles_are_left(server: ForkServer, tmp_path: Path) -> None:
    starter = RoleStarter(fork_server=server)
    starter.reap_orphans([])  # Nothing is forked yet: the children of this process are nobody's orphans.
    log = tmp_path / "role.log"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(role_starter, "module_of_role", lambda name: ROLE)
        roles = [starter.start("worker_0", [], environ(does), log) for does in ("wait", "exit")]
    told(log)
    deadline = time.monotonic() + 30.0
    while not (orphans := psutil.Process(roles[0].pid).children()) and time.monotonic() < deadline:
        time.sleep(0.01)
    roles[0].kill()
    roles[0].wait()
    kill_session(roles[0].pid)
    while not (is_zombie(orphans[0].pid) and is_zombie(roles[1].pid)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert orphans[0].ppid() == os.getpid()
    starter.reap_orphans([roles[1].pid])
    assert is_zombie(roles[1].pid)
    assert roles[1].poll() == 75
    starter.reap_orphans([roles[1].pid])  # What an exit code that nobody had taken may have hidden.
    assert not psutil.pid_exists(orphans[0].pid)
    assert psutil.pid_exists(server.pid)


def test_what_a_forked_role_forks_has_its_mark(server: ForkServer, tmp_path: Path) -> None:
    """Without another program, in a session of its own, as a child of the supervisor: like a simulator's daemon."""
    marks = [f"worker_{k}.{uuid.uuid4()}" for k in range(2)]
    logs = [tmp_path / f"{k}.log" for k in range(2)]
    roles = [
        server.fork(ROLE, "sac_worker", environ("daemon", **{MARK_VARIABLE: mark}), log, [])
        for mark, log in zip(marks, logs, strict=True)
    ]
    try:
        assert processes.wait_until(lambda: all("daemon" in told(log) for log in logs), 30.0)
        daemons = [told(log)["daemon"] for log in logs]
        for mark, role, daemon in zip(marks, roles, daemons, strict=True):
            for pid in (role.pid, daemon):
                shown = processes.environment_of(pid)
                assert f"{MARK_VARIABLE}={mark}".encode() in shown and f"SAC_EXP_DIR={EXP_DIR}".encode() in shown
            assert os.getsid(daemon) != role.pid
        assert processes.end_marked([f"{MARK_VARIABLE}={marks[0]}"]) == []
        # Its environment is gone a moment before the process is.
        assert processes.wait_until(lambda: not processes.is_alive(daemons[0]), 10.0) and processes.is_alive(daemons[1])
        assert processes.wait_until(lambda: roles[0].poll() == -signal.SIGKILL, 10.0) and roles[1].poll() is None
    finally:
        assert processes.end_marked([f"{MARK_VARIABLE}={mark}" for mark in marks]) == []
    assert roles[1].wait() == -signal.SIGKILL


def test_a_child_of_the_start_that_has_ended_hides_no_orphans(tmp_path: Path) -> None:
    """A vars file with `something &` leaves the supervisor such a child."""
    child = subprocess.Popen(["sleep", "300"])
    starter = RoleStarter()
    starter.adopt()
    may_end = tmp_path / "may_end"
    os.mkfifo(may_end)
    orphan = int(subprocess.check_output(["sh", "-c", f"cat {may_end} > /dev/null & echo $!"]))
    starter.reap_orphans([])
    assert processes.is_alive(child.pid) and processes.is_alive(orphan)
    child.kill()
    may_end.write_text("")
    assert processes.wait_until(lambda: is_zombie(child.pid) and is_zombie(orphan), 10.0)
    starter.reap_orphans([])
    assert not psutil.pid_exists(orphan) and not psutil.pid_exists(child.pid)
    assert child.pid not in starter._others
    child.wait()


def test_a_server_that_the_kernel_does_not_let_go_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = fork_client._pipe()
    sleeper = subprocess.Popen(["sleep", "300"])
    server = ForkServer(ours, sleeper.pid)
    with monkeypatch.context() as patch, theirs:
        patch.setattr(fork_client, "KILL_SECS", 0.3)
        patch.setattr(fork_client.os, "kill", lambda *_: None)
        began = time.monotonic()
        server.close()
        assert 0.3 <= time.monotonic() - began < 10.0
    sleeper.kill()
    assert sleeper.wait(5.0) == -signal.SIGKILL


def test_roles_and_server_end_with_the_supervisor(tmp_path: Path) -> None:
    """kill -9 of the process that asked: the role gets SIGTERM, the server ends."""
    log = tmp_path / "role.log"
    script = f"""
import os, time
from pathlib import Path
from tfagents_system.launch.fork_client import ForkServer
server = ForkServer.inherited()
environ = {environ("wait")!r} | {{"{SUPERVISOR_PID_VARIABLE}": str(os.getpid())}}
role = server.fork({ROLE!r}, "sac_worker_0", environ, Path({str(log)!r}), [])
print(server.pid, role.pid, flush=True)
time.sleep(300)
"""
    with asks(script, stdout=subprocess.PIPE) as asking:
        assert asking.stdout is not None
        pids = [int(pid) for pid in asking.stdout.readline().split()]
        told(log)
        asking.kill()
    assert all(gone(pid, within_secs=20.0) for pid in pids)
    kill_session(pids[1])


def test_the_server_is_handed_over_to_the_program_that_takes_the_place(tmp_path: Path) -> None:
    log = tmp_path / "role.log"
    successor = f"""
import os
from pathlib import Path
from tfagents_system.launch.fork_client import ForkServer
server = ForkServer.inherited()
environ = {environ("exit")!r} | {{"{SUPERVISOR_PID_VARIABLE}": str(os.getpid())}}
assert "{HANDLE_VARIABLE}" not in os.environ
print(server.fork({ROLE!r}, "sac_worker_0", environ, Path({str(log)!r}), []).wait())
"""
    script = f"""
import os, sys
from tfagents_system.launch.fork_client import ForkServer, HANDLE_VARIABLE
server = ForkServer.start({{**os.environ, "SAC_EXP_DIR": {EXP_DIR!r}}})
_, os.environ[HANDLE_VARIABLE] = server.hand_over()
os.execv(sys.executable, [sys.executable, "-c", {successor!r}])
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == ("75\n", "")  # TensorFlow's import has reported what are no errors.


def test_without_a_server_there_is_nothing_to_inherit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(HANDLE_VARIABLE, raising=False)
    assert ForkServer.inherited() is None
    closed = os.open(os.devnull, os.O_RDONLY)
    os.close(closed)
    monkeypatch.setenv(HANDLE_VARIABLE, f"{closed},1")
    assert ForkServer.inherited() is None
