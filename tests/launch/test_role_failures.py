"""Roles that fail: restarts, failures alike that end the run, roles that are given up."""

from __future__ import annotations

import threading
import time
import types
from pathlib import Path
from typing import Any

import pytest

from tests.support.fake_run import CRASHES, SAVES
from tests.support.supervised import (
    at_work,
    log,
    make_supervisor,
    touch_once,
    waits_for,
    waits_for_lines,
    waits_for_up,
    works,
)
from tests.support.waiting import until
from tfagents_system.launch import role_process
from tfagents_system.machine import memory
from tfagents_system.machine.signals import StopFlag
from tfagents_system.report.status import problems
from tfagents_system.run_files.heartbeat import read_status


def test_a_crashed_role_is_restarted_and_the_restart_logged(
    run_dir: Path, stop: StopFlag, fast: None, capfd: pytest.CaptureFixture[str]
) -> None:
    crashes = CRASHES.replace("; exit", "; echo a package says goodbye; exit")
    worker = f"mkdir {run_dir}/first 2>/dev/null && {{ {crashes}; }}; {SAVES}"
    roles = {"trainer": waits_for_up("worker_0") + "exit 0", "worker": worker}
    assert make_supervisor(run_dir, stop, roles).run() == 0
    line = "worker_0 ended with exit code 1 (ValueError: no luck): restart 1 of at most 10 in a row, in 0.01 s"
    assert line in capfd.readouterr().out and line in log(run_dir, "worker_0")
    status = read_status(run_dir / "status.json")
    assert status is not None and status["roles"]["worker_0"]["restarts"] == 1


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
    lives = run_dir / "lives"
    own_life = f"$(grep -c life {run_dir}/logs/worker_$SLURM_PROCID.log)"
    fails = f"echo life; echo life >> {lives}; {waits_for_lines(lives, f'$((3 * {own_life}))')}echo no licence; exit 1"
    assert make_supervisor(run_dir, stop, {"worker": fails}, workers=3).run() == 1
    assert "has ended 3 times in the same way" in capfd.readouterr().out
    assert all(3 <= log(run_dir, f"worker_{k}").count("life") <= 4 for k in range(3))
    # One that has come through after three failures.
    late_lives, other_lives = run_dir / "late", run_dir / "other"
    late = f"echo life >> {late_lives}; [ $(wc -l < {late_lives}) -le 3 ] && exit 1; {at_work('worker_1', SAVES)}"
    fails = waits_for(run_dir / "heartbeats" / "worker_1.json") + f"echo life >> {other_lives}; echo no licence; exit 1"
    roles = {"worker_0": fails, "worker_1": late, "trainer": waits_for_lines(other_lives, 5) + "exit 0"}
    assert make_supervisor(run_dir, stop, roles, workers=2).run() == 0
    assert len(late_lives.read_text().split()) == 4 and len(other_lives.read_text().split()) >= 5


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


def test_a_worker_that_is_given_up_leaves_the_others_going_and_stays_in_status_and_summary(
    run_dir: Path, stop: StopFlag, fast: None, capfd: pytest.CaptureFixture[str]
) -> None:
    trainer = waits_for_up("worker_1") + waits_for(run_dir / "given_up") + "exit 0"
    supervisor = make_supervisor(run_dir, stop, {"worker_0": CRASHES, "trainer": trainer}, workers=2, max_restarts=2)
    touch_once(run_dir / "given_up", lambda: supervisor.roles["worker_0"].given_up)
    assert supervisor.run() == 0
    out = capfd.readouterr().out
    assert "worker_0 ended with exit code 1 and is given up after 2 restarts in a row; the other workers go on" in out
    assert log(run_dir, "worker_0").count("about to crash") == 3
    assert "saved" in log(run_dir, "worker_1")
    status = read_status(run_dir / "status.json")
    assert status is not None
    assert [status["roles"][role]["given_up"] for role in ("worker_0", "worker_1", "trainer")] == [True, False, False]
    sentence = "worker_0: given up after 2 restarts: exit code 1 (ValueError: no luck)"
    assert sentence in out.splitlines()[-3:]
    assert problems(status, time.time()) == [sentence]


def test_a_worker_that_hung_is_told_with_its_line_and_its_traces_are_in_its_log(
    run_dir: Path, stop: StopFlag, fast: None, capfd: pytest.CaptureFixture[str]
) -> None:
    line = "worker 0: environment 0 (about step 12 of episode 3) has not returned for 300 s"
    hang = f"printf '%-399s\\nTimeout!\\n  File \"my_env.py\", line 12 in step\\n' '{line}'"
    worker = f"mkdir {run_dir}/first 2>/dev/null && {{ {hang} > {run_dir}/heartbeats/worker_0.hang; exit 1; }}; {SAVES}"
    roles = {"trainer": waits_for_up("worker_0") + "exit 0", "worker": worker}
    assert make_supervisor(run_dir, stop, roles).run() == 0
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

    monkeypatch.setattr(role_process, "_RENEW_SECS", 30.0)
    (run_dir / "soon").touch()
    (run_dir / "lives").unlink()
    worker = f"echo life >> {run_dir}/lives; echo 'error: 5,000 MiB' >&2; exit 76"
    assert make_supervisor(run_dir, stop, {"worker": worker}, max_restarts=2).run() == 1
    assert (run_dir / "lives").read_text() == "life\n" * 3
    assert "worker_0: given up after 2 restarts: exit code 76 (error: 5,000 MiB)" in capfd.readouterr().out


def test_no_worker_left_fails_the_run(
    run_dir: Path, stop: StopFlag, fast: None, capfd: pytest.CaptureFixture[str]
) -> None:
    roles = {"worker": waits_for_up("trainer", "replay") + CRASHES}
    assert make_supervisor(run_dir, stop, roles, workers=2, max_restarts=1).run() == 1
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


def test_a_role_that_others_kill_at_its_work_is_never_given_up(
    run_dir: Path, stop: StopFlag, fast: None, capfd: pytest.CaptureFixture[str]
) -> None:
    roles = {
        "worker_0": at_work("worker_0", "sleep 0.02; kill -9 $$"),
        "worker_1": "kill -9 $$",  # Before it has begun: whatever kills it will do so for ever.
        "worker_2": at_work("worker_2", "kill -ABRT $$"),  # And the replay server lives: that is its own doing.
        "trainer": f"until [ -e {run_dir}/enough ]; do sleep 0.02; done; exit 0",
    }
    supervisor = make_supervisor(run_dir, stop, roles, workers=3, max_restarts=2)

    def is_enough() -> bool:
        killed, *others = (supervisor.roles[f"worker_{k}"] for k in range(3))
        return killed.restarts > 5 and all(role.given_up for role in others)

    touch_once(run_dir / "enough", is_enough)
    assert supervisor.run() == 0
    out = capfd.readouterr().out
    assert out.count("worker_0 ended with SIGKILL: restart in 0.01 s") > 5
    assert "worker_0 ended with SIGKILL and is given up" not in out
    assert "worker_1 ended with SIGKILL and is given up after 2 restarts" in out
    assert "worker_2 ended with SIGABRT and is given up after 2 restarts" in out


def test_a_kill_for_lack_of_memory_is_blamed_for_what_dies_with_it_alone(
    run_dir: Path, stop: StopFlag, fast: None, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kills, looks, now, kill = [0], [0], [100.0], run_dir / "kill"

    def oom_kills() -> int:
        looks[0] += 1
        return kills[0]

    monkeypatch.setattr(memory, "oom_kills", oom_kills)
    monkeypatch.setattr(memory, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(memory, "_LOOK_SECS", 0.0)
    dies = f"until [ -e {kill} ]; do sleep 0.02; done; rm {kill}; kill -9 $$"
    ends = f"until [ -e {run_dir}/enough ]; do sleep 0.02; done; exit 0"
    supervisor = make_supervisor(run_dir, stop, {"worker_0": at_work("worker_0", dies), "trainer": ends})

    def kill_twice() -> None:
        worker = supervisor.roles["worker_0"]
        until(lambda: supervisor.is_at_work("worker_0"), 30.0, "at work")
        kills[0] += 1  # Of something else in the job.
        before = looks[0]
        until(lambda: looks[0] >= before + 2, 30.0, "it is seen")
        now[0] += 1.01 * memory._RECENT_SECS
        kill.touch()
        until(lambda: worker.restarts == 1, 30.0, "restarted")
        kills[0] += 1
        kill.touch()
        until(lambda: worker.restarts == 2, 30.0, "restarted")
        (run_dir / "enough").touch()

    thread = threading.Thread(target=kill_twice)
    thread.start()
    assert supervisor.run() == 0
    thread.join()
    out = capfd.readouterr().out
    assert out.count("worker_0 ended with SIGKILL: restart in") == 1
    lacks = "worker_0 ended with SIGKILL (the kernel has killed a process for lack of memory): restart 1 of"
    assert out.count(lacks) == 1


def test_clients_that_abort_because_their_server_was_killed_have_not_failed(
    run_dir: Path, stop: StopFlag, fast: None, capfd: pytest.CaptureFixture[str]
) -> None:
    roles = {
        "replay": at_work("replay", "sleep 0.2; kill -9 $$"),
        "worker": at_work("worker_0", "sleep 0.1; kill -ABRT $$"),
        "trainer": waits_for(run_dir / "enough") + "exit 0",
    }
    supervisor: Any = make_supervisor(run_dir, stop, roles, max_restarts=2)
    supervisor._rules._replay_died_at = time.monotonic()
    touch_once(run_dir / "enough", lambda: supervisor.roles["worker_0"].restarts > 3)
    assert supervisor.run() == 0
    out = capfd.readouterr().out
    assert out.count("worker_0 ended with SIGABRT: restart in") > 3
    assert "given up" not in out


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
    # The trainer fails once and is then done, each time when the others have begun.
    lives = run_dir / "lives"
    trainer = f"{waits_for_lines(lives, 2)} if mkdir {run_dir}/failed; then exit 1; fi; "
    trainer += f"{waits_for_lines(lives, 2 * starts)} exit 0"
    waits = f"trap 'exit 75' TERM; echo begins; echo life >> {lives}; while :; do sleep 0.02; done"
    roles = {"trainer": trainer, "replay": waits, "worker": waits}
    assert make_supervisor(run_dir, stop, roles, deterministic=deterministic).run() == 0
    assert [log(run_dir, role).count("begins") for role in ("replay", "worker_0")] == [starts, starts]


def test_a_deterministic_run_can_not_go_on_without_a_worker(
    run_dir: Path, stop: StopFlag, fast: None, capfd: pytest.CaptureFixture[str]
) -> None:
    roles = {"worker_0": CRASHES}
    assert make_supervisor(run_dir, stop, roles, workers=2, max_restarts=1, deterministic=True).run() == 1
    assert "given up after 1 restarts in a row: SAC_DETERMINISTIC=1" in capfd.readouterr().out
