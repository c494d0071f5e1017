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
from tfagents_system.machine import signals
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


def test_in_a_job_only_a_person_insists(monkeypatch: pytest.MonkeyPatch) -> None:
    """SLURM sends a signal to the job's step, and its script passes another one on."""
    now = [0.0]
    monkeypatch.setattr(signals.time, "monotonic", lambda: now[0])
    for insisting, counts in ((None, [1, 2, 3]), ([signal.SIGINT], [1, 1, 2])):
        stop = StopFlag(signals=(), insisting=insisting)
        for number, count in zip((signal.SIGTERM, signal.SIGUSR1, signal.SIGINT), counts, strict=True):
            now[0] += 10.0
            stop.set(number)
            assert stop.count == count


def said_by(program: str, environ: dict[str, str]) -> list[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**clean, **environ},
        capture_output=True,
        text=True,
        timeout=30,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # Tests may be run under nohup.
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_a_role_in_a_slurm_job_listens_to_its_supervisor_alone() -> None:
    """SLURM signals all processes of a job at once, roles have to end one after the other."""
    program = (
        "import os, signal\nfrom tfagents_system.machine.signals import StopFlag, role_stop_signal\n"
        "stop = StopFlag.of_role()\nfor name in ('SIGTERM', 'SIGUSR1', 'SIGUSR2', 'SIGINT'):\n"
        "    os.kill(os.getpid(), getattr(signal, name))\n"
        "print(stop.wait(0.1))\nos.kill(os.getpid(), role_stop_signal())\nprint(stop.wait(5))\n"
    )
    assert said_by(program, {}) == ["True", "True"] and said_by(program, {"SLURM_JOB_ID": "7"}) == ["False", "True"]


def test_in_a_job_supervisors_and_joins_count_a_person_alone_and_elsewhere_everybody() -> None:
    for environ, insists in (({}, True), ({"SLURM_JOB_ID": "7"}, False)):
        program = (
            "import os, signal, time\nfrom tfagents_system.machine.signals import StopFlag\n"
            "stop = StopFlag.of_supervisor()\nfor name in ('SIGTERM', 'SIGHUP', 'SIGINT'):\n"
            "    time.sleep(0.35)\n    os.kill(os.getpid(), getattr(signal, name))\n    print(stop.count)\n"
        )
        assert said_by(program, environ) == (["1", "2", "3"] if insists else ["1", "1", "2"])


def test_handlers_are_installed_the_first_signal_is_kept_and_two_within_a_moment_count_once() -> None:
    program = (
        "import os, signal\nfrom tfagents_system.machine.signals import StopFlag\nstop = StopFlag()\n"
        "os.kill(os.getpid(), signal.SIGINT); os.kill(os.getpid(), signal.SIGTERM)\n"
        "assert stop.wait(5)\nprint(stop.signal_number, stop.count)\n"
    )
    assert said_by(program, {}) == [str(int(signal.SIGINT)), "1"]


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
