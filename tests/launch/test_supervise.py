"""The supervisor with small shell programs as roles: restarts, order of stopping, exit codes, nothing left behind."""

from __future__ import annotations

import dataclasses
import errno
import functools
import io
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.support.fake_run import CRASHES, DONE, SAVES, STUBBORN, command_of, variables_of
from tests.support.waiting import gone, until
from tfagents_system.errors import UserError
from tfagents_system.launch import directory_guard, role_process, run_rules, run_status, supervise, wrap_up
from tfagents_system.launch.cpus import plan_cpus
from tfagents_system.launch.role_process import RoleProcess, start_program
from tfagents_system.launch.role_starter import RoleStarter
from tfagents_system.launch.run_status import RunStatus
from tfagents_system.launch.supervisor import Supervisor
from tfagents_system.machine import memory, processes, signals
from tfagents_system.machine.claims import Claims
from tfagents_system.machine.processes import processes_of_run
from tfagents_system.machine.signals import StopFlag
from tfagents_system.machine.topology import allowed_cpus, cores_of
from tfagents_system.machine.worker_slots import claim_of
from tfagents_system.report.status import problems, read_status
from tfagents_system.report.terminal import ProgressView
from tfagents_system.run_files.heartbeat import write_json
from tfagents_system.run_files.history import read_history
from tfagents_system.run_files.run_lock import RunLock
from tfagents_system.run_files.run_paths import RunPaths

ROOT = Path(__file__).resolve().parents[2]


def make_supervisor(
    exp_dir: Path, stop: StopFlag, roles: dict[str, str], lock: RunLock | None = None, **more: Any
) -> Supervisor:
    spec = {"exp_dir": str(exp_dir), "roles": {"replay": SAVES, "trainer": SAVES, "worker": SAVES} | roles, **more}
    variables = variables_of(spec)
    plan = plan_cpus(
        reverb_cpus=int(variables.trainer_server is None), train_cpus=int(variables.local_trainer),
        num_collect_workers=variables.num_collect_workers, collect_worker_cpus=1,
        cores=cores_of(allowed_cpus()), share=True, expert_workers=variables.expert_workers,
        eval_workers=variables.eval_workers,
    )  # fmt: skip
    starter = RoleStarter(command_of(spec))
    return Supervisor(variables, plan, Claims(), 8123, 7, stop, starter, run_rules.RunRules, step_secs=0.02, lock=lock)


@pytest.fixture
def stop() -> StopFlag:
    return StopFlag(signals=())


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits of hundredths instead of seconds, and no plot at the end."""
    monkeypatch.setattr(role_process, "_FIRST_BACKOFF_SECS", 0.01)
    monkeypatch.setattr(role_process, "_MAX_BACKOFF_SECS", 0.05)
    monkeypatch.setattr(wrap_up, "write_results", lambda *args, **kwargs: ["results"])


@pytest.fixture
def run_dir(tmp_path: Path) -> Iterator[Path]:
    exp_dir = tmp_path / "run"
    yield exp_dir
    assert list(processes_of_run(exp_dir)) == []


def log(exp_dir: Path, role: str) -> str:
    return (exp_dir / "logs" / f"{role}.log").read_text()


def once_up(
    run_dir: Path, then: Callable[[], object], roles: Collection[str] = ("trainer", "replay", "worker_0")
) -> None:
    """Calls `then` in a thread once each of these roles has said "up"."""

    def is_up(role: str) -> bool:
        path = run_dir / "logs" / f"{role}.log"
        return path.exists() and "up\n" in path.read_text()

    def wait() -> None:
        until(lambda: all(map(is_up, roles)), 30.0, "the roles are up")
        then()

    threading.Thread(target=wait, daemon=True).start()


def once_stopping(run_dir: Path, then: Callable[[], object]) -> None:
    """Calls `then` in a thread once the run's status says what stops it."""

    def is_stopping() -> bool:
        status = read_status(run_dir / "status.json")
        return status is not None and bool(status["run"]["message"])

    def wait() -> None:
        until(is_stopping, 30.0, "the run is stopping")
        then()

    threading.Thread(target=wait, daemon=True).start()


def test_the_trainers_end_is_the_runs_end(
    run_dir: Path, stop: StopFlag, fast: None, capfd: pytest.CaptureFixture[str]
) -> None:
    assert make_supervisor(run_dir, stop, {"trainer": DONE}, workers=2).run() == 0
    assert "saved" in log(run_dir, "replay") and "saved" in log(run_dir, "worker_1")
    status = read_status(run_dir / "status.json")
    assert status is not None
    assert status["run"]["state"] == "done" and status["run"]["exit_code"] == 0
    assert set(status["roles"]) == {"replay", "trainer", "worker_0", "worker_1"}
    assert not any(role["alive"] for role in status["roles"].values())
    assert "results" in capfd.readouterr().out
    told = read_history(run_dir / "history.jsonl")
    assert [entry["state"] for entry in told if entry["kind"] == "state"] == ["running", "done"]


def test_a_task_is_named_as_its_folder(tmp_path: Path, stop: StopFlag) -> None:
    made = make_supervisor(tmp_path / "exp_task_3", stop, {})
    for name, told in (("exp", "exp_task_3"), ("other", "other")):
        variables = dataclasses.replace(made.variables, exp_name=name)
        assert RunStatus(variables, made.paths, made.plan, 1, {}).to_json()["run"]["name"] == told


def test_roles_get_their_cpus_threads_and_numbers(run_dir: Path, stop: StopFlag, fast: None) -> None:
    tells = (
        "grep Cpus_allowed_list /proc/self/status; env | sort; ps -o sid= -p $$ | tr -d ' ' | sed s/^/sid=/; "
        "echo pid=$$; readlink /proc/self/fd/0; "
    )
    supervisor = make_supervisor(run_dir, stop, {"trainer": tells + DONE, "worker": tells + SAVES}, workers=2)
    plan = supervisor.status.to_json()["plan"]
    assert supervisor.run() == 0
    for role in ("trainer", "worker_1"):
        text = log(run_dir, role)
        assert re.search(rf"Cpus_allowed_list:\s+{plan[role][0]}\n", text)
        assert f"SAC_EXP_DIR={run_dir}\n" in text and "SAC_REVERB_PORT=8123\n" in text and "SAC_SEED=7\n" in text
        assert "SAC_NUM_COLLECT_WORKERS=2\n" in text and "SAC_SHARE_CPUS=1\n" in text
        assert "OMP_NUM_THREADS=1\n" in text and "CUDA_VISIBLE_DEVICES=-1\n" in text
        assert f"PYTHONPATH={ROOT}" in text
        assert text[text.index("sid=") :].split()[0][4:] == text[text.index("pid=") :].split()[0][4:]
        assert "/dev/null" in text
    assert "SLURM_PROCID=1\n" in log(run_dir, "worker_1")


def test_the_trainer_alone_gets_the_gpu(
    run_dir: Path, stop: StopFlag, fast: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TFAGENTS_CUDA_VISIBLE_DEVICES", "5,6")
    tells = {"trainer": f"env; {DONE}", "replay": f"env; {SAVES}", "worker": f"env; {SAVES}"}
    assert make_supervisor(run_dir, stop, tells, train_gpus=True).run() == 0
    seen = {
        role: re.findall(r"^CUDA_VISIBLE_DEVICES=(.*)$", log(run_dir, role), re.M)
        for role in ("trainer", "replay", "worker_0")
    }
    assert seen == {"trainer": ["5"], "replay": ["-1"], "worker_0": ["-1"]}


def test_a_crashed_role_is_restarted_and_the_restart_logged(
    run_dir: Path, stop: StopFlag, fast: None, capfd: pytest.CaptureFixture[str]
) -> None:
    worker = f"mkdir {run_dir}/first 2>/dev/null && {{ {CRASHES}; }}; {SAVES}"
    assert make_supervisor(run_dir, stop, {"trainer": "sleep 0.6; exit 0", "worker": worker}).run() == 0
    line = "worker_0 ended with exit code 1 (ValueError: no luck): restart 1 of at most 10 in a row, in 0.01 s"
    assert line in capfd.readouterr().out and line in log(run_dir, "worker_0")
    status = read_status(run_dir / "status.json")
    assert status is not None and status["roles"]["worker_0"]["restarts"] == 1
    events = [entry for entry in read_history(run_dir / "history.jsonl") if entry["kind"] == "event"]
    assert [(entry["role"], entry["text"]) for entry in events][:1] == [("worker_0", line)]


def test_what_a_crashed_role_left_behind_is_ended_before_its_restart(run_dir: Path, stop: StopFlag, fast: None) -> None:
    worker = f"sleep 600 & echo $! >> {run_dir}/children; exit 1"
    roles = {"worker_0": worker, "trainer": "sleep 0.5; exit 0"}
    assert make_supervisor(run_dir, stop, roles, workers=2, max_restarts=100).run() == 0
    children = (run_dir / "children").read_text().split()
    assert len(children) >= 2 and all(gone(int(child), 10.0) for child in children)


def test_players_in_sessions_of_their_own_end_with_their_role_and_others_go_on(
    run_dir: Path, stop: StopFlag, fast: None
) -> None:
    """Direct children, daemons, and some that clean their environment."""
    starts = "{0} setsid sleep 600 & echo $! >> {1}; "
    direct = "".join(starts.format(how, run_dir / "of_0") for how in ("", "env -i"))
    crashes = f"{direct} ( {starts.format('', run_dir / 'of_0')} ) ; sleep 0.1; exit 1"
    daemons = "".join(f"( {starts.format(how, run_dir / 'of_1')} ) ; " for how in ("", "env -i"))
    looks = "sleep 0.05; " + "".join(
        f"ps -o pid= -p $(echo $(cat {run_dir}/{name}) | tr ' ' ,) > {run_dir}/{name}.seen; "
        for name in ("of_0", "of_1")
    )
    waits = f"until [ $(cat {run_dir}/of_0 | wc -l) -ge 30 ]; do sleep 0.02; done; "
    roles = {"worker_0": crashes, "worker_1": daemons + SAVES, "trainer": waits + looks + "exit 0"}
    assert make_supervisor(run_dir, stop, roles, workers=2, max_restarts=100).run() == 0
    ended, kept = ((run_dir / name).read_text().split() for name in ("of_0", "of_1"))
    assert len(ended) >= 30 and len(kept) == 2
    assert len((run_dir / "of_0.seen").read_text().split()) <= 6, "of the newest start, and of one that is just ending"
    assert (run_dir / "of_1.seen").read_text().split() == kept, "while their worker was alive"
    assert all(gone(int(pid), 5.0) for pid in ended + kept)


def test_a_players_life_is_over_before_its_role_is_started_again(run_dir: Path, stop: StopFlag, fast: None) -> None:
    players = run_dir / "players"
    counts = f"for p in $(cat {players}); do kill -0 $p && echo $p; done >> {run_dir}/alive 2>/dev/null; "
    worker = f"touch {players}; {counts} setsid sleep 600 & echo $! >> {players}; exit 1"
    waits = f"until [ $(cat {players} | wc -l) -ge 4 ]; do sleep 0.02; done; exit 0"
    roles = {"worker_0": worker, "trainer": waits}
    assert make_supervisor(run_dir, stop, roles, workers=2, max_restarts=100).run() == 0
    assert (run_dir / "alive").read_text() == ""


@dataclasses.dataclass
class Stuck:
    """A process in uninterruptible sleep: SIGKILL comes to nothing."""

    pid: int
    returncode: int | None = None

    def poll(self) -> int | None:
        return None

    def wait(self) -> int | None:
        raise AssertionError("for ever")

    def send_signal(self, number: int, /) -> None:
        pass

    def kill(self) -> None:
        pass


def test_roles_that_the_kernel_does_not_let_go_are_waited_for_once_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(processes, "KILL_SECS", 1.0)
    sleeper = subprocess.Popen(["sleep", "600"], start_new_session=True)
    stuck = [Stuck(2**22 + k) for k in range(3)]
    starts = [functools.partial(lambda process, environ, log: process, process) for process in stuck]
    roles = [RoleProcess(f"worker_{k}", start, {}, tmp_path / f"{k}", 3) for k, start in enumerate(starts)]
    roles.append(RoleProcess("trainer", lambda environ, log: sleeper, {}, tmp_path / "trainer", 3))
    for role in roles:
        role.start()
    began = time.monotonic()
    role_process.kill_roles(roles)
    assert 1.0 <= time.monotonic() - began < 2.8, "not 1 s for each"
    assert [role.exit_code for role in roles] == [-signal.SIGKILL] * 4 and not any(role.is_running() for role in roles)
    out = capfd.readouterr().out
    assert out.count("has not ended 1 s after SIGKILL: the kernel holds on to pid") == 3 and "trainer" not in out
    assert "worker_1 has not ended" in (tmp_path / "1").read_text()


@pytest.fixture
def started(run_dir: Path, stop: StopFlag, fast: None) -> Iterator[Callable[..., Supervisor]]:
    """Starts supervisors whose steps the test makes."""
    supervisors: list[Supervisor] = []

    def start(roles: dict[str, str], **more: Any) -> Supervisor:
        supervisors.append(make_supervisor(run_dir, stop, roles, **more))
        supervisors[-1]._start()
        return supervisors[-1]

    yield start
    for supervisor in supervisors:
        supervisor.kill_all()
        supervisor._end_orphans(spared=set())
        supervisor.status.stop([])
        supervisor._guard.close()


def test_what_roles_that_end_together_have_left_is_waited_for_once(
    started: Callable[..., Supervisor], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[set[str]] = []

    def end_marked(marks: Collection[str]) -> list[int]:
        asked.append(set(marks))
        return []

    supervisor = started({"worker": "exit 1"}, workers=3)
    assert processes.wait_until(lambda: not any(worker.is_running() for worker in supervisor.workers), 10.0)
    with monkeypatch.context() as patch:
        patch.setattr(processes, "end_marked", end_marked)
        supervisor.step()
    assert asked == [{worker.mark for worker in supervisor.workers}]
    assert [worker.failures for worker in supervisor.workers] == [1, 1, 1]


def test_what_is_in_a_living_roles_session_is_spared_when_another_role_has_ended(
    started: Callable[..., Supervisor], run_dir: Path
) -> None:
    file = run_dir / "helpers"
    starts = f"( env -i {{}} sleep 600 & echo $! >> {file} ); "
    supervisor = started({"worker": starts.format("") + starts.format("setsid") + SAVES})
    pids = supervisor._pids()
    assert processes.wait_until(lambda: len(supervisor._starter.orphans(pids)) == 2, 10.0)
    helper, nobodys = map(int, file.read_text().split())
    assert processes.wait_until(lambda: os.getsid(nobodys) == nobodys, 10.0)
    supervisor._end_orphans(spared=set())
    assert processes.is_alive(helper) and not processes.is_alive(nobodys)
    supervisor.kill_all()
    assert gone(helper, 5.0)


def works(role: str, key: str, number: str) -> str:
    """A role that tells how far it has come."""
    beat = f'{{\\"state\\": \\"at work\\", \\"pid\\": $$, \\"{key}\\": {number}}}'
    return f'echo "{beat}" > $SAC_EXP_DIR/heartbeats/{role}.json; '


@pytest.mark.parametrize("role", ["trainer", "replay", "worker"])
def test_three_failures_alike_without_anything_new_end_the_run_with_their_words(
    run_dir: Path, stop: StopFlag, fast: None, capfd: pytest.CaptureFixture[str], role: str
) -> None:
    """A number in them, such as an address, makes no difference."""
    name = f"{role}_0" if role == "worker" else role
    again = works(name, "train_step", "40") if role == "trainer" else ""
    program = f"{again}echo life; echo context; echo ValueError: flat names at 0x7f$RANDOM$$; exit 1"
    assert make_supervisor(run_dir, stop, {role: program}).run() == 1
    out = capfd.readouterr().out
    assert f"error: {name} has ended 3 times in the same way, with exit code 1, and has done nothing new" in out
    assert "  context\n  ValueError: flat names at 0x7f" in out
    assert log(run_dir, name).count("life") == 3


def test_workers_that_all_fail_alike_end_the_run_and_one_that_works_keeps_it(
    run_dir: Path, stop: StopFlag, fast: None, capfd: pytest.CaptureFixture[str]
) -> None:
    fails = "echo life; echo no licence; sleep 0.1; exit 1"
    assert make_supervisor(run_dir, stop, {"worker": fails}, workers=3).run() == 1
    assert "has ended 3 times in the same way" in capfd.readouterr().out
    assert all(3 <= log(run_dir, f"worker_{k}").count("life") <= 5 for k in range(3))
    # One that has come through after three failures.
    lives = run_dir / "lives"
    late = f"echo life >> {lives}; [ $(wc -l < {lives}) -le 3 ] && exit 1; {at_work('worker_1', SAVES)}"
    roles = {"worker_0": fails, "worker_1": late, "trainer": f"{waits_for_lines(lives, 4)} sleep 1; exit 0"}
    (run_dir / "logs" / "worker_0.log").unlink()
    assert make_supervisor(run_dir, stop, roles, workers=2).run() == 0
    assert log(run_dir, "worker_0").count("life") > 4


def test_experts_and_evaluators_are_started_as_such_and_named(run_dir: Path, stop: StopFlag, fast: None) -> None:
    program = f"echo $SLURM_PROCID is ${{SAC_WORKER_ROLE}}, server ${{SAC_SERVER:-none}}; {SAVES}"
    supervisor = make_supervisor(
        run_dir, stop, {"worker": program, "trainer": "sleep 0.5; exit 0"}, experts=1, evaluators=1
    )
    assert supervisor.run() == 0
    lines = [log(run_dir, f"worker_{number}").splitlines()[0] for number in range(3)]
    assert lines == ["0 is collect, server none", "1 is expert, server none", "2 is eval, server none"]
    roles = supervisor.status.to_json()["roles"]
    assert [roles[f"worker_{number}"].get("kind") for number in range(3)] == [None, "expert", "eval"]
    assert [role.name for role in supervisor.collectors] == ["worker_0"]


def test_an_expert_that_fails_alike_does_not_end_the_run_and_one_that_works_does_not_keep_it(
    run_dir: Path, stop: StopFlag, fast: None, capfd: pytest.CaptureFixture[str]
) -> None:
    fails, lives = "echo life; echo no licence; sleep 0.02; exit 1", run_dir / "lives"
    roles = {"worker_1": f"echo life >> {lives}; {fails}", "trainer": f"{waits_for_lines(lives, 5)} exit 0"}
    assert make_supervisor(run_dir, stop, roles, experts=1).run() == 0
    assert "in the same way" not in capfd.readouterr().out
    roles = {"worker_0": fails, "worker_1": at_work("worker_1", SAVES), "trainer": "sleep 10; exit 0"}
    assert make_supervisor(run_dir, stop, roles, experts=1).run() == 1
    assert "error: worker_0 has ended 3 times in the same way" in capfd.readouterr().out


def test_a_given_up_expert_leaves_the_run_going_and_a_run_with_experts_alone_fails(
    run_dir: Path, stop: StopFlag, fast: None, capfd: pytest.CaptureFixture[str]
) -> None:
    supervisor = make_supervisor(run_dir, stop, {"worker_1": CRASHES}, experts=1, max_restarts=1)
    watcher = threading.Thread(target=stop_when_given_up, args=(supervisor, stop, "worker_1"))
    watcher.start()
    assert supervisor.run() == 75
    watcher.join()
    assert "worker_1 (expert): given up after 1 restarts" in capfd.readouterr().out
    again = StopFlag(signals=())
    roles = {"worker_0": CRASHES, "trainer": "sleep 10; exit 0"}
    assert make_supervisor(run_dir, again, roles, experts=1, max_restarts=1).run() == 1
    assert "error: every worker was given up" in capfd.readouterr().out


def stop_when_given_up(supervisor: Supervisor, stop: StopFlag, role: str) -> None:
    deadline = time.monotonic() + 30.0
    while not supervisor.roles[role].given_up and time.monotonic() < deadline:
        time.sleep(0.02)
    stop.set()


def test_a_slot_that_somebody_has_is_not_given_to_an_expert(run_dir: Path) -> None:
    variables, port = variables_of({"exp_dir": str(run_dir), "experts": 2}), 7
    other, own = Claims(), Claims()
    assert other.take(claim_of(port, 2))
    with pytest.raises(UserError, match=r"SAC_EXPERT_WORKERS=2 needs slots 1 to 2, .* earlier start .* has 2: end it"):
        supervise.claim_slots_beside(variables, own, port)
    own.release(claim_of(port, 1))
    other.release(claim_of(port, 2))
    supervise.claim_slots_beside(variables, own, port)
    assert not other.take(claim_of(port, 1)) and not other.take(claim_of(port, 2))
    for number in (1, 2):
        own.release(claim_of(port, number))


def test_a_run_takes_another_port_than_one_at_which_somebody_has_its_experts_slot(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = {"exp_dir": str(run_dir), "experts": 1}
    other, own = Claims(), Claims()
    assert other.take(claim_of(7, 1))
    free = iter((7, 8))
    monkeypatch.setattr(own, "take_port", lambda wanted: wanted or next(free))
    try:
        assert supervise.claim_port(variables_of(spec), own) == 8
        with pytest.raises(UserError, match="needs slots 1 to 1"):
            supervise.claim_port(variables_of({**spec, "port": 7}), own)
    finally:
        other.release(claim_of(7, 1))
        own.release(claim_of(8, 1))


def waits_for_lines(path: Path, count: int) -> str:
    return f"until [ $(cat {path} 2>/dev/null | wc -l) -ge {count} ]; do sleep 0.02; done; "


@pytest.mark.parametrize(
    ("role", "program"),
    [
        ("trainer", "echo no luck; exit $(( 10 + $(wc -l < LIVES) % 2 ))"),  # Not alike.
        ("trainer", works("trainer", "train_step", "$(wc -l < LIVES)") + "exit 1"),  # Each time a step further.
        ("replay", works("replay", "env_steps", "$(wc -l < LIVES)") + "exit 1"),
        ("worker_0", works("worker_0", "steps", "7") + "exit 1"),  # Steps of its own start.
        ("gateway", "exit 1"),  # The run goes on without it.
    ],
)
def test_failures_between_which_something_is_new_are_tried_on(
    run_dir: Path, stop: StopFlag, fast: None, role: str, program: str
) -> None:
    lives = run_dir / "lives"
    born = f"echo life >> {lives}; [ $(wc -l < {lives}) -ge 7 ] && sleep 600; "
    roles = {"trainer": waits_for_lines(lives, 7) + "exit 0", role: born + program.replace("LIVES", str(lives))}
    if role == "trainer":
        roles["trainer"] = roles["trainer"].replace("sleep 600", "exit 0")
    assert make_supervisor(run_dir, stop, roles, gateway_port=0 if role == "gateway" else None).run() == 0
    assert len(lives.read_text().split()) == 7


def test_different_roles_with_the_same_words_are_not_counted_together(
    run_dir: Path, stop: StopFlag, fast: None
) -> None:
    once = "mkdir {0} 2>/dev/null && {{ echo connection lost; exit 1; }}; mkdir {0}.2 2>/dev/null && exit 1; "
    fails = {role: once.format(f"$SAC_EXP_DIR/{role}") for role in ("trainer", "replay", "worker_0")}
    roles = {role: program + SAVES for role, program in fails.items()} | {"trainer": fails["trainer"] + "exit 0"}
    assert make_supervisor(run_dir, stop, roles).run() == 0


def taken_over(supervisor: Supervisor) -> None:
    supervisor.paths.lock.write_text('{"pid": 7, "host": "node2", "token": "other"}')


@pytest.mark.parametrize("is_saving", [False, True])
def test_a_start_whose_lock_is_lost_ends_at_once_and_writes_nothing_more(
    run_dir: Path,
    stop: StopFlag,
    fast: None,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    is_saving: bool,
) -> None:
    monkeypatch.setattr(directory_guard, "_LOCK_SECS", 0.05)
    lock = RunLock(RunPaths(run_dir), {}, "node1")
    trainer = beating(run_dir, "updating") + (STUBBORN if is_saving else SAVES)
    supervisor = make_supervisor(run_dir, stop, {"trainer": trainer}, lock=lock, save_deadline_secs=60.0)
    taken: list[float] = []

    def take_over() -> None:
        taken.append(time.monotonic())
        taken_over(supervisor)

    if is_saving:
        once_up(run_dir, stop.set)
        once_stopping(run_dir, take_over)
    else:
        once_up(run_dir, take_over)
    written: list[float] = []
    write_status = run_status.write_status

    def note_and_write(path: Path, status: dict[str, Any]) -> None:
        written.append(time.monotonic())
        write_status(path, status)

    monkeypatch.setattr(run_status, "write_status", note_and_write)
    with lock:
        assert supervisor.run() == 1
    assert time.monotonic() - taken[0] < 10.0
    assert max(written) - taken[0] < 1.0
    out = capfd.readouterr().out
    assert "was taken over by the run with pid 7 on node2, started None: this start ends and writes nothing more" in out
    assert json.loads((run_dir / "run.lock").read_text())["host"] == "node2"
    status = read_status(run_dir / "status.json")
    assert status is not None and status["run"]["state"] == "running"
    assert is_saving or "saved" not in log(run_dir, "trainer")


def test_a_removed_lock_file_ends_nothing(run_dir: Path, stop: StopFlag, fast: None) -> None:
    lock = RunLock(RunPaths(run_dir))
    trainer = f"echo up; until [ -e {run_dir}/removed ]; do sleep 0.02; done; sleep 1; exit 0"
    supervisor = make_supervisor(run_dir, stop, {"trainer": trainer}, lock=lock)
    once_up(run_dir, lambda: (run_dir / "run.lock").rename(run_dir / "removed"))
    with lock:
        assert supervisor.run() == 0 and lock.is_own()


def test_the_backoff_doubles_and_a_long_life_resets_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    role = RoleProcess(
        "worker_0", functools.partial(start_program, ["true"]), dict(os.environ), tmp_path / "log", max_restarts=7
    )
    role.start()
    assert [role.restart_later() for _ in range(8)] == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, None]
    assert role.given_up
    monkeypatch.setattr(role_process, "_HEALTHY_SECS", -1.0)
    assert role.restart_later() == 1.0 and role.failures == 1
    role.kill()


def test_a_worker_that_is_given_up_leaves_the_others_going(
    run_dir: Path, stop: StopFlag, fast: None, capfd: pytest.CaptureFixture[str]
) -> None:
    roles = {"worker_0": CRASHES, "trainer": "sleep 1; exit 0"}
    assert make_supervisor(run_dir, stop, roles, workers=2, max_restarts=2).run() == 0
    out = capfd.readouterr().out
    assert "worker_0 ended with exit code 1 and is given up after 2 restarts in a row; the other workers go on" in out
    assert log(run_dir, "worker_0").count("about to crash") == 3
    assert "saved" in log(run_dir, "worker_1")


def test_a_given_up_worker_stays_in_the_status_and_in_the_summary(
    run_dir: Path, stop: StopFlag, fast: None, capfd: pytest.CaptureFixture[str]
) -> None:
    roles = {"worker_0": CRASHES, "trainer": "sleep 1; exit 0"}
    assert make_supervisor(run_dir, stop, roles, workers=2, max_restarts=2).run() == 0
    status = read_status(run_dir / "status.json")
    assert status is not None
    assert [status["roles"][role]["given_up"] for role in ("worker_0", "worker_1", "trainer")] == [True, False, False]
    sentence = "worker_0: given up after 2 restarts: exit code 1 (ValueError: no luck)"
    assert sentence in capfd.readouterr().out.splitlines()[-3:]
    assert problems(status, time.time()) == [sentence]


def test_a_worker_that_hung_is_told_with_its_line_and_its_traces_are_in_its_log(
    run_dir: Path, stop: StopFlag, fast: None, capfd: pytest.CaptureFixture[str]
) -> None:
    line = "worker 0: environment 0 (about step 12 of episode 3) has not returned for 300 s"
    hang = f"printf '%-399s\\nTimeout!\\n  File \"my_env.py\", line 12 in step\\n' '{line}'"
    worker = f"mkdir {run_dir}/first 2>/dev/null && {{ {hang} > {run_dir}/heartbeats/worker_0.hang; exit 1; }}; {SAVES}"
    assert make_supervisor(run_dir, stop, {"trainer": "sleep 0.6; exit 0", "worker": worker}).run() == 0
    assert f"worker_0 ended with exit code 1 ({line}): restart 1 of at most 10" in capfd.readouterr().out
    text = log(run_dir, "worker_0")
    assert f'{line}\nTimeout!\n  File "my_env.py", line 12 in step\n' in text


def test_a_worker_that_starts_anew_has_not_failed_unless_it_does_so_at_once(
    run_dir: Path, stop: StopFlag, fast: None, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(role_process, "_RENEW_SECS", 0.2)
    worker = f"echo life >> {run_dir}/lives; echo 'error: 5,000 MiB' >&2; sleep $([ -e {run_dir}/soon ] || echo 0.3); "
    worker += f"[ $(wc -l < {run_dir}/lives) -ge 4 ] && {{ {SAVES} ; }}; exit 76"
    roles = {"trainer": f"until [ $(wc -l < {run_dir}/lives) -ge 4 ]; do sleep 0.05; done; exit 0", "worker": worker}
    assert make_supervisor(run_dir, stop, roles, max_restarts=0).run() == 0
    out = capfd.readouterr().out
    assert out.count("worker_0 restarts (error: 5,000 MiB)") == 3 and "given up" not in out
    status = read_status(run_dir / "status.json")
    assert status is not None and status["roles"]["worker_0"]["restarts"] == 3

    (run_dir / "soon").touch()
    (run_dir / "lives").unlink()
    worker = f"echo life >> {run_dir}/lives; echo 'error: 5,000 MiB' >&2; exit 76"
    assert make_supervisor(run_dir, stop, {"worker": worker}, max_restarts=2).run() == 1
    assert (run_dir / "lives").read_text() == "life\n" * 3
    assert "worker_0: given up after 2 restarts: exit code 76 (error: 5,000 MiB)" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("role", "variables", "without"),
    [("gateway", {"gateway_port": 0}, "other machines"), ("tracker", {"wandb": "offline"}, "sending its metrics")],
)
def test_a_gateway_or_tracker_that_dies_or_refuses_its_input_later_does_not_end_the_run(
    run_dir: Path,
    stop: StopFlag,
    fast: None,
    capfd: pytest.CaptureFixture[str],
    role: str,
    variables: dict[str, Any],
    without: str,
) -> None:
    program = f"if [ -e {run_dir}/begun ]; then echo 'error: expired'; exit 2; fi; touch {run_dir}/begun; exit 1"
    roles = {role: program, "trainer": "sleep 2; exit 0"}
    assert make_supervisor(run_dir, stop, roles, max_restarts=2, **variables).run() == 0
    status = read_status(run_dir / "status.json")
    assert status is not None
    assert status["roles"][role]["given_up"] and status["roles"]["trainer"]["restarts"] == 0
    assert f"the run goes on without {without}" in capfd.readouterr().out


def test_a_tracker_that_refuses_its_input_at_the_start_does_not_end_the_run(
    run_dir: Path, stop: StopFlag, fast: None
) -> None:
    roles = {"tracker": "echo 'error: sac track is at work'; exit 2", "trainer": "sleep 1; exit 0"}
    assert make_supervisor(run_dir, stop, roles, wandb="offline", max_restarts=2).run() == 0


def test_the_tracker_is_ended_after_the_trainer_has_written_its_last_row(
    run_dir: Path, stop: StopFlag, fast: None
) -> None:
    order = run_dir / "order"
    program = f"trap 'echo tracker >> {order}; exit 75' TERM; while :; do sleep 0.05; done"
    roles = {"tracker": program, "trainer": f"sleep 0.5; echo trainer >> {order}; exit 0"}
    assert make_supervisor(run_dir, stop, roles, mlflow_uri="http://localhost:5000").run() == 0
    assert order.read_text().split() == ["trainer", "tracker"]


def test_a_tracker_that_hangs_takes_no_time_from_those_that_save_and_a_stop_says_how_to_have_a_report(
    run_dir: Path, stop: StopFlag, fast: None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run_rules, "_TRACKER_SECS", 0.3)
    run_dir.mkdir(exist_ok=True)
    (run_dir / "metrics.csv").touch()
    once_up(run_dir, stop.set)
    roles = {"tracker": STUBBORN, "trainer": beating(run_dir, "updating") + SAVES}
    start = time.monotonic()
    assert make_supervisor(run_dir, stop, roles, wandb="offline", save_deadline_secs=60.0).run() == 75
    assert time.monotonic() - start < 30.0 and "saved" in log(run_dir, "replay")
    out = capfd.readouterr().out
    assert re.search(r"killing tracker after \d s\n", out), "nothing of it is unsaved"
    assert f"a report so far: python -m tfagents_system.report.page.write {run_dir}\n" in out


def test_a_gateway_that_refuses_its_input_at_the_start_ends_the_run_with_its_words(
    run_dir: Path, stop: StopFlag, fast: None, capfd: pytest.CaptureFixture[str]
) -> None:
    roles = {"gateway": "echo 'error: server.key can be read by others'; exit 2"}
    assert make_supervisor(run_dir, stop, roles, gateway_port=0).run() == 2
    assert "error: server.key can be read by others" in capfd.readouterr().out


def test_the_gateway_is_told_of_the_end_before_the_replay_server(run_dir: Path, stop: StopFlag, fast: None) -> None:
    order = run_dir / "order"
    roles = {
        role: f"trap 'sleep 0.2; echo {role} >> {order}; exit 75' TERM; while :; do sleep 0.05; done"
        for role in ("gateway", "replay", "worker")
    }
    assert make_supervisor(run_dir, stop, {**roles, "trainer": DONE}, gateway_port=0).run() == 0
    assert sorted(order.read_text().split()[:2]) == ["gateway", "worker"] and order.read_text().split()[2] == "replay"


def test_workers_on_other_machines_are_in_the_status(run_dir: Path, stop: StopFlag, fast: None) -> None:
    supervisor = make_supervisor(run_dir, stop, {}, gateway_port=0)
    beats = {"worker_5": time.time(), "worker_6": time.time() - 60}
    for role, told in beats.items():
        write_json(supervisor.paths.heartbeat(role), {"state": "collecting", "time": told, "remote": True})
    write_json(supervisor.paths.heartbeat("worker_7"), {"state": "collecting", "time": time.time()})
    roles = supervisor.status.to_json()["roles"]
    assert list(roles) == ["replay", "trainer", "worker_0", "gateway", "worker_5", "worker_6"]
    assert (roles["worker_5"]["alive"], roles["worker_6"]["alive"]) == (True, False)


@pytest.mark.parametrize("is_terminal", [True, False])
def test_nothing_that_a_role_says_and_nothing_at_the_end_changes_what_becomes_of_a_run(
    run_dir: Path, stop: StopFlag, fast: None, monkeypatch: pytest.MonkeyPatch, is_terminal: bool
) -> None:
    def raises(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("no such thing")

    monkeypatch.setattr(wrap_up, "write_results", raises)
    hostile = '{"state": "[/x]", "time": "never", "remote": true, "time_shares": {"a": "b"}, "restarts": [1]}'
    says = "; ".join(
        f"echo '{hostile}' > {run_dir}/heartbeats/{role}.json" for role in ("trainer", "worker_0", "worker_9")
    )
    supervisor = make_supervisor(run_dir, stop, {"trainer": f"{says}; sleep 1.2; exit 0"})
    console = Console(file=io.StringIO(), force_terminal=is_terminal, width=100)
    supervisor.status._view = ProgressView(console, line_secs=0.01)
    assert supervisor.run() == 0
    status = read_status(run_dir / "status.json")
    assert status is not None and (status["run"]["state"], status["run"]["exit_code"]) == ("done", 0)
    assert set(status["roles"]) == {"replay", "trainer", "worker_0", "worker_9"}
    told = console.file.getvalue()  # type: ignore[attr-defined]
    assert "[/x]" in told and "note: RuntimeError: no such thing" in told and "run is finished" in told
    assert "the view fails" not in told


def test_status_json_is_written_as_seldom_as_heartbeats(
    run_dir: Path, stop: StopFlag, fast: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[tuple[float, str]] = []
    monkeypatch.setattr(
        run_status, "write_status", lambda path, status: written.append((time.monotonic(), status["run"]["state"]))
    )
    monkeypatch.setattr(run_status, "_VIEW_SECS", 0.02)
    monkeypatch.setattr(run_status, "beat_secs", lambda folder: 0.3)
    assert make_supervisor(run_dir, stop, {"trainer": "sleep 1; exit 0"}).run() == 0
    running = [at for at, state in written if state == "running"]
    assert len(running) >= 3 and all(later - earlier >= 0.29 for earlier, later in itertools.pairwise(running))
    assert [state for _, state in written][-2:] == ["done", "done"]  # Before the plot, and with the exit code.


def test_no_worker_left_fails_the_run(
    run_dir: Path, stop: StopFlag, fast: None, capfd: pytest.CaptureFixture[str]
) -> None:
    assert make_supervisor(run_dir, stop, {"worker": CRASHES}, workers=2, max_restarts=1).run() == 1
    assert "error: every worker was given up" in capfd.readouterr().out
    assert "saved" in log(run_dir, "trainer") and "saved" in log(run_dir, "replay")


@pytest.mark.parametrize("role", ["trainer", "replay"])
def test_a_trainer_or_replay_server_that_is_given_up_fails_the_run(
    run_dir: Path, stop: StopFlag, fast: None, capfd: pytest.CaptureFixture[str], role: str
) -> None:
    program = "for i in $(seq 20); do echo line $i; done; exit 4"
    assert make_supervisor(run_dir, stop, {role: program}, max_restarts=1).run() == 1
    out = capfd.readouterr().out
    assert f"error: {role} ended with exit code 4 and is given up after 1 restarts in a row" in out
    assert "line 5\n" not in out and "  line 6\n" in out and "  line 20\n" in out  # the last 15
    status = read_status(run_dir / "status.json")
    assert status is not None and status["run"]["state"] == "failed" and status["run"]["exit_code"] == 1


def test_bad_input_ends_the_run_with_its_reason_and_without_a_restart(
    run_dir: Path, stop: StopFlag, fast: None, capfd: pytest.CaptureFixture[str]
) -> None:
    program = "echo chatter; echo 'error: mass must be positive' >&2; exit 2"
    assert make_supervisor(run_dir, stop, {"worker": program}).run() == 2
    out = capfd.readouterr().out
    assert "error: worker_0 refused its input\n  error: mass must be positive\n" in out
    assert log(run_dir, "worker_0").count("chatter") == 1


def test_a_stop_lets_trainer_and_workers_save_before_the_replay_server(
    run_dir: Path, stop: StopFlag, fast: None
) -> None:
    def saves(role: str, secs: float) -> str:
        stamp = f"date +%s.%N > {run_dir}/{role}"
        return f"trap '{stamp}.told; sleep {secs}; {stamp}.saved; exit 75' TERM; echo up; while :; do sleep 0.02; done"

    roles = {"replay": saves("replay", 0), "trainer": saves("trainer", 0.3), "worker": saves("worker", 0.1)}
    once_up(run_dir, stop.set)
    assert make_supervisor(run_dir, stop, roles).run() == 75
    at = {path.name: float(path.read_text()) for path in [*run_dir.glob("*.told"), *run_dir.glob("*.saved")]}
    assert at["trainer.saved"] < at["replay.told"] and at["worker.saved"] < at["replay.told"]
    status = read_status(run_dir / "status.json")
    assert status is not None and status["run"]["state"] == "stopped"


def beating(exp_dir: Path, state: str) -> str:
    """A trainer that has told what it does."""
    return f"""echo '{{"role": "trainer", "state": "{state}"}}' > {exp_dir}/heartbeats/trainer.json; """


def test_a_normal_stop_shows_no_role_as_down(
    run_dir: Path, stop: StopFlag, fast: None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run_status, "_VIEW_SECS", 0.02)
    saves = "trap 'sleep {secs}; exit 75' TERM; echo up; while :; do sleep 0.02; done"
    told = '"updates_per_s": 9, "eval_return": -310.21, "best_eval_return": -298.7, "eval_success": 0.5'
    beat = f"""echo '{{"state": "saving", {told}}}' > {run_dir}/heartbeats/trainer.json; """
    roles = {"replay": saves.format(secs=0.5), "trainer": beat + saves.format(secs=0), "worker": saves.format(secs=0)}
    supervisor = make_supervisor(run_dir, stop, roles)
    supervisor.status._view = ProgressView(Console(force_terminal=False), line_secs=0.01)
    looks: list[dict[str, Any]] = []
    monkeypatch.setattr(run_status, "write_status", lambda path, status: looks.append(status))
    supervisor.status._beat_secs = 0.02
    once_up(run_dir, stop.set)
    assert supervisor.run() == 75
    out = capfd.readouterr().out
    assert "iteration" in out and "down" not in out
    assert "\nlast evaluation: return -310.2, best -298.7, success 50%\nrun: stopped by SIGTERM" in out
    waiting = [look["roles"] for look in looks if look["roles"]["replay"]["alive"]]
    assert any(not roles["trainer"]["alive"] for roles in waiting), "it was seen while the others were saving"
    assert not any(problems(look, look["run"]["updated_at"]) for look in looks)
    (first, *_) = [look["run"] for look in looks if look["run"]["message"]]
    assert (first["state"], first["message"]) == ("running", "stopped by SIGTERM"), "joined workers read it there"


def test_simulator_faults_are_counted_over_restarts_and_starts(
    run_dir: Path, stop: StopFlag, fast: None, capfd: pytest.CaptureFixture[str]
) -> None:
    beat = (
        """echo "{\\"state\\": \\"collecting\\", \\"pid\\": $$, \\"env_faults\\": 4, \\"episodes\\": 16, """
        f"""\\"last_env_fault\\": \\"boom of $SLURM_PROCID\\"}}" > {run_dir}/heartbeats/worker_$SLURM_PROCID.json; """
    )
    # Its last words, and another one of it before the next look.
    once = f"{beat} if [[ ! -e {run_dir}/again_$SLURM_PROCID ]]; then touch {run_dir}/again_$SLURM_PROCID; exit 1; fi; "
    trainer = f'until grep -q \'"restarts": 1.*"restarts": 1\' {run_dir}/status.json; do sleep 0.02; done; exit 0'
    roles = {"worker": once + SAVES, "trainer": trainer}
    supervisor = make_supervisor(run_dir, stop, roles, workers=2)
    supervisor.status._beat_secs = 0.02
    assert supervisor.run() == 0
    assert "16 environment faults (they have cut 20% of its episodes), last: boom of" in capfd.readouterr().out
    again = make_supervisor(run_dir, stop, {"trainer": "sleep 1; exit 0", "worker": beat + SAVES}, workers=2)
    assert again.run() == 0
    status = read_status(run_dir / "status.json")
    assert status is not None and (status["run"]["env_faults"], status["run"]["episodes"]) == (24, 96)


@pytest.mark.parametrize(("state", "code"), [("updating", 1), ("starting", 75)])
def test_a_trainer_that_dies_unsaved_is_not_called_saved(
    run_dir: Path, stop: StopFlag, fast: None, state: str, code: int
) -> None:
    once_up(run_dir, stop.set)
    roles = {"trainer": beating(run_dir, state) + "echo up; exec sleep 600"}
    assert make_supervisor(run_dir, stop, roles).run() == code


def test_a_role_that_does_not_end_is_killed_at_the_deadline(
    run_dir: Path, stop: StopFlag, fast: None, capfd: pytest.CaptureFixture[str]
) -> None:
    once_up(run_dir, stop.set)
    roles = {"trainer": beating(run_dir, "updating") + STUBBORN}
    assert make_supervisor(run_dir, stop, roles, save_deadline_secs=2.0).run() == 1
    out = capfd.readouterr().out
    assert "killing trainer after" in out and "goes on from the last checkpoint" in out
    assert "saved" in log(run_dir, "replay")  # It still stores what it has.


def test_a_second_signal_kills_at_once(
    run_dir: Path, stop: StopFlag, fast: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signals, "_SAME_SIGNAL_SECS", 0.0)
    once_up(run_dir, stop.set)
    once_stopping(run_dir, stop.set)
    roles = {"trainer": beating(run_dir, "updating") + STUBBORN, "replay": STUBBORN}
    start = time.monotonic()
    assert make_supervisor(run_dir, stop, roles, save_deadline_secs=60.0).run() == 1
    assert time.monotonic() - start < 10.0


def test_a_hanging_worker_costs_a_stop_half_of_its_time_and_nothing_else(
    run_dir: Path, stop: StopFlag, fast: None, capfd: pytest.CaptureFixture[str]
) -> None:
    began: list[float] = []

    def ask_to_stop() -> None:
        began.append(time.monotonic())
        stop.set()

    once_up(run_dir, ask_to_stop, ("trainer", "replay", "worker_0", "worker_1"))
    roles = {"trainer": beating(run_dir, "updating") + SAVES, "worker_1": STUBBORN}
    assert make_supervisor(run_dir, stop, roles, workers=2, save_deadline_secs=3.0).run() == 75
    assert time.monotonic() - began[0] < 3.0
    out = capfd.readouterr().out
    assert "killing worker_1 after 2 s" in out
    assert "everything is saved" in out
    assert "saved" in log(run_dir, "replay") and "saved" in log(run_dir, "worker_0")


def at_work(role: str, program: str) -> str:
    return f"""echo '{{"state": "collecting"}}' > "$SAC_EXP_DIR/heartbeats/{role}.json"; {program}"""


def test_a_role_that_others_kill_at_its_work_is_never_given_up(
    run_dir: Path, stop: StopFlag, fast: None, capfd: pytest.CaptureFixture[str]
) -> None:
    roles = {
        "worker_0": at_work("worker_0", "sleep 0.02; kill -9 $$"),
        "worker_1": "kill -9 $$",  # Before it has begun: whatever kills it will do so for ever.
        "worker_2": at_work("worker_2", "kill -ABRT $$"),  # And the replay server lives: that is its own doing.
        "trainer": "sleep 2; exit 0",
    }
    assert make_supervisor(run_dir, stop, roles, workers=3, max_restarts=2).run() == 0
    out = capfd.readouterr().out
    assert out.count("worker_0 ended with SIGKILL: restart in 0.01 s") > 5
    assert "worker_0 ended with SIGKILL and is given up" not in out
    assert "worker_1 ended with SIGKILL and is given up after 2 restarts" in out
    assert "worker_2 ended with SIGABRT and is given up after 2 restarts" in out


def test_clients_that_abort_because_their_server_was_killed_have_not_failed(
    run_dir: Path, stop: StopFlag, fast: None, capfd: pytest.CaptureFixture[str]
) -> None:
    roles = {
        "replay": at_work("replay", "sleep 0.2; kill -9 $$"),
        "worker": at_work("worker_0", "sleep 0.1; kill -ABRT $$"),
        "trainer": "sleep 2; exit 0",
    }
    supervisor: Any = make_supervisor(run_dir, stop, roles, max_restarts=2)
    supervisor._rules._failures._replay_died_at = time.monotonic()
    assert supervisor.run() == 0
    out = capfd.readouterr().out
    assert out.count("worker_0 ended with SIGABRT: restart in") > 3
    assert "given up" not in out


def test_a_run_directory_that_is_removed_ends_the_run_in_words(
    run_dir: Path, stop: StopFlag, fast: None, capfd: pytest.CaptureFixture[str]
) -> None:
    once_up(run_dir, lambda: run_dir.rename(run_dir.with_name("elsewhere")))
    began = time.monotonic()
    assert make_supervisor(run_dir, stop, {"trainer": STUBBORN}, save_deadline_secs=60.0).run() == 1
    assert time.monotonic() - began < 10.0, "nothing can be saved: nobody is waited for"
    out = capfd.readouterr().out
    assert f"error: the run directory {run_dir} was removed or replaced while the run was going: put it back" in out


def test_a_role_that_cannot_be_started_is_tried_again_and_given_up_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(role_process, "_FIRST_BACKOFF_SECS", 0.0)

    def start_nothing(environ: Any, path: Path) -> Any:
        raise OSError(errno.EMFILE, "Too many open files")

    role = RoleProcess("worker_0", start_nothing, {}, tmp_path / "log", max_restarts=2)
    codes = []
    while role.restart_later() is not None:
        codes.append(role.poll())
    assert codes == [1, 1]
    assert role.given_up
    assert role.last_lines() == ["it can't be started: [Errno 24] Too many open files"]


def test_a_failure_says_that_the_disk_cannot_be_written(
    run_dir: Path, stop: StopFlag, fast: None, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, content: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    assert make_supervisor(run_dir, stop, {"trainer": CRASHES}, max_restarts=1).run() == 1
    assert f"({run_dir}/logs can't be written: No space left on device)" in capfd.readouterr().out


# Whole supervisor processes.


class FakeRun:
    """A supervisor process of its own."""

    def __init__(self, exp_dir: Path, prefix: str, roles: dict[str, str] | None = None, **more: Any) -> None:
        self.exp_dir = exp_dir
        programs = {"replay": SAVES, "trainer": SAVES, "worker": SAVES} | (roles or {})
        spec = {"exp_dir": str(exp_dir), "prefix": prefix, "roles": programs, **more}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.fake_run", json.dumps(spec)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # Tests may be run under nohup.
        )

    def wait_until_up(self) -> None:
        deadline = time.monotonic() + 30.0
        logs = [self.exp_dir / "logs" / f"{role}.log" for role in ("replay", "trainer", "worker_0")]
        while not all(path.exists() and "up" in path.read_text() for path in logs):
            assert self.process.poll() is None, self.process.communicate()[0]
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def end(self, number: int | None = None) -> tuple[int, str]:
        if number is not None:
            self.process.send_signal(number)
        out, _ = self.process.communicate(timeout=60)
        return self.process.returncode, out


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., FakeRun]]:
    prefix = f"test_{uuid.uuid4().hex}"
    runs: list[FakeRun] = []

    def start_run(name: str, **more: Any) -> FakeRun:
        runs.append(FakeRun(tmp_path / name, prefix, **more))
        return runs[-1]

    yield start_run
    for run in runs:
        if run.process.poll() is None:
            run.process.terminate()
            run.process.communicate(timeout=60)
        assert list(processes_of_run(run.exp_dir)) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_every_stop_signal_saves(start: Callable[..., FakeRun], number: int) -> None:
    run = start("a")
    run.wait_until_up()
    code, out = run.end(number)
    assert code == 75, out
    assert "everything is saved, the same command goes on" in out
    assert "saved" in log(run.exp_dir, "trainer")


def test_a_second_run_in_the_same_directory_is_refused(start: Callable[..., FakeRun]) -> None:
    first = start("a")
    first.wait_until_up()
    code, out = start("a").end()
    assert code == 2
    assert f"is in use by the run with pid {first.process.pid} on {socket.gethostname()}" in out
    assert "Traceback" not in out and first.process.poll() is None


def test_a_run_after_a_killed_supervisor_waits_for_its_roles_and_goes_on(start: Callable[..., FakeRun]) -> None:
    # No PDEATHSIG in these roles: they outlive their supervisor, as one that is saving does for a while.
    first = start("a")
    first.wait_until_up()
    orphans = list(processes_of_run(first.exp_dir))
    assert first.end(signal.SIGKILL)[0] == -signal.SIGKILL
    assert len(orphans) >= 3 and len(list(processes_of_run(first.exp_dir))) >= 3
    second = start("a", roles={"trainer": "echo up; " + DONE}, save_deadline_secs=1.0)
    code, out = second.end()
    assert code == 0, out
    assert "of an earlier start of this run to save and end" in out


def test_two_runs_take_different_cpus_and_ports(start: Callable[..., FakeRun]) -> None:
    cpus = {"cpus": list(range(7)), "share": False}
    first = start("a", **cpus)
    first.wait_until_up()
    second = start("b", **cpus)
    second.wait_until_up()
    third = start("c", **cpus)
    code, out = third.end()
    assert code == 2
    assert "needs 3 CPUs, 1 of 7 are free" in out and f"pid {first.process.pid}" in out
    plans = [json.loads((run.exp_dir / "status.json").read_text())["plan"] for run in (first, second)]
    assert plans[0] == {"replay": [0], "trainer": [1], "worker_0": [2]}
    assert plans[1] == {"replay": [3], "trainer": [4], "worker_0": [5]}
    ports = [re.search(r"port (\d+)", run.end(signal.SIGTERM)[1]) for run in (first, second)]
    assert ports[0] and ports[1] and ports[0][1] != ports[1][1]


def test_a_port_that_another_run_holds_is_refused_by_name(start: Callable[..., FakeRun]) -> None:
    with socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::", 0))
        port = probe.getsockname()[1]
    first = start("a", port=port)
    first.wait_until_up()
    code, out = start("b", port=port).end()
    assert code == 2 and f"SAC_REVERB_PORT={port} is in use by pid {first.process.pid}" in out


def test_a_role_that_says_it_is_hopeless_ends_the_run_in_its_words(
    run_dir: Path, stop: StopFlag, fast: None, capfd: pytest.CaptureFixture[str]
) -> None:
    program = "echo chatter; echo 'error: training diverged twice' >&2; exit 3"
    assert make_supervisor(run_dir, stop, {"trainer": program}).run() == 1
    assert "error: trainer can't go on\n  error: training diverged twice\n" in capfd.readouterr().out
    assert log(run_dir, "trainer").count("chatter") == 1


@pytest.mark.parametrize(("deterministic", "starts"), [(True, 2), (False, 1)])
def test_a_deterministic_run_starts_all_anew_with_the_trainer(
    run_dir: Path, stop: StopFlag, fast: None, deterministic: bool, starts: int
) -> None:
    # The trainer fails once and is then done.
    trainer = f"sleep 0.5; test -e {run_dir}/failed && exit 0; touch {run_dir}/failed; exit 1"
    waits = "echo begins; trap 'exit 75' TERM; while :; do sleep 0.02; done"
    roles = {"trainer": trainer, "replay": waits, "worker": waits}
    assert make_supervisor(run_dir, stop, roles, deterministic=deterministic).run() == 0
    assert [log(run_dir, role).count("begins") for role in ("replay", "worker_0")] == [starts, starts]


def test_a_role_that_lacks_memory_is_named_and_not_started_for_ever(
    run_dir: Path, stop: StopFlag, fast: None, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kills = iter(range(100))
    monkeypatch.setattr(memory, "oom_kills", lambda: next(kills))
    program = beating(run_dir, "updating") + "kill -9 $$"
    assert make_supervisor(run_dir, stop, {"trainer": program}, max_restarts=1).run() == 1
    assert "the kernel has killed a process for lack of memory" in capfd.readouterr().out


def test_a_deterministic_run_can_not_go_on_without_a_worker(
    run_dir: Path, stop: StopFlag, fast: None, capfd: pytest.CaptureFixture[str]
) -> None:
    roles = {"worker_0": CRASHES}
    assert make_supervisor(run_dir, stop, roles, workers=2, max_restarts=1, deterministic=True).run() == 1
    assert "given up after 1 restarts in a row: SAC_DETERMINISTIC=1" in capfd.readouterr().out


def test_a_run_whose_workers_all_join_from_elsewhere_waits_for_them(
    run_dir: Path, stop: StopFlag, fast: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_rules, "_ALL_WORKERS_GONE_SECS", 0.1)
    assert make_supervisor(run_dir, stop, {"trainer": "sleep 0.8; exit 0"}, workers=0).run() == 0


def test_a_run_whose_trainer_is_elsewhere_ends_with_it(
    run_dir: Path, stop: StopFlag, fast: None, capfd: pytest.CaptureFixture[str]
) -> None:
    beat = '{"state": "done", "remote": true, "num_iter": 3, "time": \'$(date +%s)\'}'
    gateway = f"sleep 0.3; echo '{beat}' > {run_dir}/heartbeats/trainer.json; {SAVES}"
    roles = {"gateway": gateway}
    assert make_supervisor(run_dir, stop, roles, workers=0, gateway_port=0, local_trainer=False).run() == 0
    status = read_status(run_dir / "status.json")
    assert status is not None and status["run"]["state"] == "done"
    assert set(status["roles"]) == {"replay", "gateway", "trainer"} and status["roles"]["trainer"]["num_iter"] == 3
    assert "saved" in log(run_dir, "replay"), "told to stop, it saves"
    assert "results" not in capfd.readouterr().out, "they are where the trainer is"


def test_a_stop_of_a_run_whose_trainer_is_elsewhere_saves(run_dir: Path, stop: StopFlag, fast: None) -> None:
    once_up(run_dir, stop.set, roles=("replay", "gateway"))
    roles = {"gateway": SAVES}
    assert make_supervisor(run_dir, stop, roles, workers=0, gateway_port=0, local_trainer=False).run() == 75
    assert "saved" in log(run_dir, "replay")


def test_a_trainer_alone_gets_the_server_and_ends_when_its_run_is_stopped(
    run_dir: Path, stop: StopFlag, fast: None, capfd: pytest.CaptureFixture[str]
) -> None:
    roles = {"trainer": "echo at $SAC_SERVER; sleep 0.3; exit 75"}
    assert make_supervisor(run_dir, stop, roles, workers=0, trainer_server="node7:8443").run() == 75
    assert log(run_dir, "trainer").count("at node7:8443") == 1, "and is not started again"
    assert "the run was stopped where its replay server is" in capfd.readouterr().out


def test_a_trainer_alone_that_is_done_has_the_results(
    run_dir: Path, stop: StopFlag, fast: None, capfd: pytest.CaptureFixture[str]
) -> None:
    assert make_supervisor(run_dir, stop, {"trainer": DONE}, workers=0, trainer_server="node7:8443").run() == 0
    assert "results" in capfd.readouterr().out


def test_a_run_goes_on_without_own_workers_while_others_are_at_work(
    run_dir: Path, stop: StopFlag, fast: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_rules, "_ALL_WORKERS_GONE_SECS", 0.1)
    beat = '{"state": "collecting", "time": \'$(date +%s)\'}'
    tells = f"sleep 0.2; echo '{beat}' > {run_dir}/heartbeats/worker_7.json; exit 0"
    roles = {"trainer": "sleep 1.2; exit 0", "worker": tells}
    assert make_supervisor(run_dir, stop, roles).run() == 0


def test_status_tells_where_the_replay_server_listens(run_dir: Path, stop: StopFlag) -> None:
    assert make_supervisor(run_dir, stop, {}).status.to_json()["run"]["port"] == 8123
