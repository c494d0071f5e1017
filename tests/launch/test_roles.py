"""Roles as processes: their restarts, what they leave behind, and those that outlive their supervisor."""

from __future__ import annotations

import errno
import fcntl
import functools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.fake_run import SAVES, start_program
from tests.support.supervised import make_supervisor
from tests.support.waiting import gone
from tfagents_system.launch import role_process
from tfagents_system.launch.role_process import RoleProcess, end_orphans
from tfagents_system.machine.processes import processes_of_run
from tfagents_system.machine.signals import StopFlag
from tfagents_system.run_files.run_paths import RunPaths

_PIPES: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}


def test_the_backoff_doubles_and_a_long_life_resets_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    role = RoleProcess(
        "worker_0", functools.partial(start_program, ["true"]), dict(os.environ), tmp_path / "log", max_restarts=7
    )
    role.poll()
    assert [role.restart_later() for _ in range(8)] == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, None]
    assert role.given_up
    monkeypatch.setattr(role_process, "_HEALTHY_SECS", -1.0)
    assert role.restart_later() == 1.0 and role.failures == 1
    role_process.kill_roles([role])


def test_a_role_that_cannot_be_started_is_tried_again_and_given_up_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(role_process, "_FIRST_BACKOFF_SECS", 0.0)

    def start_nothing(environ: Any, path: Path) -> Any:
        raise OSError(errno.EMFILE, "Too many open files")

    role = RoleProcess("worker_0", start_nothing, {}, tmp_path / "log", max_restarts=2)
    assert not role.is_over and role.poll() == 1 and role.is_over, "the first one counts, too"
    codes = []
    while role.restart_later() is not None:
        codes.append(role.poll())
    assert codes == [1, 1]
    assert role.given_up
    assert role.last_lines() == ["it can't be started: [Errno 24] Too many open files"]


def test_players_in_sessions_of_their_own_end_with_their_role_and_others_go_on(
    run_dir: Path, stop: StopFlag, fast: None
) -> None:
    """Before it is started again; direct children and daemons. Those that clean their environment end with the run."""
    lives = f"kill -0 $(cat {run_dir}/of_0) 2>/dev/null && touch {run_dir}/alive; "
    starts = "{0} setsid sleep 600 & echo $! >> {1}; "
    crashes = (
        f"{lives}{starts.format('', run_dir / 'of_0')} ( {starts.format('', run_dir / 'of_0')} ) ; sleep 0.1; exit 1"
    )
    daemons = "".join(f"( {starts.format(how, run_dir / 'of_1')} ) ; " for how in ("", "env -i"))
    looks = "sleep 0.05; " + "".join(
        f"ps -o pid= -p $(echo $(cat {run_dir}/{name}) | tr ' ' ,) > {run_dir}/{name}.seen; "
        for name in ("of_0", "of_1")
    )
    waits = f"until [ $(cat {run_dir}/of_0 | wc -l) -ge 12 ]; do sleep 0.02; done; "
    roles = {"worker_0": crashes, "worker_1": daemons + SAVES, "trainer": waits + looks + "exit 0"}
    assert make_supervisor(run_dir, stop, roles, workers=2, max_restarts=100).run() == 0
    ended, kept = ((run_dir / name).read_text().split() for name in ("of_0", "of_1"))
    assert len(ended) >= 12 and len(kept) == 2
    assert len((run_dir / "of_0.seen").read_text().split()) <= 4, "of the newest start, and of one that is just ending"
    assert sorted((run_dir / "of_1.seen").read_text().split()) == sorted(kept), "while their worker was alive"
    assert all(gone(int(pid), 5.0) for pid in ended + kept)
    assert not (run_dir / "alive").exists(), "at a start of their role"


# Roles that outlive their supervisor.


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    return RunPaths(tmp_path)


@pytest.fixture
def start_orphan(paths: RunPaths) -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    """Starts a role whose supervisor has ended; it ends soon after the file `saved` is there."""
    started = []
    supervisor = subprocess.Popen(["true"])
    supervisor.wait()

    program = (
        "import os, sys, time\n"
        "end = time.monotonic() + 60.0\n"
        "while not os.path.exists(sys.argv[1]) and time.monotonic() < end: time.sleep(0.02)\n"
        "time.sleep(0.2)\n"
    )

    def start() -> subprocess.Popen[bytes]:
        environ = os.environ | {"SAC_EXP_DIR": str(paths.exp_dir), "TFAGENTS_SUPERVISOR_PID": str(supervisor.pid)}
        started.append(subprocess.Popen([sys.executable, "-c", program, str(paths.exp_dir / "saved")], env=environ))
        deadline = time.monotonic() + 10.0
        while started[-1].pid not in processes_of_run(paths.exp_dir):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        threading.Thread(target=started[-1].wait, daemon=True).start()
        return started[-1]

    yield start
    for process in started:
        process.kill()


def test_those_that_save_are_waited_for_and_not_touched(
    paths: RunPaths,
    start_orphan: Callable[[], subprocess.Popen[bytes]],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def print_and_save(line: str, **options: Any) -> None:
        print(line, **options)
        (paths.exp_dir / "saved").touch()

    monkeypatch.setattr(role_process, "print", print_and_save, raising=False)
    orphan = start_orphan()
    end_orphans(paths, 30.0)
    assert processes_of_run(paths.exp_dir) == [], "it was waited for"
    assert orphan.wait(10.0) == 0, "it ended by itself"
    line = "waiting for 1 processes of an earlier start of this run to save and end\n"
    assert capfd.readouterr().out == line
    end_orphans(paths, 30.0)
    assert capfd.readouterr().out == "", "there is nobody to wait for"


def test_at_the_deadline_they_are_killed(paths: RunPaths, start_orphan: Callable[[], subprocess.Popen[bytes]]) -> None:
    orphan = start_orphan()
    end_orphans(paths, 0.3)
    assert orphan.wait(10.0) == -9


def test_roles_of_a_run_that_somebody_has_are_not_waited_for(
    paths: RunPaths, start_orphan: Callable[[], subprocess.Popen[bytes]]
) -> None:
    orphan = start_orphan()
    with open(paths.lock, "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        began = time.monotonic()
        end_orphans(paths, 30.0)
        assert time.monotonic() - began < 15.0
        assert orphan.poll() is None, "nor touched"
        end_orphans(paths, 0.3, has_lock=True)
    assert orphan.wait(10.0) == -9, "this start is the one that has it"


@pytest.mark.parametrize("supervisor", ["", "1.5"])
def test_what_is_no_pid_of_a_supervisor_stops_no_start(paths: RunPaths, supervisor: str) -> None:
    """In whichever process of this machine: it may be of another run, or of no run at all."""
    marks = {"SAC_EXP_DIR": str(paths.exp_dir), "TFAGENTS_SUPERVISOR_PID": supervisor}
    with subprocess.Popen(["sh", "-c", "echo up; read end"], env={**os.environ, **marks}, **_PIPES) as odd:
        assert odd.stdout is not None and odd.stdout.readline() == "up\n"
        assert processes_of_run(paths.exp_dir) == []
        odd.communicate("end\n", timeout=10.0)


def test_a_start_at_the_same_time_is_no_earlier_one(paths: RunPaths) -> None:
    """Its processes are still checking: whoever has the lock neither waits for them nor ends them."""
    program = (
        "import os, subprocess, sys\n"
        f"marks = {{'SAC_EXP_DIR': {str(paths.exp_dir)!r}, 'TFAGENTS_SUPERVISOR_PID': str(os.getpid())}}\n"
        "inner = \"import subprocess; subprocess.run(['sh', '-c', 'echo up; read end'])\"\n"
        "subprocess.run([sys.executable, '-c', inner], env={**os.environ, **marks})\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], **_PIPES) as other:
        assert other.stdout is not None and other.stdout.readline() == "up\n"
        assert processes_of_run(paths.exp_dir) == []
        end_orphans(paths, 0.0)
        assert other.poll() is None
        other.communicate("end\n", timeout=10.0)
    assert other.returncode == 0
