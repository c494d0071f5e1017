"""Roles that fail: restarts, roles that are given up, and what counts as a failure."""

from __future__ import annotations

import json
import time
import types
from pathlib import Path

import pytest

from tests.support.fake_run import CRASHES, SAVES
from tests.support.supervised import (
    log,
    make_supervisor,
    once,
    status_of,
    waits_for,
    waits_for_lines,
    waits_for_up,
    works,
)
from tfagents_system.launch.role_process import KEPT_BYTES
from tfagents_system.machine.signals import StopFlag
from tfagents_system.report.status import problems
from tfagents_system.role import Role
from tfagents_system.run_files.run_paths import RunPaths

pytestmark = pytest.mark.usefixtures("fast")


def test_a_role_that_crashed_or_hung_is_restarted_and_its_last_words_logged(
    run_dir: Path, stop: StopFlag, capfd: pytest.CaptureFixture[str]
) -> None:
    crashes = CRASHES.replace("; exit", "; echo a package says goodbye; exit")
    hung = "worker 1: environment 0 (about step 12 of episode 3) has not returned for 300 s"
    traces = f"printf '%-399s\\nTimeout!\\n  File \"my_env.py\", line 12 in step\\n' '{hung}'"
    hangs = f"{traces} > {run_dir}/heartbeats/worker_1.hang; exit 1"
    roles = {
        f"worker_{k}": f"mkdir {run_dir}/first_{k} 2>/dev/null && {{ {fails}; }}; {SAVES}"
        for k, fails in enumerate((crashes, hangs))
    }
    roles["trainer"] = waits_for_up("worker_0", "worker_1") + "exit 0"
    assert make_supervisor(run_dir, stop, roles, workers=2).run() == 0
    out = capfd.readouterr().out
    for role, why in (("worker_0", "ValueError: no luck"), ("worker_1", hung)):
        line = f"{role} ended with exit code 1 ({why}): restart 1 of at most 10 in a row, in 0.01 s"
        assert line in out and line in log(run_dir, role)
    assert f'{hung}\nTimeout!\n  File "my_env.py", line 12 in step\n' in log(run_dir, "worker_1")
    status = status_of(run_dir)
    assert status["roles"]["worker_0"]["restarts"] == 1


def test_a_worker_that_is_given_up_leaves_the_others_going_and_stays_in_status_and_summary(
    run_dir: Path, stop: StopFlag, capfd: pytest.CaptureFixture[str]
) -> None:
    trainer = waits_for_up("worker_1") + waits_for(run_dir / "given_up") + "exit 0"
    supervisor = make_supervisor(run_dir, stop, {"worker_0": CRASHES, "trainer": trainer}, workers=2, max_restarts=2)
    once(lambda: supervisor.roles["worker_0"].given_up, (run_dir / "given_up").touch)
    assert supervisor.run() == 0
    out = capfd.readouterr().out
    given_up = "worker_0 ended with exit code 1 (ValueError: no luck) and is given up after 2 restarts in a row"
    assert f"{given_up}; the other workers continue" in out
    assert log(run_dir, "worker_0").count("about to crash") == 3
    assert "saved" in log(run_dir, "worker_1")
    status = status_of(run_dir)
    assert [status["roles"][role]["given_up"] for role in ("worker_0", "worker_1", "trainer")] == [True, False, False]
    sentence = "worker_0: given up after 2 restarts: exit code 1 (ValueError: no luck)"
    assert sentence in out.splitlines()[-3:]
    assert problems(status, time.time()) == [sentence]


def test_no_worker_left_fails_the_run(run_dir: Path, stop: StopFlag, capfd: pytest.CaptureFixture[str]) -> None:
    roles = {"worker": waits_for_up("trainer", "replay") + CRASHES}
    assert make_supervisor(run_dir, stop, roles, workers=2, max_restarts=1).run() == 1
    assert "error: every worker was given up: exit code 1 (ValueError: no luck)\n" in capfd.readouterr().out
    assert "saved" in log(run_dir, "trainer") and "saved" in log(run_dir, "replay")


def test_workers_of_a_script_of_ones_own_have_joined(run_dir: Path, stop: StopFlag) -> None:
    supervisor = make_supervisor(run_dir, stop, {})
    folder = supervisor.paths.heartbeats
    folder.mkdir(parents=True)
    for name, state, age_secs, is_at_work in (
        ("worker_0", "collecting", 0.0, False),  # The supervisor's own.
        ("trainer_2", "collecting", 0.0, False),
        ("worker_3", "stopped", 0.0, False),
        ("worker_3", "collecting", 100.0, False),
        ("worker_3", "collecting", 0.0, True),
    ):
        beat = {"state": state, "time": time.time() - age_secs}
        (folder / f"{name}.json").write_text(json.dumps(beat))
        assert supervisor.has_joined_workers() == is_at_work, (name, beat)


@pytest.mark.parametrize("role", ["trainer", "replay"])
def test_a_trainer_or_replay_server_that_is_given_up_fails_the_run(
    run_dir: Path, stop: StopFlag, capfd: pytest.CaptureFixture[str], role: str
) -> None:
    program = "for i in $(seq 20); do echo line $i; done; exit 4"
    assert make_supervisor(run_dir, stop, {role: program}, max_restarts=1).run() == 1
    out = capfd.readouterr().out
    assert f"error: {role} ended with exit code 4 (line 20) and is given up after 1 restarts in a row" in out
    assert "line 5\n" not in out and "  line 6\n" in out and "  line 20\n" in out  # the last 15
    status = status_of(run_dir)
    assert status["run"]["state"] == "failed" and status["run"]["exit_code"] == 1


def test_what_a_role_prints_is_bounded_and_its_last_words_are_told(
    run_dir: Path, stop: StopFlag, capfd: pytest.CaptureFixture[str]
) -> None:
    prints = "yes 'step of a simulator' | head -c 9000000; echo; echo 'ValueError: no luck'; exit 1"
    assert make_supervisor(run_dir, stop, {"trainer": prints}, max_restarts=0).run() == 1
    text = log(run_dir, "trainer")
    assert (
        len(text) <= 3 * KEPT_BYTES and "what was printed here is left out" in text and "ValueError: no luck\n" in text
    )
    assert "  ValueError: no luck\n" in capfd.readouterr().out


def test_a_trainer_that_is_to_save_reads_that_the_server_has_ended(run_dir: Path, stop: StopFlag) -> None:
    saves = f"trap 'cp {run_dir}/status.json {run_dir}/told.json; exit 75' TERM; echo up; while :; do sleep 0.05; done"
    roles = {"trainer": saves, "replay": waits_for_up("trainer") + "exit 4"}
    assert make_supervisor(run_dir, stop, roles, max_restarts=0).run() == 1
    trainer = types.SimpleNamespace(paths=RunPaths(run_dir), stop=stop)
    assert not Role.is_server_gone(trainer)  # type: ignore[arg-type]
    stop.set()
    (run_dir / "told.json").replace(run_dir / "status.json")
    assert Role.is_server_gone(trainer)  # type: ignore[arg-type]
    (run_dir / "status.json").write_text('{"roles": {"replay": {"alive": true}}}')
    assert not Role.is_server_gone(trainer)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("role", "exit_code", "code", "told"),
    [
        ("worker_0", 2, 2, "worker_0 refused its input"),
        ("gateway", 2, 2, "gateway refused its input"),
        ("trainer", 3, 1, "trainer can't continue"),
    ],
)
def test_what_is_hopeless_ends_the_run_with_its_reason_and_without_a_restart(
    run_dir: Path, stop: StopFlag, capfd: pytest.CaptureFixture[str], role: str, exit_code: int, code: int, told: str
) -> None:
    program = f"echo chatter; echo 'error: mass must be positive' >&2; exit {exit_code}"
    port = 0 if role == "gateway" else None
    assert make_supervisor(run_dir, stop, {role: program}, gateway_port=port).run() == code
    assert f"error: {told} (error: mass must be positive)\n  error: mass must be positive\n" in capfd.readouterr().out
    assert log(run_dir, role).count("chatter") == 1


def test_what_a_signal_ends_or_starts_anew_is_never_given_up_if_it_had_got_further(
    run_dir: Path, stop: StopFlag, capfd: pytest.CaptureFixture[str]
) -> None:
    roles = {
        "worker_0": works("worker_0", "steps", "7") + "sleep 0.02; kill -9 $$",
        "worker_1": "kill -9 $$",  # Before it has done anything: whatever kills it will do so for ever.
        "worker_2": works("worker_2", "steps", "7") + "echo 'error: 5,000 MiB' >&2; exit 76",
        "worker_3": works("worker_3", "steps", "7") + "exit 1",  # Its own failure counts.
        "worker_4": works("worker_4", "steps", "7") + "ulimit -c 0; kill -SEGV $$",  # So does that of its simulator.
        "trainer": waits_for(run_dir / "enough") + "exit 0",
    }
    supervisor = make_supervisor(run_dir, stop, roles, workers=5, max_restarts=2)

    def is_enough() -> bool:
        killed, stillborn, anew, *failing = (supervisor.roles[f"worker_{k}"] for k in range(5))
        return min(killed.restarts, anew.restarts) > 4 and all(worker.given_up for worker in (stillborn, *failing))

    once(is_enough, (run_dir / "enough").touch)
    assert supervisor.run() == 0
    out = capfd.readouterr().out
    by_sigkill = "SIGKILL (by somebody, or by the kernel for lack of memory)"
    assert out.count(f"worker_0 ended with {by_sigkill}: restart in 0.01 s") > 4
    assert out.count("worker_2 ended with exit code 76 (error: 5,000 MiB): restart in 0.01 s") > 4
    given_up = "is given up after 2 restarts in a row; the other workers continue"
    assert f"worker_1 ended with {by_sigkill} and {given_up}" in out
    assert f"worker_1: given up after 2 restarts: {by_sigkill}" in out
    assert "worker_3 ended with exit code 1 and is given up after 2 restarts" in out
    assert "worker_4 ended with SIGSEGV and is given up after 2 restarts" in out


@pytest.mark.parametrize(("role", "key"), [("trainer", "train_step"), ("replay", "env_steps")])
def test_of_trainer_and_replay_server_further_is_beyond_all_processes_before(
    run_dir: Path, stop: StopFlag, role: str, key: str
) -> None:
    program = f"echo life; {works(role, key, '40')}kill -9 $$"
    assert make_supervisor(run_dir, stop, {role: program}, max_restarts=2).run() == 1
    assert log(run_dir, role).count("life") == 4, "the first one got to 40, three more no further"


@pytest.mark.parametrize(("deterministic", "starts"), [(True, 2), (False, 1)])
def test_a_deterministic_run_starts_all_anew_with_the_trainer(
    run_dir: Path, stop: StopFlag, deterministic: bool, starts: int
) -> None:
    # The trainer fails once and is then done, each time when the others have begun.
    lives = run_dir / "lives"
    trainer = f"{waits_for_lines(lives, 2)} if mkdir {run_dir}/failed; then exit 1; fi; "
    trainer += f"{waits_for_lines(lives, 2 * starts)} exit 0"
    waits = f"trap 'exit 75' TERM; echo begins; echo life >> {lives}; while :; do sleep 0.02; done"
    roles = {"trainer": trainer, "replay": waits, "worker": waits}
    assert make_supervisor(run_dir, stop, roles, deterministic=deterministic).run() == 0
    assert [log(run_dir, role).count("begins") for role in ("replay", "worker_0")] == [starts, starts]
