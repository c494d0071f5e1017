"""Stop signals are seen at once, and an orphaned role ends."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.support.waiting import gone
from tfagents_system.machine.signals import StopFlag, is_orphan

ROOT = Path(__file__).resolve().parents[2]


def test_waiting_ends_when_the_flag_is_set() -> None:
    stop = StopFlag(signals=())
    assert not stop.wait(0.01) and not stop.is_set() and stop.signal_number is None
    threading.Timer(0.05, stop.set, [signal.SIGUSR1]).start()
    start = time.monotonic()
    assert stop.wait(30.0)
    assert time.monotonic() - start < 5.0
    assert stop.signal_number == signal.SIGUSR1


# Installs a flag, then sends itself signals, and says what came of each.
PROGRAM = """
import os, signal, sys, time
from tfagents_system.machine.signals import StopFlag, role_stop_signal
stop = StopFlag.of_role() if sys.argv[1] == "role" else StopFlag.of_supervisor()
for name in sys.argv[2:]:
    os.kill(os.getpid(), role_stop_signal() if name == "own" else getattr(signal, name))
    print(stop.wait(0.1) if sys.argv[1] == "role" else stop.count)
    time.sleep(0.35 if sys.argv[1] == "supervisor" else 0.0)
print(stop.signal_number)
"""


@pytest.mark.parametrize(
    ("who", "environ", "names", "told"),
    [
        ("role", {}, ["SIGUSR2"], ["True", "12"]),
        # SLURM signals all processes of a job at once: roles have to end one after the other.
        ("role", {"SLURM_JOB_ID": "7"}, ["SIGTERM", "SIGUSR1", "SIGINT", "own"], ["False"] * 3 + ["True", "3"]),
        ("supervisor", {}, ["SIGTERM", "SIGHUP", "SIGINT"], ["1", "2", "3", "15"]),
        # There, only a person insists.
        ("supervisor", {"SLURM_JOB_ID": "7"}, ["SIGTERM", "SIGHUP", "SIGINT"], ["1", "1", "2", "15"]),
        # Two within a moment count once.
        ("supervisor at once", {}, ["SIGINT", "SIGTERM"], ["1", "1", "2"]),
    ],
)
def test_who_listens_to_which_signals(who: str, environ: dict[str, str], names: list[str], told: list[str]) -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, who, *names],
        cwd=ROOT,
        env={**clean, **environ},
        capture_output=True,
        text=True,
        timeout=30,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # Tests may be run under nohup.
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == told


def test_a_role_dies_with_its_supervisor() -> None:
    role = (
        "import time\nfrom tfagents_system.machine.signals import die_with_parent\ndie_with_parent()\n"
        "print('ready', flush=True)\ntime.sleep(60)\n"
    )
    supervisor = (
        "import os, subprocess, sys, time\nos.environ['TFAGENTS_SUPERVISOR_PID'] = str(os.getpid())\n"
        f"p = subprocess.Popen([sys.executable, '-c', {role!r}], start_new_session=True, stdout=subprocess.PIPE)\n"
        "p.stdout.readline()\nprint(p.pid, flush=True)\ntime.sleep(60)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", supervisor], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    role_pid = int(process.stdout.readline())
    process.kill()
    process.wait()
    assert gone(role_pid, 10.0)


def test_what_is_no_pid_is_no_supervisor_that_is_gone() -> None:
    told = [is_orphan({"TFAGENTS_SUPERVISOR_PID": text}) for text in ("", "none", str(os.getppid()), "999999999")]
    assert told == [False, False, False, True] and not is_orphan({})


def test_a_role_whose_supervisor_died_before_ends_at_once() -> None:
    environ = {**os.environ, "TFAGENTS_SUPERVISOR_PID": "1" if os.getpid() != 1 else "2"}
    program = "from tfagents_system.machine.signals import die_with_parent\ndie_with_parent()\n"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=environ, capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 1 and "supervisor" in done.stderr


def test_an_orphan_that_blocks_in_c_ends_after_its_deadline() -> None:
    role = (
        "import ctypes\nfrom tfagents_system.machine.signals import end_as_orphan\n"
        "end_as_orphan(0.3)\nprint('ready', flush=True)\nctypes.CDLL(None).sleep(60)\n"
    )
    supervisor = (
        "import os, subprocess, sys\nos.environ['TFAGENTS_SUPERVISOR_PID'] = str(os.getpid())\n"
        f"p = subprocess.Popen([sys.executable, '-c', {role!r}], start_new_session=True, stdout=subprocess.PIPE)\n"
        "p.stdout.readline()\nprint(p.pid, flush=True)\nsys.stdin.read()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", supervisor], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    process.kill()
    process.wait()
    assert gone(pid, 10.0)


def test_the_kernel_ends_an_orphan_whose_blocking_call_holds_the_gil() -> None:
    """After 64 s, by a handler in C: the test sees that it is there, and what calling it does."""
    program = (
        "import ctypes, os, signal, time\nfrom tfagents_system.machine.signals import end_as_orphan\n"
        "end_as_orphan(60.0)\ntime.sleep(0.3)\nos.kill(os.getpid(), signal.SIGRTMAX)\n"
        "print(signal.getitimer(signal.ITIMER_REAL)[0], flush=True)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert 60.0 < float(done.stdout) <= 64.0, done.stderr
