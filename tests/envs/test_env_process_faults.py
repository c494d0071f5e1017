"""Every way in which an environment's process can fail, hang and go."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.user_environments import MY_ENVS, Folder, pid_of, steps, zeros
from tests.support.waiting import gone
from tfagents_system.envs import loading
from tfagents_system.envs.env_process import EnvProcess, ProcessSettings
from tfagents_system.envs.faults import EnvironmentFault
from tfagents_system.envs.training_environment import TrainingEnvironment
from tfagents_system.launch.forks import MARK_VARIABLE
from tfagents_system.machine import processes
from tfagents_system.machine.processes import is_alive


def fault_of(env: TrainingEnvironment, count: int = 3) -> EnvironmentFault:
    with pytest.raises(EnvironmentFault) as caught:
        steps(env, count)
    return caught.value


def line_of(text: str) -> int:
    return next(number for number, line in enumerate(MY_ENVS.splitlines(), 1) if text in line)


def test_an_exception_names_the_users_line_and_the_process_goes_on(user: Folder) -> None:
    env = user.make(does="raise")
    line = line_of('raise ZeroDivisionError("the motor is off")')
    assert str(fault_of(env)) == (
        "worker 3: environment 1 failed in step 3 of episode 1: "
        f"ZeroDivisionError: the motor is off (my_envs.py, line {line})"
    )
    assert env.reset().observation[2] == pid_of(env)


def test_what_the_space_does_not_allow_is_a_fault(user: Folder) -> None:
    env = user.make("Wrong")
    for text in (
        "must have shape (4,) as its space has, found (3,)",
        "observation is not finite",
        "expected numbers but found 'abcd'",
        "expected numbers but found None",
        "the reward is nan",
    ):
        fault = fault_of(env)
        assert fault.step == 3 and text in str(fault)


@pytest.mark.parametrize("ends_by", ["", "hang"])
def test_players_in_sessions_of_their_own_end_with_their_environment_and_others_go_on(
    user: Folder, capfd: pytest.CaptureFixture[str], ends_by: str
) -> None:
    """Whether it is closed or hangs: what comes next is another environment in the same worker."""
    other, env = user.make(does="player "), user.make(does=f"player {ends_by}")
    steps(other, 3)
    theirs = players_of(capfd)
    steps(env, 2)
    own = players_of(capfd)
    if ends_by == "hang":  # Only now: on a busy machine any step may take so long.
        assert isinstance(env.user_env, EnvProcess)
        env.user_env._timeout_secs = 1.0
    expected: Any = pytest.raises(EnvironmentFault) if ends_by else contextlib.nullcontext()
    with expected:
        env.step(zeros(env))
    assert len(set(own + theirs)) == 4
    if not ends_by:
        assert all(is_alive(pid) for pid in own + theirs)
    env.close()
    assert all(gone(pid, 10.0) for pid in own) and all(is_alive(pid) for pid in theirs)
    other.close()
    assert all(gone(pid, 10.0) for pid in theirs)


def test_when_the_worker_is_killed_its_supervisor_finds_the_players_by_its_mark(
    user: Folder, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = f"worker_0.{os.getpid()}"
    monkeypatch.setenv(MARK_VARIABLE, mark)
    env = user.make(does="player ")
    steps(env, 3)
    assert processes.end_marked([f"{MARK_VARIABLE}={mark}"]) == []
    assert all(gone(pid, 10.0) for pid in [pid_of(env), *players_of(capfd)])


def players_of(capfd: pytest.CaptureFixture[str]) -> list[int]:
    told = capfd.readouterr().out.split("players ")[1].split("\n")[0]
    return [int(pid) for pid in told.split()]


def test_a_hang_in_reset_and_a_stopped_process(user: Folder, capfd: pytest.CaptureFixture[str]) -> None:
    env = user.make(does="hang in reset", timeout_secs=1.0)
    told = r"reset\(\) has not returned for 1 s \(SAC_STEP_TIMEOUT_SECS\) \(my_envs.py, line .*: its process was killed"
    began = time.monotonic()
    with pytest.raises(EnvironmentFault, match=told):
        env.reset()
    assert 1.0 <= time.monotonic() - began < 10.0
    err = capfd.readouterr().err
    assert 'my_envs.py"' in err and "in reset" in err, "the whole trace is in the log"
    assert gone(pid_of(env), 10.0)
    with pytest.raises(EnvironmentFault, match="has not returned for 1 s"):
        env.reset()
    assert "step() has not returned for 1 s" in str(fault_of(user.make(does="stop", timeout_secs=1.0)))


@pytest.mark.parametrize(
    ("does", "text"), [("crash", "its process ended with SIGSEGV in step()"), ("exit", "ended with exit code 7")]
)
def test_a_process_that_dies_is_a_fault(user: Folder, does: str, text: str) -> None:
    fault = fault_of(user.make(does=does))
    assert text in str(fault) and fault.step == 3
    if does == "crash":
        assert f"(my_envs.py, line {line_of('# the line where it crashes')})" in str(fault)


def test_a_killed_process_is_a_fault_at_the_next_call(user: Folder) -> None:
    env = user.make()
    steps(env, 1)
    os.kill(pid_of(env), signal.SIGKILL)
    with pytest.raises(EnvironmentFault, match="its process ended with SIGKILL"):
        env.step(zeros(env))


def test_who_waits_can_give_up(user: Folder) -> None:
    asked: list[int] = []
    is_built = False

    def is_to_stop() -> bool:
        asked.append(1)
        return is_built and len(asked) > 1

    settings = ProcessSettings(user.settings.python, 60.0, on_wait=is_to_stop)
    env = loading.make_collect_env(user.params(does="hang in reset"), 0, 1, process=settings)
    asked.clear()
    is_built = True  # However often it is asked before.
    with pytest.raises(EnvironmentFault, match="when the worker was told to stop"):
        env.reset()
    assert len(asked) == 2


def test_an_interrupted_step_ends_the_environment(user: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    env = user.make()
    env.reset()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(EnvProcess, "_wait", interrupt)
        env.step(zeros(env))
    with pytest.raises(EnvironmentFault, match=r"step\(\) was interrupted"):
        env.reset()


def test_it_dies_with_its_parent_however_that_dies_and_whatever_it_does(user: Folder) -> None:
    program = (
        "import sys, os, signal, time\n"
        "from pathlib import Path\n"
        "from tfagents_system.envs.env_process import EnvProcess, ProcessSettings\n"
        "from tfagents_system.settings.load_params import load_params\n"
        "config = {'horizon': 5, 'name': 'Counter', 'kwargs': {'does': 'hang in reset'}}\n"
        "params = load_params(Path('my_params.py'), config)\n"
        "env = EnvProcess(ProcessSettings(Path(sys.argv[1])), params, kind='collect', seed=0)\n"
        "env._connection.send(('reset', (None, None)))\n"
        "time.sleep(0.5)\n"
        "print(env.pid, sorted(os.sched_getaffinity(env.pid)), flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    cpu = min(os.sched_getaffinity(0))
    done = subprocess.run(
        ["taskset", "-c", str(cpu), sys.executable, "-c", program, str(user.settings.python)],
        cwd=user.folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
        stdout=subprocess.PIPE,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    pid, _, cpus = done.stdout.strip().partition(" ")
    assert cpus == f"[{cpu}]", "on the worker's CPUs"
    assert gone(int(pid), 10.0)
