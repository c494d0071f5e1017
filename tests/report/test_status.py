"""What is told of runs from their files alone."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.statuses import NOW, beat, status
from tfagents_system.report import status as status_module
from tfagents_system.report.status import (
    fault_lines,
    fault_words,
    format_number,
    format_secs,
    main,
    plain_table,
    problems,
    state_of,
)
from tfagents_system.report.terminal import progress_line
from tfagents_system.run_files.heartbeat import write_status
from tfagents_system.run_files.run_lock import RunLock
from tfagents_system.run_files.run_paths import RunPaths

HOST = socket.gethostname()
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def at_now(monkeypatch):
    monkeypatch.setattr(status_module.time, "time", lambda: NOW)


def put(folder, content):
    folder.mkdir(parents=True, exist_ok=True)
    write_status(RunPaths(folder).status_json, content)
    return folder


def test_roles_that_do_not_answer_are_named_together_with_the_longest_silence():
    content = status(workers=8)
    for i in range(6):
        content["roles"][f"worker_{i}"] = beat("collecting", age=61 + i)
    content["roles"]["worker_6"] = beat("collecting", age=59)
    assert problems(content, NOW) == ["worker_0, worker_1, worker_2, worker_3 and 2 more: no heartbeat for 01:06"]


def test_down_errors_and_long_waits_are_named_and_what_has_ended_is_not():
    content = status(workers=5)
    content["roles"]["worker_0"] |= {"alive": False}
    content["roles"]["worker_1"] = beat("waiting", since=75, waiting_for="the replay server at localhost:8008")
    content["roles"]["worker_2"] = beat("waiting", since=59, waiting_for="the next policy")
    content["roles"]["worker_3"] = beat("stopped", age=500, alive=False)
    content["roles"]["trainer"] |= {"save_error": "a checkpoint can't be written to logs/x: Input/output error"}
    assert problems(content, NOW) == [
        "trainer: a checkpoint can't be written to logs/x: Input/output error",
        "worker_0: down",
        "worker_1: waiting 01:15 for the replay server at localhost:8008",
    ]


def test_a_full_disk_is_the_problem_and_not_the_heartbeats_that_it_lacks():
    content = status()
    content["roles"] = {role: beat("waiting", age=300, since=300) for role in content["roles"]}
    content["roles"]["worker_1"] |= {"alive": False}
    content["run"]["unwritable"] = "No space left on device"
    full = (
        "/logs/pendulum can't be written (No space left on device): free space, or make it writable; until then nothing"
    )
    assert problems(content, NOW) == [f"{full} is saved", "worker_1: down"]
    assert progress_line(content, content).endswith(f"  ! {full} is saved  ! worker_1: down")


def test_a_run_whose_status_cant_be_written_is_not_dead(tmp_path, capsys):
    content = status()
    content["run"] |= {"updated_at": time.time() - 305.0, "pid": os.getpid(), "host": HOST}
    run = put(tmp_path / "pendulum", content)
    with RunLock(RunPaths(run)) as lock:
        lock.touch()
        assert main([str(run)]) == 0
        out = capsys.readouterr().out
        assert "/pendulum can't be written (no status for 05:05): free space" in out and " running " in out
        os.utime(RunPaths(run).lock, (0.0, time.time() - 31.0))
        assert main([str(run)]) == 0
        assert " dead " in (out := capsys.readouterr().out) and "is gone: last heard of 05:05 ago" in out


@pytest.mark.parametrize("state", ["running", "done", "stopped", "failed"])
def test_lost_workers_are_told_whatever_became_of_the_run(state):
    """Those that were given up; and once it has ended, those that failed before their first step."""
    content = status(state=state, workers=5)
    content["roles"]["worker_0"] = beat("stopped", alive=False, restarts=10, given_up=True, failed_with="SIGKILL")
    failed = {"failed_with": "exit code 1 (error: no licence)", "restarts": 2}
    content["roles"]["worker_1"] |= {"steps": 7, **failed}
    content["roles"]["worker_2"] |= {"steps": 0, **failed, "has_worked": True}
    content["roles"]["worker_3"] |= {"kind": "expert", "steps": 0, **failed}
    content["roles"]["worker_4"] |= {"kind": "eval", "steps": 0, **failed}
    told = ["worker_0: given up after 10 restarts: SIGKILL"]
    if state != "running":
        told += ["worker_3 (expert): collected nothing in 3 starts, last failure: exit code 1 (error: no licence)"]
    assert problems(content, NOW) == told


@pytest.mark.parametrize(
    ("state", "shown", "told"),
    [
        ("done", "done", []),
        ("stopped", "stopped", []),
        ("failed", "failed", ["trainer refused its input"]),
        ("running", "dead", ["the supervisor (pid 4242 on node7) is gone: last heard of 01:01 ago"]),
    ],
)
def test_only_a_run_that_has_not_ended_is_dead_when_it_is_silent(state, shown, told):
    content = status(state=state, age=61)
    content["run"]["message"] = "trainer refused its input"
    assert state_of(content, NOW) == shown and problems(content, NOW) == told
    assert state_of(status(state=state, age=59), NOW) == state


@pytest.mark.parametrize(
    ("faults", "evaluating", "episodes", "words"),
    [
        (0, 0, 100, ""),
        (1, 0, 1, "1 environment fault"),
        (8, 0, 161, "8 environment faults"),
        (8, 0, 160, "8 environment faults (they have cut 5% of its episodes)"),
        (8, 6, 10, "8 environment faults"),  # Those of evaluation cut nothing that is trained on.
        (1234, 0, 2468, "1,234 environment faults (they have cut 50% of its episodes)"),
    ],
)
def test_faults_of_environments_are_counted_over_workers_with_their_share(faults, evaluating, episodes, words):
    content = status(state="done")
    content["roles"]["worker_0"] |= {"env_faults": faults, "eval_env_faults": evaluating, "episodes": episodes}
    content["roles"]["worker_1"] |= {"env_faults": 0, "eval_env_faults": 0, "episodes": 0, "last_env_fault": "x"}
    assert fault_words(content) == words
    told = [f"{words}, last: x"] if words else []
    assert fault_lines(content) == problems(content, NOW) == told
    assert not words or progress_line(content).endswith(f"  ! {words}")
    content["roles"]["worker_0"] |= {"last_env_fault": "y", "last_env_fault_at": NOW - 75.0}
    assert problems(content, NOW) == ([f"{words}, last 01:15 ago: y"] if words else [])


def test_the_table_has_every_number_in_its_column():
    content = status(name="minitaur")
    content["roles"]["worker_0"]["restarts"] = 2
    content["roles"]["replay"]["restarts"] = 1
    header, line = plain_table([content], NOW).splitlines()
    assert [cell.strip() for cell in header.split("  ") if cell.strip()] == list(status_module.COLUMNS)
    cells = [cell.strip() for cell in line.split("  ") if cell.strip()]
    progress = ["minitaur", "running", "12/25", "4,800", "181", "172"]
    assert cells == [*progress, "-310.2 ± 40.1", "-298.7", "01:10", "3"]


def test_runs_of_a_sweep_are_told_apart_by_the_settings_that_differ(tmp_path, capsys, at_now):
    folders = []
    for k, discount in enumerate((0.9, 0.99)):
        folders.append(put(tmp_path / f"exp_task_{k}", status(name=f"exp_task_{k}")))
        overrides = {"params": {"discount": discount, "tau": 1}, "config": {"env": {"mass": 2}}, "variables": {}}
        (folders[-1] / "run.json").write_text(json.dumps({"overrides": overrides}))
    folders.append(put(tmp_path / "plain", status(name="plain")))
    (folders[-1] / "run.json").write_text('{"overrides": 3')
    beside = tmp_path / "compare.csv"  # As `compare` leaves it beside the runs.
    beside.touch()
    assert main([str(folder) for folder in (*folders[:2], beside)]) == 0
    out, err = capsys.readouterr()
    header, *lines = out.splitlines()
    assert err == "" and header.split()[:3] == ["run", "settings", "state"]
    told = [line.split()[:3] for line in lines]
    assert told == [["exp_task_0", "discount=0.9", "running"], ["exp_task_1", "discount=0.99", "running"]]
    assert main([*map(str, folders)]) == 0
    _, first, _, last = capsys.readouterr().out.splitlines()
    assert "discount=0.9 tau=1 config.env.mass=2 " in first and last.split()[:2] == ["plain", "running"]
    for alike in ([folders[0]], [folders[0], folders[0]]):
        assert main([str(folder) for folder in alike]) == 0
        assert "settings" not in capsys.readouterr().out
    assert main([str(folders[0]), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["settings"] == {"discount": 0.9, "tau": 1, "config.env.mass": 2}


def test_numbers_and_times_are_short():
    numbers = [None, 12345, 0, -310.21, 0.05432, -12345.6, 1e308, -(10**18)]
    short = ["-", "12,345", "0", "-310.2", "0.0543", "-12,346", "1e+308", "-1e+18"]
    assert [format_number(value) for value in numbers] == short
    times = [None, -3.0, 70.9, 7384, 47 * 3600, 5 * 86400 + 7300]
    assert [format_secs(secs) for secs in times] == ["-", "00:00", "01:10", "2:03:04", "47:00:00", "5d 02h"]


def test_runs_are_named_by_their_folders_and_what_is_none_is_told(tmp_path, capsys, monkeypatch, at_now):
    def told(*arguments):
        code = main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        names = [line.split()[0] for line in out.splitlines()[1:]]
        return code, names, err.replace(f"{tmp_path}/", "").splitlines()

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SAC_LOGS_DIR", "runs")
    remedy = "give a run directory, such as logs/reacher"
    assert told() == (2, [], ["error: there is no run in runs: give run directories, such as logs/*"])
    for name in ("runs/arm", "runs/arm_before_1", "leg/b/arm"):  # One was moved aside.
        put(tmp_path / name, status(name="arm"))
    for name in ("runs/no_run", "runs/arm_array", "runs/arm_tasks", "runs/arm_inputs"):
        (tmp_path / name).mkdir()
    torn = put(tmp_path / "torn", status())
    RunPaths(torn).status_json.write_text('{"run": {"na')
    (tmp_path / "x.txt").touch()
    assert told() == (0, ["arm", "arm_before_1"], [])
    assert told(*tmp_path.glob("runs/arm*"))[2] == [], "folders of arrays and tasks are passed over"
    code, names, notes = told("runs/arm", "leg/b/arm", "torn", "nowhere", "x.txt")
    assert (code, names) == (0, ["runs/arm", "leg/b/arm"])
    assert notes == [
        "note: torn has no status.json: give a run directory, or wait until this one's first start is checked",
        f"note: nowhere does not exist: {remedy}",
        f"note: x.txt is a file: {remedy}",
    ]
    (tmp_path / "runs/arm_array/run.json").touch()
    code, names, errors = told("runs/arm_array")
    assert code == 2 and "arm_array has no status.json: give" in errors[0], "a run of that name"


def test_a_start_under_way_is_shown_before_its_supervisor_has_written(tmp_path, capsys):
    """It holds the directory's lock, and the status is still the one of the start before."""
    content = status(state="done")
    content["run"] |= {"pid": 1, "host": "node7", "updated_at": 5.0}
    paths = RunPaths(tmp_path / "run")
    paths.exp_dir.mkdir()
    write_status(paths.status_json, content)

    def shown():
        assert main([str(paths.exp_dir)]) == 0
        _, cells, *problems = capsys.readouterr().out.splitlines()
        assert not problems
        return tuple(cells.split()[:3])

    assert shown() == ("run", "done", "12/25")
    with RunLock(paths):
        assert shown() == ("run", "starting", "12/25")
        write_status(paths.status_json, {**content, "run": {**content["run"], "pid": os.getpid(), "host": HOST}})
        assert shown() == ("run", "done", "12/25"), "of the one that has the lock: it draws its results"
    paths.lock.write_text(json.dumps({"pid": 3, "host": HOST, "started_at": 5.0}))  # It was killed.
    assert shown() == ("run", "done", "12/25")


def test_follow_ends_when_all_runs_have_ended(tmp_path, capsys, monkeypatch, at_now):
    first, second = put(tmp_path / "a", status(name="a")), put(tmp_path / "b", status(name="b", age=100))
    slept = []

    def sleep(secs):
        slept.append(secs)
        if len(slept) == 2:
            put(first, status(name="a", state="done"))

    monkeypatch.setattr(status_module.time, "sleep", sleep)
    assert main([str(first), str(second), "--follow"]) == 0
    assert slept == [2.0, 2.0]
    assert capsys.readouterr().out.count("updates/s") == 3


def test_a_full_disk_is_told_once(tmp_path, capsys):
    blocked = tmp_path / "file"
    blocked.write_text("")
    for _ in range(3):
        write_status(blocked / "status.json", status())
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_it_answers_without_tensorflow_and_numpy(tmp_path):
    content = status()
    content["run"]["updated_at"] = time.time()
    run = put(tmp_path / "pendulum", content)
    program = (
        "import sys; from tfagents_system.report.status import main; code = main(sys.argv[1:]); "
        "assert not {'tensorflow', 'numpy', 'reverb', 'matplotlib', 'rich'} & set(sys.modules); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(run)], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "pendulum" in done.stdout
